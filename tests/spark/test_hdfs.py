"""Stored stages on a real HDFS: a driver is killed and resumed; a query runs twice."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hdfs_cluster import HdfsCluster, hdfs_cluster
from killed_driver import killed_and_resumed
from query_twice import runs_twice

from durable_shuffle.shuffle.storage.open import open_backend

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    """One namenode and one datanode for the file."""
    with hdfs_cluster(tmp_path_factory.mktemp("hdfs")) as running:
        yield running


def committed(url: str) -> set[int]:
    """Return the producers that have a record in their log, from names alone."""
    keys = [info.key for info in open_backend(url, {}).list("tests/")]
    found = [re.search(r"/producers/p(\d+)/0000000000$", key) for key in keys]
    return {int(match[1]) for match in found if match}


@pytest.mark.soak
@pytest.mark.requirement("R-F135-19")
def test_killed_driver_is_finished_on_hdfs(
    cluster: HdfsCluster, programs: Any, tmp_path: Path
) -> None:
    """The next driver runs the one producer that had not committed; rows are right."""
    stage = killed_and_resumed(programs, cluster.url("/killed"), tmp_path, committed)
    assert (stage["map_tasks_reused"], stage["map_tasks_rerun"]) == (3, 0)


@pytest.mark.soak
def test_a_join_query_runs_twice(cluster: HdfsCluster, programs: Any, tmp_path: Path) -> None:
    """The second driver runs no producer and has the same rows."""
    runs_twice(programs, cluster.url("/query"), tmp_path)
