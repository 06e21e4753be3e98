"""The functions that run in Spark's Python workers.

All state comes from their arguments, because a reused worker may have run another job before. If a
retry cannot help, the task returns the error as a row, and the driver raises it with its type.
Other errors are raised in the task, so that Spark tries again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from durable_shuffle.jobs.deploy.running_code import running_code
from durable_shuffle.jobs.deploy.worker_start import quicken_worker
from durable_shuffle.jobs.engine.row_numbers import CountedRows
from durable_shuffle.jobs.engine.transfer import LargeRowsError, limited
from durable_shuffle.jobs.identity.functions.user_code import check_modules
from durable_shuffle.jobs.jvm_rows.blocks import blocks_of, frames_of
from durable_shuffle.jobs.jvm_rows.files import StoredFiles, stored_files
from durable_shuffle.jobs.jvm_rows.written import JvmSegments
from durable_shuffle.recovery.skew import Read
from durable_shuffle.serialization import errors
from durable_shuffle.serialization.arrow_codec import array_of_one, numbers_of
from durable_shuffle.serialization.errors import (
    DurableShuffleError,
    IncompatibleError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.clock import Clock, RandomIds, SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.producer_log import CommittedAttempt
from durable_shuffle.shuffle.log.records import PASSTHROUGH, PRODUCER_RECORDS, Commit, Seal
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.extents import Extent
from durable_shuffle.shuffle.read.sealed_reader import (
    Pieces,
    decoded,
    group_extents,
    join_small,
)
from durable_shuffle.shuffle.rows.partitioner import narrow_ids, round_robin_ids
from durable_shuffle.shuffle.seal.suspect import noting
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.retrying import CountingStorage
from durable_shuffle.shuffle.write.awaited import Awaited, AwaitingStorage
from durable_shuffle.shuffle.write.producer import (
    ProducerResult,
    run_producer,
    run_segment_producer,
)
from durable_shuffle.shuffle.write.segments import IdBatch

if TYPE_CHECKING:  # not needed in tasks
    from durable_shuffle.jobs.identity.functions.identity import FunctionIdentity

ID_COLUMN = "__partition_id"
IDS_FROM_SPARK = ("hash", "range")
"""Partitioners whose ids the JVM computes; they arrive as the last column."""
RESULT_SCHEMA = (
    "producer long, slot long, wrote boolean, won boolean, requests long, storage_retries long, "
    "storage_wait_seconds double, seconds double, tries_before long, spark_stage long, "
    "commit binary, "
    "error string, message string"
)
ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
PiecesFunction = Callable[[Iterator[bytes]], Iterator[dict[str, Any]]]
T = TypeVar("T")
Produce = Callable[[StageHandle, int, str], ProducerResult]


@dataclass(frozen=True, slots=True)
class MapResult:
    """What one map task reports to the driver."""

    committed: CommittedAttempt
    wrote: bool
    won: bool
    requests: int
    storage_retries: int
    storage_wait_seconds: float
    seconds: float
    tries_before: int
    """How often Spark had started this task before."""
    spark_stage: int
    """Spark's number of its own stage that this task was of."""


def check_code(expected: str) -> None:
    """Refuse to work if this worker's code differs from the driver's.

    Args:
        expected: the driver's `code_with()`: this library's code, then the user's modules.

    Raises:
        IncompatibleError: this library or a module of the user differs.
    """
    library, *modules = expected.splitlines()
    if running_code() != library:
        raise IncompatibleError(
            f"this executor runs durable-shuffle {running_code()}, its driver {library} (version "
            "and digest of the code): install the same on both, and start a new Spark application "
            "after a change"
        )
    check_modules(dict(line.split(" ", 1) for line in modules))


def start_worker(_: int) -> Iterator[bytes]:
    """Do nothing: to load this function, the Python worker has imported all that map tasks need."""
    yield from ()


def code_with(identity: "FunctionIdentity") -> str:
    """Return the code that tasks must run: this library's, and the user's modules with digests."""
    return "\n".join([running_code(), *(f"{n} {d}" for n, d in sorted(identity.modules.items()))])


def checked_to_the_end(rows: Iterator[T], code: str) -> Iterator[T]:
    """Yield the rows; after the last one, check the modules that user functions have imported."""
    yield from rows
    check_code(code)


@dataclass(frozen=True, slots=True)
class MapJob:
    """How Spark is asked to run map tasks."""

    producers: Sequence[int]
    """Those that have to run; others may, too."""
    label: str
    """Shown in Spark's UI."""
    may_start: Callable[[], None] = lambda: None
    """To be called behind all preparations: returns when tasks may start, or raises."""
    looks: bool = False
    """Whether tasks make sure of that themselves, so that they may start beside this call. If it
    raises, they have to be cancelled."""


