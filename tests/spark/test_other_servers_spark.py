"""Stored stages on servers of other clouds' protocols: a driver is killed, a query runs twice."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cloud_servers import EVERY, CannotInstallError, by_environment
from killed_driver import killed_and_resumed
from query_twice import runs_twice

from durable_shuffle.shuffle.storage.open import open_backend

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module", params=EVERY)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, dict[str, object]]]:
    """A running server, of each kind in turn; programs find it by their environment."""
    try:
        with (
            EVERY[request.param](tmp_path_factory.mktemp("server") / "data") as found,
            pytest.MonkeyPatch.context() as environment,
        ):
            for name, value in by_environment(*found).items():
                environment.setenv(name, value)
            yield found
    except CannotInstallError as error:
        pytest.skip(str(error))


@pytest.mark.requirement("R-F135-19")
def test_a_killed_driver_is_finished(
    server: tuple[str, dict[str, object]], programs: Any, tmp_path: Path
) -> None:
    """The next driver runs the one producer that had not committed; rows are right."""
    url, options = server

    def committed(root: str) -> set[int]:
        keys = [info.key for info in open_backend(root, options).list("tests/")]
        found = [re.search(r"/producers/p(\d+)/0000000000$", key) for key in keys]
        return {int(match[1]) for match in found if match}

    stage = killed_and_resumed(programs, f"{url}/killed", tmp_path, committed)
    assert (stage["map_tasks_reused"], stage["map_tasks_rerun"]) == (3, 0)


def test_a_join_query_runs_twice(
    server: tuple[str, dict[str, object]], programs: Any, tmp_path: Path
) -> None:
    """The second driver runs no producer and has the same rows."""
    runs_twice(programs, f"{server[0]}/query", tmp_path)
