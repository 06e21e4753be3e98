"""Writers of the data source: tasks write segments, the driver's commit adds a batch to the stage.

Each call runs in its own process and keeps no state; all decisions are in the producer's log
(`shuffle/write/run_log.py`). The planner finds or makes the stage once per batch.

The first commit of a batch wins. If Spark replays a batch with other rows, they are not stored.
"""

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from durable_shuffle.jobs.deploy.worker_start import quicken_worker
from durable_shuffle.jobs.engine.checks import check_key
from durable_shuffle.jobs.streaming.options import DEFAULT_PARTITIONS, StagePlace, WriteOptions
from durable_shuffle.jobs.streaming.schemas import written_schema
from durable_shuffle.recovery.pipeline.plan.rows import partition_ids
from durable_shuffle.serialization.arrow_schemas import (
    fit_batch,
    schema_from_bytes,
    schema_to_bytes,
    widened,
)
from durable_shuffle.serialization.errors import (
    DurableShuffleError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.shuffle.base.clock import IdSource, RandomIds, SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.appender_log import Begun, Part
from durable_shuffle.shuffle.log.appender_reads import newest_schema
from durable_shuffle.shuffle.log.job_log import (
    Entered,
    begin_stage,
    enter_stage,
    read_job,
)
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.named_stage import note_entered
from durable_shuffle.shuffle.log.records import Describe
from durable_shuffle.shuffle.log.stage import StageHandle, describe_stage, open_stage
from durable_shuffle.shuffle.release.retention import overwritten, register_consumers
from durable_shuffle.shuffle.release.stages import release_stage
from durable_shuffle.shuffle.rows.partitioner import check_partition_count
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.write.run_log import (
    FIRST_ORDINALS,
    SEGMENT_NUMBERS,
    Run,
    abort_job,
    append_batch,
    begin_batch,
    begin_job,
    clear_behind,
    delete_segments,
    write_part,
)
from durable_shuffle.shuffle.write.segments import IdBatch


@dataclass(frozen=True)
class _Target:
    """The stage, in the form that tasks get."""

    place: StagePlace
    path: StagePath
    producer: int
    schema: bytes
    """Schema message of the rows as they come from Spark."""
    keeps_committed: bool
    """As in `WriteOptions`."""

    def stage(self) -> StageHandle:
        return open_stage(self.place.storage(), self.path)


@dataclass(frozen=True)
class PartMessage(WriterCommitMessage):
    """What a task reports to the commit."""

    target: _Target
    run: Run
    batch: int
    schema: bytes
    """Schema message of the rows as they are stored."""
    part: Part | None
    """None if the batch was already committed."""
    repeated_rows: int | None = None
    """How many rows a task was given for a batch that was committed; None: not counted."""


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of one micro-batch; planning and each commit or abort make a new one."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        stage = stage_to_write(options, schema, fresh=False)
        self._target = _target(options, stage, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _context()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        start = context.getLocalProperty("spark.jobGroup.id")
        if not (query and batch and start):
            raise IncompatibleError("a stream is written by tasks of a streaming query only")
        run = Run(query, hashlib.sha256(f"{query} {start}".encode()).hexdigest()[:32])
        quicken_worker()
        stage = self._target.stage()
        begun, tail = begin_batch(stage, self._target.producer, run, int(batch))
        newest = newest_schema(stage, self._target.producer, tail)
        return _write(self._target, stage, run, int(batch), begun, newest, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _commit(messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing, because a commit may have been sent. The next run deletes what is left."""


class BatchWriter(DataSourceArrowWriter):
    """Appends the rows of one write job as one batch; with `overwrite` to a new stage."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        stage = stage_to_write(options, schema, fresh=overwrite)
        self._target = _target(options, stage, schema)
        self._overwrite, self._keeps = overwrite, options.keeps_replaced
        self._run = Run("", secrets.token_hex(16))
        self._begun, tail = begin_job(stage, options.producer, self._run)
        self._newest = newest_schema(stage, options.producer, tail)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        _context()
        quicken_worker()
        stage = self._target.stage()
        return _write(self._target, stage, self._run, 0, self._begun, self._newest, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _commit(messages, 0)
        if self._overwrite:
            _replace_stage(self._target.stage(), RandomIds(), keeps=self._keeps)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the job and delete what it wrote, unless its commit was stored."""
        target, job = self._target, self._begun
        stage = target.stage()
        cause, new = "Spark called the write job off", RandomIds().new_id()
        if abort_job(stage, target.producer, job.attempt, new, cause, since=job.slot):
            delete_segments(stage, target.producer, job.attempt)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise IncompatibleError("rows are written inside Spark tasks only")
    return context


def _target(options: WriteOptions, stage: StageHandle, schema: StructType) -> _Target:
    message = schema_to_bytes(written_schema(schema))
    return _Target(options.place, stage.path, options.producer, message, options.keeps_committed)


def _write(
    target: _Target,
    stage: StageHandle,
    run: Run,
    batch: int,
    begun: Begun | None,
    newest: bytes,
    rows: Iterator[pa.RecordBatch],
) -> PartMessage:
    """Write one task's part of a batch; only count its rows if the batch is already committed.

    Args:
        newest: schema message of the rows committed last.
    """
    number = _context().partitionId()
    part, message, repeated = None, stage.describe.schema, None
    if begun is None:
        if not target.keeps_committed:
            repeated = sum(given.num_rows for given in rows)
    else:
        message = _stored_in(stage, target, newest)
        wide = in_schema(stage, message)
        part = write_part(
            wide,
            target.producer,
            begun,
            number,
            _with_ids(wide, number, rows),
            first_segment=secrets.randbelow(SEGMENT_NUMBERS),
            first_ordinal=secrets.randbelow(FIRST_ORDINALS),
            settings=Settings(),
        )
    return PartMessage(target, run, batch, message, part, repeated)


def _stored_in(stage: StageHandle, target: _Target, newest: bytes) -> bytes:
    """Return the schema message in which the rows are stored."""
    name = f"rows of {stage.path.prefix!r}"
    stored = schema_from_bytes(newest, name=name)
    written = schema_from_bytes(target.schema, name=name)
    wide = widened(stored, written, stage=stage.path.name)
    return newest if wide.equals(stored, check_metadata=True) else schema_to_bytes(wide)


def _with_ids(stage: StageHandle, number: int, rows: Iterator[pa.RecordBatch]) -> Iterator[IdBatch]:
    seen = number
    for batch in rows:
        fitted = fit_batch(_plain(batch, stage.schema), stage.schema)
        yield fitted, partition_ids(stage, fitted, seen)
        seen += batch.num_rows


def _plain(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns that the schema contains, in its types."""
    names = [name for name in batch.schema.names if name in schema.names]
    return batch.select(names).cast(pa.schema([schema.field(name) for name in names]))


def _commit(messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
    """Commit a batch. Any process may call this; a batch that is committed stays unchanged."""
    reports = [message for message in messages if isinstance(message, PartMessage)]
    if not reports or len(reports) != len(messages):
        raise InvalidInputError(
            f"batch {batch} cannot be committed: {len(reports)} of {len(messages)} tasks "
            "reported what they wrote"
        )
    target, run = reports[0].target, reports[0].run
    if {(r.target.path, r.run, r.batch) for r in reports} != {(target.path, run, batch)}:
        raise IncompatibleError(f"the tasks of batch {batch} wrote for other stages or batches")
    stage = target.stage()
    parts = [report.part for report in reports if report.part is not None]
    schemas = [report.schema for report in reports if report.part is not None]
    newest = max(schemas, key=len, default=reports[0].schema)
    counts = [report.repeated_rows for report in reports]
    repeated = None if None in counts else sum(n or 0 for n in counts)
    done = append_batch(stage, target.producer, run, batch, parts, newest, repeated_rows=repeated)
    if done.first:
        with suppress(DurableShuffleError):  # leftovers only cost space, and gc finds them
            clear_behind(stage, target.producer, parts[0].begun.attempt)


def stage_to_write(options: WriteOptions, written: StructType, *, fresh: bool) -> StageHandle:
    """Return the stage that the options name; make it if there is none.

    A new stage is one of log producers, so that streams can read it while it grows. If several
    writers make it at the same time, all use the one that was entered into the job's log first.

    Args:
        written: Spark's schema of the rows.
        fresh: always describe a new stage. The job's log records that it was begun, but readers see
            it only after `_replace_stage`.

    Raises:
        InvalidInputError: the existing stage is sealed or has other keys or counts; a key is no
            column, or its type has no hash.
    """
    schema = pa.schema([f.with_nullable(nullable=True) for f in written_schema(written)])
    place, storage, ids = options.place, options.place.storage(), RandomIds()
    newest = read_job(storage, place.job).newest_named(place.stage)
    if fresh:
        stage = _describe(storage, options, schema, written, ids, fresh=True)
    else:
        if newest is None:
            made = _describe(storage, options, schema, written, ids, fresh=False)
            newest = _enter(made, ids, replaces=False).path
        stage = open_stage(storage, newest)
        _check_fits(stage, options)
    if options.consumers:
        generation = stage.describe.generation
        register_consumers(stage, options.consumers, ids=ids, generation=generation, closed=True)
    return stage


def _enter(stage: StageHandle, ids: IdSource, **how: Any) -> Entered:
    """Enter a described stage into the job's log."""
    record, claim = ids.new_id(), ids.new_id()
    return enter_stage(stage.storage, stage.path, record_id=record, claim_id=claim, **how)


def _replace_stage(stage: StageHandle, ids: IdSource, *, keeps: bool) -> None:
    """Enter a described stage in place of the stage that has its name. Safe to repeat.

    The replaced stage is released if a writer of the data source made it.

    Args:
        keeps: do not release the replaced stage; `release` can delete it later.
    """

    def releases(path: StagePath) -> bool:
        return not keeps and open_stage(stage.storage, path).describe.writing == "log"

    entered = _enter(stage, ids, replaces=True, releases=releases)
    note_entered(stage, ids.new_id())
    if entered.replaced is not None:
        with suppress(DurableShuffleError):  # it is released; gc finishes that
            before = open_stage(stage.storage, entered.replaced)
            release_stage(
                before,
                ids,
                generation=before.describe.generation,
                producers=before.describe.producers,
                cause=overwritten(stage.path.folder),
            )


def _check_fits(stage: StageHandle, options: WriteOptions) -> None:
    describe = stage.describe
    if describe.writing != "log":
        raise InvalidInputError(
            f"stage {describe.name!r} is sealed, nothing can be appended: {stage.path.prefix!r}; "
            "give another stage, or mode('overwrite')"
        )
    keys = describe.key_names
    for what, asked, made in (
        ("partitions", options.partitions, describe.partitions),
        ("producers", options.producers, describe.producers),
        ("keys", options.keys or None, keys),
    ):
        if asked is not None and asked != made:
            raise InvalidInputError(
                f"stage {describe.name!r} was made with {what}={made}, found {asked}: leave the "
                "option out, or give another stage"
            )
    if options.producer >= describe.producers:
        raise InvalidInputError(
            f"option 'producer' counts from 0 and must be below the stage's {describe.producers} "
            f"producers, found {options.producer}: {stage.path.prefix!r}"
        )


def _describe(
    storage: Storage,
    options: WriteOptions,
    schema: pa.Schema,
    written: StructType,
    ids: IdSource,
    *,
    fresh: bool,
) -> StageHandle:
    partitions, producers = options.partitions or DEFAULT_PARTITIONS, options.producers or 1
    check_partition_count(partitions)
    Settings(compression=options.compression)
    if options.producer >= producers:
        raise InvalidInputError(
            f"option 'producer' counts from 0 and must be below producers={producers}, found "
            f"{options.producer}"
        )
    for key in options.keys:
        if key not in schema.names:
            raise InvalidInputError(
                f"option 'keys': no column {key!r}; there are {', '.join(schema.names)}"
            )
        check_key(key, written[key].dataType)
    shape = repr((schema.to_string(), options.keys, producers, partitions))
    fingerprint = hashlib.sha256(shape.encode()).hexdigest()[:32]
    path = StagePath(options.place.job, options.place.stage, fingerprint, ids.new_id())
    describe = Describe(
        record_id=ids.new_id(),
        generation=1,
        name=path.name,
        fingerprint=path.fingerprint,
        incarnation=path.incarnation,
        schema=schema_to_bytes(schema),
        codec="arrow",
        compression=options.compression,
        columns=tuple(schema.names),
        producers=producers,
        partitions=partitions,
        writing="log",
        partitioner="hash" if options.keys else "round_robin",
        keys=tuple(schema.names.index(key) for key in options.keys),
        components={},
        splits="",
        planning={},
        created_wall_seconds=SystemClock().wall(),
    )
    if fresh:
        begin_stage(storage, path, record_id=ids.new_id(), claim_id=ids.new_id())
    return describe_stage(storage, path, describe)


def in_schema(stage: StageHandle, schema: bytes) -> StageHandle:
    """Return the stage with another schema message for its rows."""
    names = stage.describe.columns
    stored = schema_from_bytes(schema, name=f"rows of {stage.path.prefix!r}")
    columns = (*names, *stored.names[len(names) :])
    describe = replace(stage.describe, schema=schema, columns=columns)
    return StageHandle(stage.storage, stage.path, describe)