@dataclass(frozen=True, slots=True)
class MapTasks:
    """What all map tasks of a stage share, whatever rows they write."""

    stage: StageHandle
    """Opened on the storage that tasks use."""
    producers: int
    settings: Settings
    tries: int
    """How often Spark runs a failing task."""
    code: str
    """What `check_code` expects."""
    ends: bool = False
    """Whether an end row follows the last row of each partition (`CountedRows`)."""
    watch: bool = False
    """Whether what user functions open makes the stage unrecognised: no version vouches for it."""
    new: bool = False
    """Whether these are the first tasks that write the stage."""
    max_batch_bytes: int | None = None
    """If Spark hands over a larger batch, the task reports LargeRowsError."""
    awaited: tuple[Awaited, ...] = ()
    """Records that must stand before a task stores anything, if it may start before they do."""

    def run(self, produce: Produce) -> dict[str, Any]:
        """Write one producer's output and return the result as a row; the body of every map task.

        Args:
            produce: writes and commits. Its arguments are the stage, opened on a storage that
                counts requests, the producer's number and the id of this attempt.
        """
        context = TaskContext.get()
        if context is None:
            raise IncompatibleError("map tasks run inside Spark tasks only")
        quicken_worker()
        clock = SystemClock()
        start = clock.monotonic()
        counting = CountingStorage(self.stage.storage)
        result, error = None, None
        try:
            check_code(self.code)
            # Spark numbers attempts anew only when it runs its whole stage again
            first = self.new and context.attemptNumber() == 0
            storage = self._behind_records(counting, clock)
            stage = replace(self.stage, storage=storage, untried=first)
            result = produce(stage, context.partitionId(), RandomIds().new_id())
        except (DurableShuffleError, LargeRowsError) as e:
            may_pass = isinstance(e, UnavailableError | OutcomeUnknownError)
            if may_pass and context.attemptNumber() + 1 < self.tries:
                raise
            error = e
        return _row(context, result, counting, clock.monotonic() - start, error)

    def _behind_records(self, storage: Storage, clock: Clock) -> Storage:
        if not self.awaited:
            return storage
        patience = self.settings.storage_call_seconds
        return AwaitingStorage(storage, self.awaited, clock=clock, patience_seconds=patience)


def map_function(tasks: MapTasks) -> ArrowFunction:
    """Return the `mapInArrow` function that writes the rows of its partition as one producer."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def produce(stage: StageHandle, producer: int, attempt: str) -> ProducerResult:
            rows = CountedRows(limited(batches, tasks.max_batch_bytes), producer, ends=tasks.ends)
            return run_producer(
                stage,
                producer,
                _with_ids(stage, producer, rows),
                attempt=attempt,
                producers=tasks.producers,
                settings=tasks.settings,
                check=rows.check,
            )

        yield result_batch(tasks.run(produce))

    return write


def frames_function(tasks: MapTasks) -> PiecesFunction:
    """Return the function that stores the frames that the JVM made of its partition.

    The worker gets finished frames, in pieces (`jobs/jvm_rows/written.py`), and writes and commits
    them as one producer.
    """

    def write(pieces: Iterator[bytes]) -> Iterator[dict[str, Any]]:
        def produce(stage: StageHandle, producer: int, attempt: str) -> ProducerResult:
            segments = JvmSegments(
                pieces,
                producer,
                stage.path.incarnation,
                stage.describe.partitions,
                tasks.settings.max_frame_bytes,
            )
            return run_segment_producer(
                stage,
                producer,
                segments,
                attempt=attempt,
                producers=tasks.producers,
                settings=tasks.settings,
            )

        yield tasks.run(produce)

    return write


def _with_ids(
    stage: StageHandle, producer: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[IdBatch]:
    partitions = stage.describe.partitions
    seen = 0
    for batch in batches:
        rows = batch
        if stage.describe.partitioner in IDS_FROM_SPARK:
            last = batch.num_columns - 1
            rows = batch.select(range(last))
            ids = narrow_ids(numbers_of(batch.column(last)), partitions)
        elif stage.describe.partitioner == PASSTHROUGH:
            ids = narrow_ids(np.full(batch.num_rows, producer), partitions)
        else:
            ids = round_robin_ids(producer + seen, batch.num_rows, partitions)
        seen += batch.num_rows
        yield rows, ids


def _row(
    context: TaskContext,
    result: ProducerResult | None,
    storage: CountingStorage,
    seconds: float,
    error: DurableShuffleError | LargeRowsError | None,
) -> dict[str, Any]:
    commit: bytes | None = None
    if result is not None:
        light = result.committed.light(result.committed.commit.producers)
        commit = PRODUCER_RECORDS.encode(light.commit)
    return {
        "producer": context.partitionId(),
        "slot": -1 if result is None else result.committed.slot,
        "wrote": result is not None and result.wrote,
        "won": result is not None and result.won,
        "requests": storage.total,
        "storage_retries": storage.retry_counts.retries,
        "storage_wait_seconds": storage.retry_counts.waited_seconds,
        "seconds": seconds,
        "tries_before": context.attemptNumber(),
        "spark_stage": context.stageId(),
        "commit": commit,
        "error": None if error is None else type(error).__name__,
        "message": None if error is None else str(error),
    }


def result_batch(result: dict[str, Any]) -> pa.RecordBatch:
    """Return the row of a map task's result, of RESULT_SCHEMA."""
    of_kind = {
        "long": pa.int64(),
        "boolean": pa.bool_(),
        "double": pa.float64(),
        "binary": pa.binary(),
        "string": pa.string(),
    }
    kinds = dict(field.split() for field in RESULT_SCHEMA.split(","))
    arrays = [array_of_one(value, of_kind[kinds[name]]) for name, value in result.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(result))


