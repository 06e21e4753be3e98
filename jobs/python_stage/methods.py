"""The methods of `DurableShuffle` for stages whose functions are Python."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from pyspark import RDD
from pyspark.core.rdd import portable_hash
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from durable_shuffle.jobs.engine.arguments import check_version
from durable_shuffle.jobs.python_stage.objects import ObjectWork, check_objects
from durable_shuffle.jobs.python_stage.reduce_side import ReduceSide
from durable_shuffle.jobs.python_stage.spec import BatchFunction, KeyFunction, check_spec
from durable_shuffle.jobs.python_stage.work import PythonWork, result_frame
from durable_shuffle.jobs.stages.report import StageReport
from durable_shuffle.jobs.stages.runner import StageRunner
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.rows.reducers import Grouped, ResumableReducer
from durable_shuffle.shuffle.rows.row_order import Direction

K = TypeVar("K")
V = TypeVar("V")


class PythonStages:
    """What a session must have for these methods; not to be used alone."""

    _spark: SparkSession
    _runner: StageRunner
    _reports: list[StageReport]
    _version: str | None
    _ids: IdSource
    _log: JobLog
    _results: WeakKeyDictionary[DataFrame, ReduceSide]
    """Results of `stage`, by which a stage on top knows them again."""

    def stage(
        self,
        df: DataFrame,
        *,
        map: BatchFunction | None = None,
        keys: str | Sequence[str] | KeyFunction,
        partitions: int,
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

        The map side is eager and runs once: its batches go straight to storage in the same Python
        worker. The reduce side is lazy, as a DataFrame is: it runs with each action. Handed to
        another `stage` as it is, it runs inside that stage's map tasks, and its rows do not return
        to the JVM in between.

        Args:
            map: takes an iterator of RecordBatch with the columns of `df`, yields RecordBatch in
                `map_schema`. None: the rows of `df` as they are.
            keys: names of columns of `map_schema`, partitioned as Spark's `repartition` does; or a
                function from a RecordBatch to one id per row, from 0 up to `partitions` exclusive.
            partitions: number of subpartitions per producer, from 1.
            reduce: takes the batches of one partition, yields RecordBatch in `schema`; it is called
                once per partition and need not read all. Or `Grouped(function)`, called once per
                key. Or an object with the methods of `ResumableReducer`, which goes on inside its
                partition after a crash and whose output is stored, so that a later action does not
                run it again. None: the shuffled rows.
            combine: takes batches of any of the map's rows, yields fewer rows in `map_schema` that
                reduce to the same; it is called on rows gathered in memory, also on its own output.
            sort_by: columns by which the reducer's rows are sorted, as `(name, "descending")` or by
                name; within each group for `Grouped`. Rows that do not fit into memory go through
                local scratch space.
            schema: of what the reducer yields; default `map_schema`.
            map_schema: of what the map yields; default the columns of `df`.
            name: label of the stage, default "stage"; part of its identity.
            version: vouches for what cannot be recognised in another run, in place of the job's
                version: of `df` and of the functions.
            progress: show a bar on standard error, plain lines where it is no terminal.

        Not guaranteed: the order of producers' rows within a partition means anything; that the map
        runs once per row if tasks fail (its output counts once).

        Raises:
            InvalidInputError: a bad argument, or the map yields other columns than declared.
            FencedError: a newer driver claimed the job.
        """
        check_version(version)
        version = self._version if version is None else version
        spec = check_spec(
            df,
            name=name or "stage",
            map=map,
            keys=keys,
            partitions=partitions,
            reduce=reduce,
            combine=combine,
            sort_by=sort_by,
            schema=schema,
            map_schema=map_schema,
        )
        work = PythonWork(
            spec,
            self._runner.engine,
            self._spark,
            below=self._results.get(df),
            version=version,
            generation=self._log.generation,
            ids=self._ids,
        )
        side, report = self._runner.run_work(work, version, progress=progress)
        self._reports.append(report)
        frame = result_frame(self._spark, side, spec.schema)
        self._results[frame] = side
        return frame

    def stage_objects(
        self,
        rdd: RDD[tuple[K, V]],
        partitions: int,
        *,
        partition_function: Callable[[Any], int] = portable_hash,
        group: bool = False,
        name: str | None = None,
        version: str | None = None,
        progress: bool = False,
    ) -> RDD[Any]:
        """Store an RDD of (key, value) pairs partitioned by key, and return it read back.

        In place of `rdd.partitionBy(partitions, partition_function)`, with the same pairs in the
        same partitions; with `group=True` in place of `rdd.groupByKey(...)`. The map side is eager
        and runs once, the read side is lazy. Classic Spark only.

        Keys and values may be what msgpack knows, and datetimes, dates, times, timedeltas, Decimal,
        UUID, tuples, sets, big integers and numpy scalars, nested as you like; they come back as
        the types that went in. Other objects are refused by name: nothing is pickled.

        Args:
            partitions: number of partitions, from 1.
            partition_function: from a key to an integer, of which the remainder by `partitions`
                counts; default as in Spark.
            name: label of the stage, default "objects"; part of its identity.
            version: as with `stage`.
            progress: as with `stage`.

        An RDD over rows of the driver (`parallelize`) is recognised in another run by its rows and
        its functions. Any other, over files for example, needs `version=`.

        Raises:
            InvalidInputError: a bad argument, an item that is no pair, a type that is not stored.
            FencedError: a newer driver claimed the job.
        """
        check_version(version)
        spec = check_objects(
            rdd,
            name=name or "objects",
            partitions=partitions,
            partition_function=partition_function,
        )
        work = ObjectWork(spec, self._runner.engine.task_tries)
        rows, report = self._runner.run_work(work, version, progress=progress)
        self._reports.append(report)
        return rows.groupByKey(partitions, partition_function) if group else rows
