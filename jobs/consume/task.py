"""One Spark task that consumes one subpartition, and one that reads what was published.

All state comes from their arguments, as in `tasks`. A task that was fenced, by a retry, by a
speculative twin or as a zombie, waits for the winner and returns its result. Errors that a retry
cannot mend come back as a row; those of the user's code and the rest are raised, so that Spark
tries again from the last acknowledgement.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from pyspark import TaskContext

from durable_shuffle.jobs.consume.step import UserCodeError, UserStep
from durable_shuffle.jobs.deploy.worker_start import quicken_worker
from durable_shuffle.jobs.engine.tasks import ArrowFunction, check_code
from durable_shuffle.serialization import errors
from durable_shuffle.serialization.errors import (
    ConflictError,
    CorruptDataError,
    DurableShuffleError,
    FencedError,
    IncompatibleError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.clock import SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.log import resume_log
from durable_shuffle.shuffle.consume.loop import Consumed, await_finished, consume_view
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.consume.outputs import read_output
from durable_shuffle.shuffle.log.consumer_records import Finished, ResumeMode
from durable_shuffle.shuffle.log.layout import ConsumerPath, default_task
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.sealed_reader import join_small
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.retrying import CountingStorage

RESULT_SCHEMA = (
    "subpartition long, delivered long, resumed_from long, requests long, tries_before long, "
    "error string, message string"
)


@dataclass(frozen=True, slots=True)
class ConsumeSpec:
    """Everything that a consuming task needs."""

    stage: StageHandle
    consumer: str
    process: Any
    schema: pa.Schema | None
    checkpoint_every: int
    resume: ResumeMode
    generation: int
    settings: Settings
    tries: int
    """How often Spark runs a failing task."""
    patience_seconds: float
    """How long a fenced task waits for a winner that writes nothing."""
    code: str
    process_code: str
    """Digest of `process`."""

    def log(self, subpartition: int) -> SlotLog:
        """The log of the task that reads one subpartition."""
        return consumer_log(self.stage, self.consumer, subpartition)


@dataclass(frozen=True, slots=True)
class ConsumeResult:
    """What one consuming task reports to the driver. The consumer's log is what counts."""

    subpartition: int
    delivered: int
    resumed_from: int
    requests: int
    tries_before: int


def consumer_log(stage: StageHandle, consumer: str, subpartition: int) -> SlotLog:
    """Return the log of the consumer task that reads one subpartition of a stage."""
    task = default_task(stage.path.incarnation, subpartition)
    return SlotLog(stage.storage, ConsumerPath(stage.path.job, consumer, task).log_prefix)


def consume_function(spec: ConsumeSpec, subpartitions: tuple[int, ...]) -> ArrowFunction:
    """Return the `mapInArrow` function over task numbers: task n consumes `subpartitions[n]`."""

    def consume(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield run_consume_task(spec, subpartitions[number])

    return consume


def run_consume_task(spec: ConsumeSpec, subpartition: int) -> pa.RecordBatch:
    """Consume one subpartition to its end; the body of `consume_function`."""
    context = TaskContext.get()
    if context is None:
        raise IncompatibleError("consuming tasks run inside Spark tasks only")
    quicken_worker()
    counting = CountingStorage(spec.stage.storage)
    stage = StageHandle(counting, spec.stage.path, spec.stage.describe)
    done, error = Consumed(0, 0, 0), cast("DurableShuffleError | None", None)
    try:
        check_code(spec.code)
        try:
            done = _consume(spec, stage, subpartition)
        except FencedError:
            log = consumer_log(stage, spec.consumer, subpartition)
            clock, patience = SystemClock(), spec.patience_seconds
            if await_finished(log, spec.generation, clock, patience) is None:
                raise UnavailableError(
                    f"another attempt took this consumer over and wrote nothing for "
                    f"{patience:g} s: log={log.prefix!r}"
                ) from None
    except UserCodeError as e:
        raise e.error from None
    except (UnavailableError, OutcomeUnknownError, ConflictError) as e:
        if context.attemptNumber() + 1 < spec.tries:
            raise
        error = e
    except DurableShuffleError as e:
        error = e
    return _row(
        ConsumeResult(
            subpartition,
            done.delivered,
            done.resumed_from,
            counting.total,
            context.attemptNumber(),
        ),
        error,
    )


def _consume(spec: ConsumeSpec, stage: StageHandle, subpartition: int) -> Consumed:
    step = UserStep(stage, copy.deepcopy(spec.process), spec.schema)
    view = open_view(
        stage,
        subpartition,
        consumer=spec.consumer,
        resume=spec.resume,
        generation=spec.generation,
        settings=spec.settings,
        code=spec.process_code,
    )
    with view:
        try:
            return consume_view(
                view, step, schema=spec.schema, checkpoint_every=spec.checkpoint_every
            )
        finally:
            step.close()


def _row(result: ConsumeResult, error: DurableShuffleError | None) -> pa.RecordBatch:
    numbers = ("subpartition", "delivered", "resumed_from", "requests", "tries_before")
    columns = [pa.array([getattr(result, name)], pa.int64()) for name in numbers]
    texts = (None, None) if error is None else (type(error).__name__, str(error))
    columns += [pa.array([text], pa.string()) for text in texts]
    return pa.RecordBatch.from_arrays(columns, names=[*numbers, "error", "message"])


def consume_result(row: dict[str, Any]) -> ConsumeResult:
    """Return what a consuming task's row says; runs on the driver.

    Raises:
        DurableShuffleError: the error that the task met.
    """
    error, message = row.pop("error"), row.pop("message")
    if error is not None:
        kind = getattr(errors, str(error), CorruptDataError)
        raise kind(f"subpartition {row['subpartition']}: {message}")
    return ConsumeResult(**row)


def published_function(
    storage: Storage,
    logs: tuple[tuple[str, int], ...],
    schema: pa.Schema,
    *,
    settings: Settings,
    code: str,
) -> ArrowFunction:
    """Return the `mapInArrow` function that yields what the consumer tasks published.

    Args:
        logs: prefix of the consumer log and slot of its FINISHED, by task number.
    """

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        quicken_worker()
        check_code(code)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                prefix, slot = logs[number]
                rows = _published(storage, prefix, slot, schema)
                yield from join_small(rows, settings.read_batch_rows)

    return read


def _published(
    storage: Storage, prefix: str, slot: int, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    log = resume_log(SlotLog(storage, prefix))
    if (record := log.record(slot)) is None:
        raise NotFoundError(f"the consumer's last record is gone: {log.key(slot)!r}; run verify")
    if not isinstance(record, Finished):
        raise CorruptDataError(f"expected FINISHED, found {record.KIND}: {log.key(slot)!r}")
    for output in record.outputs:
        yield from read_output(storage, output, schema)
