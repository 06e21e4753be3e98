"""Registers the data source with a session."""

from typing import Any, cast

import pyspark
from pyspark.sql import SparkSession

from durable_shuffle.jobs.deploy.ship import is_connect, ship
from durable_shuffle.serialization.errors import InvalidInputError

_MINIMUM = (4, 2)
"""Since this PySpark version, Python sources have admission control and Arrow stream writers."""


def can_register() -> bool:
    """Return whether this PySpark has what the data source needs."""
    return tuple(int(part) for part in pyspark.__version__.split(".")[:2]) >= _MINIMUM


def register(spark: SparkSession) -> None:
    """Make `format("durable_shuffle")` available in a session, classic or Spark Connect.

    Safe to repeat. Spark starts a Python process when it is first told of a source. So
    `DurableShuffle` does not call this.

    Raises:
        InvalidInputError: PySpark is older than 4.2.
    """
    if not can_register():
        raise InvalidInputError(
            f"format durable_shuffle needs PySpark {'.'.join(map(str, _MINIMUM))} or newer, found "
            f"{pyspark.__version__}"
        )
    ship(spark)
    add_source(spark)


def add_source(spark: SparkSession) -> None:
    """Register the source with a session whose workers already have this package."""
    from durable_shuffle.jobs.streaming.source import DurableShuffleSource

    if is_connect(spark):
        spark.dataSource.register(DurableShuffleSource)
        return
    # Spark looks up a sink in the thread's active session, whatever session the DataFrame has,
    # and refuses to register a name that the active session knows already
    active = SparkSession.getActiveSession()
    sessions = SparkSession._get_j_spark_session_class(cast("Any", spark)._jvm)  # noqa: SLF001
    name = DurableShuffleSource.name()
    try:
        for session in filter(None, (spark, active)):
            state = session._jsparkSession.sessionState()  # noqa: SLF001
            if state.dataSourceManager().dataSourceExists(name):
                continue  # registering it again only gives a warning
            sessions.setActiveSession(session._jsparkSession)  # noqa: SLF001
            session.dataSource.register(DurableShuffleSource)
    finally:
        if active is None:
            sessions.clearActiveSession()
        else:
            sessions.setActiveSession(active._jsparkSession)  # noqa: SLF001
