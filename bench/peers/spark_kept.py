"""Spark's own ways to keep map output when an executor goes: settings for them."""

import socket
from pathlib import Path

from durable_shuffle.bench.cluster.standalone import Host
from durable_shuffle.bench.peers.peer import Environment

SERVICE_HOSTS = (Host("127.0.0.2", cores=2, memory="2g"),)
"""One host with both executors: two services, which have one port, do not fit on one machine."""


def shuffle_service(environment: Environment, work: Path) -> dict[str, str]:
    """Return settings for the workers' shuffle service and for the application, on a free port."""
    del environment, work
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {
        "spark.shuffle.service.enabled": "true",
        "spark.shuffle.service.port": str(port),
        "spark.executor.cores": "1",
    }


def fallback_storage(environment: Environment, work: Path) -> dict[str, str]:
    """Return settings by which a decommissioned executor moves its blocks away before it ends.

    It looks every 30 s by default whether it may end; here every second.
    """
    del environment
    place = work / "fallback-storage"
    place.mkdir(exist_ok=True)
    return {
        "spark.decommission.enabled": "true",
        "spark.storage.decommission.enabled": "true",
        "spark.storage.decommission.shuffleBlocks.enabled": "true",
        "spark.storage.decommission.fallbackStorage.path": f"{place.as_uri()}/",
        "spark.storage.decommission.fallbackStorage.cleanUp": "true",
        "spark.storage.decommission.replicationReattemptInterval": "1s",
    }
