"""What `--help` promises is what there is."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from durable_shuffle.bench.workloads.faults import FAULTS, WORKLOADS


def test_bench_recovery_explains_its_names(run: Callable[..., Any]) -> None:
    """Each fault and workload that there is has a line, and no other."""
    text = run("bench", "recovery", "--help").stdout
    found = re.findall(r"^\s+([FW]\d+) +\w", text, re.MULTILINE)
    assert found == [*WORKLOADS, *FAULTS]


@pytest.mark.parametrize(
    "words",
    [
        *(["bench", name] for name in ("recovery", "throughput", "storage", "chaos")),
        *(["demo", name] for name in ("consume", "enrich", "hop")),
        ["demo"],
        ["storage-check"],
    ],
)
def test_long_runs_say_how_long(run: Callable[..., Any], words: list[str]) -> None:
    """Nobody starts one without having been told what it takes."""
    text = run(*words, "--help").stdout
    assert re.search(r"second|minute", text)
    assert re.search(r"memory|disk|space", text)


def test_ids_are_short_for_people_and_whole_for_programs(job: Any, run: Callable[..., Any]) -> None:
    """`ls` shows the start of an incarnation, and all of it with --json."""
    whole = job.orders.path.incarnation
    text = run("ls", job.url, "nightly").stdout
    assert re.search(rf"\b{whole[:12]}\b", text)
    assert whole not in text
    (found,) = json.loads(run("ls", job.url, "nightly", "--json").stdout)["jobs"]
    assert found["stages"][0]["incarnation"] == whole
