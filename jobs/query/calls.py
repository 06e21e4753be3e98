"""The calls of `DurableShuffle` that are about whole queries."""

from contextlib import AbstractContextManager

from pyspark.sql import DataFrame, SparkSession

from durable_shuffle.jobs.deploy.ship import is_connect
from durable_shuffle.jobs.engine.arguments import check_version
from durable_shuffle.jobs.query.make import Queries
from durable_shuffle.jobs.stages.progress import show_progress
from durable_shuffle.jobs.stages.report import StageReport
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.log.layout import check_name


class QueryCalls:
    """A part of `DurableShuffle`, which sets the attributes."""

    _spark: SparkSession
    _queries: Queries
    _reports: list[StageReport]
    _native: list[str]

    def query(
        self,
        df: DataFrame,
        *,
        name: str | None = None,
        version: str | None = None,
        progress: bool = False,
    ) -> DataFrame:
        """Store every shuffle exchange of the query `df` once, and return its rows.

        Eager: when this returns, every exchange is committed; the last piece of the plan runs when
        the rows are asked for, or at once if it aggregates a large join: then its rows are stored
        too (`Settings.result_least_bytes`). A later run of the same query, in this driver or
        another, starts at the first producer that had not committed. Rows come in the order that
        Spark gives them. What stays Spark's own, broadcasts for example, is named in
        `report().native`.

        Args:
            name: label of the stages, default "query"; part of their identity.
            version: as with `durable`.
            progress: show bars on standard error, plain lines where it is no terminal.

        Raises:
            InvalidInputError: a streaming DataFrame; a Spark Connect session; `version` vouches for
                two different inputs.
            IncompatibleError: a Spark version whose plans are not known.
            FencedError: a newer driver claimed the job.
        """
        label = name or "query"
        check_name("name", label)
        check_version(version)
        with show_progress(wanted=progress) as view:
            result = self._queries.run(df, label, version, view)
        self._reports += result.reports
        self._native += [text for text in result.native if text not in self._native]
        return result.frame

    def transparent(
        self, *, name: str | None = None, version: str | None = None
    ) -> AbstractContextManager[None]:
        """Send actions through `query` while a `with` block is open, without changing the queries.

        Covered, for all DataFrames of this Spark application: collect, toPandas, toArrow, count,
        write and writeTo. Refused: SQL statements that run a query at once (INSERT, CREATE TABLE AS
        SELECT, CACHE TABLE, MERGE, UPDATE, DELETE). Everything else, show() and foreach() for
        example, runs as always. One block at a time per process.

        Args:
            name: as for `query`.
            version: as for `query`, for every action in the block.

        Raises:
            InvalidInputError: a Spark Connect session, or a block is open already.
        """
        if is_connect(self._spark):
            raise InvalidInputError(
                "transparent() needs a classic Spark session, as query() does; Spark Connect does "
                "not show its plans: use repartition() or stage() there"
            )
        from durable_shuffle.jobs.query.transparent import sent_through

        return sent_through(self._spark, lambda df: self.query(df, name=name, version=version))