def map_result(row: dict[str, Any]) -> MapResult:
    """Return the result in a map task's row; runs on the driver.

    Raises:
        DurableShuffleError: the error that the task reported, with its type.
        LargeRowsError: the task got a batch that was too large.
    """
    if row["error"] == LargeRowsError.__name__:
        raise LargeRowsError(row["message"])
    if row["error"] is not None:
        kind = getattr(errors, str(row["error"]), errors.CorruptDataError)
        raise kind(f"producer {row['producer']}: {row['message']}")
    data, name = row["commit"], f"result of producer {row['producer']}"
    commit = data and PRODUCER_RECORDS.decode(bytes(data), name=name)
    if not isinstance(commit, Commit):
        raise errors.CorruptDataError(f"map task {row['producer']} returned no COMMIT")
    counts = {field.name: row[field.name] for field in fields(MapResult)[1:]}
    return MapResult(CommittedAttempt(row["slot"], commit), **counts)


@dataclass(frozen=True, slots=True)
class StoredRows:
    """What tasks run to read stored rows, in all ways that are possible."""

    rows: ArrowFunction
    """Yields the rows; for `mapInArrow` over task numbers."""
    tasks: int
    blocks: Callable[[int], Iterator[bytes]] | None = None
    """Yields the same rows as blocks of frames, which the JVM decodes (`jobs/jvm_rows/blocks.py`);
    None if only Python can decode them."""
    files: StoredFiles | None = None
    """How the JVM reads the same rows without a task of Python; None if it cannot."""


def stored_rows(
    stage: StageHandle,
    seal: Seal,
    *,
    settings: Settings,
    groups: Sequence[Read] | None = None,
) -> StoredRows:
    """Return what tasks run to read a sealed stage.

    Args:
        groups: task number -> what the task reads; None if task k reads subpartition k.
    """
    code = running_code()
    tasks = stage.describe.partitions if groups is None else len(groups)

    def extents(number: int) -> Iterator[tuple[Extent, Pieces]]:
        first, end, *part = (number, number + 1) if groups is None else groups[number]
        return group_extents(stage, seal, first, end, settings, slice(*part) if part else None)

    def rows_of(number: int) -> Iterator[pa.RecordBatch]:
        rows = decoded(stage, extents(number), settings)
        return join_small(rows, settings.read_batch_rows)

    def noted(rows: Iterator[T]) -> Iterator[T]:
        return noting(stage, rows, RandomIds(), seal)

    def blocks_of_task(number: int) -> Iterator[bytes]:
        quicken_worker()
        check_code(code)
        yield from noted(blocks_of(frames_of(stage, extents(number), settings)))

    return StoredRows(
        _per_task(lambda number: noted(rows_of(number)), code),
        tasks,
        blocks_of_task,
        stored_files(stage, seal, settings, groups),
    )


def _per_task(make: Callable[[int], Iterator[pa.RecordBatch]], code: str) -> ArrowFunction:
    """Return the `mapInArrow` function that yields what `make` makes for each task number."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        quicken_worker()
        check_code(code)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from make(number)

    return read
