"""Stages on classic Spark: planned on a cloned session; only the missing producers run."""

import logging
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from typing import Any, cast
from weakref import WeakKeyDictionary, WeakSet

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from durable_shuffle.jobs.deploy.preflight import task_tries
from durable_shuffle.jobs.engine import catalyst, rdd_frames
from durable_shuffle.jobs.engine.arrow_schema import (
    narrow_arrow_schema,
    narrow_schema,
)
from durable_shuffle.jobs.engine.checks import check_columns
from durable_shuffle.jobs.engine.engine import (
    COALESCES,
    OWN,
    Engine,
    Planned,
    ReadBack,
    partition_id,
    rows_of_tasks,
    session_settings,
    with_partition_ids,
)
from durable_shuffle.jobs.engine.python_rdd import (
    blocks_of_tasks,
    collected,
    results_of_pieces,
    run_tasks,
)
from durable_shuffle.jobs.engine.starting import starting
from durable_shuffle.jobs.engine.tasks import (
    RESULT_SCHEMA,
    ArrowFunction,
    MapJob,
    MapResult,
    MapTasks,
    PiecesFunction,
    StoredRows,
    code_with,
    frames_function,
    map_result,
    start_worker,
)
from durable_shuffle.jobs.engine.transfer import transfer_settings
from durable_shuffle.jobs.identity.functions.identity import identify_function
from durable_shuffle.jobs.identity.functions.told import heard_of
from durable_shuffle.jobs.identity.functions.user_code import CHECKED, note_code
from durable_shuffle.jobs.identity.jvm.calls import JVM_ERRORS, Jvm, planning, query_execution
from durable_shuffle.jobs.identity.plan.fixed import fixed_frame
from durable_shuffle.jobs.identity.plan.identity import PlanIdentity, identify_plan
from durable_shuffle.jobs.identity.plan.leaves import KnownRdds, Queries
from durable_shuffle.jobs.identity.plan.mixing import why_not_mixed
from durable_shuffle.jobs.identity.plan.settings import identify_splits, split_settings
from durable_shuffle.jobs.in_one_call import in_one_call, or_none
from durable_shuffle.jobs.java import classes_of
from durable_shuffle.jobs.jvm_rows.decoder import rows_of_blocks
from durable_shuffle.jobs.jvm_rows.encoder import pieces_of_rows
from durable_shuffle.jobs.jvm_rows.files import rows_of_files
from durable_shuffle.jobs.jvm_rows.kinds import carried_schema
from durable_shuffle.jobs.jvm_rows.route import Route, RowsIn, encoding_of
from durable_shuffle.jobs.spark_versions import ClassicFrame, type_of_ddl
from durable_shuffle.serialization.arrow_schemas import storable_schema
from durable_shuffle.serialization.errors import IncompatibleError

_INCOMPATIBLE = re.compile(
    rf"{IncompatibleError.__module__}\.{IncompatibleError.__qualname__}: (.+)"
)
"""Finds our error in the text of a worker's traceback."""
_COALESCE_PARTITIONS = "spark.sql.adaptive.coalescePartitions.enabled"
_KNOWN: WeakKeyDictionary[SparkContext, dict[tuple[str, str], KnownRdds]]
_KNOWN = WeakKeyDictionary()
_QUERIES: WeakKeyDictionary[SparkContext, Queries] = WeakKeyDictionary()
_TRIES: WeakKeyDictionary[SparkContext, int] = WeakKeyDictionary()
_LOG = logging.getLogger(__name__)
_HEARD_MS = 10_000
"""How long Spark may take to hear of its own last stage."""
_STARTED: WeakSet[SparkContext] = WeakSet()
"""Applications whose executors were told to start Python."""


