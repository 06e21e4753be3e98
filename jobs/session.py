"""`DurableShuffle`, the entry point for Spark users: claims a job, then stores and reads stages."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from durable_shuffle.jobs.claims import hold_claim, let_go
from durable_shuffle.jobs.consume.run import (
    DEFAULT_CHECKPOINT_ROWS,
    Consumers,
    check_consume,
)
from durable_shuffle.jobs.consume.task import OnNewCode
from durable_shuffle.jobs.deploy.preflight import default_url, preflight
from durable_shuffle.jobs.deploy.ship import is_connect, ship
from durable_shuffle.jobs.engine.checks import check_option, check_version, is_column
from durable_shuffle.jobs.engine.classic import ClassicEngine
from durable_shuffle.jobs.engine.connect import ConnectEngine
from durable_shuffle.jobs.engine.engine import Engine
from durable_shuffle.jobs.jvm_rows.route import RowsIn
from durable_shuffle.jobs.python_stage.methods import PythonStages
from durable_shuffle.jobs.query.calls import QueryCalls
from durable_shuffle.jobs.query.runner import QueryExplanation, QueryRunner
from durable_shuffle.jobs.stages.identity import SeenInputs
from durable_shuffle.jobs.stages.report import ConsumerReport, Report, StageReport
from durable_shuffle.jobs.stages.runner import Explanation, StageRunner
from durable_shuffle.jobs.stages.store import StageStore
from durable_shuffle.jobs.stages.stored import StageInfo, StoredStages
from durable_shuffle.jobs.stages.work import FrameWork
from durable_shuffle.recovery.resume import ReusePolicy
from durable_shuffle.serialization.errors import (
    DurableShuffleError,
    FencedError,
    InvalidInputError,
)
from durable_shuffle.shuffle.base.clock import Clock, IdSource, RandomIds, SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.consumer_records import ResumeMode
from durable_shuffle.shuffle.log.layout import StagePath, check_name
from durable_shuffle.shuffle.release.unused import KeepUsed, Retention, kept_by
from durable_shuffle.shuffle.storage.open import open_storage
from durable_shuffle.shuffle.storage.retrying import CountingStorage

_ROWS_IN = "spark.durableShuffle.rowsIn"


class DurableShuffle(PythonStages, QueryCalls, StoredStages):
    """Durable stages of one Spark job.

    Creating this object claims the job; an older driver of the job stops with FencedError at its
    next write. Objects of one process share the claim. Stored stages outlive the Spark
    application. A later run with the same job name and the same plan reads them instead of
    computing them again.

    Args:
        spark: a classic or Spark Connect session.
        url: fsspec URL of a local folder, S3, GCS or Azure. Default: the Spark conf
            `spark.durableShuffle.url`, else `./durable-shuffle` for `local*` masters.
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
        retention: which stages of earlier runs stay. Default `KeepUsed()`: those that one of the
            last three runs used or that were used in the last seven days, and the newest of each
            name; of those that no later run can find again, the ones of the last twelve hours. A
            timedelta keeps what the last run used, and what was used within that time. The others
            are released here and deleted in the background (`vacuum` says which).
            "until_released" keeps all until you call `release`. "when_consumed" deletes a stage
            when every declared consumer (`register_consumers`) has finished; this is checked
            here, in `release_consumed`, and when a `with` block ends without an error.
        rows_in: where rows are encoded and decoded. "auto" does it inside Spark's JVM, which is
            faster, if this Spark and the types of the columns allow it, else in Python workers;
            `explain` says which. "python" always takes Python workers. "jvm" raises
            IncompatibleError instead. Default: the Spark conf `spark.durableShuffle.rowsIn`, else
            "auto". Both write the same format, and it is not part of a stage's identity.
        storage_options: passed to fsspec; never stored.
        settings: memory, frames, compression; they change neither rows nor identity.
        clock: for tests; default the machine's.
        ids: for tests; default random.

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
        url: str | None = None,
        *,
        job: str,
        version: str | None = None,
        reuse: ReusePolicy = "auto",
        on_conflict: Literal["take_over", "fail"] = "take_over",
        lost_records: Literal["refuse", "ignore"] = "refuse",
        retention: Retention = KeepUsed(),  # noqa: B008 - a constant
        rows_in: RowsIn | None = None,
        storage_options: Mapping[str, object] | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        check_name("job", job)
        check_version(version)
        check_option("reuse", reuse, ("auto", "never", "require"))
        check_option("on_conflict", on_conflict, ("take_over", "fail"))
        check_option("lost_records", lost_records, ("refuse", "ignore"))
        rows_in = rows_in or cast("RowsIn", spark.conf.get(_ROWS_IN, "auto"))
        check_option("rows_in", rows_in, ("auto", "jvm", "python"))
        self._retention, self._deleting = retention, None
        self._keep = kept_by(retention)
        self._spark, self._job = spark, job
        clock, ids = clock or SystemClock(), ids or RandomIds()
        self._clock, self._ids = clock, ids
        self._settings = settings = settings or Settings()
        self._url = url or default_url(spark)
        patience = settings.storage_call_seconds
        task_storage = open_storage(self._url, storage_options, call_seconds=patience)
        ship(spark)
        storage = preflight(spark, task_storage, job, ids)
        self._storage = CountingStorage(storage)
        take_over = on_conflict == "take_over"
        self._log = hold_claim(self._storage, job, ids=ids, clock=clock, take_over=take_over)
        self._closed = False
        self._reports: list[StageReport] = []
        self._consumer_reports: list[ConsumerReport] = []
        self._stages_of_frames: WeakKeyDictionary[DataFrame, StagePath] = WeakKeyDictionary()
        """Which stage a DataFrame reads, whole and unchanged."""
        self._results = WeakKeyDictionary()
        self._native: list[str] = []
        self._adapted: list[str] = []
        connect = is_connect(spark)
        if connect and rows_in == "jvm":
            raise InvalidInputError("rows_in='jvm' needs classic Spark; use rows_in='auto'")
        engine: Engine = ConnectEngine(spark) if connect else ClassicEngine(spark, rows_in)
        store = StageStore(
            storage=self._storage,
            task_storage=task_storage,
            log=self._log,
            policy=reuse,
            settings=settings,
            clock=clock,
            ids=ids,
            engine=engine,
            lost_records=lost_records,
        )
        self._runner = StageRunner(
            engine=engine,
            store=store,
            version=version,
            settings=settings,
            ids=ids,
            seen=SeenInputs(spark, (self._storage.description, job)),
        )
        self._queries = None
        if isinstance(engine, ClassicEngine):
            self._queries = QueryRunner(spark, engine, self._runner)
        self._consumers = Consumers(
            engine=engine,
            storage=self._storage,
            task_storage=storage,
            log=self._log,
            settings=settings,
            clock=clock,
            ids=ids,
        )
        if retention == "when_consumed":
            self.release_consumed()
        self._begin_vacuum(self._keep)

    def __enter__(self) -> "DurableShuffle":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End; with `retention="when_consumed"` and no error, delete what was consumed first."""
        if self._retention == "when_consumed" and error is None:
            with suppress(FencedError):  # the newer driver will delete them
                self.release_consumed()
        self.close()

    def close(self) -> None:
        """Say that this driver has ended, so that `on_conflict="fail"` accepts the next one.

        So do the end of a `with` block and of the process. Waits until released stages are deleted.
        Stored rows can still be read; a call that writes claims the job again.
        """
        if self._deleting is not None:
            self._deleting.join()
        if not self._closed:
            self._closed = True
            with suppress(DurableShuffleError):
                let_go(self._log, self._storage)

    @property
    def url(self) -> str:
        """Where the data lives, without credentials."""
        return self._storage.description

    @property
    def generation(self) -> int:
        """This driver's fencing number. The first driver that claims the job has 1, the next 2."""
        return self._log.generation

    def durable(
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
            name: label of the stage, default "durable"; part of its identity.
            version: your promise that inputs which another run cannot recognise hold the same rows
                as long as the version is the same. Such inputs are an RDD, a table behind JDBC,
                and everything on Spark Connect. The rest of the plan is still compared. Two inputs
                with the same plan need two versions. Default: the version of this object.
            progress: show a bar on standard error, or plain lines if it is not a terminal.

        Raises:
            InvalidInputError: not a DataFrame, a streaming one, a column type that cannot be
                stored, or one `version` for two different inputs.
            FencedError: a newer driver claimed the job.
        """
        return self._run(self._durable_work(df, name), version, progress=progress)

    def repartition(
        self,
        df: DataFrame,
        n: int | str | Column | None = None,
        *cols: str | Column,
        name: str | None = None,
        version: str | None = None,
        progress: bool = False,
    ) -> DataFrame:
        """Store `df`, partitioned as `df.repartition(n, *cols)` would, and return the stored rows.

        Eager: when this returns, every partition is committed. Each key is in the partition where
        Spark itself puts it, so on classic Spark a later join or group-by on the key needs no
        second exchange. Without columns, rows go to the partitions in turn.

        Args:
            n: number of partitions, from 1; default `spark.sql.shuffle.partitions`. As in Spark,
                the first column may stand here.
            cols: key columns, by name or as plain columns.
            name: label of the stage, default "repartition"; part of its identity.
            version: as with `durable`.
            progress: as with `durable`.

        Raises:
            InvalidInputError: as with `durable`; a bad `n`, an unknown column, or a key type that
                has no hash (maps).
            FencedError: a newer driver claimed the job.
        """
        return self._run(self._repartition_work(df, n, cols, name), version, progress=progress)

    def consume(
        self,
        df_or_stage: DataFrame | StageInfo,
        *,
        consumer: str,
        process: Any,
        schema: StructType | str | None = None,
        checkpoint_every: int = DEFAULT_CHECKPOINT_ROWS,
        resume: ResumeMode = "exact",
        on_new_code: OnNewCode = "fail",
        name: str | None = None,
    ) -> DataFrame | None:
        """Feed stored rows to a Python function; after a failure it resumes inside its partition.

        Eager: runs one task per partition of the stage. A task acknowledges its position and the
        rows that it yielded so far in one record. After a failure, the next attempt continues
        behind the last acknowledgement; with `resume="exact"` every row is in the result exactly
        once. A consumer is recognised by its name and the stage. If it has finished, it does not
        run again; its stored result is returned.

        Args:
            df_or_stage: what `repartition` or `durable` of this object returned, or an entry of
                `stages()`. Any other DataFrame is first stored, as by `durable`.
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
        request = check_consume(consumer, process, schema, checkpoint_every, resume, on_new_code)
        if self._path(df_or_stage) is None:
            df_or_stage = self.durable(cast("DataFrame", df_or_stage), name=name)
        path = self._path(df_or_stage)
        assert path is not None
        frame, report = self._consumers.run(path, request)
        self._consumer_reports.append(report)
        return frame

    def explain(
        self,
        df: DataFrame,
        n: int | str | Column | None = None,
        *cols: str | Column,
        name: str | None = None,
        version: str | None = None,
    ) -> Explanation | QueryExplanation:
        """Say whether `repartition(df, n, *cols)` would reuse a stored stage, and why.

        Without `n` and columns, explain `query(df)`: which exchanges are committed and which would
        run. On Spark Connect, which has no `query`, explain `durable(df)` then. Nothing is written.
        On Spark Connect a small job may run, to count the partitions of a partly stored stage.
        """
        check_version(version)
        if n is None and not cols:
            if self._queries is not None:
                return self._queries.explain(df, _label(name, "query"), version)
            return self._runner.explain(self._durable_work(df, name), version)
        return self._runner.explain(self._repartition_work(df, n, cols, name), version)

    def report(self) -> Report:
        """Return what this object did so far, per stage and in total."""
        return Report(
            *(self._job, self.generation, tuple(self._reports), tuple(self._consumer_reports)),
            *(tuple(self._native), tuple(self._adapted)),
        )

    def _path(self, df_or_stage: DataFrame | StageInfo) -> StagePath | None:
        if isinstance(df_or_stage, StageInfo):
            return df_or_stage.path(self._job)
        return self._stages_of_frames.get(df_or_stage)

    def _run(self, work: FrameWork, version: str | None, *, progress: bool) -> DataFrame:
        check_version(version)
        frame, report = self._runner.run(work, version, progress=progress)
        self._reports.append(report)
        path = StagePath(self._job, report.name, report.fingerprint, report.incarnation)
        self._stages_of_frames[frame] = path
        return frame

    def _durable_work(self, df: DataFrame, name: str | None) -> FrameWork:
        return FrameWork(df, self._runner.engine, name=_label(name, "durable"))

    def _repartition_work(
        self,
        df: DataFrame,
        n: int | str | Column | None,
        cols: tuple[str | Column, ...],
        name: str | None,
    ) -> FrameWork:
        if isinstance(n, (str, Column)) or (n is not None and is_column(n)):
            cols, n = (cast("str | Column", n), *cols), None
        if n is None:
            n = int(str(self._spark.conf.get("spark.sql.shuffle.partitions")))
        label = _label(name, "repartition")
        return FrameWork(df, self._runner.engine, name=label, n=n, cols=cols)


def _label(name: str | None, default: str) -> str:
    return default if name is None else name  # "" is passed on, to be refused
