"""Consume a stored stage on Spark: one task per partition, which can resume inside it.

The consumer is registered first, so that the stage stays until it has finished. Tasks whose log
says FINISHED do not run; the others run as one Spark job. What tasks return are hints: the logs are
read again, and only what they say is the result.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from durable_shuffle.jobs.consume.task import (
    RESULT_SCHEMA,
    ConsumeRequest,
    ConsumeSpec,
    OnNewCode,
    consume_function,
    consume_result,
    consumer_log,
    is_stateful,
    published_function,
)
from durable_shuffle.jobs.deploy.running_code import running_code
from durable_shuffle.jobs.engine.arrow_schema import named_arrow_schema
from durable_shuffle.jobs.engine.checks import (
    NO_STREAM,
    as_schema,
    check_columns,
    check_frame,
    check_function,
    check_option,
)
from durable_shuffle.jobs.engine.engine import ReadBack
from durable_shuffle.jobs.engine.tasks import StoredRows
from durable_shuffle.jobs.identity.functions.identity import identify_function
from durable_shuffle.jobs.stages.driver import Driver
from durable_shuffle.jobs.stages.frame_calls import FrameCalls
from durable_shuffle.jobs.stages.healing import healing
from durable_shuffle.jobs.stages.report import ConsumerReport
from durable_shuffle.jobs.stages.stored import StageInfo
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
)
from durable_shuffle.shuffle.consume.log import read_resume_set
from durable_shuffle.shuffle.consume.loop import check_outputs_schema
from durable_shuffle.shuffle.consume.resume_set import ResumeSet
from durable_shuffle.shuffle.consume.task import load_state
from durable_shuffle.shuffle.log.consumer_records import ResumeMode
from durable_shuffle.shuffle.log.layout import StagePath, check_name
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage, require_seal
from durable_shuffle.shuffle.release.unused import register_used


def check_consume(
    consumer: str,
    process: Any,
    schema: StructType | str | None,
    checkpoint_every: int,
    resume: ResumeMode,
    on_new_code: OnNewCode,
) -> ConsumeRequest:
    """Return the request of a user.

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
    check_option("resume", resume, ("exact", "approximate"))
    columns = None if schema is None else as_schema("schema", schema)
    if columns is not None:
        check_columns(columns)
    check_option("on_new_code", on_new_code, ("fail", "go_on"))
    digest = identify_function(process, around=()).digest  # an upgrade is not new code
    return ConsumeRequest(consumer, process, columns, checkpoint_every, resume, on_new_code, digest)


