"""Reading a log producer's log: its end, and which segments no record will ever name.

Of what was opened, all between two OPENs belongs to the first of them, and nothing of it can come
later. A write job opens nothing: its fate is the first record that names it.
"""

from collections.abc import Iterable

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    FencedError,
    InvalidInputError,
)
from durable_shuffle.shuffle.log.log_producer_records import (
    LOG_PRODUCER_RECORDS,
    Append,
    End,
    LogProducerRecord,
    ProducerOpen,
    Progress,
    RunAbort,
)
from durable_shuffle.shuffle.log.records import Closed
from durable_shuffle.shuffle.log.slot_log import SlotLog, slots_listed
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.log.typed_log import Tail, TypedLog

AppenderTail = Tail[LogProducerRecord]


def appender_log(slots: SlotLog) -> TypedLog[LogProducerRecord, AppenderTail]:
    """Return an appender's log. Its last record is all that the next one goes on from."""
    return TypedLog(slots, LOG_PRODUCER_RECORDS, Tail.followed_by)


def read_tail(slots: SlotLog, hint: int = 0) -> AppenderTail:
    """Return the end of the log in a few requests; `hint` is a slot that may be near it.

    Not guaranteed: that it is still the end when this returns; nor that no earlier slot is lost.

    Raises:
        CorruptDataError: the end that was found is a slot that lost its record.
    """
    end = slots.find_end(hint)
    slots.refuse_hole(end)
    return appender_log(slots).tail_at(end)


def whole_tail(slots: SlotLog) -> AppenderTail:
    """Return the end of a log of which no slot is missing. Lists the log once.

    Raises:
        CorruptDataError: a slot in the middle of the log is empty; names it.
    """
    return appender_log(slots).tail_at(slots.whole_end())


def refuse_holes(stage: StageHandle) -> None:
    """Make sure that no log of the stage's producers lost a slot before its last. Lists once.

    Raises:
        CorruptDataError: names the slot.
    """
    listed = slots_listed(info.key for info in stage.storage.list(stage.path.producers_prefix))
    for producer in range(stage.describe.producers):
        log = stage.producer_log(producer)
        log.refuse_holes(listed.get(log.prefix, set()))


def producer_status(stage: StageHandle, producer: int) -> LogProducerRecord | None:
    """Return the newest record of a log producer; None if it never opened.

    For reports and for launchers that ask whether a producer has ended; it fences nobody.
    """
    return read_tail(stage.producer_log(producer)).last


def decides(record: LogProducerRecord | None, attempt: str) -> bool:
    """Return whether a record decides if a write job counts. The first one that does is its fate.

    It names the job (APPEND_PARTS says that it counts, ABORT that it never will), or is CLOSED.
    """
    match record:
        case RunAbort():
            return record.attempt == attempt
        case Append() | ProducerOpen():
            return record.record_id == attempt
    return isinstance(record, Closed)


def settled_segments(
    records: Iterable[LogProducerRecord],
) -> tuple[set[tuple[str, int]], set[str]]:
    """Return the named segments as (attempt, number) and the attempts that will name no more.

    Pure. Segments of such an attempt that are not named may be deleted by anybody; all others stay.
    """
    named: set[tuple[str, int]] = set()
    finished: set[str] = set()
    current: str | None = None
    for record in records:
        if isinstance(record, Append):
            named.update((record.record_id, segment.number) for segment in record.segments)
            if record.record_id != current:  # a write job appends once
                finished.add(record.record_id)
        elif isinstance(record, RunAbort):
            finished.add(record.attempt)
        elif current is not None:  # OPEN, END and CLOSED all stop the attempt before them
            finished.add(current)
        if isinstance(record, ProducerOpen):
            current = record.record_id
    return named, finished


def successor(
    stage: StageHandle,
    producer: int,
    last: LogProducerRecord | None,
    record_id: str,
    generation: int,
) -> ProducerOpen:
    """Return the OPEN that may follow `last`, with its whole state. Pure."""
    where = f"producer={producer} stage={stage.path.prefix!r}"
    if last is None:
        ordinals = bytes(8 * len(stage.subpartitions_of(producer)))
        return ProducerOpen(record_id, 1, generation, producer, Progress(b"", "", ordinals))
    if isinstance(last, Closed):
        raise FencedError(f"the stage was released, cause={last.cause}: {where}; stop")
    if last.generation > generation:
        raise FencedError(
            f"a newer launch writes, generation {last.generation} against {generation}: {where}; "
            "stop"
        )
    if last.progress.stream is not None:
        raise InvalidInputError(
            f"streaming queries or write jobs write here, a pipeline cannot: {where}; give another "
            "stage"
        )
    if last.record_id == record_id:
        raise InvalidInputError(f"an OPEN needs an id of its own, {record_id} was used: {where}")
    if isinstance(last, End) and last.mode != "SUSPEND":
        raise InvalidInputError(f"the producer has ended with {last.mode}: {where}")
    if isinstance(last, ProducerOpen) and last.producer != producer:
        raise CorruptDataError(f"an OPEN of producer {last.producer} stands in the log: {where}")
    return ProducerOpen(record_id, last.epoch + 1, generation, producer, last.progress)
