"""Apache Celeborn as a peer, with one copy of each block or with two."""

from pathlib import Path

from durable_shuffle.bench.peers.peer import Environment
from durable_shuffle.bench.peers.service import Service

CELEBORN = Service(
    "Celeborn",
    "CELEBORN",
    "MASTER",
    ("LocalFlushSize", "HdfsFlushSize", "OssFlushSize", "S3FlushSize"),
)


def celeborn_settings(environment: Environment, work: Path) -> dict[str, str]:
    """Return Spark's settings by which all shuffles go through the service.

    The plug-in says that map output outlives its executor: without it Spark runs finished map tasks
    again. `NEVER` fails a shuffle that the service refuses, which would be Spark's own otherwise.
    """
    del work
    return {
        **CELEBORN.settings(environment, "org.apache.spark.shuffle.celeborn.SparkShuffleManager"),
        "spark.celeborn.master.endpoints": environment[CELEBORN.endpoints],
        "spark.celeborn.client.spark.shuffle.fallback.policy": "NEVER",
        "spark.shuffle.sort.io.plugin.class": (
            "org.apache.spark.shuffle.celeborn.CelebornShuffleDataIO"
        ),
        "spark.sql.adaptive.localShuffleReader.enabled": "false",
    }


def celeborn_twice(environment: Environment, work: Path) -> dict[str, str]:
    """Return the settings by which two workers keep each block."""
    return {
        **celeborn_settings(environment, work),
        "spark.celeborn.client.push.replicate.enabled": "true",
    }
