"""Standalone clusters with real workers: executors that come, go, and are lost with their host."""

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from gated_cluster import NO_IDLE_EXECUTORS, GatedCluster, only
from pipelines import until
from processes import ancestor
from quick_jvms import quick_jvms

from durable_shuffle.bench.cluster.faults import session_processes
from durable_shuffle.bench.cluster.local_cluster import cluster_environment
from durable_shuffle.bench.cluster.standalone import LOOPBACK, Host, Standalone, standalone
from durable_shuffle.shuffle.base.clock import SystemClock
from durable_shuffle.shuffle.testing.s3_server import run_s3_server

EXECUTOR = "CoarseGrainedExecutorBackend"
BASE = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}


class Cluster(GatedCluster):
    """A master and its workers."""

    def __init__(self, folder: Path, programs: Any, cluster: Standalone, env: dict[str, str]):
        super().__init__(folder, programs, cluster.url, BASE, env)
        self.spark = cluster

    def gated_executor(self) -> int:
        """Return the JVM of the executor whose task waits at the gate."""
        return ancestor(self.gated_worker(), EXECUTOR)


@pytest.fixture
def start(tmp_path: Path, programs: Any) -> Callable[..., Any]:
    """Start a cluster; hosts and options of the daemons are arguments."""

    @contextmanager
    def started(
        hosts: Sequence[Host] = LOOPBACK,
        *,
        daemons: str = "",
        master: str = "127.0.0.1",
        env: Mapping[str, str] | None = None,
    ) -> Iterator[Cluster]:
        env = {**cluster_environment(tmp_path, os.environ, quick_jvms()), **(env or {})}
        daemons += " -Dspark.master.rest.enabled=false"
        env |= {"SPARK_DAEMON_JAVA_OPTS": daemons, "SPARK_DAEMON_MEMORY": "256m"}
        running = standalone(tmp_path, env, SystemClock(), hosts, master=master, own_sessions=True)
        with running as spark:
            cluster = Cluster(tmp_path, programs, spark, env)
            try:
                yield cluster
            finally:
                if cluster.driver is not None:
                    programs.kill(cluster.driver)

    return started


@pytest.mark.soak
def test_executors_go_to_zero_and_nothing_runs_again(start: Any) -> None:
    """With dynamic allocation no executor is kept for a stored stage; later ones read it."""
    with start() as cluster:
        cluster.open_gate()
        cluster.start(NO_IDLE_EXECUTORS)
        assert only(cluster.ask("store"))["map_tasks_run"] == 6
        assert cluster.ask("executors 0") == {"executors": 0}
        again = only(cluster.ask("store"))
        assert (again["action"], again["map_tasks_run"]) == ("reused", 0)
        assert sum(cluster.runs().values()) == 6


@pytest.mark.soak
def test_spark_keeps_executors_for_its_own_shuffle(start: Any) -> None:
    """What the test above does not see: with shuffle files on them, executors stay."""
    with start() as cluster:
        cluster.open_gate()
        cluster.start(NO_IDLE_EXECUTORS)
        assert cluster.ask("native") == {"count": 40}
        clock = SystemClock()
        bound = clock.monotonic() + 15
        cluster.ask("executors 1")
        while clock.monotonic() < bound:
            assert cluster.ask("executors 1") == {"executors": 1}, "tracking let it go"


@pytest.mark.soak
def test_decommission_in_mid_map(start: Any) -> None:
    """A decommissioned executor ends by itself; what it stored stays, nothing runs again."""
    with start() as cluster:
        cluster.start({"spark.decommission.enabled": "true"})
        cluster.tell("store")
        executor = cluster.gated_executor()
        os.kill(executor, signal.SIGPWR)
        until(lambda: said(cluster, "Decommission"), "the executor heard of it")
        cluster.open_gate()
        stage = only(cluster.programs.answer(cluster.driver))
        until(lambda: not Path(f"/proc/{executor}").exists(), "the executor ended")
        assert (stage["map_tasks_run"], stage["map_tasks_rerun"]) == (6, 0)
        runs = cluster.runs()
        assert {p: n for p, n in runs.items() if p != 2} == dict.fromkeys((0, 1, 3, 4, 5), 1)
        assert runs[2] <= 2
        again = only(cluster.ask("store"))
        assert (again["action"], again["map_tasks_run"]) == ("reused", 0)


def said(cluster: Cluster, word: str) -> bool:
    """Whether an executor's log has the word."""
    logs = cluster.folder.glob("worker-*/app-*/*/stderr")
    return any(word in log.read_text(errors="replace") for log in logs)


@pytest.mark.soak
def test_a_worker_is_killed_with_its_executors_and_files(start: Any) -> None:
    """A host is gone in mid map side: only the producer that ran there runs again."""
    with start() as cluster:
        cluster.start({})
        cluster.tell("store")
        executor = cluster.gated_executor()
        lost = lose_host(cluster, executor)
        stage = only(cluster.programs.answer(cluster.driver))
        assert (stage["map_tasks_run"], stage["map_tasks_rerun"]) == (6, 0)
        assert stage["retries"] >= 1
        assert cluster.runs() == {0: 1, 1: 1, 2: 2, 3: 1, 4: 1, 5: 1}
        assert executor not in session_processes(lost.pid)


def lose_host(cluster: Cluster, executor: int) -> subprocess.Popen[bytes]:
    """SIGKILL the worker above an executor with all that it started."""
    mine = os.getsid(executor)
    (worker,) = (w for w in cluster.spark.workers if w.pid == mine)
    for pid in sorted(session_processes(mine)):
        os.kill(pid, signal.SIGKILL)
    worker.wait()
    return worker


