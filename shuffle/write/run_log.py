"""A log that many processes write: starts of a streaming query, and write jobs.

Strategy: each task writes segments of its own; one record per batch, in the producer's log, makes
all of them count. Every decision is made of records that were read, and lands behind exactly these
records or not at all.

- A run is one start of the query. It opens by an id that every process of it can build alone, from
  the run's id and the epoch, so all of them send the same bytes; the OPEN fences the runs before.
- A part carries the OPEN under which it was written. A commit never opens: it appends while that
  OPEN is the newest one, else the run is fenced. So no list of runs is needed.
- A batch that is in the log stays as it is. A commit that comes again changes and deletes nothing.
- A write job never opens. The first record that names it, APPEND_PARTS or ABORT, is its fate; where
  another writer has its slot it takes the next one.

Nothing is deleted here: see `run_clearing.py`. It must not know Spark.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from durable_shuffle.serialization.arrow_codec import schema_from_bytes
from durable_shuffle.serialization.errors import (
    AbortedError,
    FencedError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.serialization.schema_change import shown
from durable_shuffle.shuffle.log.log_producer_records import (
    Append,
    AppendParts,
    ProducerOpen,
    Progress,
    RunAbort,
    Streaming,
)
from durable_shuffle.shuffle.log.records import EXTENT, Closed, SegmentInfo, unpack_extents
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.write.log_producer_log import (
    AppenderTail,
    appender_log,
    read_tail,
    whole_tail,
)

LOOK_BACK = 32
"""A run that is about to open looks for an OPEN of its own in so many records: it was followed, and
stops. One that opened before them opens again, which fences the newest run and costs no row."""


@dataclass(frozen=True, slots=True)
class Run:
    """Who writes: one start of a streaming query, or one write job."""

    query: str
    """Id of the query, the same over all its starts; "" for a write job."""
    id: str
    """32 hexadecimal digits, of this start alone."""

    def attempt(self, epoch: int) -> str:
        """Return the id by which it opens in an epoch, and under which its tasks write then."""
        return hashlib.sha256(f"{self.id} {epoch}".encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Begun:
    """What a task writes its part under."""

    attempt: str
    """Names its segments: id of the run's OPEN, or of the write job."""
    slot: int
    """The log was read up to here, exclusive, and did not hold the batch."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one task wrote of a batch. Its ordinals are of its own count."""

    begun: Begun
    number: int
    """Of the task within the batch: rows of lower ones come first."""
    rows: int
    memory_bytes: int
    segments: tuple[SegmentInfo, ...]
    extents: bytes


@dataclass(frozen=True, slots=True)
class BatchAppended:
    """What `append_batch` came to."""

    slot: int
    """Of the record that makes the batch count."""
    rows: int
    """0 if the batch was there already."""
    wrote: bool
    first: bool = False
    """It is the first one behind the run's OPEN, which followed another run's."""


def has_batch(tail: AppenderTail, run: Run, batch: int, name: str) -> bool:
    """Decide whether a batch of a query is in the log already; a write job never is. Pure.

    Raises:
        FencedError: the stage was released.
        InvalidInputError: a pipeline or another query writes here.
        IncompatibleError: batches between the newest and this one are missing: the query's
            checkpoint is of another stage.
    """
    if isinstance(tail.last, Closed):
        raise FencedError(f"the stage was released, cause={tail.last.cause}: {name}; stop")
    if tail.last is not None and tail.last.progress.stream is None:
        raise InvalidInputError(
            f"this log is written by a pipeline, not by streaming queries: {name}; give another "
            "stage"
        )
    if not run.query:
        return False
    stream = _stream(tail)
    if stream.query not in ("", run.query):
        raise InvalidInputError(
            f"streaming query {stream.query} writes here, found streaming query {run.query}: "
            f"{name}; give another stage, another producer, or the checkpoint of that query"
        )
    if batch > stream.batches:
        there = f"batches up to {stream.batches - 1}" if stream.batches else "none of it"
        raise IncompatibleError(
            f"the checkpoint of query {run.query} is of another stage: it writes batch {batch} and "
            f"{name} has {there}; give the stage that it wrote, or a new checkpoint"
        )
    return batch < stream.batches


def begin_job(stage: StageHandle, producer: int, run: Run) -> tuple[Begun, AppenderTail]:
    """Return what the tasks of a write job write under, and the log's end. Writes nothing.

    Raises:
        FencedError, InvalidInputError: see `has_batch`.
        CorruptDataError: the log lost a record; names the slot.
    """
    log = stage.producer_log(producer)
    tail = whole_tail(log)
    has_batch(tail, run, 0, log.prefix)
    return Begun(run.id, tail.next_slot), tail


