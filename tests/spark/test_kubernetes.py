"""Spark's own Kubernetes backend, with an API server and a kubelet of `support/kube`.

Pods are processes of this machine. There are no images, no scheduler, no accounts and rights.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gated_cluster import NO_IDLE_EXECUTORS, GatedCluster, only
from pipelines import until
from quick_jvms import quick_jvms

from durable_shuffle.bench.cluster.local_cluster import cluster_environment

pytest.importorskip("aiohttp")
from kube.world import Kubernetes, kubernetes

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
BASE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.instances": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.kubernetes.container.image": "none",
    "spark.kubernetes.executor.request.cores": "100m",
    "spark.kubernetes.allocation.batch.delay": "200ms",
    "spark.kubernetes.trust.certificates": "true",
}
SERVERS = pytest.mark.parametrize("cluster", ["in memory", "real"], indirect=True)
WAYS = ("evicted", "reclaimed", "memory pressure", "node lost", "by force")


class Cluster(GatedCluster):
    """Pods, and a driver outside of them."""

    def __init__(self, folder: Path, programs: Any, pods: Kubernetes, env: dict[str, str]) -> None:
        super().__init__(folder, programs, f"k8s://{pods.url}", BASE, env)
        self.pods = pods

    def gated_pod(self) -> str:
        """Return the pod whose task waits at the gate."""
        environment = Path(f"/proc/{self.gated_worker()}/environ").read_bytes().split(b"\0")
        return dict(entry.decode().split("=", 1) for entry in environment if entry)["HOSTNAME"]


@pytest.fixture
def cluster(tmp_path: Path, programs: Any, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """An API server, in memory or the real one; no pods, no driver."""
    env = cluster_environment(tmp_path, {}, quick_jvms())
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    image = {**env, "PATH": path, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    real = getattr(request, "param", "in memory") == "real"
    with kubernetes(tmp_path, image, real=real) as pods:
        found = Cluster(tmp_path, programs, pods, env)
        try:
            yield found
        finally:
            if found.driver is not None:
                programs.kill(found.driver)


def test_a_pod_is_killed_and_then_the_driver(cluster: Cluster, programs: Any) -> None:
    """Spark makes another pod, and only the producer that ran in the first one runs again. The next
    driver runs nothing."""
    cluster.start({})
    cluster.tell("store")
    cluster.pods.kill(cluster.gated_pod())
    stage = only(programs.answer(cluster.driver))
    assert (stage["map_tasks_run"], stage["map_tasks_rerun"]) == (6, 0)
    assert cluster.runs() == {0: 1, 1: 1, 2: 2, 3: 1, 4: 1, 5: 1}
    until(lambda: len(cluster.pods.running()) == 2, "another pod")
    programs.kill(cluster.driver)
    cluster.start({})
    again = only(cluster.ask("store"))
    assert (again["action"], again["map_tasks_run"]) == ("reused", 0)
    cluster.tell("end")
    until(lambda: not cluster.pods.running(), "no pod is left")


@pytest.mark.soak
@SERVERS
@pytest.mark.parametrize("way", WAYS)
def test_a_pod_goes_in_mid_map(cluster: Cluster, programs: Any, way: str) -> None:
    """Its producers that have committed do not run again, however it goes."""
    cluster.start({"spark.decommission.enabled": "true"})
    cluster.tell("store")
    pod = cluster.gated_pod()
    if way == "evicted":
        cluster.pods.evict(pod)
        until(lambda: "Decommission" in cluster.pods.log(pod), "the executor heard of it")
        cluster.open_gate()
    elif way == "reclaimed":  # a spot node: the task does not end in its grace period
        cluster.pods.delete(pod, 5)
    elif way == "memory pressure":
        cluster.pods.annotate(pod, "here/pressure")
    elif way == "node lost":
        cluster.pods.annotate(pod, "here/lost", "here/replaced")
    else:
        cluster.pods.delete(pod, 0)
    until(lambda: pod not in cluster.pods.running(), "the pod goes")
    stage = only(programs.answer(cluster.driver))
    assert (stage["map_tasks_run"], stage["map_tasks_rerun"]) == (6, 0)
    runs = cluster.runs()
    assert {p: n for p, n in runs.items() if p != 2} == dict.fromkeys((0, 1, 3, 4, 5), 1)
    assert runs[2] == 1 if way == "evicted" else runs[2] == 2
    again = only(cluster.ask("store"))
    assert (again["action"], again["map_tasks_run"]) == ("reused", 0)


@pytest.mark.soak
@SERVERS
def test_pods_go_to_zero_and_come_back(cluster: Cluster) -> None:
    """With dynamic allocation no pod is kept for a stored stage; later ones read it."""
    cluster.open_gate()
    cluster.start({**NO_IDLE_EXECUTORS, "spark.dynamicAllocation.executorIdleTimeout": "5s"})
    assert only(cluster.ask("store"))["map_tasks_run"] == 6
    assert cluster.ask("executors 0") == {"executors": 0}
    until(lambda: not cluster.pods.running(), "no pod is left")
    again = only(cluster.ask("store"))
    assert (again["action"], again["map_tasks_run"]) == ("reused", 0)
    assert sum(cluster.runs().values()) == 6
