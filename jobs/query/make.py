"""Makes the query runner of a session. On Spark Connect it refuses every query."""

from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from durable_shuffle.jobs.deploy.ship import is_connect
from durable_shuffle.jobs.engine.engine import Engine
from durable_shuffle.jobs.query.explain import QueryExplanation
from durable_shuffle.jobs.query.result import QueryResult
from durable_shuffle.jobs.stages.identity import SeenInputs
from durable_shuffle.jobs.stages.progress import Progress
from durable_shuffle.jobs.stages.store import StageStore
from durable_shuffle.recovery.resume import ReusePolicy
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.base.settings import Settings

_REFUSAL = (
    "query() needs the plans of a classic Spark session, which Spark Connect does not show: use "
    "repartition() or stage() there"
)


class Queries(Protocol):
    """Runs whole queries."""

    def run(self, df: DataFrame, name: str, version: str | None, progress: Progress) -> QueryResult:
        """Store the query's exchanges that are missing, and return its rows."""

    def explain(self, df: DataFrame, name: str, version: str | None) -> QueryExplanation:
        """Say what `run` would do. Plans the query, runs nothing."""


class RefusedQueries:
    """Refuses every query: Spark Connect shows no plans, so they cannot be cut."""

    def run(self, df: DataFrame, name: str, version: str | None, progress: Progress) -> QueryResult:
        raise InvalidInputError(_REFUSAL)

    def explain(self, df: DataFrame, name: str, version: str | None) -> QueryExplanation:
        raise InvalidInputError(_REFUSAL)


def make_query_runner(
    spark: SparkSession,
    *,
    engine: Engine,
    store: StageStore,
    version: str | None,
    policy: ReusePolicy,
    settings: Settings,
    ids: IdSource,
    seen: SeenInputs,
) -> Queries:
    """Return the runner for the session."""
    if is_connect(spark):
        return RefusedQueries()
    from durable_shuffle.jobs.engine.classic import ClassicEngine
    from durable_shuffle.jobs.query.runner import QueryRunner

    assert isinstance(engine, ClassicEngine)
    return QueryRunner(
        spark,
        engine=engine,
        store=store,
        version=version,
        policy=policy,
        settings=settings,
        ids=ids,
        seen=seen,
    )
