"""How a driver meets damage in sealed stages: it checks what readers noted, and mends it.

`StageStore` asks for the state of a stage here. If a reader has noted damage, the stage is checked
and mended first (`shuffle/repair/heal.py`). Then `recovery/resume.py` decides as after `verify
--repair`: producers that are lost run again, or the stage starts afresh.

An action that goes through this library and meets damage is tried again with `healing`. It must ask
for its stages anew, because the stage that it had names the lost data.
"""

import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from durable_shuffle.jobs.stages.report import MET_DAMAGE
from durable_shuffle.serialization.errors import CorruptDataError, NotFoundError
from durable_shuffle.shuffle.base.clock import Clock, IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.producer_log import CommittedAttempt
from durable_shuffle.shuffle.log.stage import (
    SEALED,
    StageHandle,
    StageState,
    read_state,
    require_seal,
)
from durable_shuffle.shuffle.log.typed_log import NOTHING
from durable_shuffle.shuffle.seal.rewrite import replace_commits, sealed_commits

if TYPE_CHECKING:
    from durable_shuffle.shuffle.repair.stage import StageRepair

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

ROUNDS = 3
"""How often an action that meets damage is tried again in one run."""
_DAMAGE = (CorruptDataError, NotFoundError)
_IN_TEXT = re.compile("|".join(f"{kind.__module__}.{kind.__name__}" for kind in _DAMAGE))
"""Finds our error in what Spark makes of the error of a task."""


def healing(act: Callable[[], T], mend: Callable[[], bool]) -> T:
    """Return `act()`; if that meets damage which `mend` mends, call it again, up to 3 times.

    Args:
        act: has no effect that a second call would double.
        mend: returns whether anything was noted and mended. Its stages may have to run again.
    """
    for rounds_left in reversed(range(ROUNDS + 1)):
        try:
            return act()
        except Exception as error:
            is_damage = isinstance(error, _DAMAGE) or _IN_TEXT.search(str(error))
            if not rounds_left or not is_damage or not mend():
                raise
            _LOG.warning("damage was met and looked after; trying again")
    raise AssertionError  # the last round returns or raises


class Healing:
    """What one driver found out about damaged stages. Threads may share it."""

    def __init__(self, log: JobLog, settings: Settings, clock: Clock, ids: IdSource) -> None:
        self._log, self._settings, self._clock, self._ids = log, settings, clock, ids
        self._lock = threading.Lock()
        self._done: dict[str, StageRepair] = {}
        """Prefix of a stage -> what was done last."""

    def state(self, stage: StageHandle, asked: Mapping[int, bytes | None] = NOTHING) -> StageState:
        """Return the state of a stage, after damage that a reader noted was checked and mended.

        Args:
            asked: as for `read_state`.

        Raises:
            UnavailableError: the stage could not be checked, so nothing was decided.
            FencedError: a newer driver claimed the job.
        """
        state = read_state(stage, ahead=SEALED, asked=asked)
        if not state.suspect or state.over is not None or not self._settings.heal:
            return state
        with self._lock:  # of two threads, the second finds nothing left to do
            state = read_state(stage)
            if state.suspect and not self.hopeless(stage):
                self._heal(stage, state.suspect)
                state = read_state(stage)
        return state

    def mend(self, stages: Iterable[StageHandle]) -> bool:
        """Check and mend the stages in which readers noted damage; return whether there is one."""
        if not self._settings.heal:
            return False
        noted = [stage for stage in stages if (state := read_state(stage)).suspect or state.damaged]
        for stage in noted:
            self.state(stage)
        return bool(noted)

    def _heal(self, stage: StageHandle, suspect: str) -> None:
        from durable_shuffle.shuffle.repair.heal import heal_stage  # few drivers meet damage

        self._log.check_owner()
        prefix = stage.path.prefix
        _LOG.warning("a reader of %s met damage (%s); checking the stage", prefix, suspect)
        done = heal_stage(
            stage.storage,
            stage.path,
            self._settings,
            ids=self._ids,
            generation=self._log.generation,
            clock=self._clock,
        )
        self._done[prefix] = done
        _LOG.warning("%s: %s", prefix, healed_text(done))

    def hopeless(self, stage: StageHandle) -> str:
        """Return why a damaged stage cannot be mended; "" if it can, or is not damaged."""
        done = self._done.get(stage.path.prefix)
        if done is None or done.outcome != "not repaired":
            return ""
        return f"damaged: {done.why}"

    def told(self, stage: StageHandle) -> str:
        """Return what was found and mended in this stage by this driver, for people; "" if nothing
        was noted."""
        done = self._done.get(stage.path.prefix)
        return "" if done is None else healed_text(done)

    def replace(self, stage: StageHandle, commits: Mapping[int, CommittedAttempt]) -> None:
        """Replace the COMMITs of damaged producers, which `stage` names, by new ones."""
        state = read_state(stage)
        if state.seal is None or state.release is not None:
            require_seal(stage)  # raises if there is no seal
            return
        instead = {
            p: commits[p] for p, slot in stage.damaged.items() if state.damaged.get(p) == slot
        }
        if instead:  # otherwise another repair came first
            replace_commits(
                stage,
                state,
                sealed_commits(stage, state.seal, self._settings),
                instead,
                generation=self._log.generation,
                record_id=self._ids.new_id(),
                cause="damaged map tasks ran again",
                settings=self._settings,
            )


def healed_text(done: "StageRepair") -> str:
    """Say what a check of a stage, which a reader had asked for, came to."""
    if done.outcome == "intact":
        return f"{MET_DAMAGE}, and a check of all data found none"
    parts = [f"data of {len(done.rebuilt)} map tasks was restored from copies"] * bool(done.rebuilt)
    parts += ["the index was written again"] * (done.index and not done.rebuilt)
    parts += [f"data of {len(done.run_again)} map tasks is lost"] * bool(done.run_again)
    parts += [f"it cannot be mended: {done.why}"] * (done.outcome == "not repaired")
    return f"{MET_DAMAGE}: " + ", ".join(parts or [done.outcome])