class ClassicEngine(Engine):
    """The engine of a session with a SparkContext."""

    ends_partitions = True

    def __init__(
        self, spark: SparkSession, rows_in: RowsIn, job: tuple[str, str] | None = None
    ) -> None:
        """Make the engine of one driver of a job.

        Args:
            job: the storage and the name of the job whose stages are read; None if no other
                driver reads frames of this one.
        """
        super().__init__(spark)
        self.route = Route(spark, rows_in)
        of_jobs = _KNOWN.setdefault(spark.sparkContext, {}) if job else {}
        queries = _QUERIES.setdefault(spark.sparkContext, {})
        self.known: KnownRdds = of_jobs.setdefault(job or ("", ""), KnownRdds(queries))
        """An application's drivers of one job share it, because a frame may be older than the
        driver that it is given to."""
        self.task_tries = _tries_of(spark)

    def cores(self) -> int:
        return self._spark.sparkContext.defaultParallelism

    def arrow_schema(self, df: DataFrame) -> pa.Schema:
        return narrow_arrow_schema(df.schema)

    def key_positions(self, df: DataFrame, cols: Sequence[str | Column]) -> tuple[int, ...]:
        keys = df.select(*cols)
        positions = catalyst.key_positions(cast("ClassicFrame", df), cast("ClassicFrame", keys))
        return positions or ()

    def fixed(self, df: DataFrame) -> DataFrame:
        return fixed_frame(df)

    def identify(self, df: DataFrame) -> PlanIdentity:
        with planning("identity"):
            return identify_plan(cast("ClassicFrame", df), self.known)

    def code_of(self, *functions: object) -> str:
        identity = identify_function(functions)
        note_code(self._spark.sparkContext, identity)
        return code_with(identity)

    def planning_settings(self) -> dict[str, str]:
        return split_settings(self._spark)

    def plan(
        self,
        df: DataFrame,
        cols: Sequence[str | Column],
        n: int | None,
        conf: Mapping[str, str],
        *,
        large_rows: bool,
        to_python: bool = False,
    ) -> Planned:
        kinds = None if to_python else self.kinds_in_jvm(df.schema)
        transfer = transfer_settings(df.schema, large_rows=large_rows) if kinds is None else {}
        conf = {key: value for key, value in conf.items() if not key.startswith(OWN)}
        session = catalyst.planning_session(self._spark, {**transfer, **conf})
        place = None
        shaped = cast("ClassicFrame", df)
        if kinds is not None and cols and self.key_positions(df, cols):
            place = catalyst.computed(cast("ClassicFrame", df.select(partition_id(cols, n))))
        elif kinds is None or cols:
            number = F.lit(0).cast("long") if kinds is None else None
            shaped = cast("ClassicFrame", with_partition_ids(df, cols, n, number))
        if kinds is None:
            shaped = catalyst.narrow_decimals(catalyst.with_unique_fields(shaped))
        shaped = catalyst.on_session(shaped, session)
        with self.cutting_files_by(conf, split_settings(self._spark)):
            return Planned(
                shaped if kinds is not None else rdd_frames.counted_to_the_end(shaped),
                catalyst.partition_count(shaped),
                identify_splits(shaped),
                catalyst.native_exchanges(shaped),
                {**conf, COALESCES: str(n is None and catalyst.may_be_coalesced(shaped)).lower()},
                place=place,
                kinds=kinds,
                unproven=partial(self._unproven, shaped),
            )

    def _unproven(self, shaped: ClassicFrame, vouched: bool) -> tuple[str, ...]:  # noqa: FBT001
        plan = query_execution(shaped).executedPlan()
        jvm = Jvm(self._spark.sparkContext)
        return why_not_mixed(jvm, plan, stages=self.known.stages, vouched=vouched)

    def kinds_in_jvm(self, schema: StructType) -> str | None:
        """Return the kinds of these columns if the JVM encodes and decodes them, else None."""
        return self.route.kinds(schema, _stored_schema(schema))

    def check_columns(self, schema: StructType) -> None:
        if carried_schema(schema) == schema or self.kinds_in_jvm(schema) is None:
            check_columns(schema)

    def why_python(self, schema: StructType) -> str:
        return self.route.why_python(schema, _stored_schema(schema))

    def start_workers(self) -> None:
        context = self._spark.sparkContext
        if context not in _STARTED:
            _STARTED.add(context)
            name = "durable-shuffle-workers"
            threading.Thread(target=self._start_workers, name=name, daemon=True).start()

    def _start_workers(self) -> None:
        """Run one task of Python per executor: it starts Python once, and forks it for others."""
        try:
            with storing(self._spark, "durable_shuffle: start Python workers", calls_only=True):
                executors = max(1, catalyst.executor_count(self._spark))
                run_tasks(self._spark.sparkContext, start_worker, executors)
        except Exception:  # noqa: BLE001 - the map tasks will say it, too
            _LOG.debug("Python was not started in advance", exc_info=True)

    def write(self, planned: Planned, tasks: MapTasks, job: MapJob) -> list[MapResult]:
        if planned.kinds is None:
            return super().write(planned, tasks, job)
        return self.store_pieces(self.pieces(planned, tasks), frames_function(tasks), job)

    def pieces(self, planned: Planned, tasks: MapTasks) -> Any:
        """Return the JVM's RDD of the frames that it makes of the rows, in pieces."""
        assert planned.kinds is not None
        how = encoding_of(tasks.stage, tasks.settings, planned.kinds)
        df = cast("ClassicFrame", planned.df)
        with catalyst.active(df.sparkSession, calls_only=True):
            return pieces_of_rows(df, how, planned.place, planned.rows)

    def store_pieces(self, pieces: Any, function: PiecesFunction, job: MapJob) -> list[MapResult]:
        """Store what `pieces` returned; see `run`."""
        context = self._spark.sparkContext
        with self._running(job):
            rows = results_of_pieces(context, pieces, function, job.producers)
        return list(map(map_result, rows))

    def run(self, planned: Planned, function: ArrowFunction, job: MapJob) -> list[MapResult]:
        with catalyst.active(planned.df.sparkSession):  # operators of a query's piece bind to it
            tasks: Any = planned.df.mapInArrow(function, _result_schema()).rdd
        given = tasks._jrdd, job.producers, tasks._jrdd_deserializer  # noqa: SLF001
        with self._running(job):
            rows = collected(self._spark.sparkContext, *given)
        return [map_result(row.asDict()) for row in rows]

    @contextmanager
    def _running(self, job: MapJob) -> Iterator[None]:
        stored = storing(self._spark, job.label, calls_only=True)
        with starting(self._spark.sparkContext, job), stored:
            yield

    def attempted_again(self, spark_stages: Collection[int]) -> bool:
        if not spark_stages:
            return False
        context: Any = self._spark.sparkContext

        def attempts(_: Any, context: Any) -> tuple[Any, ...]:
            context.sc().listenerBus().waitUntilEmpty(_HEARD_MS)
            tracker = context.sc().statusTracker()
            seen = [or_none(tracker.getStageInfo(number)) for number in spark_stages]
            return tuple(one.currentAttemptId() for one in seen)

        try:
            found = in_one_call(classes_of(context), attempts, context._jsc)  # noqa: SLF001
        except (*JVM_ERRORS, AttributeError):  # not heard of in time, or forgotten
            return True
        return any(found)

    def read(self, df: DataFrame, back: ReadBack) -> DataFrame:
        return self._read(df, narrow_schema(df.schema), back)

    def read_rows(self, schema: StructType, back: ReadBack) -> DataFrame:
        rows = rows_of_tasks(self._spark, back.stored.rows, back.stored.tasks, schema)
        return self._read(rows, schema, back)

    def _read(self, df: DataFrame, schema: StructType, back: ReadBack) -> DataFrame:
        session = catalyst.planning_session(self._spark, {})

        def stored(jvm: Any) -> Any:
            return self.stored_rdd(jvm, session, back.stored, schema)

        rdd = in_one_call(classes_of(session), stored)
        frame = rdd_frames.with_durable_rows(
            cast("ClassicFrame", df),
            rdd,
            hashed_by=back.hashed_by,
            partitions=back.stored.tasks,
            row_count=back.row_count,
            data_bytes=back.memory_bytes,
            ordered=back.ordered,
        )
        self.known.stages[int(rdd.id())] = back.fingerprint
        return frame

    def coalesces(self) -> bool:
        conf = self._spark.conf
        switches = ("spark.sql.adaptive.enabled", _COALESCE_PARTITIONS)
        return all(conf.get(switch) == "true" for switch in switches)

    def stored_rdd(
        self, jvm: Any, session: SparkSession, stored: StoredRows, schema: StructType
    ) -> Any:
        """Return Spark's RDD of internal rows over stored rows, one partition per task.

        Args:
            jvm: the JVM, or what stands for it in a function of `in_one_call`.
            schema: columns c0, c1, … as they are stored.
        """
        if stored.blocks is None or self.kinds_in_jvm(schema) is None:
            rows = rows_of_tasks(session, stored.rows, stored.tasks, schema)
            of_frame = cast("ClassicFrame", rows)._jdf  # noqa: SLF001
            return in_one_call(
                *(classes_of(session), lambda _, frame: frame.queryExecution().toRdd(), of_frame)
            )
        if stored.files is not None:
            return rows_of_files(jvm, session, stored.files, schema, _stored_schema(schema))
        blocks = blocks_of_tasks(self._spark.sparkContext, stored.blocks, stored.tasks)
        return rows_of_blocks(session, blocks, schema, _stored_schema(schema))

    def seen(self, code: Sequence[str]) -> list[str]:
        return heard_of(self._spark.sparkContext, code)

    def described(self, label: str) -> AbstractContextManager[None]:
        return storing(self._spark, label)

    def cutting_files_by(
        self, conf: Mapping[str, str], now: Mapping[str, str]
    ) -> AbstractContextManager[None]:
        """Set the user's session to these split settings while a plan is made, then restore it.

        A file scan uses the settings of the session that made its DataFrame, not of the session
        that plans it. Settings that already have the wanted value are not touched.

        Args:
            now: the session's split settings.
        """
        wanted = {key: value for key, value in conf.items() if now.get(key) != value}
        return session_settings(self._spark, wanted)