@pytest.mark.soak
def test_external_shuffle_service(start: Any) -> None:
    """With the service on, an executor is killed in mid map side, and all executors later go."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    service = {"spark.shuffle.service.enabled": "true", "spark.shuffle.service.port": str(port)}
    options = " ".join(f"-D{key}={value}" for key, value in service.items())
    with start((Host("127.0.0.2", cores=2),), daemons=options) as cluster:
        cluster.start({**NO_IDLE_EXECUTORS, **service, "spark.executor.cores": "1"})
        assert cluster.ask("native") == {"count": 40}
        assert cluster.ask("executors 0") == {"executors": 0}, "the service has the files"
        cluster.tell("store")
        os.kill(cluster.gated_executor(), signal.SIGKILL)
        stage = only(cluster.programs.answer(cluster.driver))
        assert (stage["map_tasks_run"], stage["map_tasks_rerun"]) == (6, 0)
        assert cluster.runs() == {0: 1, 1: 1, 2: 2, 3: 1, 4: 1, 5: 1}
        assert cluster.ask("executors 0") == {"executors": 0}
        again = only(cluster.ask("store"))
        assert (again["action"], again["map_tasks_run"]) == ("reused", 0)


@contextmanager
def two_namespaces(folder: Path, private: str = "") -> Iterator[tuple[str, list[Host]]]:
    """Yield an address of this machine and two hosts with a network and a name of their own.

    Args:
        folder: for the hosts' own files.
        private: a folder that the second host does not share; "" for none.
    """
    tag = f"ds{os.getpid()}"
    net = f"10.213.{os.getpid() % 250}"
    names = [f"{tag}a", f"{tag}b"]

    def ip(*words: str) -> None:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"network namespaces cannot be made here: ip {words}: {done.stderr}")

    try:
        ip("link", "add", tag, "type", "bridge")
        ip("addr", "add", f"{net}.1/24", "dev", tag)
        ip("link", "set", tag, "up")
        hosts = []
        for number, name in enumerate(names, 2):
            ip("netns", "add", name)
            ip("link", "add", f"{name}o", "type", "veth", "peer", "name", f"{name}i")
            ip("link", "set", f"{name}o", "master", tag, "up")
            ip("link", "set", f"{name}i", "netns", name)
            ip("-n", name, "addr", "add", f"{net}.{number}/24", "dev", f"{name}i")
            for device in (f"{name}i", "lo"):
                ip("-n", name, "link", "set", device, "up")
            known = folder / f"hosts-{name[-1]}"
            known.write_text(f"127.0.0.1 localhost\n{net}.{number} worker-{name[-1]}\n")
            mounts = f"mount --bind {known} /etc/hosts && hostname worker-{name[-1]} && "
            if private and name == names[1]:
                mounts += f"mount -t tmpfs tmpfs {private} && "
            shell = f'{mounts}exec "$@"'
            prefix = ("ip", "netns", "exec", name, "unshare", "-mu", "sh", "-c", shell, "sh")
            hosts.append(Host(f"{net}.{number}", prefix))
        yield f"{net}.1", hosts
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", tag], capture_output=True, check=False)


@pytest.mark.soak
@pytest.mark.parametrize("storage", ["folder", "s3"])
def test_two_hosts_share_a_storage(start: Any, tmp_path: Path, storage: str) -> None:
    """Workers in network namespaces of their own; one of them is lost with its executor."""
    (tmp_path / "data").mkdir()
    with ExitStack() as stack:
        address, hosts = stack.enter_context(two_namespaces(tmp_path))
        env = {}
        url = None
        if storage == "s3":
            (tmp_path / "s3").mkdir()
            served = run_s3_server(tmp_path / "s3", clock=SystemClock(), host=address)
            server = stack.enter_context(served)
            env = {
                "AWS_ACCESS_KEY_ID": server.key,
                "AWS_SECRET_ACCESS_KEY": server.secret,
                "AWS_ENDPOINT_URL": server.endpoint,
                "AWS_DEFAULT_REGION": "us-east-1",
            }
            url = f"s3://{server.bucket}/data"
        cluster = stack.enter_context(start(hosts, master=address, env=env))
        cluster.start(on(address), url)
        assert cluster.ask("executors 2") == {"executors": 2}
        cluster.open_gate()
        assert only(cluster.ask("store"))["map_tasks_run"] == 6
        os.killpg(cluster.spark.workers[0].pid, signal.SIGKILL)
        for pid in session_processes(cluster.spark.workers[0].pid):
            os.kill(pid, signal.SIGKILL)
        assert cluster.ask("executors 1") == {"executors": 1}
        again = only(cluster.ask("store"))
        assert (again["action"], again["map_tasks_run"]) == ("reused", 0)


@pytest.mark.soak
def test_a_folder_that_one_host_does_not_share_is_refused(start: Any, tmp_path: Path) -> None:
    """The message names the folder and the host; nothing is stored."""
    (tmp_path / "data").mkdir()
    with (
        two_namespaces(tmp_path, str(tmp_path / "data")) as (address, hosts),
        start(hosts, master=address) as cluster,
    ):
        cluster.start(on(address))
        assert cluster.ask("executors 2") == {"executors": 2}
        cluster.open_gate()
        error = cluster.ask("store")["error"]
        assert error.startswith("invalid_input: executors do not share")
        assert str(tmp_path / "data") in error
        assert "host 'worker-b'" in error
        assert cluster.runs() == {}


def on(address: str) -> dict[str, str]:
    """Settings of a driver that executors reach at this address."""
    return {"spark.driver.host": address, "spark.driver.bindAddress": address}
