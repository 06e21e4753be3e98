"""The recipes for Kubernetes, in cluster mode and under Kubernetes' own Job controller.

Pods are processes of this machine. The API server and the Job controller are the real ones.
"""

import copy
import os
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from nightly import FILES, ONE_TASK_PER_FILE, PROGRAM, check_counts, map_tasks, write_orders
from pipelines import until
from quick_jvms import quick_jvms

from durable_shuffle.bench.cluster.local_cluster import cluster_environment

pytest.importorskip("aiohttp")
from kube.world import Kubernetes, kubernetes

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]
JOBS = "/apis/batch/v1/namespaces/default/jobs"
STRICT = "?fieldValidation=Strict"
SMALL = {
    **ONE_TASK_PER_FILE,
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.kubernetes.allocation.batch.delay": "200ms",
    "spark.kubernetes.executor.request.cores": "100m",
    "spark.kubernetes.trust.certificates": "true",
}
"""What this machine adds to a recipe."""


class World:
    """A Kubernetes, the input of the recipes' program, and where its rows are stored."""

    def __init__(self, folder: Path, pods: Kubernetes, env: dict[str, str]) -> None:
        self.pods, self.env, self.folder = pods, env, folder
        self.orders, self.counts, self.root = (folder / n for n in ("orders", "counts", "data"))
        write_orders(self.orders)

    def committed(self) -> int:
        return len(list(self.root.glob(f"*/*/producers/p*/{0:010d}")))

    def until_committed(self, count: int) -> None:
        until(lambda: self.committed() >= count, f"{count} producers")
        assert self.committed() < FILES, "nothing is left to do"

    def recipe(self, name: str) -> str:
        """Return a recipe with the names of this machine."""
        text = (PROGRAM.parent / name).read_text()
        for old, new in {
            "/opt/spark/": f"{self.env['SPARK_HOME']}/",
            "https://kubernetes.default.svc": self.pods.url,
            "/opt/jobs/": f"{PROGRAM.parent}/",
            "s3://my-bucket/shuffle": str(self.root),
            "s3a://my-bucket/orders": str(self.orders),
            "s3a://my-bucket/counts": str(self.counts),
        }.items():
            text = text.replace(old, new)
        return text


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The real API server, and no pods."""
    env = cluster_environment(tmp_path, {}, quick_jvms())
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    source = str(Path(__file__).parents[2] / "src")
    image = {**env, "PATH": path, "PYTHONPATH": source}
    image.pop("SPARK_LOCAL_IP"), image.pop("SPARK_LOCAL_HOSTNAME")
    with kubernetes(tmp_path, image, real=True) as pods:
        yield World(tmp_path, pods, env)


def job_of(world: World, name: str) -> Any:
    """Return the Job of the recipe under a name, small."""
    made = yaml.safe_load(world.recipe("kubernetes_job.yaml"))
    made["metadata"]["name"] = name
    (container,) = made["spec"]["template"]["spec"]["containers"]
    *before, program, orders, counts = container["args"]
    settings = [f"--conf={k}={v}" for k, v in {**SMALL, "spark.executor.instances": "1"}.items()]
    container["args"] = [*before, *settings, program, orders, counts]
    return made


def ended(world: World, name: str) -> str:
    """Wait for the end of a Job; return how it ended."""

    def conditions() -> list[str]:
        found = world.pods.call("GET", f"{JOBS}/{name}")["status"].get("conditions") or []
        return [one["type"] for one in found if one["type"] in ("Complete", "Failed")]

    until(lambda: bool(conditions()), f"the Job {name} ends")
    (how,) = conditions()
    return how


def only_pod(world: World, name: str, but: str = "") -> str:
    """Wait for the one running pod of a Job; return its name."""

    def found() -> list[str]:
        return [
            pod for pod in world.pods.running() if pod.startswith(f"{name}-") and "exec" not in pod
        ]

    until(lambda: len(set(found()) - {but}) == 1, f"a pod of {name}")
    (pod,) = set(found()) - {but}
    return pod


def test_a_job_goes_on_in_its_next_pod(world: World) -> None:
    """Its driver's JVM is killed, then its pod evicted; the next night runs nothing."""
    world.pods.call("POST", JOBS + STRICT, job_of(world, "nightly"))
    pod = only_pod(world, "nightly")
    world.until_committed(3)
    world.pods.kill(pod, "SparkSubmit")
    world.until_committed(world.committed() + 3)
    had = world.committed()
    world.pods.evict(pod)
    second = only_pod(world, "nightly", but=pod)
    assert ended(world, "nightly") == "Complete"
    action, run, reused, again = map_tasks(world.pods.log(second))
    assert (action, again) == ("resumed", 0)
    assert reused >= had
    assert run == FILES - reused > 0
    assert "again in" in world.pods.log(pod), "the first pod started its driver again"
    check_counts(world.orders, world.counts)
    world.pods.call("POST", JOBS + STRICT, job_of(world, "tomorrow"))
    third = only_pod(world, "tomorrow")
    assert ended(world, "tomorrow") == "Complete"
    assert map_tasks(world.pods.log(third)) == ("reused", 0, FILES, 0)


