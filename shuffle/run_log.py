"""A log producer that many processes of one run write: a streaming query, or one write job.

Strategy: each task writes segments of its own; one record per batch, in the producer's log, makes
all of them count. A run is one start of a query. Its first record is OPEN with the run's own id,
which every process of the run can build alone and which is the same bytes from all of them; it
fences the runs before. Every decision is made of the log's last record, and lands behind exactly
that record or not at all.

- A batch id that is in the log stays as it is: who brings it again, with whatever rows, gives its
  own segments back.
- A run that another run of its query followed never opens again: its id stands among the past.
- Segments are given back only by who never sent a record that names them.

It must not know Spark, nor look at listings.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from durable_shuffle.serialization.arrow_codec import schema_from_bytes
from durable_shuffle.serialization.errors import (
    ConflictError,
    CorruptDataError,
    FencedError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.serialization.schema_change import shown
from durable_shuffle.shuffle.layout import parse_segment_key
from durable_shuffle.shuffle.log_producer_log import decode
from durable_shuffle.shuffle.log_producer_records import (
    LOG_PRODUCER_RECORDS,
    Append,
    AppendParts,
    End,
    LogProducerRecord,
    ProducerOpen,
    Progress,
)
from durable_shuffle.shuffle.records import EXTENT, Closed, SegmentInfo, unpack_extents
from durable_shuffle.shuffle.segment_writer import give_back
from durable_shuffle.shuffle.slot_log import SlotLog, Won
from durable_shuffle.shuffle.stage import StageHandle

PAST_RUNS = 100
"""So many earlier runs are remembered. One that is older and still alive could open again and fence
the newest; no batch would be lost or doubled by that."""

CLEAR_RECORDS = 1000
"""A run that takes over reads at most so many records to tell what others left."""

_TRIES = 64


@dataclass(frozen=True, slots=True)
class Run:
    """Who writes: one start of a streaming query, or one write job."""

    query: str
    """Id of the query, the same over all its starts; "" for a write job."""
    id: str
    """32 hexadecimal digits, of this start alone."""


@dataclass(frozen=True, slots=True)
class Written:
    """What the log of a run's producer says; stands as the record's source position."""

    query: str = ""
    """The query whose log this is; "" while none has written here."""
    batch: int = -1
    """Its newest batch."""
    past: tuple[str, ...] = ()
    """Runs of it that were followed by others, oldest first."""

    def encode(self) -> bytes:
        found = {"query": self.query, "batch": self.batch, "past": self.past}
        return json.dumps(found, sort_keys=True).encode()


@dataclass(frozen=True, slots=True)
class Part:
    """What one task wrote of a batch. Its ordinals are of its own count."""

    number: int
    """Of the task within the batch: rows of lower ones come first."""
    rows: int
    memory_bytes: int
    segments: tuple[SegmentInfo, ...]
    extents: bytes


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a producer's log."""

    next_slot: int
    last: LogProducerRecord | None

    @property
    def owner(self) -> str:
        """Id of the run that may append next."""
        return "" if self.last is None or isinstance(self.last, Closed) else self.last.record_id


def read_tail(log: SlotLog, hint: int = 0) -> Tail:
    """Return the end of the log; `hint` is a slot that may be near it."""
    end = log.find_end(hint)
    if end == 0:
        return Tail(0, None)
    data = log.read(end - 1)
    if data is None:
        raise CorruptDataError(f"a slot lost its record: key={log.key(end - 1)!r}")
    return Tail(end, decode(log, end - 1, data))


def written(tail: Tail, name: str) -> Written:
    """Return what the last record says of the query.

    Raises:
        InvalidInputError: the log is of a producer of another kind; names `name`.
    """
    if tail.last is None or isinstance(tail.last, Closed):
        return Written()
    try:
        found = json.loads(tail.last.progress.source_position)
        return Written(str(found["query"]), int(found["batch"]), tuple(found["past"]))
    except (ValueError, KeyError, TypeError):
        raise InvalidInputError(
            f"this log is written by a pipeline, not by streaming queries: {name}; give another "
            "stage"
        ) from None


