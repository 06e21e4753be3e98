"""What runs of a query and write jobs left behind: giving a write job up, deleting what runs left.

Of a query's runs, what was written under an OPEN that another one followed can never be named. Of
a write job nobody knows that before an ABORT is its fate.
"""

from durable_shuffle.shuffle.log.layout import parse_segment_key
from durable_shuffle.shuffle.log.log_producer_records import Append, ProducerOpen, RunAbort
from durable_shuffle.shuffle.log.records import Closed
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.write.log_producer_log import (
    AppenderTail,
    appender_log,
    decides,
    read_tail,
)
from durable_shuffle.shuffle.write.run_log import before

CLEAR_RECORDS = 1000
"""A run that takes over reads at most so many records to tell what others left."""


def abort_job(
    stage: StageHandle, producer: int, attempt: str, record_id: str, cause: str, *, since: int = 0
) -> bool:
    """Make ABORT the fate of a write job unless it has one; return True if no APPEND of it counts.

    Only after True may anybody delete its segments.

    Args:
        since: slot below which no record names the job.
    """
    log = appender_log(stage.producer_log(producer))

    def unless_decided(tail: AppenderTail) -> RunAbort | None:
        if decides(tail.last, attempt):
            return None
        state = before(stage, producer, tail)
        return RunAbort(record_id, state.epoch, state.generation, attempt, cause, state.progress)

    tail = log.read(log.tail_at(since), until=lambda tail: decides(tail.last, attempt))
    tail, _ = log.decide(tail, unless_decided)
    return isinstance(tail.last, RunAbort | Closed)


def delete_segments(stage: StageHandle, producer: int, attempt: str) -> None:
    """Delete all segments of an attempt that was aborted."""
    found = (info.key for info in stage.storage.list(stage.path.segments_prefix))
    stage.storage.delete([k for k in found if parse_segment_key(k)[:2] == (producer, attempt)])


def clear_behind(stage: StageHandle, producer: int, attempt: str) -> int:
    """Delete segments that the runs before this one left and no record names; return how many.

    Called by a run that has appended for the first time. A run that appended has cleared up behind
    those before it, so the walk back ends there. After `CLEAR_RECORDS` it is given up: gc does it.

    Args:
        attempt: id of the OPEN by which the caller writes.
    """
    log = appender_log(stage.producer_log(producer))
    slot = read_tail(log.slots).next_slot
    named: set[tuple[str, int]] = set()
    followed: set[str] = set()
    opened = False
    for _ in range(CLEAR_RECORDS):
        slot -= 1
        record = log.record(slot) if slot >= 0 else None
        if record is None:
            break
        if isinstance(record, ProducerOpen):
            # only what stands below the own OPEN was followed; above it, a run may be writing
            if opened:
                followed.add(record.record_id)
                if any(author == record.record_id for author, _ in named):
                    break
            opened = opened or record.record_id == attempt
        elif isinstance(record, Append):
            named |= {(record.record_id, segment.number) for segment in record.segments}
    else:
        return 0
    doomed = []
    for info in stage.storage.list(stage.path.segments_prefix):
        mine, author, number = parse_segment_key(info.key)
        if mine == producer and author in followed and (author, number) not in named:
            doomed.append(info.key)
    stage.storage.delete(doomed)
    return len(doomed)
