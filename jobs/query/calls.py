"""The calls of `DurableShuffle` for whole queries."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from durable_shuffle.jobs.engine.checks import check_version
from durable_shuffle.jobs.query.at_risk import QueryCall, Risk, risk_from
from durable_shuffle.jobs.stages.explanation import Explanation
from durable_shuffle.jobs.stages.frame_calls import FrameCalls
from durable_shuffle.jobs.stages.progress import show_progress
from durable_shuffle.jobs.stages.report import StageReport
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.log.layout import StagePath, check_name

if TYPE_CHECKING:
    from durable_shuffle.jobs.query.runner import QueryRunner


class QueryCalls(FrameCalls):
    """A part of `DurableShuffle`, which sets the attributes."""

    _queries: "QueryRunner | None"
    """None on Spark Connect, which shows no plans, so they cannot be cut."""
    _native: list[str]
    _adapted: list[str]
    _at_risk: Risk

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
        call, queries = self._checked(name, version, at_risk)
        with show_progress(wanted=progress) as view:
            result = queries.run(df, call, view)
        self._reports += result.reports
        for text in result.native:
            self._left_to_spark(text)
        self._adapted += result.adapted
        return result.frame

    def _explain_query(
        self, df: DataFrame, name: str | None, version: str | None, at_risk: Risk | None
    ) -> Explanation:
        call, queries = self._checked(name, version, at_risk)
        return queries.explain(df, call)

    def _checked(
        self, name: str | None, version: str | None, at_risk: Risk | None
    ) -> "tuple[QueryCall, QueryRunner]":
        """Return the checked arguments of a query and what runs queries."""
        label = "query" if name is None else name
        check_name("name", label)
        check_version(version)
        seconds = risk_from(self._at_risk if at_risk is None else at_risk)
        if self._queries is None:
            raise InvalidInputError(
                "query() needs the plans of a classic Spark session, which Spark Connect does not "
                "show: use repartition() or stage() there"
            )
        return QueryCall(label, version, seconds), self._queries

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
        queries = self._queries
        if queries is None:
            raise InvalidInputError(
                "transparent() needs a classic Spark session, as query() does; Spark Connect does "
                "not show its plans: use repartition() or stage() there"
            )
        self._checked(name, version, at_risk)
        from durable_shuffle.jobs.transparent.actions import sent_through

        used: list[StageReport] = []

        def query(df: DataFrame) -> DataFrame:
            used.clear()
            before = len(self._reports)
            frame = self.query(df, name=name, version=version, at_risk=at_risk)
            used.extend(self._reports[before:])
            return frame

        def mend() -> bool:
            paths = [StagePath(self._job, r.name, r.fingerprint, r.incarnation) for r in used]
            return queries.store.mend(paths)

        def store(df: DataFrame) -> DataFrame:
            before = len(self._reports)
            frame = self.checkpoint(query(df), name=name, version=version)
            used[:] = self._reports[before:]
            return frame

        return sent_through(self._spark, self._job, query, store, mend, self._left_to_spark)

    def _left_to_spark(self, text: str) -> None:
        if text not in self._native:
            self._native.append(text)