def begin_batch(
    stage: StageHandle, producer: int, run: Run, batch: int
) -> tuple[Begun | None, AppenderTail]:
    """Win the run's OPEN unless it is the newest; return what a task writes its part under, None
    if the batch is there already, and the log's end.

    Safe to call from any process of the run, at any time. Sends nothing if the run is the owner.

    Raises:
        FencedError: another run followed this one, or the stage was released.
        InvalidInputError, IncompatibleError: see `has_batch`.
        CorruptDataError: the log lost a record; names the slot.
        ConflictError: other runs kept winning the slots.
        OutcomeUnknownError, UnavailableError: call again.
    """
    log = stage.producer_log(producer)
    tail = read_tail(log, batch)
    if not _owns(tail, run) and not has_batch(tail, run, batch, log.prefix):
        tail = whole_tail(log)
        _refuse_followed(log, tail, run)

    def unless_open(tail: AppenderTail) -> ProducerOpen | None:
        if has_batch(tail, run, batch, log.prefix) or _owns(tail, run):
            return None
        return opening(stage, producer, tail, run)

    tail, _ = appender_log(log).decide(tail, unless_open)
    if has_batch(tail, run, batch, log.prefix):
        return None, tail
    return Begun(_stream(tail).opened, tail.next_slot), tail


def opening(stage: StageHandle, producer: int, tail: AppenderTail, run: Run) -> ProducerOpen:
    """Return the OPEN of a run behind `tail`; equal for all processes of the run. Pure."""
    state = before(stage, producer, tail)
    epoch = state.epoch + 1
    stream = Streaming(run.query, _stream(tail).batches, run.attempt(epoch))
    progress = replace(state.progress, stream=stream)
    return ProducerOpen(stream.opened, epoch, state.generation, producer, progress)


def append_batch(
    stage: StageHandle, producer: int, run: Run, batch: int, parts: Sequence[Part], schema: bytes
) -> BatchAppended:
    """Make a batch count: one record names the segments of all its parts. It may be called again at
    any time: a batch that counts stays as it is, and nothing is deleted.

    Args:
        parts: what the tasks wrote; none if all of them found the batch in the log.
        schema: Arrow IPC schema message of the rows.

    Raises:
        FencedError: another run took over, or the stage was released: nothing counts.
        AbortedError: a cleaner gave this write job up: nothing counts.
        InvalidInputError, IncompatibleError: see `has_batch`; or rows of an older schema.
        CorruptDataError: the log lost a record; names the slot.
        OutcomeUnknownError: it may count now or later. Call again: it will not be doubled.
        UnavailableError: nothing was appended.
    """
    log = stage.producer_log(producer)
    if not parts:
        tail = read_tail(log, batch)
        if has_batch(tail, run, batch, log.prefix):
            return BatchAppended(tail.next_slot - 1, 0, wrote=False)
        raise IncompatibleError(f"batch {batch} was there and is gone: {log.prefix!r}")
    attempts = {part.begun.attempt for part in parts}
    attempt = min(attempts)
    first = False  # whether the record stands right behind an OPEN that followed another run's

    def stands(tail: AppenderTail) -> bool:
        if isinstance(tail.last, RunAbort) and tail.last.attempt == attempt:
            raise AbortedError(
                f"this write job was given up before it committed: {attempt} "
                f"cause={tail.last.cause} {log.prefix!r}; start it again"
            )
        mine = isinstance(tail.last, AppendParts) and tail.last.record_id == attempt
        return mine and (not run.query or _stream(tail).batches == batch + 1)

    def unless_stands(tail: AppenderTail) -> AppendParts | None:
        nonlocal first
        if stands(tail):
            return None
        log.refuse_hole(tail.next_slot)
        there = has_batch(tail, run, batch, log.prefix)
        if run.query and (there or attempts != {_stream(tail).opened}):
            raise _fenced(run, tail, log)
        first = isinstance(tail.last, ProducerOpen) and tail.last.epoch > 1
        return _append(stage, producer, tail, run, batch, parts, schema)

    records = appender_log(log)
    begun = records.tail_at(min(part.begun.slot for part in parts))
    tail, appended = records.decide(records.read(begun, until=stands), unless_stands)
    if appended is None:
        return BatchAppended(tail.next_slot - 1, 0, wrote=False)
    assert isinstance(appended, AppendParts)  # `unless_stands` proposes nothing else
    return BatchAppended(tail.next_slot - 1, appended.rows, wrote=True, first=first)


