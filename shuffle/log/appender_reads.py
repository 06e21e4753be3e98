"""Reading the log of an appender, of which released slots may be gone.

RELEASE_UPTO in the stage's log says of each producer below which slot all data is deleted. Below
the last of these slots a pipeline's coordinator deletes APPENDs and ENDs; OPENs stay. So an empty
slot is the end of the log only if it lies above that slot. Whoever looks for the end, or reads from
the beginning, does it here. Why this is enough: docs/internals/decisions/009.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from durable_shuffle.serialization.arrow_schemas import later_schema
from durable_shuffle.serialization.errors import ConflictError, CorruptDataError
from durable_shuffle.shuffle.base.side_by_side import each_at_once
from durable_shuffle.shuffle.log.appender_log import (
    Append,
    AppenderOpen,
    AppenderRecord,
    AppenderTail,
    appender_log,
)
from durable_shuffle.shuffle.log.records import Closed
from durable_shuffle.shuffle.log.slot_log import SlotLog, slots_listed
from durable_shuffle.shuffle.log.stage import StageHandle, StageState, read_state
from durable_shuffle.shuffle.log.typed_log import Tail

R = TypeVar("R")

_LISTED_AT_ONCE = 64
"""Of so many logs each is listed alone, to leave out what was released."""


def needed_from(stage: StageHandle, state: StageState | None = None) -> tuple[int, ...]:
    """Return per producer the first slot whose record anybody still needs.

    It is the last released one, whose record says what a successor goes on from; 0 if none is.

    Args:
        state: of the stage, if the caller has just read it.
    """
    released = (state or read_state(stage)).released_below(stage.describe.producers)
    return tuple(max(0, slot - 1) for slot in released)


def gone_below(stage: StageHandle, state: StageState | None = None) -> tuple[int, ...]:
    """Return per producer the slot below which only OPENs are sure to be there; never goes back.

    The slot itself holds a record, and so does every one behind it.

    Args:
        state: of the stage, if the caller has just read it.
    """
    deleted = (state or read_state(stage)).deleted_below(stage.describe.producers)
    return tuple(gone_of(deleted, producer) for producer in range(len(deleted)))


def gone_of(deleted: Sequence[int], producer: int) -> int:
    """Return what `gone_below` says of a producer, given the slots of RELEASE_UPTO."""
    return max(0, deleted[producer] - 1) if producer < len(deleted) else 0


def read_tail(stage: StageHandle, producer: int, hint: int = 0) -> AppenderTail:
    """Return the end of a producer's log in a few requests; `hint` is a slot that may be near it.

    Not guaranteed: that it is still the end when this returns; nor that no earlier slot is lost.

    Raises:
        CorruptDataError: the end that was found is a slot that lost its record.
    """
    log = appender_log(stage.producer_log(producer))

    def look(first: int) -> AppenderTail:
        end = log.slots.find_end(hint, first)
        return Tail(end, log.record(end - 1) if end else None)

    tail = _surely(stage, producer, 0, look)
    log.slots.refuse_hole(tail.next_slot)
    return tail


def whole_tail(stage: StageHandle, producer: int) -> AppenderTail:
    """Return the end of a producer's log of which no slot is missing that anybody still needs.

    Lists once what stands behind released slots.

    Raises:
        CorruptDataError: a slot in the middle of the log is empty; names it.
    """
    log = appender_log(stage.producer_log(producer))
    first = needed_from(stage)[producer]
    return _surely(stage, producer, first, lambda at: log.tail_at(log.slots.whole_end(at)))


def _surely(
    stage: StageHandle, producer: int, first: int, look: Callable[[int], AppenderTail]
) -> AppenderTail:
    """Return the end that `look` finds, unless its slot is empty because it is gone.

    Args:
        look: returns the end, given a slot below which it need not look.
    """
    while True:  # ends: each turn begins at a higher slot
        tail: AppenderTail = Tail(0, None)
        damage: CorruptDataError | None = None
        try:
            tail = look(first)
            if tail.last is not None and not loses_slots(tail.last):
                return tail
        except CorruptDataError as error:
            damage = error
        gone = gone_below(stage)[producer]
        if damage is None and tail.next_slot > gone and tail.last is not None:
            return tail
        if damage is None and not gone and not tail.next_slot:
            return tail  # nobody has opened it
        if gone <= first:
            slot = stage.producer_log(producer).key(max(gone, tail.next_slot - 1))
            raise damage or CorruptDataError(f"a slot lost its record: key={slot!r}")
        first = gone


def loses_slots(record: AppenderRecord) -> bool:
    """Return whether slots of the log may go: a pipeline's producer writes it, and it is open."""
    return not isinstance(record, Closed) and record.after.query is None


