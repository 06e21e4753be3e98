"""What is left to do after a killed driver? Real drivers, SIGKILL when 80% had committed.

Three drivers per query, each with a Spark of its own: one runs it whole, one is killed when 80% of
the producers have committed, one runs it again over what that left. A fourth only plans the query.
"Left" is what the whole run still took after 80% of its commits: with the planning, that is the
floor, if the rest is not done faster in a cold driver. Bars: over queries of more than 5 s, the
third takes at most 0.35 of the first at scale 1 and 0.25 at scale 10, Spark's start not counted.
All of it twice: with Java as it comes, and with an archive of the classes that such a driver loads.
Writes its table of docs/benchmarks.md. `BENCH_QUERIES` names the queries, `BENCH_SCALE` the scale.
"""

import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from bench_query import queries
from document import record
from places import Place

from durable_shuffle.bench.cluster.faults import end_session
from durable_shuffle.bench.tpch.data import generate_all
from durable_shuffle.shuffle.base.clock import SystemClock

BARS = {1.0: 0.35, 10.0: 0.25}
COUNTS_FROM_SECONDS = 5.0
COMMITTED = 0.8
PROGRAM = Path(__file__).with_name("query_process.py")
HEAD = (
    "query",
    "whole s",
    "killed with",
    "again s",
    "again / whole",
    "planning s",
    "left s",
    "rounds",
)


@pytest.mark.spark
@pytest.mark.long_bench
@pytest.mark.timeout(0)
@pytest.mark.parametrize("archived", [False, True], ids=["as it comes", "class archive"])
def test_second_run_after_a_kill(
    benchmark: Any, cache: Path, measuring: bool, tmp_path: Path, place: Place, archived: bool
) -> None:
    """Rows are the same, nothing committed runs again, and little is left to do."""
    if not measuring:
        pytest.skip("three Sparks per query: only when measuring")
    scale = float(os.environ.get("BENCH_SCALE", "1"))
    data = generate_all(cache, scale).folder
    rounds = int(os.environ.get("BENCH_ROUNDS", "1"))
    late: list[str] = []

    def all_of_them() -> None:
        for query in queries(measuring=measuring):
            java = with_archive(tmp_path / f"{query}.jsa", data, query) if archived else ""
            folders = [tmp_path / f"{query}-{turn}" for turn in range(rounds)]
            turns = [measure(folder, place.new(), data, query, java) for folder in folders]
            case = f"{query}, scale {scale:g}{', class archive' if archived else ''}"
            if not told(case, scale, turns):
                late.append(case)

    benchmark.pedantic(all_of_them, rounds=1)
    assert not late


def with_archive(archive: Path, data: Path, query: str) -> str:
    """Let a driver write an archive of its classes when it exits; return the option to use it."""
    root = archive.with_suffix("")
    stored = Place(str(root), None)
    answer(
        start(root, stored, data, query, java=f"-XX:ArchiveClassesAtExit={archive} -Xlog:disable")
    )
    assert archive.exists()
    return f"-XX:SharedArchiveFile={archive} -Xlog:disable"


def told(case: str, scale: float, turns: list[tuple[float, float, float, float, str]]) -> bool:
    """Show what one query took, put it into the document, and return whether it is in the bar."""
    whole, again, planning, rest = (statistics.median(turn[i] for turn in turns) for i in range(4))
    ratio = statistics.median(turn[1] / turn[0] for turn in turns)
    good = ratio <= BARS.get(scale, 1) or whole <= COUNTS_FROM_SECONDS
    shown = f"{ratio:.2f}" if good else f"{ratio:.2f} (missed)"
    killed, rounds = turns[0][4], str(len(turns))
    row = (
        *(case, f"{whole:.2f}", killed, f"{again:.2f}", shown),
        *(f"{planning:.2f}", f"{rest:.2f}", rounds),
    )
    print("  ".join(row))
    record("query-rerun", HEAD, row)
    return good


def measure(
    folder: Path, place: Place, data: Path, query: str, java: str = ""
) -> tuple[float, float, float, float, str]:
    """Return seconds of a whole run, of one over what a killed driver left, of planning alone, and
    of the whole run after 80% of its commits; and how much the killed one left."""
    folder.mkdir()
    one, other = place.new(), place.new()
    whole = answer(start(folder / "whole", data, query, java=java, place=one))
    total = int(whole["total"]["map_tasks_run"])
    victim = start(folder / "killed", data, query, java=java, place=other)
    while len(commits(other)) < COMMITTED * total:
        assert victim.poll() is None, "the driver ended before its kill"
        time.sleep(0.002)
    end_session(victim.pid, SystemClock(), patience_seconds=0)
    victim.wait()
    left = len(commits(other))
    assert left < total, "the kill came too late"
    again = answer(start(folder / "killed", data, query, java=java, place=other))
    assert again["rows"] == whole["rows"]
    assert again["total"]["map_tasks_rerun"] == 0
    assert again["total"]["map_tasks_run"] == total - left
    planning = answer(start(folder / "planned", data, query, "plan", java=java))
    seconds = [float(one["seconds"]) for one in (whole, again, planning)]
    rest = after_commits(folder / "whole", one, seconds[0])
    return seconds[0], seconds[1], seconds[2], rest, f"{left} of {total}"


def after_commits(root: Path, place: Place, seconds: float) -> float:
    """Return how long a driver that took so long still ran after 80% of its commits."""
    moments = sorted(commits(place))
    began = Path(f"{root}.began").stat().st_mtime
    return began + seconds - moments[math.ceil(COMMITTED * len(moments)) - 1]


def start(
    root: Path,
    data: Path,
    query: str,
    at_risk: str = "nothing",
    java: str = "",
    place: Place | None = None,
) -> subprocess.Popen[bytes]:
    """Start a driver, the leader of a process session of its own.

    Args:
        root: where it leaves what is not stored, and stores if there is no `place`.
        java: options for its JVM.
    """
    more = {"JAVA_TOOL_OPTIONS": java} if java else {}
    place = place or Place(str(root), None)
    command = [sys.executable, str(PROGRAM), str(root), str(data), query, at_risk]
    with root.with_name("stderr").open("ab") as log:
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            env={
                **os.environ,
                **more,
                "BENCH_STORE": json.dumps([place.url, place.options and dict(place.options)]),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
        )


def answer(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Return what a driver printed at its end."""
    out, _ = process.communicate()
    assert process.returncode == 0
    return answer_in(out.splitlines())


def answer_in(lines: Iterable[bytes]) -> dict[str, Any]:
    """Return the line of JSON that a driver prints among others."""
    found = next((line for line in lines if line.startswith(b"{")), None)
    assert found is not None, "the driver ended without an answer"
    return dict(json.loads(found))


def commits(place: Place) -> list[float]:
    """Return when the first records of producers' logs were stored, by their names alone."""
    first = re.compile(rf"/producers/p\d+/{0:010d}$")
    return [i.modified_wall_seconds for i in place.listed("bench/") if first.search(i.key)]
