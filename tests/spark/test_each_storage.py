"""Stored stages on each storage that a machine can have: what users do first, and a kill."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from cloud_servers import EVERY, CannotInstallError, Place, by_environment
from hdfs_cluster import hdfs_cluster
from killed_driver import killed_and_resumed
from query_twice import readme_runs_twice, runs_twice

from durable_shuffle.shuffle.base.clock import SystemClock
from durable_shuffle.shuffle.storage.open import open_backend
from durable_shuffle.shuffle.testing.s3_server import run_s3_server

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1800)]


@contextmanager
def local_folder(folder: Path) -> Iterator[Place]:
    yield str(folder), {}


@contextmanager
def seaweedfs(folder: Path) -> Iterator[Place]:
    folder.mkdir()
    with run_s3_server(folder, clock=SystemClock()) as server:
        yield f"s3://{server.bucket}/root", server.options


@contextmanager
def hdfs(folder: Path) -> Iterator[Place]:
    with hdfs_cluster(folder) as cluster:
        yield cluster.url("/root"), {}


STORAGES: dict[str, Callable[[Path], AbstractContextManager[Place]]] = {
    "local": local_folder,
    "seaweedfs": seaweedfs,
    "hdfs": hdfs,
    **EVERY,
}


@pytest.fixture(scope="module", params=STORAGES)
def storage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """Each storage in turn; programs find what it needs in their environment."""
    try:
        with (
            STORAGES[request.param](tmp_path_factory.mktemp("server") / "data") as found,
            pytest.MonkeyPatch.context() as environment,
        ):
            if found[1]:
                for name, value in by_environment(*found).items():
                    environment.setenv(name, value)
            yield found
    except CannotInstallError as error:
        pytest.skip(str(error))


@pytest.mark.requirement("R-F135-19")
def test_a_killed_driver_is_finished(storage: Place, programs: Any, tmp_path: Path) -> None:
    """The next driver runs the one producer that had not committed; rows are right."""
    url, options = storage

    def committed(root: str) -> set[int]:
        keys = [info.key for info in open_backend(root, options).list("tests/")]
        found = [re.search(r"/producers/p(\d+)/0000000000$", key) for key in keys]
        return {int(match[1]) for match in found if match}

    stage = killed_and_resumed(programs, f"{url}/killed", tmp_path, committed)
    assert (stage["map_tasks_reused"], stage["map_tasks_rerun"]) == (3, 0)


def test_a_join_query_runs_twice(storage: Place, programs: Any, tmp_path: Path) -> None:
    """The second driver runs no producer and has the same rows."""
    runs_twice(programs, f"{storage[0]}/query", tmp_path)


def test_the_readmes_program_runs_twice(storage: Place, tmp_path: Path) -> None:
    """Its second run finds what the first one stored."""
    readme_runs_twice(f"{storage[0]}/readme", tmp_path)
