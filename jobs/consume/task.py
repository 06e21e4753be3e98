"""One Spark task that consumes one partition, and one that reads what was published.

All state comes from their arguments. A task that was fenced, by a retry or a speculative twin,
waits for the winner and returns its result. An error that a retry cannot repair comes back as a
row. All others are raised, so that Spark tries again from the last acknowledgement; an error of the
user's code is a `UserCodeError` until then, never taken for one of this library.
"""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from durable_shuffle.jobs.deploy.worker_start import quicken_worker
from durable_shuffle.jobs.engine.tasks import ArrowFunction, check_code
from durable_shuffle.jobs.python_stage.contracts import checked_batches
from durable_shuffle.serialization import errors
from durable_shuffle.serialization.arrow_schemas import logical_batch, logical_schema, under_schema
from durable_shuffle.serialization.errors import (
    ConflictError,
    CorruptDataError,
    DurableShuffleError,
    FencedError,
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.clock import SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.base.user_code import (
    UserCodeError,
    closing_all,
    guarded,
    text_of,
    user_code,
)
from durable_shuffle.shuffle.consume.log import resume_log
from durable_shuffle.shuffle.consume.loop import (
    Consumed,
    await_finished,
    consume_view,
    winner_waits,
)
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.consume.outputs import read_output
from durable_shuffle.shuffle.log.consumer_records import Finished, ResumeMode
from durable_shuffle.shuffle.log.layout import ConsumerPath, default_task
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.sealed_reader import join_small
from durable_shuffle.shuffle.rows.reducers import lacks_of_state
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.retrying import CountingStorage

RESULT_SCHEMA = (
    "subpartition long, delivered long, resumed_from long, requests long, tries_before long, "
    "error string, message string"
)


OnNewCode = Literal["fail", "go_on"]


@dataclass(frozen=True, slots=True)
class ConsumeRequest:
    """What the user asked for, checked."""

    consumer: str
    process: Any
    schema: StructType | None
    checkpoint_every: int
    resume: ResumeMode
    on_new_code: OnNewCode
    process_code: str
    """Digest of `process`: its code and everything it uses that can be recognised."""


@dataclass(frozen=True, slots=True)
class ConsumeSpec:
    """Everything that a consuming task needs."""

    stage: StageHandle
    request: ConsumeRequest
    schema: pa.Schema | None
    """Storable form of the request's."""
    generation: int
    settings: Settings
    tries: int
    """How often Spark runs a failing task."""
    code: str
    """The task refuses to run other code; see `check_code`."""


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
        done = _consume_in_turns(spec, stage, subpartition)
    except UserCodeError as e:
        raise e.error from None
    except (UnavailableError, OutcomeUnknownError, ConflictError) as e:
        if context.attemptNumber() + 1 < spec.tries:
            raise
        error = e
    except DurableShuffleError as e:
        error = e
    result = ConsumeResult(
        subpartition, done.delivered, done.resumed_from, counting.total, context.attemptNumber()
    )
    return _row(result, error)


def _consume_in_turns(spec: ConsumeSpec, stage: StageHandle, subpartition: int) -> Consumed:
    """Consume until this attempt or the one that fenced it has finished; take over a dead one's."""
    log = consumer_log(stage, spec.request.consumer, subpartition)
    for patience in winner_waits(spec.settings):
        try:
            return _consume(spec, stage, subpartition)
        except FencedError:
            if await_finished(log, spec.generation, SystemClock(), patience) is not None:
                return Consumed(0, 0, 0)
    raise UnavailableError(
        f"other attempts hold this consumer and do not finish it: log={log.prefix!r}"
    )


def _consume(spec: ConsumeSpec, stage: StageHandle, subpartition: int) -> Consumed:
    request = spec.request
    step = UserStep(stage, copy.deepcopy(request.process), spec.schema)
    view = open_view(
        stage,
        subpartition,
        consumer=request.consumer,
        resume=request.resume,
        generation=spec.generation,
        settings=spec.settings,
        code=request.process_code,
    )
    with view, closing_all(step.close):
        return consume_view(
            view, step, schema=spec.schema, checkpoint_every=request.checkpoint_every
        )


def _row(result: ConsumeResult, error: DurableShuffleError | None) -> pa.RecordBatch:
    numbers = asdict(result)
    texts = (None, None) if error is None else (type(error).__name__, text_of(error))
    columns = [pa.array([number], pa.int64()) for number in numbers.values()]
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


def is_stateful(process: Any) -> bool:
    """Return True for an object with process, snapshot and restore, False for a function.

    Raises:
        InvalidInputError: neither; names what is missing.
    """
    missing = lacks_of_state(process)
    if not missing:
        return True
    if callable(process):
        return False
    raise InvalidInputError(
        "process must be a function of a RecordBatch, or an object with process, snapshot and "
        f"restore: {type(process).__name__} has no {', '.join(missing)}"
    )


@dataclass(slots=True)
class UserStep:
    """The user's consumer as a `Step` of the consume loop."""

    stage: StageHandle
    user: Any
    """A function, or an object that `is_stateful`; no other task has it."""
    schema: pa.Schema | None
    """Of what it yields, storable."""

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        plain = logical_batch(batch, self.stage.schema)
        rows = under_schema(plain, self._input())
        call = self.user.process if is_stateful(self.user) else self.user
        with user_code():
            produced = call(rows)
        return self._checked(produced)

    def finish(self) -> Iterator[pa.RecordBatch]:
        if not is_stateful(self.user) or not hasattr(self.user, "finish"):
            return iter(())
        with user_code():
            produced = self.user.finish()
        return self._checked(produced)

    def snapshot(self) -> bytes | None:
        if not is_stateful(self.user):
            return None
        with user_code():
            state = self.user.snapshot()
        if not isinstance(state, bytes):
            raise InvalidInputError(f"snapshot must return bytes, found {type(state).__name__}")
        return state

    def restore(self, state: bytes | None) -> None:
        if (state is not None) != is_stateful(self.user):
            was = "a function" if state is None else "an object with a state"
            raise IncompatibleError(
                f"this consumer was run with {was} before, and acknowledged records: give another "
                "consumer name"
            )
        if state is not None:
            with user_code():
                self.user.restore(state)

    def close(self) -> None:
        """End this attempt."""
        if is_stateful(self.user) and hasattr(self.user, "close"):
            with user_code():
                self.user.close()

    def _input(self) -> pa.Schema:
        names = self.stage.describe.columns
        logical = logical_schema(self.stage.schema)
        return pa.schema([f.with_name(n) for f, n in zip(logical, names, strict=True)])

    def _checked(self, produced: Any) -> Iterator[pa.RecordBatch]:
        if produced is None:
            return
        if isinstance(produced, Iterable) and not isinstance(produced, (pa.RecordBatch, pa.Table)):
            produced = guarded(produced)
        if self.schema is not None:
            yield from checked_batches(produced, self.schema, "process")
            return
        for item in [produced] if isinstance(produced, (pa.RecordBatch, pa.Table)) else produced:
            raise InvalidInputError(
                f"process returned {type(item).__name__}, and consume() was given no schema for "
                "what it returns"
            )
