"""Consuming a stored stage on Spark: one task per subpartition, resuming inside of it.

Strategy: register the consumer, so that what it has not finished stays; read every consumer task's
log; tasks that have finished are not run. The others run as one Spark job. What they return are
hints: the logs are read again, and what they say finished is the result.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from durable_shuffle.jobs.consume.step import is_stateful
from durable_shuffle.jobs.consume.task import (
    RESULT_SCHEMA,
    ConsumeSpec,
    consume_function,
    consume_result,
    consumer_log,
    published_function,
)
from durable_shuffle.jobs.deploy.running_code import running_code
from durable_shuffle.jobs.engine.arrow_schema import named_arrow_schema
from durable_shuffle.jobs.engine.checks import (
    as_schema,
    check_columns,
    check_function,
    check_option,
)
from durable_shuffle.jobs.engine.engine import Engine, ReadBack
from durable_shuffle.jobs.identity.functions.identity import identify_function
from durable_shuffle.jobs.stages.report import ConsumerReport
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
)
from durable_shuffle.shuffle.base.clock import Clock, IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.log import read_resume_set
from durable_shuffle.shuffle.consume.loop import check_outputs_schema
from durable_shuffle.shuffle.consume.resume_set import ResumeSet
from durable_shuffle.shuffle.consume.task import load_state
from durable_shuffle.shuffle.log.consumer_records import ResumeMode
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.layout import StagePath, check_name
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage, require_seal
from durable_shuffle.shuffle.release.registry import register_consumers
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.retrying import CountingStorage

OnNewCode = Literal["fail", "go_on"]
DEFAULT_CHECKPOINT_ROWS = 1_000_000
_PATIENCE_SECONDS = 600.0
"""A fenced task waits so long for a winner that acknowledges nothing, then lets Spark retry."""


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


def check_consume(
    consumer: str,
    process: Any,
    schema: StructType | str | None,
    checkpoint_every: int,
    resume: str,
    on_new_code: str,
) -> ConsumeRequest:
    """Return the request.

    Raises:
        InvalidInputError: names what is wrong.
    """
    check_name("consumer", consumer)
    is_stateful(process)
    check_function("process", process)
    if isinstance(checkpoint_every, bool) or not isinstance(checkpoint_every, int):
        raise InvalidInputError(f"checkpoint_every must be an integer, found={checkpoint_every!r}")
    if checkpoint_every < 1:
        raise InvalidInputError(f"checkpoint_every must be at least 1, found={checkpoint_every}")
    if resume not in ("exact", "approximate"):
        raise InvalidInputError(f"resume must be 'exact' or 'approximate', found={resume!r}")
    columns = None if schema is None else as_schema("schema", schema)
    if columns is not None:
        check_columns(columns)
    mode: ResumeMode = "exact" if resume == "exact" else "approximate"
    check_option("on_new_code", on_new_code, ("fail", "go_on"))
    return ConsumeRequest(
        consumer,
        process,
        columns,
        checkpoint_every,
        mode,
        "go_on" if on_new_code == "go_on" else "fail",
        identify_function(process).digest,
    )


class StagesOfFrames:
    """Which stage a DataFrame reads, for as long as the DataFrame lives."""

    def __init__(self) -> None:
        self._paths: WeakKeyDictionary[DataFrame, StagePath] = WeakKeyDictionary()

    def add(self, df: DataFrame, path: StagePath) -> None:
        self._paths[df] = path

    def get(self, df: DataFrame) -> StagePath | None:
        """Return the stage that `df` reads whole and unchanged; None for any other DataFrame."""
        return self._paths.get(df)


class Consumers:
    """Runs consumers of one claimed job. Not thread-safe."""

    def __init__(
        self,
        *,
        engine: Engine,
        storage: CountingStorage,
        task_storage: Storage,
        log: JobLog,
        settings: Settings,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._engine, self._storage, self._task_storage = engine, storage, task_storage
        self._log, self._settings, self._clock, self._ids = log, settings, clock, ids

    def run(
        self, path: StagePath, request: ConsumeRequest
    ) -> tuple[DataFrame | None, ConsumerReport]:
        """Run what has not finished, and return what all tasks published.

        Raises:
            InvalidInputError: the stage's set of consumers was closed without this one.
        """
        start, requests = self._clock.monotonic(), self._storage.total
        self._log.check_owner()
        if path not in self._log.state.order:
            raise NotFoundError(f"the job has no such stage, or it was released: {path.prefix!r}")
        stage = open_stage(self._storage, path)
        require_seal(stage)
        register_consumers(
            stage,
            [request.consumer],
            ids=self._ids,
            generation=self._log.generation,
            closed=False,
        )
        tasks = range(stage.describe.partitions)
        before = self._resume_sets(stage, request, tasks)
        if request.on_new_code == "fail":
            _check_same_code(request, before, path)
        missing = tuple(k for k, found in before.items() if not found.finished)
        schema = None if request.schema is None else named_arrow_schema(request.schema)
        rows: list[dict[str, Any]] = []
        if missing:
            spec = self._spec(stage, request, schema)
            label = (
                f"durable_shuffle: consume {path.name} as {request.consumer}, {len(missing)} tasks"
            )
            function = consume_function(spec, missing)
            rows = self._engine.run_numbered(function, len(missing), RESULT_SCHEMA, label)
        results = [consume_result(row) for row in rows]
        after = before | self._resume_sets(stage, request, missing)
        for k, found in after.items():
            self._check_finished(stage, request, k, found, schema)
        report = ConsumerReport(
            consumer=request.consumer,
            stage=path.folder,
            resume=request.resume,
            tasks=len(tasks),
            tasks_run=len(missing),
            tasks_reused=len(tasks) - len(missing),
            views=sum(after[k].epoch - before[k].epoch for k in missing),
            records=sum(_records(found) for found in after.values()),
            records_acknowledged=sum(_records(after[k]) - _records(before[k]) for k in missing),
            records_delivered=sum(result.delivered for result in results),
            records_dropped=sum(found.dropped for found in after.values()),
            acknowledgements=sum(_written(after[k]) - _written(before[k]) for k in missing),
            resumed_from={r.subpartition: r.resumed_from for r in results if r.resumed_from},
            outputs=sum(len(found.outputs) for found in after.values()),
            output_rows=sum(o.rows for found in after.values() for o in found.outputs),
            output_bytes=sum(o.length for found in after.values() for o in found.outputs),
            requests=self._storage.total - requests + sum(r.requests for r in results),
            retries=sum(r.tries_before for r in results),
            seconds=self._clock.monotonic() - start,
        )
        if schema is None or request.schema is None:
            return None, report
        return self._published(stage, request, schema, after, report), report

    def _spec(
        self, stage: StageHandle, request: ConsumeRequest, schema: pa.Schema | None
    ) -> ConsumeSpec:
        return ConsumeSpec(
            stage=StageHandle(self._task_storage, stage.path, stage.describe),
            consumer=request.consumer,
            process=request.process,
            schema=schema,
            checkpoint_every=request.checkpoint_every,
            resume=request.resume,
            generation=self._log.generation,
            settings=self._settings,
            tries=self._engine.task_tries,
            patience_seconds=_PATIENCE_SECONDS,
            code=self._engine.code_of(request.process),
            process_code=request.process_code,
        )

    def _resume_sets(
        self, stage: StageHandle, request: ConsumeRequest, tasks: Iterable[int]
    ) -> dict[int, ResumeSet]:
        def read(k: int) -> tuple[int, ResumeSet]:
            return k, read_resume_set(consumer_log(stage, request.consumer, k))

        with ThreadPoolExecutor(self._settings.control_threads) as pool:
            return dict(pool.map(read, tasks))

    def _check_finished(
        self,
        stage: StageHandle,
        request: ConsumeRequest,
        k: int,
        found: ResumeSet,
        schema: pa.Schema | None,
    ) -> None:
        name = consumer_log(stage, request.consumer, k).prefix
        if not found.finished:
            raise CorruptDataError(f"a task reported its end, and its log does not: {name!r}")
        check_outputs_schema(load_state(self._storage, found.state), schema, name=name)

    def _published(
        self,
        stage: StageHandle,
        request: ConsumeRequest,
        schema: pa.Schema,
        finished: dict[int, ResumeSet],
        report: ConsumerReport,
    ) -> DataFrame:
        assert request.schema is not None
        logs = tuple(
            (consumer_log(stage, request.consumer, k).prefix, found.next_slot - 1 - found.closed)
            for k, found in sorted(finished.items())
        )
        function = published_function(
            self._task_storage,
            logs,
            schema,
            settings=self._settings,
            code=running_code(),
        )
        back = ReadBack(
            function=function,
            partitions=len(logs),
            hashed_by=(),
            rows=report.output_rows,
            memory_bytes=report.output_bytes,
            # what a consumer that has finished published never changes
            fingerprint=f"{stage.path.folder} consumed by {request.consumer}",
        )
        return self._engine.read_rows(request.schema, back)


def _check_same_code(
    request: ConsumeRequest, before: Mapping[int, ResumeSet], path: StagePath
) -> None:
    """Refuse to go on where other code has acknowledged rows.

    Raises:
        IncompatibleError: says how many tasks, and what to do.
    """
    others = [
        k
        for k, found in before.items()
        if found.code not in ("", request.process_code) and (_records(found) or found.finished)
    ]
    if others:
        raise IncompatibleError(
            f"consumer {request.consumer!r} of stage {path.folder!r} was run with other code: "
            f"{len(others)} of {len(before)} partitions acknowledged rows by it, partition "
            f"{others[0]} first; give another consumer name to consume all rows with this code, or "
            "on_new_code='go_on' to keep what was acknowledged and go on with it"
        )


def _records(found: ResumeSet) -> int:
    return sum(at.next_ordinal for one in found.inputs.values() for at in one.acked.values())


def _written(found: ResumeSet) -> int:
    """Return how many records of a log are not OPEN."""
    return found.next_slot - found.epoch
