"""Apache Uniffle as a peer."""

from pathlib import Path

from durable_shuffle.bench.peers.peer import Environment
from durable_shuffle.bench.peers.service import Service

UNIFFLE = Service("Uniffle", "UNIFFLE", "COORDINATOR", ("total_received_data",))


def uniffle_settings(environment: Environment, work: Path) -> dict[str, str]:
    """Return Spark's settings by which all shuffles go through the service.

    The plug-in says that map output outlives its executor.
    """
    del work
    return {
        **UNIFFLE.settings(environment, "org.apache.spark.shuffle.RssShuffleManager"),
        "spark.rss.coordinator.quorum": environment[UNIFFLE.endpoints],
        "spark.rss.storage.type": "MEMORY_LOCALFILE",
        "spark.shuffle.sort.io.plugin.class": "org.apache.spark.shuffle.RssShuffleDataIo",
    }
