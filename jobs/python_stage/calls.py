"""`stage` and `stage_objects`: stages whose functions are Python."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from pyspark import RDD
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from durable_shuffle.jobs.engine.checks import check_version
from durable_shuffle.jobs.engine.engine import rows_of_tasks
from durable_shuffle.jobs.python_stage.objects import ObjectWork
from durable_shuffle.jobs.python_stage.tasks import KeyFunction, ReduceSide
from durable_shuffle.jobs.python_stage.work import PythonWork
from durable_shuffle.jobs.stages.driver import Driver
from durable_shuffle.jobs.stages.healing import healing
from durable_shuffle.jobs.stages.request import Request


@dataclass(frozen=True, slots=True)
class PythonResult:
    """What a `stage` has stored."""

    side: ReduceSide
    """Its reduce side; a stage over the unchanged result runs it."""
    schema: StructType
    again: "Callable[[], PythonResult]"
    """Stores what is missing of it."""


class PythonCalls:
    """These calls of one driver, and what they returned."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._results: WeakKeyDictionary[DataFrame, PythonResult] = WeakKeyDictionary()
        """Result of `stage` -> what a stage over the result needs."""

    def stage(self, df: DataFrame, version: str | None, **asked: Any) -> Request[DataFrame]:
        """Return what `DurableShuffle.stage` runs, given its arguments."""
        check_version(version)

        def work() -> PythonWork:
            return self._work(df, version, **asked)

        runner = self._driver.runner
        return Request(
            partial(self._run, df, work, version), lambda: runner.explain(work(), version)
        )

    def _run(
        self,
        df: DataFrame,
        work: Callable[[], PythonWork],
        version: str | None,
        *,
        progress: bool,
    ) -> DataFrame:
        def store() -> PythonResult:
            made = work()
            side, report = self._driver.runner.run(made, version, progress=progress)
            self._driver.done.reports.append(report)
            return PythonResult(side, made.schema, stored)

        def stored() -> PythonResult:
            return healing(store, lambda: self._mend(df))

        result = stored()
        side = result.side
        frame = rows_of_tasks(self._driver.spark, side, len(side.tasks), result.schema)
        self._results[frame] = result
        return frame

    def _work(
        self,
        df: DataFrame,
        version: str | None,
        *,
        keys: str | Sequence[str] | KeyFunction,
        num_partitions: int,
        name: str | None = None,
        **functions: Any,
    ) -> PythonWork:
        """Return the work of a `stage` with these arguments."""
        below, runner = self._results.get(df), self._driver.runner
        return PythonWork(
            df,
            self._driver.engine,
            self._driver.spark,
            name=name or "stage",
            keys=keys,
            partitions=num_partitions,
            below=None if below is None else below.side,
            version=runner.version_or_default(version),
            generation=self._driver.log.generation,
            ids=runner.ids,
            **functions,
        )

    def _mend(self, df: DataFrame) -> bool:
        """Mend the stage whose unchanged result `df` is; return False if nothing is damaged.

        Stages above read what is stored now. The frame itself goes on to name the lost data.
        """
        below = self._results.get(df)
        if below is None or not self._driver.runner.store.healing.mend([below.side.stage]):
            return False
        self._results[df] = below.again()
        return True

    def stage_objects(
        self,
        rdd: RDD[Any],
        num_partitions: int,
        partition_function: Callable[[Any], int],
        name: str | None,
        version: str | None,
        *,
        progress: bool,
    ) -> RDD[Any]:
        """Store the pairs of an RDD, and return the stored ones."""
        check_version(version)
        work = ObjectWork(
            rdd,
            self._driver.engine,
            name=name or "objects",
            partitions=num_partitions,
            partition_function=partition_function,
        )
        rows, report = self._driver.runner.run(work, version, progress=progress)
        self._driver.done.reports.append(report)
        return rows
