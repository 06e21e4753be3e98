"""`checkpoint` and `repartition`: DataFrames that are stored as they are, or repartitioned."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast
from weakref import WeakKeyDictionary

from pyspark.sql import Column, DataFrame

from durable_shuffle.jobs.engine.checks import check_version, is_column
from durable_shuffle.jobs.stages.driver import Driver
from durable_shuffle.jobs.stages.request import Request
from durable_shuffle.jobs.stages.work import FrameWork
from durable_shuffle.shuffle.log.layout import StagePath


@dataclass(slots=True)
class _Stored:
    """What a DataFrame reads, whole and unchanged."""

    path: StagePath
    again: Callable[[], DataFrame]
    """The call that stored it."""


class FrameCalls:
    """These calls of one driver, and the frames that they returned."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._frames: WeakKeyDictionary[DataFrame, _Stored] = WeakKeyDictionary()

    def checkpoint(
        self, df: DataFrame, name: str | None, version: str | None
    ) -> Request[DataFrame]:
        """Return what `DurableShuffle.checkpoint` runs."""
        work = FrameWork(df, self._driver.engine, name=_label(name, "checkpoint"))
        return self._request(work, version)

    def repartition(
        self,
        df: DataFrame,
        n: int | str | Column | None,
        cols: tuple[str | Column, ...],
        name: str | None,
        version: str | None,
    ) -> Request[DataFrame]:
        """Return what `DurableShuffle.repartition` runs."""
        if isinstance(n, (str, Column)) or (n is not None and is_column(n)):
            cols, n = (cast("str | Column", n), *cols), None
        if n is None:
            n = int(str(self._driver.spark.conf.get("spark.sql.shuffle.partitions")))
        label = _label(name, "repartition")
        return self._request(
            FrameWork(df, self._driver.engine, name=label, n=n, cols=cols), version
        )

    def _request(self, work: FrameWork, version: str | None) -> Request[DataFrame]:
        check_version(version)
        runner = self._driver.runner
        return Request(partial(self._run, work, version), partial(runner.explain, work, version))

    def _run(self, work: FrameWork, version: str | None, *, progress: bool) -> DataFrame:
        frame, report = self._driver.runner.run(work, version, progress=progress)
        self._driver.done.reports.append(report)
        path = StagePath(self._driver.job, report.name, report.fingerprint, report.incarnation)
        self._frames[frame] = _Stored(path, partial(self._run, work, version, progress=progress))
        return frame

    def path(self, df: DataFrame) -> StagePath | None:
        """Return where a frame of these calls is stored, None for any other frame."""
        stored = self._frames.get(df)
        return None if stored is None else stored.path

    def mend(self, df: DataFrame) -> bool:
        """Mend the stage that `df` reads, whole and unchanged; return False if it is not damaged.

        Calls that take `df` then use what is stored now. The frame itself names the lost data.
        """
        stored = self._frames.get(df)
        if stored is None or not self._driver.runner.store.mend([stored.path]):
            return False
        self._frames[df] = self._frames[stored.again()]
        return True


def _label(name: str | None, default: str) -> str:
    return default if name is None else name  # "" is passed on, to be refused
