"""`durable-shuffle compact`: says what it did, changes no row, and may be repeated."""

import json
from collections.abc import Callable
from typing import Any


def rows(job: Any, run: Callable[..., Any]) -> list[str]:
    stage = job.orders.path.folder
    return run("cat", job.url, "nightly", stage, "--json").stdout.splitlines()


def test_compact_a_job(job: Any, run: Callable[..., Any]) -> None:
    """Sealed stages are compacted once, others named; every row stays, verification passes."""
    before, files = rows(job, run), job.files()
    document = json.loads(run("compact", job.url, "nightly", "--json").stdout)
    outcomes = {one["stage"]: one["outcome"] for one in document["stages"]}
    assert outcomes == {
        job.orders.path.folder: "compacted",
        job.lines.path.folder: "compacted",
        job.unsealed.path.folder: "not sealed",
    }
    assert all(one["extents"] >= 8 for one in document["stages"] if one["segments"])
    assert job.files() > files
    assert rows(job, run) == before
    assert run("verify", job.url, "nightly").exit_code == 0
    again = run("compact", job.url, "nightly")
    assert again.stdout.count("compacted before: ") == 2


def test_nothing_to_gain(job: Any, run: Callable[..., Any]) -> None:
    """No extent is that small."""
    found = run("compact", job.url, "nightly", job.orders.path.folder, "--small-bytes", 1)
    assert found.stdout == f"{job.orders.path.folder}: nothing to gain\n"
