"""The methods of `DurableShuffle` for stages whose functions are Python."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from durable_shuffle.jobs.engine.checks import check_version
from durable_shuffle.jobs.engine.engine import rows_of_tasks
from durable_shuffle.jobs.python_stage.objects import ObjectWork
from durable_shuffle.jobs.python_stage.tasks import BatchFunction, KeyFunction, ReduceSide
from durable_shuffle.jobs.python_stage.work import PythonWork
from durable_shuffle.jobs.spark_versions import portable_hash
from durable_shuffle.jobs.stages.healing import healing
from durable_shuffle.jobs.stages.report import StageReport
from durable_shuffle.jobs.stages.runner import StageRunner
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.rows.reducers import Grouped, ResumableReducer
from durable_shuffle.shuffle.rows.row_order import Direction

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class PythonResult:
    """What a `stage` has stored."""

    side: ReduceSide
    """Its reduce side; a stage over the unchanged result runs it."""
    schema: StructType
    again: "Callable[[], PythonResult]"
    """Stores what is missing of it."""


class PythonStages:
    """A part of `DurableShuffle`, which sets the attributes."""

    _spark: SparkSession
    _runner: StageRunner
    _reports: list[StageReport]
    _log: JobLog
    _results: WeakKeyDictionary[DataFrame, PythonResult]
    """Result of `stage` -> what a stage over the result needs."""

    def stage(
        self,
        df: DataFrame,
        *,
        map: BatchFunction | None = None,
        keys: str | Sequence[str] | KeyFunction,
        num_partitions: int,
        reduce: BatchFunction | Grouped | ResumableReducer | None = None,
        combine: BatchFunction | None = None,
        sort_by: str | Sequence[str | tuple[str, Direction]] = (),
        schema: StructType | str | None = None,
        map_schema: StructType | str | None = None,
        name: str | None = None,
        version: str | None = None,
        progress: bool = False,
    ) -> DataFrame:
        """Map in Python, store partitioned by key, reduce in Python; rows stay in Arrow throughout.

        The map side is eager and its output is stored once: the Python worker that maps a batch
        also writes it to storage. The reduce side is lazy, like any DataFrame: it runs with each
        action. If you pass the unchanged result to another `stage`, this reduce side runs inside
        that stage's map tasks, and its rows do not go through the JVM.

        Args:
            map: takes an iterator of RecordBatch with the columns of `df`, yields RecordBatch in
                `map_schema`. None passes on the rows of `df` unchanged.
            keys: names of columns of `map_schema`, partitioned as Spark's `repartition` does; or a
                function from a RecordBatch to one partition id per row, from 0 to
                `num_partitions` - 1.
            num_partitions: from 1. With a `reduce` and key columns, one task may read several small
                partitions (`Settings.read_together_bytes`).
            reduce: takes the batches of one partition, yields RecordBatch in `schema`. It is called
                once per partition and need not read all rows. Or `Grouped(function)`, called once
                per key. Or an object with the methods of `ResumableReducer`: after a crash it
                resumes inside its partition, and its output is stored, so that a later action does
                not run it again. None returns the shuffled rows.
            combine: takes batches of some of the map's rows, yields fewer rows in `map_schema` for
                which `reduce` gives the same result. It also gets its own output again.
            sort_by: columns by which the reducer's rows are sorted: a name, or
                `(name, "descending")`. With `Grouped`, rows are sorted within each group. Rows that
                do not fit into memory go to local scratch space.
            schema: of what the reducer yields; default `map_schema`.
            map_schema: of what the map yields; default the columns of `df`.
            name: label of the stage, default "stage"; part of its identity.
            version: your promise about parts of `df` and of the functions that another run cannot
                recognize; see `checkpoint`. Default: the version of this object.
            progress: show a bar on standard error, or plain lines if it is not a terminal.

        Not guaranteed: any order of rows within a partition without `sort_by`; that the map sees
        each row only once if tasks fail (its output is in the stage exactly once).

        Raises:
            InvalidInputError: a bad argument, or the map yields other columns than declared.
            FencedError: a newer driver claimed the job.
        """
        check_version(version)

        def store() -> PythonResult:
            work = self._stage_work(
                df,
                name=name,
                map=map,
                keys=keys,
                num_partitions=num_partitions,
                reduce=reduce,
                combine=combine,
                sort_by=sort_by,
                schema=schema,
                map_schema=map_schema,
                version=version,
            )
            side, report = self._runner.run(work, version, progress=progress)
            self._reports.append(report)
            return PythonResult(side, work.schema, stored)

        def stored() -> PythonResult:
            return healing(store, lambda: self._mend_result(df))

        result = stored()
        side = result.side
        frame = rows_of_tasks(self._spark, side, len(side.tasks), result.schema)
        self._results[frame] = result
        return frame

    def _mend_result(self, df: DataFrame) -> bool:
        """Mend the stage whose unchanged result `df` is; return False if nothing is damaged.

        Stages above read what is stored now. The frame itself goes on to name the lost data.
        """
        below = self._results.get(df)
        if below is None or not self._runner.store.healing.mend([below.side.stage]):
            return False
        self._results[df] = below.again()
        return True

    def _stage_work(
        self,
        df: DataFrame,
        *,
        keys: str | Sequence[str] | KeyFunction,
        num_partitions: int,
        name: str | None = None,
        version: str | None = None,
        **functions: Any,
    ) -> PythonWork:
        """Return the work of a `stage` with these arguments."""
        return PythonWork(
            df,
            self._runner.engine,
            self._spark,
            name=name or "stage",
            keys=keys,
            partitions=num_partitions,
            below=None if (below := self._results.get(df)) is None else below.side,
            version=self._runner.version_or_default(version),
            generation=self._log.generation,
            ids=self._runner.ids,
            **functions,
        )

    def stage_objects(
        self,
        rdd: RDD[tuple[K, V]],
        num_partitions: int,
        *,
        partition_function: Callable[[Any], int] = portable_hash,
        group: bool = False,
        name: str | None = None,
        version: str | None = None,
        progress: bool = False,
    ) -> RDD[Any]:
        """Store an RDD of (key, value) pairs partitioned by key, and return the stored pairs.

        Use it instead of `rdd.partitionBy(num_partitions, partition_function)`, or with
        `group=True` instead of `rdd.groupByKey(...)`; the same pairs are in the same partitions.
        The map side is eager and its output is stored once; the read side is lazy. Classic Spark
        only.

        Keys and values may be any types of msgpack, and datetimes, dates, times, timedeltas,
        Decimal, UUID, tuples, sets, big integers and numpy scalars, nested at will. They come back
        with the same types. Any other type is refused with its name; stored data is never pickled.

        Args:
            num_partitions: from 1.
            partition_function: returns an integer for a key; the partition is this integer modulo
                `num_partitions`. Default as in Spark.
            group: return one (key, iterable of values) pair per key.
            name: label of the stage, default "objects"; part of its identity.
            version: as with `stage`.
            progress: as with `stage`.

        Another run recognizes an RDD over the driver's rows (`parallelize`) by these rows and its
        functions. Any other RDD, over files for example, needs `version=`.

        Raises:
            InvalidInputError: a bad argument, an item that is not a pair, a type that cannot be
                stored.
            FencedError: a newer driver claimed the job.
        """
        check_version(version)
        work = ObjectWork(
            rdd,
            self._runner.engine,
            name=name or "objects",
            partitions=num_partitions,
            partition_function=partition_function,
        )
        rows, report = self._runner.run(work, version, progress=progress)
        self._reports.append(report)
        return rows.groupByKey(num_partitions, partition_function) if group else rows
