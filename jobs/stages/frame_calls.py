"""The calls of `DurableShuffle` that store a DataFrame as it is, or repartitioned."""

from collections.abc import Callable
from functools import partial
from typing import cast
from weakref import WeakKeyDictionary

from pyspark.sql import Column, DataFrame, SparkSession

from durable_shuffle.jobs.engine.checks import check_version, is_column
from durable_shuffle.jobs.stages.report import StageReport
from durable_shuffle.jobs.stages.runner import StageRunner
from durable_shuffle.jobs.stages.work import FrameWork
from durable_shuffle.shuffle.log.layout import StagePath


class FrameCalls:
    """A part of `DurableShuffle`, which sets the attributes."""

    _spark: SparkSession
    _job: str
    _runner: StageRunner
    _reports: list[StageReport]
    _stages_of_frames: WeakKeyDictionary[DataFrame, StagePath]
    """Which stage a DataFrame reads, whole and unchanged."""
    _stored_again: WeakKeyDictionary[DataFrame, Callable[[], DataFrame]]
    """Result of a call -> the call."""

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
        return self._run(self._checkpoint_work(df, name), version, progress=progress)

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
        return self._run(
            self._repartition_work(df, num_partitions, cols, name), version, progress=progress
        )

    def _run(self, work: FrameWork, version: str | None, *, progress: bool) -> DataFrame:
        check_version(version)
        frame, report = self._runner.run(work, version, progress=progress)
        self._reports.append(report)
        path = StagePath(self._job, report.name, report.fingerprint, report.incarnation)
        self._stages_of_frames[frame] = path
        self._stored_again[frame] = partial(self._run, work, version, progress=progress)
        return frame

    def _mend_frame(self, df: DataFrame) -> bool:
        """Mend the stage that `df` reads, whole and unchanged; return False if it is not damaged.

        Calls that take `df` then use what is stored now. The frame itself names the lost data.
        """
        path, again = self._stages_of_frames.get(df), self._stored_again.get(df)
        if path is None or again is None or not self._runner.store.mend([path]):
            return False
        self._stages_of_frames[df] = self._stages_of_frames[again()]
        return True

    def _checkpoint_work(self, df: DataFrame, name: str | None) -> FrameWork:
        return FrameWork(df, self._runner.engine, name=_label(name, "checkpoint"))

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