def refuse_holes(stage: StageHandle, state: StageState | None = None) -> None:
    """Make sure that no log of the stage's producers lost a slot that anybody still needs.

    Lists once what stands behind released slots; where nothing was released, all logs in one go.

    Args:
        state: of the stage, if the caller has just read it.

    Raises:
        CorruptDataError: names the slot.
    """
    logs = [stage.producer_log(p) for p in range(stage.describe.producers)]
    firsts = needed_from(stage, state)
    while True:  # ends: each turn begins at higher slots
        try:
            _refuse_holes(stage, logs, firsts)
        except CorruptDataError:
            now = needed_from(stage)
            if now == firsts:
                raise
            firsts = now
        else:
            return


def _refuse_holes(stage: StageHandle, logs: Sequence[SlotLog], firsts: Sequence[int]) -> None:
    if any(firsts) and len(logs) <= _LISTED_AT_ONCE:
        found = each_at_once(lambda p: logs[p].listed(firsts[p]), range(len(logs)))
    else:
        listed = slots_listed(info.key for info in stage.storage.list(stage.path.producers_prefix))
        found = [listed.get(log.prefix, set()) for log in logs]
    for log, slots, first in zip(logs, found, firsts, strict=True):
        log.refuse_holes(slots, first)


def kept_records(
    stage: StageHandle, producer: int, state: StageState | None = None
) -> Iterator[tuple[int, AppenderRecord]]:
    """Yield (slot, record) of all records that stand: OPENs of any age, and all behind what went.

    Args:
        state: of the stage, if the caller has just read it.

    Raises:
        ConflictError: slots went while it was read; try again.
    """
    log = appender_log(stage.producer_log(producer))
    first = gone_below(stage, state)[producer]
    if not first:
        yield from log.records()
        return
    old = {slot: log.record(slot) for slot in sorted(log.slots.listed()) if slot <= first}
    opens = followed({slot: record for slot, record in old.items() if record is not None}, first)
    yield from ((slot, record) for slot, record in opens.items() if slot < first)
    slot = -1
    for slot, record in log.records(first):
        yield slot, record
    if gone_below(stage)[producer] > slot:
        raise ConflictError(f"slots of {log.slots.prefix!r} went while it was read; try again")


def followed(records: Mapping[int, R], first: int) -> dict[int, R]:
    """Return a log's records; of those below a slot only OPENs that others followed. Pure.

    An attempt that took a slot that was gone for the end won an OPEN there and gave it up. Its
    epoch is that of a later OPEN, or above that of the record in slot `first`.

    Args:
        records: of an appender, by slot, ascending.
        first: below it slots may be gone; 0 if none are.
    """
    most = getattr(getattr(records.get(first), "after", None), "epoch", math.inf)
    newest: dict[int, int] = {}
    for slot, record in records.items():
        if slot < first and isinstance(record, AppenderOpen) and record.after.epoch <= most:
            newest[record.after.epoch] = slot
    kept = set(newest.values())
    return {slot: record for slot, record in records.items() if slot >= first or slot in kept}


def position_in(slots: SlotLog, slot: int) -> bytes:
    """Return the source position that an earlier record of a producer holds.

    Raises:
        CorruptDataError: there is no such record.
    """
    record = appender_log(slots).record(slot)
    if record is None or isinstance(record, Closed):
        raise CorruptDataError(f"a slot lost its record: key={slots.key(slot)!r}")
    return record.after.source_position


def producer_status(stage: StageHandle, producer: int) -> AppenderRecord | None:
    """Return the newest record of a log producer; None if it never opened.

    For reports and for launchers that ask whether a producer has ended; it fences nobody.
    """
    return read_tail(stage, producer).last


def newest_schema(stage: StageHandle, producer: int, tail: AppenderTail) -> bytes:
    """Return the schema message of the rows that were appended last, else the stage's.

    Raises:
        CorruptDataError: it does not fit the stage's; names the APPEND.
    """
    log = appender_log(stage.producer_log(producer))
    slot, record = tail.next_slot - 1, tail.last
    while record is not None and not isinstance(record, Append):
        slot -= 1
        record = log.record(slot) if slot >= 0 else None
    if record is None or not record.schema:
        return stage.describe.schema
    later_schema(record.schema, stage.schema, name=log.key(slot))
    return record.schema
