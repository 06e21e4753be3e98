"""A remote shuffle service as a peer: one that the user has running, with a client jar that fits.

It is not started here: a server is a distribution of its own, and no package brings one.
"""

from collections.abc import Mapping
from pathlib import Path

MASTER, CLIENT_JAR = "CELEBORN_MASTER", "CELEBORN_CLIENT_JAR"


def celeborn_missing(environment: Mapping[str, str]) -> str | None:
    """Return why the peer cannot be measured, or None if it can."""
    if all(environment.get(name) for name in (MASTER, CLIENT_JAR)):
        return None
    return (
        f"no service is known: start one, and set {MASTER} to its <host>:<port> and {CLIENT_JAR} "
        "to the path of its shaded client for this Spark"
    )


def celeborn_settings(environment: Mapping[str, str], work: Path) -> dict[str, str]:
    """Return Spark's settings by which shuffles go through the service."""
    del work
    return {
        "spark.jars": environment[CLIENT_JAR],
        "spark.celeborn.master.endpoints": environment[MASTER],
        "spark.shuffle.manager": "org.apache.spark.shuffle.celeborn.SparkShuffleManager",
        "spark.shuffle.service.enabled": "false",
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.sql.adaptive.localShuffleReader.enabled": "false",
    }
