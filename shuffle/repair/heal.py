"""Check a stage whose readers met damage, and mend it without a person.

Strategy: what `verify --repair` does for one stage (`stage.py`), with two differences. A missing
object is looked for again before it counts as lost, because a replica may lag and a gateway may
answer wrongly. And if nothing is found, a DAMAGED without producers says so, so that the next
driver does not check the stage again.

It decides nothing about running producers: that is `recovery/resume.py`.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from durable_shuffle.serialization.errors import ConflictError, UnavailableError
from durable_shuffle.shuffle.base.clock import Clock, IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.records import Damaged
from durable_shuffle.shuffle.log.stage import StageState, open_stage, read_state, stage_log
from durable_shuffle.shuffle.read.asked_again import AskedAgain
from durable_shuffle.shuffle.repair.stage import UNSURE, StageRepair, repair_stage
from durable_shuffle.shuffle.storage.contract import Storage

T = TypeVar("T")

_TRIES = 3
_LOOKS = 3
"""How often an object is asked for before it counts as lost."""
_SETTLE_SECONDS = 3.0
"""The last of these looks is at least so much later than the first miss of the whole check."""


def heal_stage(
    storage: Storage,
    path: StagePath,
    settings: Settings,
    *,
    ids: IdSource,
    generation: int,
    clock: Clock,
) -> StageRepair:
    """Check the stage and mend what can be mended; then no SUSPECT counts any more.

    Exception: with the outcome "not repaired" nothing is changed.

    Raises:
        UnavailableError: not everything could be read, so nothing was decided.
        NotFoundError: the stage was released meanwhile.
        Also what `repair_stage` raises.
    """
    looking = SecondLook(storage, path, clock)
    done: StageRepair | None = None
    for tries_left in reversed(range(_TRIES)):
        with suppress(*[ConflictError] * bool(tries_left)):  # another repair came first
            done = repair_stage(looking, path, settings, ids=ids, generation=generation)
            break
    assert done is not None  # else the last try has raised
    if done.outcome != "not repaired":
        _settle(storage, path, ids, generation)
    elif done.why.startswith(UNSURE):
        raise UnavailableError(f"a damaged stage could not be checked: {done.why}")
    return done


def _settle(storage: Storage, path: StagePath, ids: IdSource, generation: int) -> None:
    stage = open_stage(storage, path)
    record = Damaged(ids.new_id(), generation, b"", b"")

    def unless_settled(state: StageState) -> Damaged | None:
        return record if state.suspect and state.over is None else None

    stage_log(stage).decide(read_state(stage), unless_settled)


class SecondLook(AskedAgain):
    """Asks again, with pauses, for a segment or an index that seems to be missing."""

    def __init__(self, storage: Storage, path: StagePath, clock: Clock) -> None:
        super().__init__(storage, _LOOKS, self._wait)
        self._path, self._clock, self._lock = path, clock, threading.Lock()
        self._until: float | None = None

    def _call(self, verb: str, keys: tuple[str, ...], request: Callable[[], T]) -> T:
        if not all(map(self._path.names_data, keys)):
            return request()  # the end of a log is an empty slot
        return super()._call(verb, keys, request)

    def _wait(self, looks_left: int) -> None:
        """Wait for part of the time to settle, which begins with the first miss."""
        now = self._clock.monotonic()
        with self._lock:
            if self._until is None:
                self._until = now + _SETTLE_SECONDS
            left = max(0.0, self._until - now)
        self._clock.sleep(left / looks_left)
