"""A standalone cluster from the pip package alone: a master and workers, each a process.

To Spark each worker is a host of its own: it starts twins on other hosts only, and loses all
executors of a host at once.
"""

import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from durable_shuffle.bench.cluster.faults import end_session
from durable_shuffle.serialization.errors import UnavailableError
from durable_shuffle.shuffle.base.clock import Clock

_START_SECONDS, _END_SECONDS = 120.0, 20.0
_POLL_SECONDS = 0.05
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


class Host(NamedTuple):
    """Where a worker runs."""

    address: str
    prefix: tuple[str, ...] = ()
    """Command that starts the worker's own, for example in another namespace."""
    cores: int = 1
    memory: str = "1g"
    """Of all its executors together."""


LOOPBACK = (Host("127.0.0.2"), Host("127.0.0.3"))
"""Two hosts on addresses of this machine."""


class Standalone(NamedTuple):
    """A running cluster."""

    url: str
    workers: list[subprocess.Popen[bytes]]


@contextmanager
def standalone(
    work: Path,
    environment: Mapping[str, str],
    clock: Clock,
    hosts: Sequence[Host] = LOOPBACK,
    *,
    master: str = "127.0.0.1",
    own_sessions: bool = False,
) -> Iterator[Standalone]:
    """Start a cluster and end it.

    Args:
        work: existing folder for logs and the executors' files.
        environment: see `cluster_environment`.
        master: address of the master.
        own_sessions: start each process as the leader of a session, of which nothing stays behind.
            Otherwise all are in the caller's session and end with it.

    Raises:
        UnavailableError: the master does not listen.
    """
    with socket.socket() as probe:
        probe.bind((master, 0))
        port = probe.getsockname()[1]
    url = f"spark://{master}:{port}"
    started: list[subprocess.Popen[bytes]] = []

    def start(host: Host, name: str, *arguments: str) -> None:
        command = [*host.prefix, f"{environment['SPARK_HOME']}/bin/spark-class", name]
        command += ["--host", host.address, "--webui-port", "0", *arguments]
        with (work / f"{name.rpartition('.')[2].lower()}-{host.address}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env={
                    **environment,
                    "SPARK_LOCAL_IP": host.address,
                    "SPARK_LOCAL_HOSTNAME": host.address,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=own_sessions,
            )
        started.append(process)

    try:
        start(Host(master), _MASTER, "--port", str(port))
        _await_port(master, port, started[0], clock)  # a worker that comes first waits for long
        for number, host in enumerate(hosts):
            limits = ("--cores", str(host.cores), "--memory", host.memory)
            start(host, _WORKER, *limits, "--work-dir", str(work / f"worker-{number}"), url)
        yield Standalone(url, started[1:])
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            if own_sessions:
                end_session(process.pid, clock, patience_seconds=0)
                process.wait()


def _await_port(host: str, port: int, process: subprocess.Popen[bytes], clock: Clock) -> None:
    deadline = clock.monotonic() + _START_SECONDS
    while process.poll() is None and clock.monotonic() < deadline:
        with suppress(OSError), socket.create_connection((host, port), timeout=1):
            return
        clock.sleep(_POLL_SECONDS)
    raise UnavailableError(f"Spark's master does not listen: host={host} port={port}")