def newest_schema(stage: StageHandle, producer: int, tail: AppenderTail) -> bytes:
    """Return the schema message of the rows that were appended last, else the stage's."""
    log = appender_log(stage.producer_log(producer))
    slot, record = tail.next_slot - 1, tail.last
    while record is not None and not isinstance(record, Append):
        slot -= 1
        record = log.record(slot) if slot >= 0 else None
    return record.schema if isinstance(record, AppendParts) else stage.describe.schema


@dataclass(frozen=True, slots=True)
class Before:
    """What the next record goes on from."""

    epoch: int
    generation: int
    progress: Progress


def before(stage: StageHandle, producer: int, tail: AppenderTail) -> Before:
    """Return what the record behind `tail` goes on from. Pure."""
    last = tail.last
    if last is None or isinstance(last, Closed):
        ordinals = bytes(8 * len(stage.subpartitions_of(producer)))
        return Before(0, stage.describe.generation, Progress(b"", "", ordinals, Streaming()))
    return Before(last.epoch, last.generation, last.progress)


def _stream(tail: AppenderTail) -> Streaming:
    if tail.last is None or isinstance(tail.last, Closed):
        return Streaming()
    return tail.last.progress.stream or Streaming()


def _owns(tail: AppenderTail, run: Run) -> bool:
    """Return whether the newest OPEN is one of this run's."""
    if tail.last is None or isinstance(tail.last, Closed):
        return False
    return _stream(tail).opened == run.attempt(tail.last.epoch)


def _refuse_followed(log: SlotLog, tail: AppenderTail, run: Run) -> None:
    """Refuse a run that opened before, and is not the owner any more."""
    for slot in range(tail.next_slot - 1, max(-1, tail.next_slot - 1 - LOOK_BACK), -1):
        record = appender_log(log).tail_at(slot + 1).last
        if isinstance(record, ProducerOpen) and record.record_id == run.attempt(record.epoch):
            raise _fenced(run, tail, log)


def _fenced(run: Run, tail: AppenderTail, log: SlotLog) -> FencedError:
    return FencedError(
        f"another run of query {run.query} took over, this one must stop: run={run.id} newest "
        f"OPEN={_stream(tail).opened}: {log.prefix!r}"
    )


def _append(
    stage: StageHandle,
    producer: int,
    tail: AppenderTail,
    run: Run,
    batch: int,
    parts: Sequence[Part],
    schema: bytes,
) -> AppendParts:
    """Return the record that makes the parts count behind `tail`."""
    name = stage.path.producer_log_prefix(producer)
    state = before(stage, producer, tail)
    owned = stage.subpartitions_of(producer)
    ordinals = np.zeros(stage.describe.partitions, dtype=np.uint64)
    ordinals[owned] = state.progress.ordinals(len(owned), name)
    _check_schema(stage, producer, tail, schema)
    ordered = sorted(parts, key=lambda part: part.number)
    found = [unpack_extents(part.extents, name).copy() for part in ordered]
    shifts = []
    for extents in found:
        for entry in extents:
            k, own = int(entry["subpartition"]), int(entry["first_ordinal"])
            first = int(ordinals[k])
            shifts.append((own - first) % 2**64)
            entry["first_ordinal"] = first
            ordinals[k] += entry["rows"]
    extents = np.concatenate([*found, np.zeros(0, dtype=EXTENT)])
    order = np.lexsort((extents["first_ordinal"], extents["subpartition"]))
    stream = _stream(tail)
    if run.query:
        stream = replace(stream, batches=batch + 1)
    return AppendParts(
        record_id=parts[0].begun.attempt,
        epoch=state.epoch,
        generation=state.generation,
        rows=sum(part.rows for part in parts),
        memory_bytes=sum(part.memory_bytes for part in parts),
        segments=tuple(segment for part in ordered for segment in part.segments),
        extents=extents[order].tobytes(),
        progress=Progress(b"", "", ordinals[owned].astype("<u8").tobytes(), stream),
        shifts=np.array(shifts, dtype="<u8")[order].tobytes(),
        schema=schema,
    )


def _check_schema(stage: StageHandle, producer: int, tail: AppenderTail, schema: bytes) -> None:
    """Refuse rows of an older schema behind rows of a newer one."""
    stored = newest_schema(stage, producer, tail)
    if stored == schema:
        return
    older, now = schema_from_bytes(stored), schema_from_bytes(schema)
    if list(now)[: len(older)] != list(older):
        raise IncompatibleError(
            f"rows do not fit the stage {stage.path.name!r}: only nullable columns can be added; "
            f"stored schema ({shown(older)}), found ({shown(now)})"
        )