def test_a_job_that_another_attempt_cannot_help_ends(world: World) -> None:
    """Exit code 4: the Job has failed with its first pod, by its policy."""
    job = job_of(world, "wrong")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container["args"] = [
        word.replace("durableShuffle.job", "durableShuffle.jop") for word in container["args"]
    ]
    world.pods.call("POST", JOBS + STRICT, job)
    assert ended(world, "wrong") == "Failed"
    status = world.pods.call("GET", f"{JOBS}/wrong")["status"]
    assert [one["reason"] for one in status["conditions"]][-1] == "PodFailurePolicy"
    assert status["failed"] == 1


def test_the_job_is_valid_as_it_stands(world: World) -> None:
    """The API server takes it with strict validation, and refuses a field that it does not know."""
    job = yaml.safe_load((PROGRAM.parent / "kubernetes_job.yaml").read_text())
    dry = f"{JOBS}{STRICT}&dryRun=All"
    made = world.pods.call("POST", dry, copy.deepcopy(job))
    assert made["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [3, 4]
    job["spec"]["retry"] = 3
    with pytest.raises(urllib.error.HTTPError) as refused:
        world.pods.call("POST", dry, job)
    assert 'unknown field \\"spec.retry\\"' in refused.value.read().decode()


def test_cluster_mode_goes_on_in_the_next_driver(world: World) -> None:
    """The driver's pod is lost with its node, and submitted again, as the operator does; the
    executors of the first go with it."""
    spec = yaml.safe_load(world.recipe("spark_operator.yaml"))["spec"]
    conf = {
        **spec["sparkConf"],
        **SMALL,
        "spark.driver.memory": "600m",
        "spark.dynamicAllocation.maxExecutors": "1",
        "spark.kubernetes.authenticate.driver.serviceAccountName": spec["driver"]["serviceAccount"],
        "spark.kubernetes.container.image": spec["image"],
        "spark.kubernetes.driver.master": world.pods.url,
        "spark.kubernetes.driver.request.cores": "100m",
        "spark.kubernetes.submission.waitAppCompletion": "false",
    }

    def submit(name: str) -> None:
        given = {**conf, "spark.kubernetes.driver.pod.name": name}
        settings = [word for k, v in given.items() for word in ("--conf", f"{k}={v}")]
        mode = ["--master", f"k8s://{world.pods.url}", "--deploy-mode", "cluster"]
        command = ["spark-submit", *mode, *settings, spec["mainApplicationFile"]]
        done = subprocess.run(
            [*command, *spec["arguments"]],
            env={**os.environ, **world.env},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-6000:]

    submit("first")
    world.until_committed(3)
    executors = set(world.pods.running()) - {"first"}
    assert executors
    world.pods.annotate("first", "here/lost", "here/replaced")
    until(lambda: "first" not in world.pods.phases(), "the driver's pod is gone")
    until(lambda: not executors & set(world.pods.phases()), "its executors are collected")
    had = world.committed()
    submit("second")
    until(lambda: world.pods.phases().get("second") in ("Succeeded", "Failed"), "the end")
    action, run, reused, again = map_tasks(world.pods.log("second"))
    assert (action, reused, again) == ("resumed", had, 0)
    assert run == FILES - had > 0
    check_counts(world.orders, world.counts)
