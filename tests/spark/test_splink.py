"""A library's own loops inside `transparent()`: Splink trains, predicts and clusters."""

import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

STAGES_BEFORE_KILL = 12


def indexed(store: Path) -> set[str]:
    """The stages that have an index, by the names of their folders: all map tasks committed. Of one
    of them the SEAL may be missing."""
    return {path.parents[1].name for path in store.glob("persons/*/index/*")}


@pytest.mark.soak
def test_splink_goes_on_at_its_last_iteration(programs: Any, tmp_path: Path) -> None:
    """Its driver is killed among its iterations. The next one finds all that was stored, and gives
    the clusters of plain Spark; one more run computes nothing."""
    first = programs.start("splink_driver", tmp_path, "no")
    deadline = time.monotonic() + 600
    while len(indexed(tmp_path / "store")) < STAGES_BEFORE_KILL:
        assert first.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline, "it stored nothing more"
        time.sleep(0.05)
    programs.kill(first)
    before = indexed(tmp_path / "store")

    found = programs.run("splink_driver", tmp_path, "yes")
    assert found["durable"] == [found["plain"], found["plain"]]
    assert len({cluster for cluster, _ in found["plain"]}) < len(found["plain"]), "nothing linked"
    second, third = (report["stages"] for report in found["reports"])
    ran = {f"{s['name']}-{s['fingerprint']}" for s in second if s["map_tasks_run"]}
    assert not ran & {folder.rpartition("-")[0] for folder in before}, "computed again"
    assert sum(stage["action"] == "reused" for stage in second) >= STAGES_BEFORE_KILL / 2
    assert len(second) > len(before), "it was killed behind its last iteration"
    assert {stage["action"] for stage in third} == {"reused"}
    assert sum(stage["map_tasks_run"] for stage in third) == 0
