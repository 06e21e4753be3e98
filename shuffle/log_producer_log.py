"""Reading a log producer's log: its last record, and which segments no record will ever name.

An attempt's APPENDs go only to its own last slot + 1, so what stands between two OPENs belongs to
the first of them, and nothing of it can come later.
"""

from collections.abc import Iterable

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    FencedError,
    InvalidInputError,
)
from durable_shuffle.shuffle.log_producer_records import (
    LOG_PRODUCER_RECORDS,
    Append,
    End,
    LogProducerRecord,
    ProducerOpen,
    Progress,
)
from durable_shuffle.shuffle.records import Closed
from durable_shuffle.shuffle.slot_log import SlotLog
from durable_shuffle.shuffle.stage import StageHandle


def decode(log: SlotLog, slot: int, data: bytes) -> LogProducerRecord:
    """Decode one record of a log producer's log."""
    record = LOG_PRODUCER_RECORDS.decode(data, name=log.key(slot))
    if not isinstance(record, (ProducerOpen, Append, End, Closed)):
        raise CorruptDataError(f"not a log producer's record: key={log.key(slot)!r}")
    return record


def read_last(log: SlotLog) -> tuple[int, LogProducerRecord | None]:
    """Return the first empty slot and the record before it, None if the log is empty.

    Not guaranteed: that it is still the last one when this returns.
    """
    end = log.find_end()
    if end == 0:
        return 0, None
    data = log.read(end - 1)
    if data is None:
        raise CorruptDataError(f"a slot lost its record: key={log.key(end - 1)!r}")
    return end, decode(log, end - 1, data)


def producer_status(stage: StageHandle, producer: int) -> LogProducerRecord | None:
    """Return the newest record of a log producer; None if it never opened.

    For reports and for launchers that ask whether a producer has ended; it fences nobody.
    """
    return read_last(stage.producer_log(producer))[1]


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
    if last.record_id == record_id:
        raise InvalidInputError(f"an OPEN needs an id of its own, {record_id} was used: {where}")
    if isinstance(last, End) and last.mode != "SUSPEND":
        raise InvalidInputError(f"the producer has ended with {last.mode}: {where}")
    if isinstance(last, ProducerOpen) and last.producer != producer:
        raise CorruptDataError(f"an OPEN of producer {last.producer} stands in the log: {where}")
    return ProducerOpen(record_id, last.epoch + 1, generation, producer, last.progress)
