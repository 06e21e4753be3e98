"""A log that many processes write: starts of a streaming query, and write jobs.

Strategy: each task writes segments of its own. One record per batch, in the producer's log, makes
all of them count. Every decision is made from records that were read, and its record stands right
behind these records or nowhere.

- A run is one start of the query. Its OPEN fences the runs before it. Every process of the run can
  build the OPEN's id from the run's id and the epoch, so all of them send the same bytes.
- A part carries the OPEN under which it was written. A commit never opens: it appends while that
  OPEN is the newest one, else the run is fenced. So no list of runs is needed.
- A batch that is in the log stays as it is. A repeated commit changes and deletes nothing.
- A write job never opens. The first record that names it, APPEND or ABORT_JOB, is its fate. If
  another writer wins its slot, it takes the next one.
- A commit deletes nothing. Segments of an OPEN that another OPEN followed can never be named, so
  the next run deletes them (`clear_behind`). Segments of a write job may be deleted only once an
  ABORT_JOB is its fate (`abort_job`).

It must not know Spark.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from durable_shuffle.serialization.arrow_schemas import only_adds, schema_from_bytes, shown
from durable_shuffle.serialization.errors import AbortedError, FencedError, IncompatibleError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.appender_log import (
    Append,
    Appended,
    AppenderOpen,
    AppenderTail,
    Begun,
    JobAbort,
    Part,
    appender_log,
    appending,
    decides,
    opening,
    refuse_other_writer,
    state_behind,
)
from durable_shuffle.shuffle.log.appender_reads import newest_schema, read_tail, whole_tail
from durable_shuffle.shuffle.log.layout import (
    named_here,
    parse_segment_key,
)
from durable_shuffle.shuffle.log.records import Closed
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.write.segments import (
    IdBatch,
    SegmentWriter,
    checked_batches,
    give_back,
)

SEGMENT_NUMBERS = 1 << 31
"""Tasks of a run draw the numbers of their segments below this. The storage refuses a number that
is taken, and the task is tried again."""

FIRST_ORDINALS = 1 << 60
"""Tasks draw the first ordinal of their own count below this, so that the frames of two tasks have
different seeds."""

LOOK_BACK = 32
"""A run that is about to open looks for an OPEN of its own in this many records. If there is one,
another run followed it, and it stops. A run that opened earlier opens again, which fences the
newest run and costs no row."""

CLEAR_RECORDS = 1000
"""A run that takes over reads at most this many records to find what others left."""


@dataclass(frozen=True, slots=True)
class Run:
    """One start of a streaming query, or one write job."""

    query: str
    """Id of the query, the same over all its starts; "" for a write job."""
    id: str
    """32 hexadecimal digits, of this start alone."""

    def attempt(self, epoch: int) -> str:
        """Return the id of its OPEN in an epoch, under which its tasks write."""
        return hashlib.sha256(f"{self.id} {epoch}".encode()).hexdigest()[:32]


def has_batch(tail: AppenderTail, run: Run, batch: int, name: str) -> bool:
    """Decide whether a batch of a query is in the log already; a write job never is. Pure.

    Raises:
        FencedError: the stage was released.
        InvalidInputError: a pipeline or another query writes here.
        IncompatibleError: batches before this one are missing, because the query's checkpoint is
            of another stage.
    """
    refuse_other_writer(tail, run.query, name)
    if not run.query:
        return False
    batches = 0 if tail.last is None or isinstance(tail.last, Closed) else tail.last.after.batches
    if batch > batches:
        there = f"batches up to {batches - 1}" if batches else "none of it"
        raise IncompatibleError(
            f"the checkpoint of query {run.query} is of another stage: it writes batch {batch} and "
            f"{name} has {there}; give the stage that it wrote, or a new checkpoint"
        )
    return batch < batches


def begin_job(stage: StageHandle, producer: int, run: Run) -> tuple[Begun, AppenderTail]:
    """Return what the tasks of a write job write under, and the log's end. Writes nothing.

    Raises:
        FencedError, InvalidInputError: see `has_batch`.
        CorruptDataError: the log lost a record; names the slot.
    """
    tail = whole_tail(stage, producer)
    has_batch(tail, run, 0, stage.path.producer_log_prefix(producer))
    return Begun(run.id, tail.next_slot), tail


def begin_batch(
    stage: StageHandle, producer: int, run: Run, batch: int
) -> tuple[Begun | None, AppenderTail]:
    """Win the run's OPEN unless it is the newest.

    Safe to call from any process of the run, at any time. Sends nothing if the run is the owner.

    Returns:
        What a task writes its part under, None if the batch is there already; and the log's end.

    Raises:
        FencedError: another run followed this one, or the stage was released.
        InvalidInputError, IncompatibleError: see `has_batch`; or the checkpoint is older than the
            stage.
        CorruptDataError: the log lost a record; names the slot.
        ConflictError: other runs kept winning the slots.
        OutcomeUnknownError, UnavailableError: call again.
    """
    log = stage.producer_log(producer)

    def owns(tail: AppenderTail) -> bool:
        state = state_behind(stage, producer, tail)
        return state.owner == run.attempt(state.epoch)

    def unless_open(tail: AppenderTail) -> AppenderOpen | None:
        if has_batch(tail, run, batch, log.prefix) or owns(tail):
            return None
        state = state_behind(stage, producer, tail)
        # equal for all processes of the run
        attempt = run.attempt(state.epoch + 1)
        return opening(state, producer, attempt, state.generation, run.query)

    tail = read_tail(stage, producer, batch)
    _refuse_old_checkpoint(tail, run, batch, log.prefix)
    if not owns(tail) and not has_batch(tail, run, batch, log.prefix):
        tail = whole_tail(stage, producer)
        if not owns(tail):  # another task of this run may have opened meanwhile
            _refuse_followed(log, tail.next_slot, state_behind(stage, producer, tail).owner, run)
    tail, _ = appender_log(log).decide(tail, unless_open)
    if has_batch(tail, run, batch, log.prefix):
        return None, tail
    return Begun(state_behind(stage, producer, tail).owner, tail.next_slot), tail


def _refuse_old_checkpoint(tail: AppenderTail, run: Run, batch: int, name: str) -> None:
    """Refuse a batch before the newest one; Spark replays at most the newest of its checkpoint."""
    last = tail.last
    newest = -1 if last is None or isinstance(last, Closed) else last.after.batches - 1
    if run.query and batch < newest:
        raise IncompatibleError(
            f"the checkpoint of query {run.query} is older than the stage: it was restored from a "
            f"backup, or another start of the query went on. It writes batch {batch}, and {name} "
            f"has batches up to {newest}; Spark may cut them otherwise now, so rows would be "
            "dropped. Give the newest checkpoint, or write with a new checkpoint to a new stage"
        )


def write_part(
    stage: StageHandle,
    producer: int,
    begun: Begun,
    number: int,
    batches: Iterable[IdBatch],
    *,
    first_segment: int,
    first_ordinal: int,
    settings: Settings,
) -> Part:
    """Write rows that count once `append_batch` names them.

    Args:
        number: of the task within the batch: rows of lower ones come first.
        first_segment: number of the task's first segment, drawn below SEGMENT_NUMBERS.
        first_ordinal: of the task's own count, drawn below FIRST_ORDINALS.

    Raises:
        InvalidInputError: rows that do not fit the stage.
        ConflictError: a segment's number is taken: draw another.
    """
    ordinals = np.full(stage.describe.partitions, first_ordinal, dtype=np.uint64)
    writer = SegmentWriter(
        stage, producer, begun.attempt, settings, next_ordinals=ordinals, first_number=first_segment
    )
    try:
        for batch, ids in checked_batches(stage, batches):
            writer.add(batch, ids)
        writer.finish()
    except BaseException:
        give_back(stage.storage, writer.written_keys()[:-1])  # the last one may be another task's
        raise
    return writer.part(begun, number)


def append_batch(
    stage: StageHandle,
    producer: int,
    run: Run,
    batch: int,
    parts: Sequence[Part],
    schema: bytes,
    *,
    repeated_rows: int | None = None,
) -> Appended:
    """Make a batch count: one record names the segments of all its parts.

    May be called again at any time. A batch that counts stays as it is, and nothing is deleted.

    Args:
        parts: what the tasks wrote; none if all of them found the batch in the log.
        schema: Arrow IPC schema message of the rows.
        repeated_rows: how many rows the tasks were given that found the batch in the log; None does
            not compare them with the batch.

    Raises:
        FencedError: another run took over, or the stage was released: nothing counts.
        AbortedError: a cleaner gave this write job up: nothing counts.
        InvalidInputError, IncompatibleError: see `has_batch`; or rows of an older schema; or a
            batch that is there has another number of rows.
        CorruptDataError: the log lost a record; names the slot.
        OutcomeUnknownError: it may count now or later. Call again; that never doubles it.
        UnavailableError: nothing was appended.
    """
    log = stage.producer_log(producer)
    if not parts:
        tail = read_tail(stage, producer, batch)
        if has_batch(tail, run, batch, log.prefix):
            if run.query and repeated_rows is not None:
                _refuse_other_rows(log, tail, run, batch, repeated_rows)
            return Appended(tail.next_slot - 1, 0, wrote=False)
        raise IncompatibleError(f"batch {batch} was there and is gone: {log.prefix!r}")
    attempts = {part.begun.attempt for part in parts}
    attempt = min(attempts)
    first = False  # whether the record stands right behind an OPEN that followed another run's

    def stands(tail: AppenderTail) -> bool:
        if isinstance(tail.last, JobAbort) and tail.last.attempt == attempt:
            raise AbortedError(
                f"this write job was given up before it committed: {attempt} "
                f"cause={tail.last.cause} {log.prefix!r}; start it again"
            )
        if not isinstance(tail.last, Append) or tail.last.record_id != attempt:
            return False
        return not run.query or tail.last.after.batches == batch + 1

    def unless_stands(tail: AppenderTail) -> Append | None:
        nonlocal first
        if stands(tail):
            return None
        log.refuse_hole(tail.next_slot)
        there = has_batch(tail, run, batch, log.prefix)
        state = state_behind(stage, producer, tail)
        if run.query:
            if there or attempts != {state.owner}:
                raise _fenced(run, state.owner, log)
            state = replace(state, batches=batch + 1)
        first = isinstance(tail.last, AppenderOpen) and state.epoch > 1
        _check_schema(stage, producer, tail, schema)
        return appending(stage, producer, state, parts, schema)

    records = appender_log(log)
    begun = records.tail_at(min(part.begun.slot for part in parts))
    tail, appended = records.decide(records.read(begun, until=stands), unless_stands)
    if appended is None:
        return Appended(tail.next_slot - 1, 0, wrote=False)
    assert isinstance(appended, Append)  # `unless_stands` proposes nothing else
    return Appended(tail.next_slot - 1, appended.rows, wrote=True, first=first)


def _refuse_other_rows(
    log: SlotLog, tail: AppenderTail, run: Run, batch: int, repeated_rows: int
) -> None:
    """Refuse a repeated batch that has another number of rows than the one that counts.

    Spark repeats a batch with the rows that its checkpoint names. If the checkpoint was restored
    from a backup, it names none, and Spark takes all rows that have come since.
    """
    records = appender_log(log)
    for slot in range(tail.next_slot, 0, -1):
        record = records.tail_at(slot).last
        # a write job's APPEND has an id of its own, a query's that of the newest OPEN
        if isinstance(record, Append) and record.record_id == record.after.owner:
            if record.after.batches == batch + 1 and record.rows != repeated_rows:
                raise IncompatibleError(
                    f"batch {batch} of query {run.query} has {record.rows} rows in {log.prefix}, "
                    f"and Spark repeats it with {repeated_rows}: rows would be dropped or come "
                    "twice. Either the checkpoint was restored from a backup: give the newest one, "
                    "or write with a new checkpoint to a new stage. Or the query gives other rows "
                    "each time: set the option keepCommitted to true, and what was committed first "
                    "stays"
                )
            return


def abort_job(
    stage: StageHandle, producer: int, attempt: str, record_id: str, cause: str, *, since: int = 0
) -> bool:
    """Make ABORT_JOB the fate of a write job unless it has one; True if no APPEND of it counts.

    Only after True may anybody delete its segments.

    Args:
        since: slot below which no record names the job.
    """
    log = appender_log(stage.producer_log(producer))

    def decided(tail: AppenderTail) -> bool:
        return decides(tail.last, attempt)

    def unless_decided(tail: AppenderTail) -> JobAbort | None:
        state = state_behind(stage, producer, tail)
        return None if decided(tail) else JobAbort(record_id, attempt, cause, state)

    tail, _ = log.decide(log.read(log.tail_at(since), until=decided), unless_decided)
    return isinstance(tail.last, JobAbort | Closed)


def delete_segments(stage: StageHandle, producer: int, attempt: str) -> None:
    """Delete all segments of an attempt that was aborted."""
    listed = named_here(stage.storage.list(stage.path.segments_prefix), parse_segment_key)
    mine = [info.key for info, name in listed if name[:2] == (producer, attempt)]
    stage.storage.delete(mine)


def clear_behind(stage: StageHandle, producer: int, attempt: str) -> int:
    """Delete segments that the runs before this one left and no record names; return how many.

    Called by a run after its first append. The walk back ends at a run that appended, because that
    run cleared behind the runs before it. After `CLEAR_RECORDS` records it stops; gc does the rest.

    Args:
        attempt: id of the OPEN by which the caller writes.
    """
    log = appender_log(stage.producer_log(producer))
    slot = read_tail(stage, producer).next_slot
    named: set[tuple[str, int]] = set()
    followed: set[str] = set()
    opened = False
    for _ in range(CLEAR_RECORDS):
        slot -= 1
        record = log.record(slot) if slot >= 0 else None
        if record is None:
            break
        if isinstance(record, AppenderOpen):
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
    listed = named_here(stage.storage.list(stage.path.segments_prefix), parse_segment_key)
    for info, (mine, author, number) in listed:
        if mine == producer and author in followed and (author, number) not in named:
            doomed.append(info.key)
    stage.storage.delete(doomed)
    return len(doomed)


def _refuse_followed(log: SlotLog, end: int, newest: str, run: Run) -> None:
    """Refuse a run that opened before, and is not the owner any more."""
    records = appender_log(log)
    for slot in range(end, max(0, end - LOOK_BACK), -1):
        record = records.tail_at(slot).last
        if isinstance(record, AppenderOpen) and record.record_id == run.attempt(record.after.epoch):
            raise _fenced(run, newest, log)


def _fenced(run: Run, newest: str, log: SlotLog) -> FencedError:
    return FencedError(
        f"another run of query {run.query} took over, this one must stop: run={run.id} newest "
        f"OPEN={newest}: {log.prefix!r}"
    )


def _check_schema(stage: StageHandle, producer: int, tail: AppenderTail, schema: bytes) -> None:
    """Refuse rows of an older schema behind rows of a newer one."""
    stored = newest_schema(stage, producer, tail)
    if stored == schema:
        return
    name = f"rows of {stage.path.prefix!r}"
    older, now = schema_from_bytes(stored, name=name), schema_from_bytes(schema, name=name)
    if not only_adds(now, older):
        raise IncompatibleError(
            f"rows do not fit the stage {stage.path.name!r}: only nullable columns can be added; "
            f"stored schema ({shown(older)}), found ({shown(now)})"
        )
