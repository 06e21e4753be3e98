"""`query` and `transparent`: whole queries, each shuffle exchange of which is stored."""

from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from durable_shuffle.jobs.engine.checks import check_version
from durable_shuffle.jobs.engine.classic import ClassicEngine
from durable_shuffle.jobs.query.at_risk import QueryCall, Risk, risk_from
from durable_shuffle.jobs.stages.driver import Driver
from durable_shuffle.jobs.stages.frame_calls import FrameCalls
from durable_shuffle.jobs.stages.progress import show_progress
from durable_shuffle.jobs.stages.report import StageReport
from durable_shuffle.jobs.stages.request import Request
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.log.layout import StagePath, check_name

if TYPE_CHECKING:
    from durable_shuffle.jobs.query.runner import QueryRunner


class QueryCalls:
    """These calls of one driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._runner = _runner_of(driver)

    def query(
        self, df: DataFrame, name: str | None, version: str | None, at_risk: Risk | None
    ) -> Request[DataFrame]:
        """Return what `DurableShuffle.query` runs."""
        call = self._checked(name, version, at_risk)
        if self._runner is None:
            raise InvalidInputError(
                "query() needs the plans of a classic Spark session, which Spark Connect does not "
                "show: use repartition() or stage() there"
            )
        runner = self._runner
        return Request(partial(self._run, runner, df, call), partial(runner.explain, df, call))

    def _run(
        self,
        runner: "QueryRunner",
        df: DataFrame,
        call: QueryCall,
        *,
        progress: bool,
    ) -> DataFrame:
        with show_progress(wanted=progress) as view:
            result = runner.run(df, call, view)
        done = self._driver.done
        done.reports += result.reports
        for text in result.native:
            done.left_to_spark(text)
        done.adapted += result.adapted
        return result.frame

    def _checked(self, name: str | None, version: str | None, at_risk: Risk | None) -> QueryCall:
        label = "query" if name is None else name
        check_name("name", label)
        check_version(version)
        default = self._driver.at_risk_seconds
        seconds = default if at_risk is None else risk_from(at_risk)
        return QueryCall(label, version, seconds)

    def transparent(
        self, frames: FrameCalls, name: str | None, version: str | None, at_risk: Risk | None
    ) -> AbstractContextManager[None]:
        """Return the block of `DurableShuffle.transparent`."""
        driver, runner = self._driver, self._runner
        if runner is None:
            raise InvalidInputError(
                "transparent() needs a classic Spark session, as query() does; Spark Connect does "
                "not show its plans: use repartition() or stage() there"
            )
        self._checked(name, version, at_risk)
        from durable_shuffle.jobs.transparent.actions import sent_through

        reports, used = driver.done.reports, list[StageReport]()

        def query(df: DataFrame) -> DataFrame:
            used.clear()
            before = len(reports)
            frame = self.query(df, name, version, at_risk).run()
            used.extend(reports[before:])
            return frame

        def mend() -> bool:
            paths = [StagePath(driver.job, r.name, r.fingerprint, r.incarnation) for r in used]
            return runner.store.mend(paths)

        def store(df: DataFrame) -> DataFrame:
            before = len(reports)
            frame = frames.checkpoint(query(df), name, version).run()
            used[:] = reports[before:]
            return frame

        left = driver.done.left_to_spark
        return sent_through(driver.spark, driver.job, query, store, mend, left)


def _runner_of(driver: Driver) -> "QueryRunner | None":
    """Return what runs queries; None on Spark Connect, which shows no plans to be cut."""
    if not isinstance(driver.engine, ClassicEngine):
        return None
    from durable_shuffle.jobs.query.runner import QueryRunner  # Connect does without

    return QueryRunner(driver.spark, driver.engine, driver.runner)