def has_batch(tail: Tail, run: Run, batch: int, name: str) -> bool:
    """Decide whether a batch is in the log already. Pure.

    Raises:
        FencedError: the stage was released, or another run of this query has followed this one.
        InvalidInputError: another query writes here.
        IncompatibleError: batches between the newest and this one are missing: the query's
            checkpoint is of another stage.
    """
    if isinstance(tail.last, Closed):
        raise FencedError(f"the stage was released, cause={tail.last.cause}: {name}; stop")
    if isinstance(tail.last, End):
        raise InvalidInputError(f"the producer has ended with {tail.last.mode}: {name}")
    found = written(tail, name)
    if found.query and found.query != run.query:
        who = f"streaming query {run.query}" if run.query else "a write job"
        raise InvalidInputError(
            f"streaming query {found.query} writes here, found {who}: {name}; give another stage, "
            "another producer, or the checkpoint of that query"
        )
    if run.id in found.past:
        who = f"query {run.query}" if run.query else "a write job"
        raise FencedError(
            f"another run of {who} took over, this one must stop: "
            f"run={run.id} newest run={tail.owner}: {name}"
        )
    if not run.query:
        return False
    if batch > found.batch + 1:
        raise IncompatibleError(
            f"the checkpoint of query {run.query} is of another stage: it writes batch {batch} and "
            f"{name} has {f'batches up to {found.batch}' if found.batch >= 0 else 'none of it'}; "
            "give the stage that it wrote, or a new checkpoint"
        )
    return batch <= found.batch


def opening(stage: StageHandle, producer: int, tail: Tail, run: Run) -> ProducerOpen:
    """Return the OPEN of a run behind `tail`; equal for all processes of the run. Pure."""
    name = stage.path.producer_log_prefix(producer)
    found, last = written(tail, name), tail.last
    if last is None or isinstance(last, Closed):
        ordinals = bytes(8 * len(stage.subpartitions_of(producer)))
        state = Written(run.query)
        progress = Progress(state.encode(), "", ordinals)
        return ProducerOpen(run.id, 1, stage.describe.generation, producer, progress)
    past = (*found.past, last.record_id)[-PAST_RUNS:] if run.query == found.query else ()
    state = replace(found, query=run.query or found.query, past=past)
    progress = replace(last.progress, source_position=state.encode())
    return ProducerOpen(run.id, last.epoch + 1, last.generation, producer, progress)


def open_run(stage: StageHandle, producer: int, run: Run, batch: int) -> Tail:
    """Win the run's OPEN unless it stands; return the log's end behind it.

    Safe to call from any process of the run, at any time. Sends nothing if the run is the owner.

    Raises:
        FencedError, InvalidInputError, IncompatibleError: see `has_batch`.
        ConflictError: other runs kept winning the slots.
        OutcomeUnknownError, UnavailableError: call again.
    """
    log = stage.producer_log(producer)
    tail = read_tail(log, max(0, batch))
    for _ in range(_TRIES):
        has_batch(tail, run, batch, log.prefix)
        if tail.owner == run.id:
            return tail
        record = opening(stage, producer, tail, run)
        answer = log.append(tail.next_slot, LOG_PRODUCER_RECORDS.encode(record))
        if isinstance(answer, Won):
            return Tail(tail.next_slot + 1, record)
        tail = _passed(log, tail, answer.existing)
    raise ConflictError(f"other runs kept opening: {log.prefix!r} slot={tail.next_slot}; try again")


@dataclass(frozen=True, slots=True)
class BatchAppended:
    """What `append_batch` came to."""

    slot: int
    """Of the record that stands last."""
    rows: int
    """0 if the batch was there already."""
    wrote: bool


def append_batch(
    stage: StageHandle, producer: int, run: Run, batch: int, parts: Sequence[Part], schema: bytes
) -> BatchAppended:
    """Make a batch count: one record names the segments of all its parts. Or drop it, if it counts.

    Args:
        parts: what the tasks wrote, each with this run's id in its segments' names.
        schema: Arrow IPC schema message of the rows.

    Raises:
        FencedError: another run took over, or the stage was released: nothing counts.
        InvalidInputError, IncompatibleError: see `has_batch`.
        OutcomeUnknownError: it may count now or later. Call again: it will not be doubled.
        UnavailableError: nothing was appended.
    """
    log = stage.producer_log(producer)
    tail = open_run(stage, producer, run, batch)
    if has_batch(tail, run, batch, log.prefix):
        give_back(stage.storage, segment_keys(stage, producer, run, parts))
        return BatchAppended(tail.next_slot - 1, 0, wrote=False)
    record = _append(stage, producer, tail, run, batch, parts, schema)
    answer = log.append(tail.next_slot, LOG_PRODUCER_RECORDS.encode(record))
    if isinstance(answer, Won):
        return BatchAppended(tail.next_slot, record.rows, wrote=True)
    # only who opened behind the last record can have won: this run is fenced, for good
    tail = _passed(log, tail, answer.existing)
    give_back(stage.storage, segment_keys(stage, producer, run, parts))
    has_batch(tail, run, batch, log.prefix)
    raise FencedError(
        f"another writer took over, this one must stop: run={run.id} newest={tail.owner} "
        f"{log.key(tail.next_slot - 1)!r}"
    )


