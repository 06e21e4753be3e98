"""`DurableShuffle`, the entry point for Spark users: claims a job, then stores and reads stages."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from os import PathLike, fspath
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from durable_shuffle.jobs.claims import hold_claim, let_go, read_before_claim
from durable_shuffle.jobs.consume.run import (
    DEFAULT_CHECKPOINT_ROWS,
    Consumers,
    check_consume,
)
from durable_shuffle.jobs.consume.task import OnNewCode
from durable_shuffle.jobs.deploy.preflight import default_url, preflight
from durable_shuffle.jobs.deploy.ship import is_connect, ship
from durable_shuffle.jobs.engine.checks import (
    NO_STREAM,
    check_columns,
    check_frame,
    check_option,
    check_version,
)
from durable_shuffle.jobs.engine.classic import ClassicEngine
from durable_shuffle.jobs.engine.connect import ConnectEngine
from durable_shuffle.jobs.engine.engine import Engine
from durable_shuffle.jobs.explain import Calls
from durable_shuffle.jobs.identity.jvm.document import compile_ahead
from durable_shuffle.jobs.java import classes_of
from durable_shuffle.jobs.jvm_rows.route import RowsIn
from durable_shuffle.jobs.options import PREFIX, configured, retention_from, settings_from
from durable_shuffle.jobs.outcome import tell_end, tell_job
from durable_shuffle.jobs.query.at_risk import NOTHING, Risk, risk_from
from durable_shuffle.jobs.stages.healing import healing
from durable_shuffle.jobs.stages.identity import SeenInputs
from durable_shuffle.jobs.stages.report import ConsumerReport, Report, StageReport
from durable_shuffle.jobs.stages.runner import StageRunner
from durable_shuffle.jobs.stages.store import StageStore
from durable_shuffle.jobs.stages.stored import StageInfo, StoredStages
from durable_shuffle.recovery.resume import ReusePolicy
from durable_shuffle.serialization.errors import (
    DurableShuffleError,
    FencedError,
    InvalidInputError,
)
from durable_shuffle.shuffle.base.clock import Clock, IdSource, RandomIds, SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.base.side_by_side import side_by_side
from durable_shuffle.shuffle.log.consumer_records import ResumeMode
from durable_shuffle.shuffle.log.layout import StagePath, check_name
from durable_shuffle.shuffle.release.unused import KeepUsed, Retention, kept_by
from durable_shuffle.shuffle.storage.local import is_far
from durable_shuffle.shuffle.storage.open import open_storage
from durable_shuffle.shuffle.storage.retrying import CountingStorage
from durable_shuffle.shuffle.storage.storage_clock import clock_of

_LOG = logging.getLogger(__name__)


class DurableShuffle(Calls, StoredStages):
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
        conf = configured(spark)
        job = job if job is not None else conf.get("job")
        if job is None:
            raise InvalidInputError(
                "no job: pass DurableShuffle(..., job=...) or set " + PREFIX + "job"
            )
        check_name("job", job)
        version = version if version is not None else conf.get("version")
        check_version(version)
        reuse = reuse or cast("ReusePolicy", conf.get("reuse", "auto"))
        check_option("reuse", reuse, ("auto", "never", "require"))
        on_conflict = on_conflict or cast("Any", conf.get("on_conflict", "take_over"))
        check_option("on_conflict", on_conflict, ("take_over", "fail"))
        lost_records = lost_records or cast("Any", conf.get("lost_records", "refuse"))
        check_option("lost_records", lost_records, ("refuse", "ignore"))
        rows_in = rows_in or cast("RowsIn", conf.get("rows_in", "auto"))
        check_option("rows_in", rows_in, ("auto", "jvm", "python"))
        self._at_risk = at_risk if at_risk is not None else conf.get("at_risk", NOTHING)
        risk_from(self._at_risk)
        if retention is None:
            given = conf.get("retention")
            retention = KeepUsed() if given is None else cast("Any", retention_from(given))
        self._retention, self._deleting = retention, None
        self._keep = kept_by(retention)
        self._spark, self._job = spark, job
        clock, ids = self._clock_and_ids()
        self._ids = ids
        self._settings = settings = settings or settings_from(conf)
        given = fspath(url) if isinstance(url, PathLike) else url
        self._url = given or conf.get("url") or default_url(spark)
        patience = settings.storage_call_seconds
        task_storage = open_storage(self._url, storage_options, call_seconds=patience)
        if not is_connect(spark):
            compile_ahead(classes_of(spark))
        ship(spark)
        compared = clock if type(clock) is SystemClock else None  # a test has a time of its own
        (storage, ahead), before = side_by_side(
            lambda: preflight(spark, task_storage, job, ids, compared),
            lambda: read_before_claim(task_storage, job),
            far=is_far(task_storage),
        )
        self._clock = clock = clock_of(clock, ahead)
        self._storage = CountingStorage(storage)
        take_over = on_conflict == "take_over"
        self._log = hold_claim(
            *(self._storage, job),
            ids=ids,
            clock=clock,
            take_over=take_over,
            before=before if take_over and storage is task_storage else None,
        )
        _LOG.info("job %s below %s: driver %d", job, self.url, self.generation)
        tell_job(self._storage.description, job, self._log.state.owner)
        self._closed = False
        self._reports: list[StageReport] = []
        self._consumer_reports: list[ConsumerReport] = []
        self._stages_of_frames: WeakKeyDictionary[DataFrame, StagePath] = WeakKeyDictionary()
        """Which stage a DataFrame reads, whole and unchanged."""
        self._results = WeakKeyDictionary()
        self._stored_again = WeakKeyDictionary()
        self._native: list[str] = []
        self._adapted: list[str] = []
        connect = is_connect(spark)
        if connect and rows_in == "jvm":
            raise InvalidInputError("rows_in='jvm' needs classic Spark; use rows_in='auto'")
        where = (self._storage.description, job)
        engine: Engine = ConnectEngine(spark) if connect else ClassicEngine(spark, rows_in, where)
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
            seen=SeenInputs(spark, where),
        )
        self._queries = None
        if isinstance(engine, ClassicEngine):
            from durable_shuffle.jobs.query.runner import QueryRunner  # Connect does without

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

    def _clock_and_ids(self) -> tuple[Clock, IdSource]:
        """Return where times and ids come from; tests override it."""
        return SystemClock(), RandomIds()

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
        request = check_consume(consumer, process, schema, checkpoint_every, resume, on_new_code)
        if not isinstance(df_or_stage, StageInfo):
            check_frame(df_or_stage, streaming=NO_STREAM)
            check_columns(df_or_stage.schema)
        if self._path(df_or_stage) is None:
            df_or_stage = self.checkpoint(cast("DataFrame", df_or_stage), name=name)

        def run() -> tuple[DataFrame | None, ConsumerReport]:
            path = self._path(df_or_stage)  # another one if the stage had to start afresh
            assert path is not None
            return self._consumers.run(path, request)

        def mend() -> bool:
            return not isinstance(df_or_stage, StageInfo) and self._mend_frame(df_or_stage)

        frame, report = healing(run, mend)
        self._consumer_reports.append(report)
        return frame

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
