"""Stages on Spark Connect, which gives no access to the SparkContext and to plans.

Differences from classic Spark:
- A small probe job counts the producers, another one the tasks that Spark plans by default. The
  latter stand for the splits: a server with other cores may cut the same files differently.
- Every map task starts; a task whose producer has committed returns at once.
- Spark does not learn how the result is partitioned, so a join on the key shuffles again.
- The server says what a plan reads. As it may list files again, the inputs are asked twice.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from durable_shuffle.jobs.engine.arrow_schema import arrow_schema, positional_schema
from durable_shuffle.jobs.engine.engine import (
    Engine,
    Planned,
    ReadBack,
    rows_of_tasks,
    session_settings,
    with_partition_ids,
)
from durable_shuffle.jobs.engine.tasks import (
    RESULT_SCHEMA,
    ArrowFunction,
    MapJob,
    MapResult,
    map_result,
)
from durable_shuffle.jobs.engine.transfer import TRANSFER_KEYS, transfer_settings
from durable_shuffle.jobs.identity.connect.known import ANEW, SHOWN
from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.plan.identity import PlanIdentity

_SPLITS = "inputs of which Spark Connect does not show the splits"
"""Why a partly stored stage is not gone on with: a producer could have read other rows."""
_ADAPTIVE = "spark.sql.adaptive.enabled"
_EXCLUDED = "spark.sql.optimizer.excludedRules"
_FOLDS_LOCAL_ROWS = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
_SPLIT_SETTINGS = (
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.openCostInBytes",
    "spark.sql.files.minPartitionNum",
    "spark.sql.shuffle.partitions",
)
_TASKS_AT_ONCE = "SELECT max(p) + 1 FROM (SELECT spark_partition_id() AS p FROM range(65536))"
"""More rows than a cluster has cores: Spark makes no partition without a row."""
_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BATCH_ROWS = 1000


class ConnectEngine(Engine):
    """The engine of a Spark Connect session."""

    task_tries = 1
    """The server's setting cannot be read, so the first error of a task is reported at once."""
    ends_partitions = False

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark)
        self._stage_of_plan: dict[int, str] = {}
        """Id of a relation -> fingerprint of the stage that it reads."""

    def cores(self) -> int:
        return 0

    def arrow_schema(self, df: DataFrame) -> pa.Schema:
        return arrow_schema(df.schema)

    def key_positions(self, df: DataFrame, cols: Sequence[str | Column]) -> tuple[int, ...]:
        names = df.columns
        plain = [c for c in cols if isinstance(c, str) and names.count(c) == 1]
        return tuple(names.index(c) for c in plain) if len(plain) == len(cols) else ()

    def identify(self, df: DataFrame) -> PlanIdentity:
        from durable_shuffle.jobs.identity.connect.message import identify_connect_plan

        with session_settings(self._spark, SHOWN):
            return identify_connect_plan(df, self._stage_of_plan.get)

    def inputs_move(self, components: Mapping[str, str]) -> bool:
        nothing = hex_digest([])
        return any(components.get(kind, nothing) != nothing for kind in ("files", "tables"))

    def start_workers(self) -> None:
        """Do nothing: a Connect server and its executors have usually run for a while."""

    def planning_settings(self) -> dict[str, str]:
        values = {key: self._spark.conf.get(key, None) for key in _SPLIT_SETTINGS}
        return {key: value for key, value in values.items() if value is not None}

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
        del to_python  # they always go there
        shaped = with_partition_ids(df, cols, n, F.monotonically_increasing_id())
        splits = {key: value for key, value in conf.items() if key not in TRANSFER_KEYS}
        settings = {**conf, **ANEW, _ADAPTIVE: "false", _BATCH: str(_BATCH_ROWS)}
        with session_settings(self._spark, settings):
            producers = _partitions(df.select(F.lit(0)))
            # with the settings of `conf`, this decides how the same files are split
            (tasks_at_once,) = self._spark.sql(_TASKS_AT_ONCE).collect()[0]
        digest = hex_digest(["default parallelism", str(tasks_at_once)])
        transfer = transfer_settings(df.schema, large_rows=large_rows)
        return Planned(
            *(shaped, producers, digest, 0, {**transfer, **splits}),
            unproven=lambda _: (_SPLITS,),
        )

    def run(self, planned: Planned, function: ArrowFunction, job: MapJob) -> list[MapResult]:
        job.may_start()  # every task does; committed ones return without reading
        settings = {**planned.conf, **self._counting(), **ANEW, _ADAPTIVE: "false"}
        with session_settings(self._spark, settings):
            rows = planned.df.mapInArrow(function, RESULT_SCHEMA).collect()
        return [map_result(row.asDict()) for row in rows]

    def _counting(self) -> dict[str, str]:
        """Return the setting that keeps the optimizer from computing local relations.

        It would number their rows before they are split into partitions.
        """
        excluded = self._spark.conf.get(_EXCLUDED, None)
        return {_EXCLUDED: ",".join(filter(None, (excluded, _FOLDS_LOCAL_ROWS)))}

    def attempted_again(self, spark_stages: Collection[int]) -> bool:
        """Return False: a client cannot ask. Since Spark 4.1, the server looks itself."""
        del spark_stages
        return False

    def read(self, df: DataFrame, back: ReadBack) -> DataFrame:
        return self.read_rows(positional_schema(df.schema), back).toDF(*df.columns)

    def read_rows(self, schema: StructType, back: ReadBack) -> DataFrame:
        frame: Any = rows_of_tasks(self._spark, back.stored.rows, back.stored.tasks, schema)
        self._stage_of_plan[frame._plan._plan_id] = back.fingerprint  # noqa: SLF001
        return frame  # type: ignore[no-any-return]


def _partitions(df: DataFrame) -> int:
    """Return the number of partitions of a DataFrame; runs a small job.

    Spark ends a Python worker that leaves rows unread, and a new one takes a second to import what
    a task needs. So a partition of one batch is read to its end; of a larger one the rest would be
    computed for nothing.
    """

    def probe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        number = -1 if context is None else context.partitionId()
        yield pa.RecordBatch.from_pydict({"partition": [number]})
        for batch in batches:
            if batch.num_rows >= _BATCH_ROWS:
                return

    return len(df.mapInArrow(probe, "partition long").collect())