def _tries_of(spark: SparkSession) -> int:
    """Return how often Spark runs a failing task of this application."""
    context = spark.sparkContext
    if context not in _TRIES:
        configured = spark.conf.get("spark.task.maxFailures", None)
        _TRIES[context] = task_tries(str(context.master), configured)
    return _TRIES[context]


@cache
def _result_schema() -> StructType:
    """Return RESULT_SCHEMA as PySpark keeps it; a text costs calls into the JVM each time."""
    return cast("StructType", type_of_ddl(RESULT_SCHEMA))


def _stored_schema(schema: StructType) -> pa.Schema:
    return storable_schema(narrow_arrow_schema(schema))


@contextmanager
def storing(spark: SparkSession, label: str, *, calls_only: bool = False) -> Iterator[None]:
    """Show `label` in Spark's UI for the jobs that run meanwhile; make workers check their code.

    Spark cancels these jobs as it cancels the session's own.

    Args:
        calls_only: as for `during`.

    Raises:
        IncompatibleError: a worker runs other code than the driver.
    """
    wanted = {"spark.job.description": label, CHECKED: "1"}
    try:
        with catalyst.with_properties(spark, wanted, calls_only=calls_only):
            yield
    except JVM_ERRORS as error:
        ours = _INCOMPATIBLE.search(str(error))
        if ours is None:
            raise
        raise IncompatibleError(ours[1]) from error
