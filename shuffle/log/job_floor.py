"""The floor of a job log: below it, slots may be gone.

A floor is a slot and what the slots below it add up to. It stands beside the log, before any slot
below it goes. A slot that reads as empty is thus the end of the log, or lies below a floor; a
create may win a slot that was won before, and readers may meet such litter. So whoever read
slots, or won or lost one, looks at the floor: if it stands behind the first of them, they read
again from the floor. `JobRecords` does that for all who use a job log. No clock and no listing is
trusted; why that is enough: `tests/protocol_model/protocol/floor_model.py`.

Floors stand under two names and are replaced one after the other, a missing one first, so that one
of them can always be seen. Before one is replaced, and before a slot goes, a mark is put that is
never deleted. A reader asks for the mark and both floors side by side. Without a mark nothing was
gone. With it, a reader that sees neither floor met both while they were replaced, and looks again
(`tests/protocol_model/protocol/floor_reads_model.py`).

The DELETE of a driver that died or stood still may land on a floor that a newer driver has put
since. So slots go only below both floors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.base.side_by_side import side_by_side
from durable_shuffle.shuffle.log.job_records import JobRecord
from durable_shuffle.shuffle.log.job_state import JobSnapshot, JobState, snapshot_of, state_at
from durable_shuffle.shuffle.log.layout import job_floors_prefix
from durable_shuffle.shuffle.log.slot_log import SlotLog, Won
from durable_shuffle.shuffle.log.typed_log import NOTHING, TypedLog
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.local import is_far

NAMES = (0, 1)
_MARK = 2
"""Of slot 0, so it says nothing but that floors were put."""
_MOST_LOOKS = 8
"""Each raise of the floors can hide both from two looks at most."""


@dataclass(frozen=True, slots=True)
class JobFloor:
    """The state below a slot; lower slots may be gone."""

    KIND: ClassVar[str] = "FLOOR"
    record_id: str
    slot: int
    state: JobSnapshot


JOB_FLOORS: RecordCodec[JobFloor] = RecordCodec((JobFloor,))


def floors(storage: Storage, job: str) -> SlotLog:
    """Return the two floors, as slots 0 and 1, and the mark. It is no log: they are replaced."""
    return SlotLog(storage, job_floors_prefix(job))


def read_floor(storage: Storage, job: str, name: int) -> JobState | None:
    """Return the state that a floor holds, None if there is none under this name.

    Raises:
        CorruptDataError, IncompatibleError: it cannot be used.
    """
    slots = floors(storage, job)
    data = slots.read(name)
    if data is None:
        return None
    floor = JOB_FLOORS.decode(data, slots.key(name))
    return state_at(job, floor.slot, floor.state)


def newest_floor(storage: Storage, job: str) -> JobState | None:
    """Return the state below which slots may be gone; None if all are there.

    Raises:
        CorruptDataError, IncompatibleError: a floor cannot be used; lower slots may be gone.
    """
    (one, other), far = NAMES, is_far(storage)

    def look() -> list[JobState]:
        both = side_by_side(
            lambda: read_floor(storage, job, one),
            lambda: read_floor(storage, job, other),
            far=far,
        )
        return [state for state in both if state is not None]

    slots = floors(storage, job)
    found, mark = side_by_side(look, lambda: slots.read(_MARK), far=far)
    # each of them stands above every slot that is gone, so one that is seen is enough
    looks = 0
    while mark is not None and not found:
        if looks == _MOST_LOOKS:
            raise CorruptDataError(
                f"both floors of the job log are missing, and its first slots may be gone: "
                f"{slots.key(one)!r} {slots.key(other)!r}: run `durable-shuffle verify`"
            )
        looks, found = looks + 1, look()
    return max(found, key=lambda state: state.next_slot, default=None)


def put_floor(storage: Storage, state: JobState, record_id: str) -> bool:
    """Raise both floors to `state.next_slot`; return whether one was raised.

    Only the owner of the job calls this.
    """
    slots, raised = floors(storage, state.job), False
    mark = JOB_FLOORS.encode(JobFloor(record_id, 0, snapshot_of(JobState(state.job))))
    floor = JOB_FLOORS.encode(JobFloor(record_id, state.next_slot, snapshot_of(state)))
    for name in sorted(NAMES, key=lambda name: slots.read(name) is not None):
        old = read_floor(storage, state.job, name)  # a newer driver may have put it since
        if old is not None and old.next_slot >= state.next_slot:
            continue
        if old is not None:
            slots.append(_MARK, mark)
            storage.delete([slots.key(name)])
        raised |= isinstance(slots.append(name, floor), Won)
    slots.append(_MARK, mark)
    return raised


def lower_floor(storage: Storage, job: str) -> int:
    """Return the slot below which both floors let slots go; 0 if one of them is missing."""
    standing = [read_floor(storage, job, name) for name in NAMES]
    return min(0 if floor is None else floor.next_slot for floor in standing)


class _BehindFloorError(Exception):
    """What was read, or lost to, may be litter."""

    def __init__(self, floor: JobState) -> None:
        self.floor = floor


@dataclass(frozen=True, slots=True)
class JobRecords(TypedLog[JobRecord, JobState]):
    """A job's log. To read it use `read_job`, which begins at the newest snapshot."""

    job: str

    def read(
        self,
        state: JobState,
        until: Callable[[JobState], bool] = lambda _: False,
        ahead: int = 0,
        *,
        first_too: bool = False,
        asked: Mapping[int, bytes | None] = NOTHING,
        sure: int | None = None,
    ) -> JobState:
        """As `TypedLog.read`, from the floor if that is higher.

        Args:
            sure: slot below which it is certain that no slot of `state` was gone when it was read
                or won; default all of them.
        """
        while True:  # ends: each turn begins at a higher floor
            end = TypedLog.read(self, state, until, ahead, first_too=first_too, asked=asked)
            floor = self.floor_above(state.next_slot if sure is None else sure)
            if floor is None:
                return end
            state, asked, sure = floor, NOTHING, None

    def decide(
        self, state: JobState, propose: Callable[[JobState], JobRecord | None]
    ) -> tuple[JobState, JobRecord | None]:
        """As `TypedLog.decide`. What won or stopped in slots that are gone does not count."""
        while True:  # ends: each turn begins at a higher floor
            sure = state.next_slot

            def proposed(met: JobState) -> JobRecord | None:
                nonlocal sure
                if met.next_slot > sure:  # others won slots
                    self._refuse_litter(sure)
                    sure = met.next_slot
                return propose(met)

            try:
                decided = TypedLog.decide(self, state, proposed)
                self._refuse_litter(sure)
            except _BehindFloorError as error:
                state = self.read(error.floor)
            else:
                return decided

    def _refuse_litter(self, slot: int) -> None:
        floor = self.floor_above(slot)
        if floor is not None:
            raise _BehindFloorError(floor)

    def floor_above(self, slot: int) -> JobState | None:
        """Return the floor if it is above a slot; None if no slot was gone from there on."""
        floor = newest_floor(self.slots.storage, self.job)
        return None if floor is None or floor.next_slot <= slot else floor
