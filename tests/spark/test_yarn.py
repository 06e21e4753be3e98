"""Spark on a real YARN, with stored stages on the real HDFS beside it.

YARN's containers are processes of this machine, each the leader of a session of its own.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from gated_cluster import NO_IDLE_EXECUTORS, GatedCluster, only
from nightly import FILES, ONE_TASK_PER_FILE, PROGRAM, check_counts, map_tasks, write_orders
from pipelines import until
from processes import session_of
from yarn_cluster import ATTEMPTS, YarnCluster, yarn_cluster

from durable_shuffle.bench.cluster.faults import end_session
from durable_shuffle.bench.cluster.local_cluster import QUICK_JVMS, cluster_environment
from durable_shuffle.shuffle.base.clock import SystemClock
from durable_shuffle.shuffle.storage.open import open_backend

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1800)]
JARS = f"local:{Path(pyspark.__file__).parent}/jars/*"
BASE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.instances": "2",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JVMS,
    "spark.yarn.am.extraJavaOptions": QUICK_JVMS,
    "spark.yarn.jars": JARS,
    "spark.yarn.populateHadoopClasspath": "false",
}


class Cluster(GatedCluster):
    """A driver outside of YARN; its executors are containers."""

    def __init__(self, folder: Path, programs: Any, yarn: YarnCluster) -> None:
        env = {
            **cluster_environment(folder, {}),
            "HADOOP_CONF_DIR": str(yarn.settings),
            "PYSPARK_ARCHIVES_PATH": f"local:{Path(pyspark.__file__).parents[1]}",
        }
        source = Path(__file__).parents[2] / "src"
        self.conf = BASE | {
            f"{kind}.{name}": value
            for kind in ("spark.executorEnv", "spark.yarn.appMasterEnv")
            for name, value in (("PYTHONPATH", str(source)), ("PYSPARK_PYTHON", sys.executable))
        }
        super().__init__(folder, programs, "yarn", self.conf, env)
        self.url = yarn.hdfs.url(f"/{folder.name}")

    def committed(self) -> int:
        return committed(self.url)


def committed(url: str) -> int:
    """Return how many producers have a record in their log."""
    keys = [info.key for info in open_backend(url, {}).list("")]
    return sum(bool(re.search(r"/producers/p\d+/0000000000$", key)) for key in keys)


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    """One cluster for the file."""
    with yarn_cluster(tmp_path_factory.mktemp("hadoop")) as running:
        yield running


@pytest.fixture
def cluster(tmp_path: Path, programs: Any, yarn: YarnCluster) -> Iterator[Cluster]:
    """No driver yet."""
    found = Cluster(tmp_path, programs, yarn)
    yield found
    if found.driver is not None:
        programs.kill(found.driver)


def test_a_container_is_killed_and_then_the_driver(cluster: Cluster, programs: Any) -> None:
    """YARN makes another container, and only the producer that ran in the first one runs again.
    The next driver runs nothing."""
    cluster.start({}, cluster.url)
    cluster.tell("store")
    end_session(os.getsid(cluster.gated_worker()), SystemClock(), patience_seconds=0)
    stage = only(programs.answer(cluster.driver))
    assert (stage["map_tasks_run"], stage["map_tasks_rerun"]) == (6, 0)
    assert cluster.runs() == {0: 1, 1: 1, 2: 2, 3: 1, 4: 1, 5: 1}
    programs.kill(cluster.driver)
    cluster.start({}, cluster.url)
    again = only(cluster.ask("store"))
    assert (again["action"], again["map_tasks_run"]) == ("reused", 0)


def test_containers_go_to_zero_and_come_back(cluster: Cluster) -> None:
    """With dynamic allocation no container is kept for a stored stage; later ones read it."""
    cluster.open_gate()
    idle = {"spark.dynamicAllocation.executorIdleTimeout": "5s"}
    cluster.start({**NO_IDLE_EXECUTORS, **idle}, cluster.url)
    assert only(cluster.ask("store"))["map_tasks_run"] == 6
    assert cluster.ask("executors 0") == {"executors": 0}
    again = only(cluster.ask("store"))
    assert (again["action"], again["map_tasks_run"]) == ("reused", 0)
    assert sum(cluster.runs().values()) == 6


def test_yarn_starts_the_driver_again(cluster: Cluster, yarn: YarnCluster, tmp_path: Path) -> None:
    """In cluster mode the driver is a container; the recipe's program goes on in its next one."""
    orders, counts = tmp_path / "orders", tmp_path / "counts"
    write_orders(orders)
    conf = {
        **{k: v for k, v in cluster.conf.items() if not k.startswith("spark.driver.")},
        **ONE_TASK_PER_FILE,
        "spark.executor.instances": "1",
        "spark.driver.memory": "600m",
        "spark.driver.extraJavaOptions": QUICK_JVMS,
        "spark.yarn.maxAppAttempts": str(ATTEMPTS),
        "spark.durableShuffle.url": cluster.url,
        "spark.durableShuffle.job": "nightly",
    }
    settings = [word for k, v in conf.items() for word in ("--conf", f"{k}={v}")]
    command = ["--master", "yarn", "--deploy-mode", "cluster", *settings, str(PROGRAM)]
    log = tmp_path / "submit.log"
    with log.open("w") as written:
        submit = subprocess.Popen(
            ["spark-submit", *command, orders.as_uri(), counts.as_uri()],
            env={**os.environ, **cluster.env},
            stdout=written,
            stderr=written,
        )
    try:
        until(lambda: submit.poll() is not None or committed(cluster.url) >= 3, "three producers")
        assert submit.poll() is None, log.read_text()[-6000:]
        driver = session_of("yarn.ApplicationMaster", PROGRAM.name)
        end_session(driver, SystemClock(), patience_seconds=0)
        assert submit.wait(300) == 0, log.read_text()[-6000:]
    finally:
        submit.kill()
    check_counts(orders, counts)
    (said,) = [text for text in yarn.logs() if "job nightly, driver no. 2" in text]
    action, run, reused, again = map_tasks(said)
    assert (action, again) == ("resumed", 0)
    assert reused >= 3
    assert run == FILES - reused > 0