class Consumers:
    """`consume` and `register_consumers` of one driver. Not thread-safe."""

    def __init__(self, driver: Driver, frames: FrameCalls) -> None:
        self._engine, self._storage = driver.engine, driver.storage
        self._task_storage, self._log, self._done = driver.shared_storage, driver.log, driver.done
        self._settings, self._clock, self._ids = driver.settings, driver.clock, driver.ids
        self._frames = frames

    def consume(
        self, df_or_stage: DataFrame | StageInfo, asked: Sequence[Any], name: str | None
    ) -> DataFrame | None:
        """Do what `DurableShuffle.consume` says; `asked` is what `check_consume` takes."""
        request = check_consume(*asked)
        if not isinstance(df_or_stage, StageInfo):
            check_frame(df_or_stage, streaming=NO_STREAM)
            check_columns(df_or_stage.schema)
        if self._path(df_or_stage) is None:
            rows = cast("DataFrame", df_or_stage)
            df_or_stage = self._frames.checkpoint(rows, name, None).run()

        def run() -> tuple[DataFrame | None, ConsumerReport]:
            path = self._path(df_or_stage)  # another one if the stage had to start afresh
            assert path is not None
            return self.run(path, request)

        def mend() -> bool:
            return not isinstance(df_or_stage, StageInfo) and self._frames.mend(df_or_stage)

        frame, report = healing(run, mend)
        self._done.consumer_reports.append(report)
        return frame

    def register(
        self, df_or_stage: DataFrame | StageInfo, names: Iterable[str], *, closed: bool
    ) -> tuple[str, ...]:
        """Do what `DurableShuffle.register_consumers` says."""
        path = self._path(df_or_stage)
        if path is None:
            raise InvalidInputError(
                "consumers register with a stored stage: give what repartition() or checkpoint() "
                "of this object returned, or an entry of stages()"
            )
        stage, now = open_stage(self._storage, path), self._clock.wall()
        return register_used(self._log, stage, names, ids=self._ids, now=now, closed=closed)

    def _path(self, df_or_stage: DataFrame | StageInfo) -> StagePath | None:
        """Return where a stage is stored; None if it is not a stage of this driver."""
        if isinstance(df_or_stage, StageInfo):
            return df_or_stage.path(self._log.state.job)
        return self._frames.path(df_or_stage)

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
        now = self._clock.wall()
        register_used(self._log, stage, [request.consumer], ids=self._ids, now=now, closed=False)
        tasks = range(stage.describe.partitions)
        before = self._resume_sets(stage, request, tasks)
        if request.on_new_code == "fail":
            _check_same_code(request, before, path)
        missing = tuple(k for k, state in before.items() if not state.finished)
        schema = None if request.schema is None else named_arrow_schema(request.schema)
        rows: list[dict[str, Any]] = []
        if missing:
            function = consume_function(self._spec(stage, request, schema), missing)
            what = f"consume {path.name} as {request.consumer}, {len(missing)} tasks"
            rows = self._engine.run_numbered(
                function, len(missing), RESULT_SCHEMA, f"durable_shuffle: {what}"
            )
        results = [consume_result(row) for row in rows]
        after = before | self._resume_sets(stage, request, missing)
        for k, state in after.items():
            log = consumer_log(stage, request.consumer, k).prefix
            if not state.finished:
                raise CorruptDataError(f"a task reported its end, and its log does not: {log!r}")
            check_outputs_schema(load_state(self._storage, state.state), schema, name=log)
        report = ConsumerReport(
            consumer=request.consumer,
            stage=path.folder,
            resume=request.resume,
            tasks=len(tasks),
            tasks_run=len(missing),
            tasks_reused=len(tasks) - len(missing),
            views=sum(after[k].epoch - before[k].epoch for k in missing),
            records=sum(_records(state) for state in after.values()),
            records_acknowledged=sum(_records(after[k]) - _records(before[k]) for k in missing),
            records_delivered=sum(result.delivered for result in results),
            records_dropped=sum(state.dropped for state in after.values()),
            acknowledgements=sum(_written(after[k]) - _written(before[k]) for k in missing),
            resumed_from={r.subpartition: r.resumed_from for r in results if r.resumed_from},
            outputs=sum(len(state.outputs) for state in after.values()),
            output_rows=sum(o.rows for state in after.values() for o in state.outputs),
            output_bytes=sum(o.length for state in after.values() for o in state.outputs),
            requests=self._storage.total - requests + sum(r.requests for r in results),
            retries=sum(r.tries_before for r in results),
            seconds=self._clock.monotonic() - start,
        )
        if schema is None or request.schema is None:
            return None, report
        logs = tuple(
            (consumer_log(stage, request.consumer, k).prefix, state.next_slot - 1 - state.closed)
            for k, state in sorted(after.items())
        )
        back = ReadBack(
            stored=StoredRows(
                published_function(
                    self._task_storage, logs, schema, settings=self._settings, code=running_code()
                ),
                len(logs),
            ),
            hashed_by=(),
            row_count=report.output_rows,
            memory_bytes=report.output_bytes,
            # what a consumer that has finished published never changes
            fingerprint=f"{path.folder} consumed by {request.consumer}",
            ordered=False,
        )
        return self._engine.read_rows(request.schema, back), report

    def _spec(
        self, stage: StageHandle, request: ConsumeRequest, schema: pa.Schema | None
    ) -> ConsumeSpec:
        return ConsumeSpec(
            stage=StageHandle(self._task_storage, stage.path, stage.describe),
            request=request,
            schema=schema,
            generation=self._log.generation,
            settings=self._settings,
            tries=self._engine.task_tries,
            code=self._engine.code_of(request.process),
        )

    def _resume_sets(
        self, stage: StageHandle, request: ConsumeRequest, tasks: Iterable[int]
    ) -> dict[int, ResumeSet]:
        def read(k: int) -> tuple[int, ResumeSet]:
            return k, read_resume_set(consumer_log(stage, request.consumer, k))

        with ThreadPoolExecutor(self._settings.control_threads) as pool:
            return dict(pool.map(read, tasks))


def _check_same_code(
    request: ConsumeRequest, before: Mapping[int, ResumeSet], path: StagePath
) -> None:
    """Refuse to go on where other code has acknowledged rows.

    Raises:
        IncompatibleError: says how many tasks, and what to do.
    """
    others = [
        k
        for k, state in before.items()
        if state.code not in ("", request.process_code) and (_records(state) or state.finished)
    ]
    if others:
        raise IncompatibleError(
            f"consumer {request.consumer!r} of stage {path.folder!r} was run with other code: "
            f"{len(others)} of {len(before)} partitions acknowledged rows by it, partition "
            f"{others[0]} first; give another consumer name to consume all rows with this code, or "
            "on_new_code='go_on' to keep what was acknowledged and go on with it"
        )


def _records(state: ResumeSet) -> int:
    return sum(p.next_ordinal for read in state.inputs.values() for p in read.acked.values())


def _written(state: ResumeSet) -> int:
    """Return how many records of a log are not OPEN."""
    return state.next_slot - state.epoch
