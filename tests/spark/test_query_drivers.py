"""Whole queries whose driver dies: the next driver continues where it stopped."""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from durable_shuffle.bench.chaos.chaos import ChaosOptions, run_chaos
from durable_shuffle.bench.tpch.answers import Answers
from durable_shuffle.bench.tpch.data import PARTS, TpchFiles, generate_all
from durable_shuffle.bench.tpch.queries import TPCH_QUERIES

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TpchFiles:
    return generate_all(tmp_path_factory.mktemp("tpch"), 0.01)


def test_a_killed_driver_goes_on(
    programs: Any, files: TpchFiles, tmp_path: Path, committed_producers: Callable[..., set[int]]
) -> None:
    """SIGKILL after seven of eight producers of one exchange committed: the second driver runs the
    eighth one and everything above it, and the rows are DuckDB's."""
    folder, root = tmp_path / "folder", tmp_path / "root"
    (folder / "runs").mkdir(parents=True)
    gated = PARTS - 1
    first = programs.start("query_driver", root, files.folder, folder, gated, "q12")
    deadline = time.monotonic() + 300
    # ORDERS is sealed; LINEITEM is complete except for the producer that is running
    while len(_commits(root)) < 2 * PARTS - 1 or not _seals(root) or len(_runs(folder)) < PARTS:
        assert first.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    committed = _commits(root)
    programs.kill(first)
    assert _commits(root) == committed
    (folder / "open").touch()
    answer = programs.run("query_driver", root, files.folder, folder, gated, "q12")
    assert _runs(folder) == {p: 1 if p != gated else 2 for p in range(PARTS)}
    assert answer["total"]["map_tasks_reused"] == 2 * PARTS - 1
    assert answer["total"]["map_tasks_rerun"] == 0
    decisions = [stage["action"] for stage in answer["stages"]]
    assert sorted(decisions) == ["computed", "computed", "resumed", "reused"]
    rows = [(mode, int(high), int(low)) for mode, high, low in answer["rows"]]
    assert Answers(files).differing("q12", rows) == 0


def _commits(root: Path) -> set[str]:
    """Paths of all first records in producer logs, from file names alone."""
    slots = root.glob(f"tests/*/producers/p*/{0:010d}")
    return {str(path.relative_to(root)) for path in slots}


def _runs(folder: Path) -> dict[int, int]:
    """Map task over LINEITEM -> how often it has started."""
    texts = {int(path.name): path.read_text() for path in (folder / "runs").iterdir()}
    return {number: text.count("\n") for number, text in texts.items() if text}


def _seals(root: Path) -> list[Path]:
    """The records after the first one in all stage logs: in a batch stage, this is its SEAL."""
    return list(root.glob(f"tests/*/log/{1:010d}"))


@pytest.mark.soak
def test_chaos_sample(tmp_path: Path, seed: int) -> None:
    """The seed chooses a query. On a cluster of two executors, SIGKILL hits an executor and later
    the driver at a random point. Rows are right and no committed producer runs again."""
    options = ChaosOptions(
        scale=0.01,
        seed=seed,
        every_seconds=None,
        driver_kills=1,
        queries=(random.Random(seed).choice(list(TPCH_QUERIES)),),
        shuffles=("durable",),
        calm=False,
        data=tmp_path / "data",
        work=tmp_path / "work",
        json_file=tmp_path / "chaos.json",
    )
    assert run_chaos(options, Console(stderr=True)) == 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_chaos_each(tmp_path: Path, seed: int) -> None:
    """Like the sample, with each of the 22 queries."""
    options = ChaosOptions(
        scale=0.01,
        seed=seed,
        every_seconds=None,
        driver_kills=len(TPCH_QUERIES),
        shuffles=("durable",),
        data=tmp_path / "data",
        work=tmp_path / "work",
    )
    assert run_chaos(options, Console(stderr=True)) == 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_chaos_whole(tmp_path: Path, seed: int) -> None:
    """All 22 queries under kills, only with the durable shuffle, with a new seed each time."""
    options = ChaosOptions(
        scale=0.01,
        seed=seed,
        shuffles=("durable",),
        calm=False,
        data=tmp_path / "data",
        work=tmp_path / "work",
    )
    assert run_chaos(options, Console(stderr=True)) == 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_chaos_beside_spark(tmp_path: Path, seed: int) -> None:
    """Spark alone runs the same queries under the same kills, and both say what a kill costs."""
    figures = tmp_path / "chaos.json"
    options = ChaosOptions(
        scale=0.01,
        seed=seed,
        every_seconds=2.0,
        driver_kills=1,
        queries=("q09", "q18", "q21"),
        json_file=figures,
        data=tmp_path / "data",
        work=tmp_path / "work",
    )
    assert run_chaos(options, Console(stderr=True)) == 0
    found = json.loads(figures.read_text())
    assert set(found["lost_per_kill"]) == {"durable", "spark"}
    killed = {one["shuffle"]: one["driver_kills"] for one in found["outcomes"] if one["kills"]}
    assert killed == {"durable": 1, "spark": 1}
