"""What does a killed executor or driver cost? The 22 TPC-H queries, durable and by Spark alone.

`durable-shuffle bench chaos` at scale 1: calm and with kills, both by one seeded schedule. An
executor is killed after every 6 s of undisturbed work, the driver three times, each time after a
share of a query's tasks. A driver that takes over repeats only the query that was cut short. Bar:
a kill costs at most half of what it costs Spark. Writes its table of docs/benchmarks.md.
`BENCH_SCALE`, `BENCH_SEED` and `BENCH_QUERIES` choose. Beside it: what a killed executor costs if
there is nothing to repeat, so that no shuffle can cost less.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench_query_rerun import answer_in
from document import record
from rich.console import Console

from durable_shuffle.bench.chaos.chaos import ChaosOptions, run_chaos
from durable_shuffle.bench.cluster.local_cluster import QUICK_JVMS, cluster_environment
from durable_shuffle.bench.tpch.queries import TPCH_QUERIES

BAR = 0.5
HEAD = (
    *("shuffle", "right", "executors killed", "drivers killed", "committed producers run again"),
    *("seconds", "lost per kill", "bar"),
)

FLOOR_HEAD = ("job of map tasks", "calm s", "with kills s", "executors killed", "lost per kill")


@pytest.mark.spark
@pytest.mark.long_bench
@pytest.mark.timeout(0)
def test_seconds_lost_per_kill(
    benchmark: Any, cache: Path, measuring: bool, tmp_path: Path
) -> None:
    """Rows are right, nothing committed runs again, each kill happens, and the bar is met."""
    if not measuring:
        pytest.skip("clusters that are killed for minutes: only when measuring")
    figures = tmp_path / "chaos.json"
    options = ChaosOptions(
        scale=float(os.environ.get("BENCH_SCALE", "1")),
        seed=int(os.environ.get("BENCH_SEED", "0")),
        queries=tuple(os.environ.get("BENCH_QUERIES", ",".join(TPCH_QUERIES)).split(",")),
        json_file=figures,
        data=cache,
        work=tmp_path / "work",
    )
    code = benchmark.pedantic(run_chaos, (options, Console()), rounds=1)
    found = json.loads(figures.read_text())
    ratio = told(found, options)
    assert code == 0, found["failures"]
    assert ratio <= BAR


def told(found: dict[str, Any], options: ChaosOptions) -> float:
    """Put the passes into the document; return what a kill cost, in kills of Spark alone."""
    lost: dict[str, float] = found["lost_per_kill"]
    limit = BAR * lost["spark"]
    for one in found["outcomes"]:
        kills, durable = one["kills_wanted"], one["shuffle"] == "durable"
        cost = f"{lost[one['shuffle']]:.1f} s" if kills else ""
        missed = " (missed)" if kills and durable and lost["durable"] > limit else ""
        what = f"{one['shuffle']}, {'kills' if kills else 'calm'}, scale {options.scale:g}"
        row = (
            f"{what}, seed {options.seed}",
            f"{one['right']}/{len(options.queries)}",
            *(str(one["executor_kills"]), str(one["driver_kills"])),
            str(one["map_tasks_rerun"]) if durable else "",
            *(f"{one['seconds']:.1f}", cost + missed),
            f"{limit:.1f} s" if kills and durable else "",
        )
        print("  ".join(row))
        record("chaos", HEAD, row)
    return lost["durable"] / lost["spark"]


@pytest.mark.spark
@pytest.mark.long_bench
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", ["jvm", "python"])
def test_floor_per_kill(
    benchmark: Any, rounds: int, measuring: bool, tmp_path: Path, kind: str
) -> None:
    """A killed executor costs time even if no row is lost."""
    if not measuring:
        pytest.skip("clusters that are killed: only when measuring")
    found: list[dict[str, float]] = []

    def run() -> None:
        work = tmp_path / str(len(found))
        work.mkdir()
        program = Path(__file__).with_name("kill_process.py")
        out = subprocess.run(
            [sys.executable, str(program), str(work), kind],
            env=cluster_environment(work, os.environ, QUICK_JVMS),
            stdout=subprocess.PIPE,
            start_new_session=True,
            check=True,
        ).stdout
        found.append(answer_in(out.splitlines()))

    benchmark.pedantic(run, rounds=rounds)
    kills = [int(one["kills"]) for one in found]
    assert min(kills) >= 1
    lost = [(one["killed"] - one["calm"]) / one["kills"] for one in found]
    row = (
        {"jvm": "in the JVM", "python": "with Python workers"}[kind],
        *(f"{statistics.median(one[run] for one in found):.1f}" for run in ("calm", "killed")),
        *(str(sum(kills)), f"{statistics.median(lost):.1f} s"),
    )
    print("  ".join(row))
    record("kill-floor", FLOOR_HEAD, row)
