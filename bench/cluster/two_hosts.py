"""A cluster whose two workers are hosts of their own to Spark: it starts twins on other hosts only.

Strategy: a standalone master and two workers as processes, each bound to its own loopback address.
They are in the driver's session and so end with it.
"""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from durable_shuffle.bench.cluster.local_cluster import EXECUTORS

_MEMORY = "1g"
_END_SECONDS = 20.0


@contextmanager
def two_hosts(work: Path) -> Iterator[str]:
    """Start the cluster and yield its URL; the process has `cluster_environment`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    master = "org.apache.spark.deploy.master.Master"
    worker = "org.apache.spark.deploy.worker.Worker"
    started = [_start(work, "127.0.0.1", master, "--port", str(port))]
    try:
        for number in range(EXECUTORS):
            folder = str(work / f"worker-{number}")
            limits = ("--cores", "1", "--memory", _MEMORY, "--work-dir", folder)
            started.append(_start(work, f"127.0.0.{2 + number}", worker, *limits, url))
        yield url
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)


def _start(work: Path, host: str, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [f"{os.environ['SPARK_HOME']}/bin/spark-class", name, "--host", host]
    with (work / f"{name.rpartition('.')[2].lower()}-{host}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, "--webui-port", "0", *arguments],
            env={**os.environ, "SPARK_LOCAL_IP": host, "SPARK_LOCAL_HOSTNAME": host},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
