"""`DurableShuffle.explain`: what each call would do, without doing it."""

from typing import Any

from pyspark.sql import Column, DataFrame

from durable_shuffle.jobs.engine.checks import check_version
from durable_shuffle.jobs.python_stage.methods import PythonStages
from durable_shuffle.jobs.query.at_risk import Risk
from durable_shuffle.jobs.query.calls import QueryCalls
from durable_shuffle.jobs.stages.explanation import Explanation
from durable_shuffle.jobs.stages.frame_calls import FrameCalls


class Explain:
    """Says which stages of a call are stored, which would run, and why.

    One method per call, with that call's arguments. Nothing is written. On Spark Connect a small
    job may run, to count the partitions of a partly stored stage.
    """

    def __init__(self, calls: "Calls") -> None:
        self._calls = calls

    def checkpoint(
        self, df: DataFrame, *, name: str | None = None, version: str | None = None
    ) -> Explanation:
        """Explain `checkpoint(df)`."""
        check_version(version)
        return self._calls._runner.explain(self._calls._checkpoint_work(df, name), version)  # noqa: SLF001

    def repartition(
        self,
        df: DataFrame,
        num_partitions: int | str | Column | None = None,
        *cols: str | Column,
        name: str | None = None,
        version: str | None = None,
    ) -> Explanation:
        """Explain `repartition(df, num_partitions, *cols)`."""
        check_version(version)
        work = self._calls._repartition_work(df, num_partitions, cols, name)  # noqa: SLF001
        return self._calls._runner.explain(work, version)  # noqa: SLF001

    def query(
        self,
        df: DataFrame,
        *,
        name: str | None = None,
        version: str | None = None,
        at_risk: Risk | None = None,
    ) -> Explanation:
        """Explain `query(df)`: which exchanges are stored, and which may still change.

        Raises:
            InvalidInputError: a Spark Connect session.
        """
        return self._calls._explain_query(df, name, version, at_risk)  # noqa: SLF001

    def stage(self, df: DataFrame, *, version: str | None = None, **arguments: Any) -> Explanation:
        """Explain `stage(df, **arguments)`."""
        check_version(version)
        work = self._calls._stage_work(df, version=version, **arguments)  # noqa: SLF001
        return self._calls._runner.explain(work, version)  # noqa: SLF001


class Calls(PythonStages, QueryCalls, FrameCalls):
    """The calls of `DurableShuffle` that store stages, and `explain`."""

    @property
    def explain(self) -> Explain:
        """Say what a call would do: `explain.query(df)`, `explain.repartition(df, 8, "k")`, …"""
        return Explain(self)