def segment_keys(stage: StageHandle, producer: int, run: Run, parts: Sequence[Part]) -> list[str]:
    """Return the keys of all segments of some parts."""
    return [
        stage.path.segment_key(producer, run.id, segment.number)
        for part in parts
        for segment in part.segments
    ]


def clear_behind(stage: StageHandle, producer: int, run: Run) -> int:
    """Delete segments that the runs before this one left and no record names; return how many.

    Called by a run that has appended for the first time. A run that appended has cleared up behind
    those before it, so the walk back ends there. After `CLEAR_RECORDS` it is given up: gc does it.
    """
    log = stage.producer_log(producer)
    slot = read_tail(log).next_slot
    named: set[tuple[str, int]] = set()
    before: set[str] = set()
    opened = False
    for _ in range(CLEAR_RECORDS):
        slot -= 1
        data = log.read(slot) if slot >= 0 else None
        record = None if data is None else decode(log, slot, data)
        if record is None:
            break
        if isinstance(record, ProducerOpen):
            opened = opened or record.record_id == run.id
            # only what stands below the own OPEN was followed; above it, a run may be writing
            if opened and record.record_id != run.id:
                before.add(record.record_id)
                if any(author == record.record_id for author, _ in named):
                    break
        elif isinstance(record, Append):
            named |= {(record.record_id, segment.number) for segment in record.segments}
    else:
        return 0
    doomed = []
    for info in stage.storage.list(stage.path.segments_prefix):
        mine, author, number = parse_segment_key(info.key)
        if mine == producer and author in before and (author, number) not in named:
            doomed.append(info.key)
    stage.storage.delete(doomed)
    return len(doomed)


def newest_schema(stage: StageHandle, producer: int, tail: Tail) -> bytes:
    """Return the schema message of the rows that were appended last, else the stage's."""
    log = stage.producer_log(producer)
    slot, record = tail.next_slot - 1, tail.last
    while record is not None and not isinstance(record, Append):
        slot -= 1
        data = log.read(slot) if slot >= 0 else None
        record = None if data is None else decode(log, slot, data)
    return record.schema if isinstance(record, AppendParts) else stage.describe.schema


def _passed(log: SlotLog, tail: Tail, existing: bytes) -> Tail:
    return Tail(tail.next_slot + 1, decode(log, tail.next_slot, existing))


def _append(
    stage: StageHandle,
    producer: int,
    tail: Tail,
    run: Run,
    batch: int,
    parts: Sequence[Part],
    schema: bytes,
) -> AppendParts:
    """Build the record that makes the parts count behind `tail`. Pure."""
    assert isinstance(tail.last, ProducerOpen | Append)
    name, before = stage.path.producer_log_prefix(producer), tail.last.progress
    owned = stage.subpartitions_of(producer)
    ordinals = np.zeros(stage.describe.partitions, dtype=np.uint64)
    ordinals[owned] = before.ordinals(len(owned), name)
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
    state = written(tail, name)
    if run.query:
        state = replace(state, batch=batch)
    after = ordinals[owned]
    return AppendParts(
        record_id=run.id,
        epoch=tail.last.epoch,
        generation=tail.last.generation,
        rows=sum(part.rows for part in parts),
        memory_bytes=sum(part.memory_bytes for part in parts),
        segments=tuple(segment for part in ordered for segment in part.segments),
        extents=extents[order].tobytes(),
        progress=Progress(state.encode(), f"{run.query}/{batch}", after.astype("<u8").tobytes()),
        shifts=np.array(shifts, dtype="<u8")[order].tobytes(),
        schema=schema,
    )


def _check_schema(stage: StageHandle, producer: int, tail: Tail, schema: bytes) -> None:
    """Refuse rows of an older schema behind rows of a newer one."""
    stored = newest_schema(stage, producer, tail)
    if stored == schema:
        return
    before, now = schema_from_bytes(stored), schema_from_bytes(schema)
    if list(now)[: len(before)] != list(before):
        raise IncompatibleError(
            f"rows do not fit the stage {stage.path.name!r}: only nullable columns can be added; "
            f"stored schema ({shown(before)}), found ({shown(now)})"
        )
