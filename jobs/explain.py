"""`DurableShuffle.explain`: what each call would do, without doing it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame

from durable_shuffle.jobs.query.at_risk import Risk
from durable_shuffle.jobs.query.calls import QueryCalls
from durable_shuffle.jobs.stages.explanation import Explanation
from durable_shuffle.jobs.stages.frame_calls import FrameCalls

if TYPE_CHECKING:
    from durable_shuffle.jobs.python_stage.calls import PythonCalls


class Explain:
    """Says which stages of a call are stored, which would run, and why.

    One method per call, with that call's arguments. Nothing is written. On Spark Connect a small
    job may run, to count the partitions of a partly stored stage.
    """

    def __init__(
        self, frames: FrameCalls, queries: QueryCalls, python: "Callable[[], PythonCalls]"
    ) -> None:
        self._frames, self._queries, self._python = frames, queries, python

    def checkpoint(
        self, df: DataFrame, *, name: str | None = None, version: str | None = None
    ) -> Explanation:
        """Explain `checkpoint(df)`."""
        return self._frames.checkpoint(df, name, version).explain()

    def repartition(
        self,
        df: DataFrame,
        num_partitions: int | str | Column | None = None,
        *cols: str | Column,
        name: str | None = None,
        version: str | None = None,
    ) -> Explanation:
        """Explain `repartition(df, num_partitions, *cols)`."""
        return self._frames.repartition(df, num_partitions, cols, name, version).explain()

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
        return self._queries.query(df, name, version, at_risk).explain()

    def stage(self, df: DataFrame, *, version: str | None = None, **arguments: Any) -> Explanation:
        """Explain `stage(df, **arguments)`."""
        return self._python().stage(df, version, **arguments).explain()
