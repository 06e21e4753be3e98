"""`DurableShuffle`, the entry point for Spark users: all that they call stands here.

A call goes to what carries it out: `jobs/stages/frame_calls.py`, `jobs/query/calls.py`,
`jobs/python_stage/calls.py`, `jobs/consume/run.py`, `jobs/stages/stored.py`. These share one
`Driver` (`jobs/stages/driver.py`), which `jobs/opening.py` makes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pyspark import RDD
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from durable_shuffle.jobs.claims import let_go
from durable_shuffle.jobs.explain import Explain
from durable_shuffle.jobs.jvm_rows.route import RowsIn
from durable_shuffle.jobs.opening import open_driver
from durable_shuffle.jobs.outcome import tell_end
from durable_shuffle.jobs.query.at_risk import Risk
from durable_shuffle.jobs.query.calls import QueryCalls
from durable_shuffle.jobs.spark_versions import portable_hash
from durable_shuffle.jobs.stages.frame_calls import FrameCalls
from durable_shuffle.jobs.stages.report import Report
from durable_shuffle.jobs.stages.stored import StageInfo, StageList, StoredStages, VacuumedStage
from durable_shuffle.recovery.resume import ReusePolicy
from durable_shuffle.serialization.errors import DurableShuffleError, FencedError
from durable_shuffle.shuffle.base.clock import Clock, IdSource, RandomIds, SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.release.stages import Freed
from durable_shuffle.shuffle.release.unused import KeepUsed, Retention

if TYPE_CHECKING:
    from durable_shuffle.jobs.consume.run import Consumers
    from durable_shuffle.jobs.consume.task import OnNewCode
    from durable_shuffle.jobs.python_stage.calls import PythonCalls
    from durable_shuffle.jobs.python_stage.tasks import BatchFunction, KeyFunction
    from durable_shuffle.shuffle.log.consumer_records import ResumeMode
    from durable_shuffle.shuffle.rows.reducers import Grouped, ResumableReducer
    from durable_shuffle.shuffle.rows.row_order import Direction

K = TypeVar("K")
V = TypeVar("V")


class DurableShuffle:
    """Durable stages of one Spark job.

    Creating this object claims the job; an older driver of the job stops with FencedError at its
    next write. Objects of one process share the claim. Stored stages outlive the Spark
    application. A later run with the same job name and the same plan reads them instead of
    computing them again.

    Every argument but `storage_options` can also be a Spark conf, for example
    `spark.durableShuffle.onConflict`; settings are `spark.durableShuffle.settings.*`.

    Args:
        spark: a classic or Spark Connect session.
        url: path or fsspec URL of a local folder, S3, GCS or Azure. Default: `./durable-shuffle`
            for `local*` masters.
        job: name of the job under `url`; letters, digits, '.', '_', '-'.
        version: default for the `version` of each call.
        reuse: "auto" reuses stored stages that match. "never" computes every stage again.
            "require" raises IncompatibleError if nothing of a stage is stored, and completes a
            stage that is partly stored.
        on_conflict: "take_over" claims the job from any other driver. "fail" raises ConflictError
            while another driver is active, or if one was killed and could not say that it ended.
        lost_records: what to do if the job's log lost the record of a wanted stage. "refuse"
            raises CorruptDataError; `verify --repair` enters the stage again. "ignore" computes
            the stage again.
        retention: which stages of earlier runs stay. Default `KeepUsed()`: what one of the last
            three runs used, what was used in the last seven days, and the newest stage of each
            name. A stage that no later run can find again stays for twelve hours. A timedelta keeps
            what the last run used and what was used within that time. All other stages are
            released here and deleted in the background (`vacuum` says which).
            "until_released" keeps all until you call `release`. "when_consumed" deletes a stage
            when every declared consumer (`register_consumers`) has finished; this is checked
            here, in `release_consumed`, and when a `with` block ends without an error.
        rows_in: where rows are encoded and decoded. "auto" does it inside Spark's JVM, which is
            faster, if this Spark and the types of the columns allow it, else in Python workers;
            `explain` says which. "python" always takes Python workers. "jvm" raises
            IncompatibleError instead. Both write the same format, and it is not part of a stage's
            identity.
        at_risk: default for the `at_risk` of `query`: how much work a driver that dies may lose.
            Default "nothing", which stores every exchange.
        storage_options: passed to fsspec; never stored.
        settings: memory, frames, compression; they change neither rows nor identity.

    Not guaranteed: that side effects of your own functions happen only once. They happen at least
    once. A local folder survives the death of processes, not the loss of the disk.

    Raises:
        InvalidInputError: a bad name, url or option; no permission; a local folder that not all
            hosts of the cluster share.
        ConflictError: `on_conflict="fail"` and another driver has not ended.
    """

    def __init__(
        self,
        spark: SparkSession,
        url: str | PathLike[str] | None = None,
        *,
        job: str | None = None,
        version: str | None = None,
        reuse: ReusePolicy | None = None,
        on_conflict: Literal["take_over", "fail"] | None = None,
        lost_records: Literal["refuse", "ignore"] | None = None,
        retention: Retention | None = None,
        rows_in: RowsIn | None = None,
        at_risk: Risk | None = None,
        storage_options: Mapping[str, object] | None = None,
        settings: Settings | None = None,
    ) -> None:
        tell_end()
        self._driver = driver = open_driver(
            *(spark, url, *self._clock_and_ids()),
            job=job,
            version=version,
            reuse=reuse,
            on_conflict=on_conflict,
            lost_records=lost_records,
            retention=retention,
            rows_in=rows_in,
            at_risk=at_risk,
            storage_options=storage_options,
            settings=settings,
        )
        self._closed = False
        self._frames = FrameCalls(driver)
        self._queries = QueryCalls(driver)
        self._stored = StoredStages(driver)
        if driver.retention == "when_consumed":
            self.release_consumed()
        self._stored.begin_vacuum()

    def _clock_and_ids(self) -> tuple[Clock, IdSource]:
        """Return where times and ids come from; tests override it."""
        return SystemClock(), RandomIds()

    @cached_property
    def _python(self) -> "PythonCalls":
        from durable_shuffle.jobs.python_stage.calls import PythonCalls  # few sessions need it

        return PythonCalls(self._driver)

    @cached_property
    def _consume(self) -> "Consumers":
        from durable_shuffle.jobs.consume.run import Consumers  # few sessions need it

        return Consumers(self._driver, self._frames)

    def __enter__(self) -> "DurableShuffle":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End; with `retention="when_consumed"` and no error, delete what was consumed first."""
        if self._driver.retention == "when_consumed" and error is None:
            with suppress(FencedError):  # the newer driver will delete them
                self.release_consumed()
        self.close()

    def close(self) -> None:
        """Say that this driver has ended, so that `on_conflict="fail"` accepts the next one.

        So do the end of a `with` block and of the process. Waits until released stages are deleted.
        Stored rows can still be read; a call that writes claims the job again.
        """
        if self._stored.deleting is not None:
            self._stored.deleting.join()
        if not self._closed:
            self._closed = True
            with suppress(DurableShuffleError):
                let_go(self._driver.log, self._driver.storage)

    @property
    def url(self) -> str:
        """Where the data lives, without credentials."""
        return self._driver.storage.description

    @property
    def generation(self) -> int:
        """This driver's fencing number. The first driver that claims the job has 1, the next 2."""
        return self._driver.log.generation

    @property
    def explain(self) -> Explain:
        """Say what a call would do: `explain.query(df)`, `explain.repartition(df, 8, "k")`, …"""
        return Explain(self._frames, self._queries, lambda: self._python)

    def report(self) -> Report:
        """Return what this object did so far, per stage and in total."""
        return self._driver.done.report(self._driver.job, self.generation)

    def checkpoint(
        self,
        df: DataFrame,
        *,
        name: str | None = None,
        version: str | None = None,
        progress: bool = False,
    ) -> DataFrame:
        """Store `df` once and return the stored rows: same partitions, same order.

        Eager, as `df.checkpoint()`: when this returns, every partition is committed.

        Args:
            name: label of the stage, default "checkpoint"; part of its identity.
            version: your promise that inputs which another run cannot recognize hold the same rows
                as long as the version is the same: a JDBC table or an RDD over files, for
                example; on Spark Connect, a temporary view. The rest of the plan is still compared.
                Two inputs with the same plan need two versions. Default: the version of this
                object.
            progress: show a bar on standard error, or plain lines if it is not a terminal.

        Raises:
            InvalidInputError: not a DataFrame, a streaming one, a column type that cannot be
                stored, or one `version` for two different inputs.
            FencedError: a newer driver claimed the job.
        """
        return self._frames.checkpoint(df, name, version).run(progress=progress)

    durable = checkpoint
    """The older name of `checkpoint`."""

    def repartition(
        self,
        df: DataFrame,
        num_partitions: int | str | Column | None = None,
        *cols: str | Column,
        name: str | None = None,
        version: str | None = None,
        progress: bool = False,
    ) -> DataFrame:
        """Store `df`, partitioned as `df.repartition(num_partitions, *cols)`
        would, and return the stored rows.

        Eager: when this returns, every partition is committed. Each key is in the partition where
        Spark itself puts it, so on classic Spark a later join or group-by on the key needs no
        second exchange. Without columns, rows go to the partitions in turn.

        Args:
            num_partitions: from 1; default `spark.sql.shuffle.partitions`. As in Spark,
                the first column may stand here.
            cols: key columns, by name or as plain columns.
            name: label of the stage, default "repartition"; part of its identity.
            version: as with `checkpoint`.
            progress: as with `checkpoint`.

        Raises:
            InvalidInputError: as with `checkpoint`; a bad `num_partitions`, an unknown column, or a
                key type that has no hash (maps).
            FencedError: a newer driver claimed the job.
        """
        request = self._frames.repartition(df, num_partitions, cols, name, version)
        return request.run(progress=progress)

    def query(
        self,
        df: DataFrame,
        *,
        name: str | None = None,
        version: str | None = None,
        at_risk: Risk | None = None,
        progress: bool = False,
    ) -> DataFrame:
        """Store every shuffle exchange of the query `df` once, and return the query's rows.

        Eager: when this returns, every exchange is committed. The part of the plan above the last
        exchanges runs with each action on the result. Exception: if that part aggregates a large
        join, it runs at once and its rows are stored too (`Settings.result_least_bytes`). As with
        adaptive execution, the rest of the query is planned again when sizes are known. A later
        run of the same query, in this driver or another, runs only the map tasks that have not
        committed. Rows come in the order that Spark gives them. `report().native` lists exchanges
        that Spark runs itself, broadcasts for example; they are not stored.

        Args:
            name: label of the stages, default "query"; part of their identity.
            version: as with `checkpoint`.
            at_risk: how much work a driver that dies may lose. "nothing" stores every exchange. A
                time such as "5 min" leaves exchanges to Spark while all of them together, and one
                map task that may be under way, took or are expected to take no longer than that.
                One that takes longer than expected is stopped and stored. Not counted: the last
                part of the query, which runs in your action. Default: that of `DurableShuffle`.
            progress: show bars on standard error, or plain lines if it is not a terminal.

        Raises:
            InvalidInputError: a streaming DataFrame; a Spark Connect session; one `version` for two
                different inputs.
            IncompatibleError: the plans of this Spark version are not supported; or `reuse` is
                "require" and an exchange would have to start from nothing.
            FencedError: a newer driver claimed the job.
        """
        return self._queries.query(df, name, version, at_risk).run(progress=progress)

    def transparent(
        self,
        *,
        name: str | None = None,
        version: str | None = None,
        at_risk: Risk | None = None,
    ) -> AbstractContextManager[None]:
        """Run actions through `query` while a `with` block is open, without changing your code.

        Covered, for all DataFrames of this Spark application: collect, first, head, take, tail,
        isEmpty, toPandas, toArrow, toLocalIterator, foreach, foreachPartition, count, write and
        writeTo; checkpoint and localCheckpoint, each a stored stage, at once even with
        `eager=False`; in `spark.sql`, the queries of INSERT, CREATE TABLE AS SELECT and CACHE
        TABLE AS, of MERGE's source, and those in DELETE and UPDATE if none reads the changed row
        (where a table has such queries, as Iceberg's do). The statement itself runs once, as usual.
        Everything else runs in Spark and stores nothing: other actions, show() and `df.rdd` for
        example; EXECUTE IMMEDIATE, SQL scripts and statements with parameters; DataFrames that
        `query` refuses. `report().native` names the last two kinds. One block at a time per
        process.

        A write that deletes a folder which its query reads stores all rows first. If it is cut
        off, the next such write raises ConflictError, and the rows are in the stage.

        Not guaranteed: that a write happens once if the driver dies. A job that is started again
        writes again what it had written. Commits of Delta and Iceberg tables name job, command and
        application, so the table tells it.

        Args:
            name: as for `query`.
            version: as for `query`, for every action in the block.
            at_risk: as for `query`.

        Raises:
            InvalidInputError: a bad argument, a Spark Connect session, or a block is open already.
        """
        return self._queries.transparent(self._frames, name, version, at_risk)

    def stage(
        self,
        df: DataFrame,
        *,
        map: "BatchFunction | None" = None,
        keys: "str | Sequence[str] | KeyFunction",
        num_partitions: int,
        reduce: "BatchFunction | Grouped | ResumableReducer | None" = None,
        combine: "BatchFunction | None" = None,
        sort_by: "str | Sequence[str | tuple[str, Direction]]" = (),
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
        request = self._python.stage(
            df,
            version,
            map=map,
            keys=keys,
            num_partitions=num_partitions,
            reduce=reduce,
            combine=combine,
            sort_by=sort_by,
            schema=schema,
            map_schema=map_schema,
            name=name,
        )
        return request.run(progress=progress)

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
        rows = self._python.stage_objects(
            rdd, num_partitions, partition_function, name, version, progress=progress
        )
        return rows.groupByKey(num_partitions, partition_function) if group else rows

    def consume(
        self,
        df_or_stage: DataFrame | StageInfo,
        *,
        consumer: str,
        process: Any,
        schema: StructType | str | None = None,
        checkpoint_every: int = 1_000_000,
        resume: "ResumeMode" = "exact",
        on_new_code: "OnNewCode" = "fail",
        name: str | None = None,
    ) -> DataFrame | None:
        """Feed stored rows to a Python function; after a failure it resumes inside its partition.

        Eager: runs one task per partition of the stage. A task acknowledges its position and the
        rows that it yielded so far in one record. After a failure, the next attempt continues
        behind the last acknowledgement; with `resume="exact"` every row is in the result exactly
        once. A consumer is identified by its name and the stage. If it has finished, it does not
        run again; its stored result is returned.

        Args:
            df_or_stage: what `repartition` or `checkpoint` of this object returned, or an entry of
                `stages()`. Any other DataFrame is first stored, as by `checkpoint`.
            consumer: name of the consumer.
            process: takes a RecordBatch of consecutive rows; returns a RecordBatch, a Table, an
                iterable of these, or None. Or an object with `process`, `snapshot() -> bytes` and
                `restore(bytes)`; its snapshot is part of each acknowledgement. `finish()` and
                `close()` are called if it has them. Each task works on its own copy.
            schema: of what `process` returns. Without a schema `process` must return None.
            checkpoint_every: a task acknowledges after this many rows, from 1. No batch has more.
            resume: "approximate" never delivers a row twice. After a failure it drops the rows
                that were delivered but not acknowledged; `report()` counts them.
            on_new_code: what to do if other code acknowledged rows under this name. "fail" raises
                IncompatibleError. "go_on" keeps those results and gives the remaining rows to the
                new code.
            name: label of the stage, if this call stores `df_or_stage`.

        Returns:
            What all tasks yielded, in as many partitions as the stage has; None without a schema.

        Not guaranteed: that `process` sees each row only once. After a failure, rows since the last
        acknowledgement are delivered again, and side effects outside the result happen again.

        Raises:
            InvalidInputError: a bad argument, or `process` returns other columns than declared.
            IncompatibleError: this consumer published other columns before, or ran other code.
            NotFoundError: the stage was released.
            FencedError: a newer driver claimed the job.
        """
        asked = consumer, process, schema, checkpoint_every, resume, on_new_code
        return self._consume.consume(df_or_stage, asked, name)

    def stages(self) -> StageList:
        """Return the job's stored stages, oldest first; a list that notebooks show as a table."""
        return self._stored.listed()

    def register_consumers(
        self, df_or_stage: DataFrame | StageInfo, names: Iterable[str], *, closed: bool = True
    ) -> tuple[str, ...]:
        """Declare who consumes a stored stage.

        With `retention="when_consumed"` the stage is deleted once all of them have finished.

        Args:
            df_or_stage: what `repartition` or `checkpoint` of this object returned, or an entry of
                `stages()`.
            closed: False if others may register later; until then nothing is deleted.

        Returns:
            All registered consumers, ascending.

        Raises:
            InvalidInputError: not a stored stage, a bad name, or another set was declared before.
            NotFoundError: the stage was released.
        """
        return self._consume.register(df_or_stage, names, closed=closed)

    def release(self, name: str | None = None, older_than: timedelta | None = None) -> list[Freed]:
        """Delete stored stages for good.

        Args:
            name: only stages with this label.
            older_than: only stages created longer ago than this, by the wall clock.

        Returns:
            What each released stage freed. Releases that an earlier driver began are finished and
            included.

        Raises:
            NotFoundError: no stage ever had this label. Releasing a label twice is no error.
            FencedError: a newer driver claimed the job.
            CorruptDataError: with `older_than`, the age of a damaged stage is unknown; it stays,
                and all others were released. Without `older_than`, damaged stages are released too.
            IncompatibleError: a stage has another format version; all others were released.
        """
        return self._stored.release(name, older_than)

    def release_consumed(self) -> list[Freed]:
        """Delete the stages whose declared consumers have all finished, in every partition.

        A stage whose set of consumers is not closed (`register_consumers`) stays.

        Returns:
            What each deleted stage freed.

        Raises:
            FencedError: a newer driver claimed the job.
            CorruptDataError, IncompatibleError: a stage's or a consumer's log cannot be read.
                The other consumed stages were released.
        """
        return self._stored.release_consumed()

    def vacuum(self, keep: KeepUsed | None = None, *, dry_run: bool = True) -> list[VacuumedStage]:
        """Say which stages a retention does not keep and, with `dry_run=False`, delete them.

        Opening the job does the same with its own `retention`, in the background.

        Args:
            keep: default the retention of this object, `KeepUsed()` if it keeps everything.

        Returns:
            The stages that went or, by default, would go, oldest first. Damaged stages stay.

        Raises:
            FencedError: a newer driver claimed the job.
        """
        return self._stored.vacuum(keep, dry_run=dry_run)
