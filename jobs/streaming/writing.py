"""Writers of the data source: tasks write segments, the driver's commit adds a batch to the stage.

Each call runs in its own process and keeps no state; all decisions are in the producer's log
(`shuffle/write/run_log.py`). The planner looks up the stage once per batch.

The first commit of a batch wins. If Spark replays a batch with other rows, they are not stored.
"""

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from durable_shuffle.jobs.deploy.worker_start import quicken_worker
from durable_shuffle.jobs.streaming.options import Place, WriteOptions
from durable_shuffle.jobs.streaming.schemas import written_schema
from durable_shuffle.jobs.streaming.stage_making import in_schema, replace_stage, stage_to_write
from durable_shuffle.recovery.pipeline.plan.rows import partition_ids
from durable_shuffle.serialization.arrow_codec import schema_from_bytes, schema_to_bytes
from durable_shuffle.serialization.errors import (
    DurableShuffleError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.serialization.schema_change import fit_batch, widened
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.appender_log import Begun, Part, newest_schema
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage
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
from durable_shuffle.shuffle.write.segment_writer import IdBatch


@dataclass(frozen=True)
class PartMessage(WriterCommitMessage):
    """What a task reports to the commit."""

    place: Place
    path: StagePath
    producer: int
    run: Run
    batch: int
    schema: bytes
    part: Part | None
    """None if the batch was already committed."""


@dataclass(frozen=True)
class _Target:
    """The stage, in the form that tasks get."""

    place: Place
    path: StagePath
    producer: int
    schema: bytes
    """Schema message of the rows as they come from Spark."""

    def stage(self) -> StageHandle:
        return open_stage(self.place.storage(), self.path)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of one micro-batch; planning and each commit or abort make a new one."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        stage = _found(options, schema, fresh=False)
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
        stage = _found(options, schema, fresh=overwrite)
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
            replace_stage(self._target.stage(), RandomIds(), keeps=self._keeps)

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


def _found(options: WriteOptions, schema: StructType, *, fresh: bool) -> StageHandle:
    stored = pa.schema([field.with_nullable(nullable=True) for field in written_schema(schema)])
    return stage_to_write(
        options.place.storage(),
        options,
        stored,
        spark_schema=schema,
        fresh=fresh,
        ids=RandomIds(),
        clock=SystemClock(),
    )


def _target(options: WriteOptions, stage: StageHandle, schema: StructType) -> _Target:
    message = schema_to_bytes(written_schema(schema))
    return _Target(options.place, stage.path, options.producer, message)


def _write(
    target: _Target,
    stage: StageHandle,
    run: Run,
    batch: int,
    begun: Begun | None,
    newest: bytes,
    rows: Iterator[pa.RecordBatch],
) -> PartMessage:
    """Write one task's part of a batch; write nothing if the batch is already committed.

    Args:
        newest: schema message of the rows committed last.
    """
    number = _context().partitionId()
    part, message = None, stage.describe.schema
    if begun is not None:
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
    return PartMessage(target.place, target.path, target.producer, run, batch, message, part)


def _stored_in(stage: StageHandle, target: _Target, newest: bytes) -> bytes:
    """Return the schema message in which the rows are stored."""
    stored, found = schema_from_bytes(newest), schema_from_bytes(target.schema)
    wide = widened(stored, found, stage=stage.path.name)
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
    found = [message for message in messages if isinstance(message, PartMessage)]
    if not found or len(found) != len(messages):
        raise InvalidInputError(
            f"batch {batch} cannot be committed: {len(found)} of {len(messages)} tasks said what "
            "they wrote"
        )
    one = found[0]
    if {(m.path, m.run, m.batch) for m in found} != {(one.path, one.run, batch)}:
        raise IncompatibleError(f"the tasks of batch {batch} wrote for other stages or batches")
    stage = open_stage(one.place.storage(), one.path)
    parts = [message.part for message in found if message.part is not None]
    newest = max((m.schema for m in found if m.part is not None), key=len, default=one.schema)
    done = append_batch(stage, one.producer, one.run, batch, parts, newest)
    if done.first:
        with suppress(DurableShuffleError):  # leftovers only cost space, and gc finds them
            clear_behind(stage, one.producer, parts[0].begun.attempt)
