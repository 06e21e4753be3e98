"""Chooses the engine for a session."""

from pyspark.sql import SparkSession

from durable_shuffle.jobs.deploy.ship import is_connect
from durable_shuffle.jobs.engine.engine import Engine


def engine_for(spark: SparkSession) -> Engine:
    """Return a new engine: classic or Spark Connect, as the session is."""
    if is_connect(spark):
        from durable_shuffle.jobs.engine.connect import ConnectEngine

        return ConnectEngine(spark)
    from durable_shuffle.jobs.engine.classic import ClassicEngine

    return ClassicEngine(spark)
