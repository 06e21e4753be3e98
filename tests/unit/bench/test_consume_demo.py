"""The consumer demo as users start it, and that its verdict can be a bad one."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from durable_shuffle.bench.consumer_demo.child import CONSUMER, OUTPUTS
from durable_shuffle.bench.consumer_demo.demo import ConsumeDemoOptions, Life, judge, plan_kills
from durable_shuffle.bench.consumer_demo.stage import store_stage
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.consume.outputs import write_output
from durable_shuffle.shuffle.storage.memory import MemoryStorage


@pytest.mark.soak
@pytest.mark.requirement("R-F135-1")
def test_five_kills_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    """A real process, five real kills, status 0, and a table that says so."""
    figures = tmp_path / "consume.json"
    arguments = ["--rows", "3000", "--kills", "5", "--seed", seed, "--json", figures]
    code = "from durable_shuffle.jobs.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "demo", "consume", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(figures.read_text())
    assert found["passed"] is True
    assert (found["seed"], found["kills_fired"], found["epochs"]) == (seed, 5, 6)
    assert (found["lost"], found["doubled"], found["map_tasks_rerun"]) == (0, 0, 0)
    assert found["published"] == 3000
    lives = found["lives"]
    assert [life["killed"] for life in lives] == [True] * 5 + [False]
    again = sum(a["reached"] - b["resumed_from"] for a, b in pairwise(lives))
    assert found["delivered_again"] == again
    assert all(life["resumed_from"] <= life["reached"] for life in lives)
    assert f"seed {seed}" in done.stdout
    assert "passed: 5 of 5 kills fired" in done.stdout


@pytest.mark.parametrize(
    ("published", "lost", "doubled"),
    [
        ([(n, n * n) for n in range(10)], 0, 0),
        ([(n, n * n) for n in range(9)], 1, 0),
        ([(n, n * n) for n in (*range(10), 3, 3)], 0, 2),
        ([(n, n + 1) for n in range(10)], 10, 10),
        ([], 10, 0),
    ],
)
def test_verdict_is_of_what_was_published(
    published: list[tuple[int, int]], lost: int, doubled: int
) -> None:
    """Outputs are compared row by row: what is missing is lost, what is too much is doubled."""
    storage = MemoryStorage()
    stage = store_stage(storage, 10, RandomIds(), SystemClock())
    view = open_view(stage, 0, consumer=CONSUMER)
    assert sum(batch.num_rows for batch in view) == 10
    rows = [{"id": n, "square": square} for n, square in published]
    batch = pa.RecordBatch.from_pylist(rows, schema=OUTPUTS)
    view.finish(outputs=[write_output(view.task, OUTPUTS, [batch])] if rows else [])
    lives = [Life(1, 0, 10, "finished", killed=False)]
    figures = judge(storage, stage, ConsumeDemoOptions(10, 0, 1), lives)
    assert (figures.lost, figures.doubled, figures.delivered_again) == (lost, doubled, 0)
    assert figures.passed is (lost == doubled == 0)
    wanted = judge(storage, stage, ConsumeDemoOptions(10, 1, 1), lives)
    assert not wanted.passed, "a kill that did not fire fails the demo"


def test_kills_are_drawn_by_the_seed_and_always_due() -> None:
    """Equal seeds, equal moments; whatever was drawn is due at the end at the latest."""
    plan = plan_kills(100, 20, random.Random(4))
    assert plan == plan_kills(100, 20, random.Random(4))
    assert plan != plan_kills(100, 20, random.Random(5))
    assert all(kill.is_due("output written", 100, 100) for kill in plan)
    assert not any(kill.is_due("opened", 100, 100) for kill in plan)
    assert not any(kill.is_due(kill.moment, kill.records - 1, 100) for kill in plan)


def test_misuse(run: Callable[..., Any]) -> None:
    """More kills than rows cannot all fire."""
    result = run("demo", "consume", "--rows", 3, "--kills", 4)
    assert (result.exit_code, "rows must be at least" in result.stderr) == (2, True)
    with pytest.raises(InvalidInputError, match="rows=0"):
        ConsumeDemoOptions(0, 0, 1)
    result = run("demo", "consume", "--help")
    assert "durable-shuffle demo consume --kills 50" in result.stdout
