"""Chooses the engine that fits a session."""

from pyspark.sql import SparkSession

from durable_shuffle.jobs.deploy.ship import is_connect
from durable_shuffle.jobs.engine.engine import Engine


def engine_for(spark: SparkSession) -> Engine:
    """Return the engine of the session's kind."""
    if is_connect(spark):
        from durable_shuffle.jobs.engine.connect import ConnectEngine

        return ConnectEngine(spark)
    from durable_shuffle.jobs.engine.classic import ClassicEngine

    return ClassicEngine(spark)
