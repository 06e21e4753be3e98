"""`durable-shuffle verify --repair`: what it mends, what it names, and what it leaves alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from durable_shuffle.shuffle.log.note_unrecognised import note_unrecognised


def damage(job: Any, stage: Any, producer: int) -> Path:
    """Flip a bit in a segment of a producer."""
    folder = Path(job.url, stage.path.prefix, "segments")
    path = sorted(folder.rglob(f"p{producer:06d}-*.seg"))[0]
    data = bytearray(path.read_bytes())
    data[100] ^= 4
    path.write_bytes(data)
    return path


def rows(job: Any, run: Callable[..., Any]) -> list[str]:
    stage = job.orders.path.folder
    return run("cat", job.url, "nightly", stage, "--json").stdout.splitlines()


def test_repair_from_a_compaction(job: Any, run: Callable[..., Any]) -> None:
    """The rows are those of before, the exit status says that all is intact, JSON says what was
    done; a second call finds nothing to do."""
    before = rows(job, run)
    assert run("compact", job.url, "nightly", "orders").exit_code == 0
    path = damage(job, job.orders, 2)
    assert run("verify", job.url, "nightly").exit_code == 1
    result = run("verify", job.url, "nightly", "--repair", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["ok"] is True
    assert document["jobs"][0]["repairs"] == [
        {
            "stage": job.orders.path.folder,
            "outcome": "repaired",
            "producers_rebuilt": [2],
            "producers_to_run_again": [],
            "new_index": True,
            "why": "",
        }
    ]
    assert path.exists(), "what was replaced stays until the stage is released"
    assert rows(job, run) == before
    assert (
        json.loads(run("verify", job.url, "--repair", "--json").stdout)["jobs"][0]["repairs"] == []
    )
    details = json.loads(run("inspect", job.url, "nightly", "orders", "--json").stdout)["stage"]
    assert [p["commit_slot"] for p in details["producers"]] == [0, 0, 1]
    assert details["reruns"] == 0


def test_what_cannot_be_rebuilt_is_named(job: Any, run: Callable[..., Any]) -> None:
    """The producers that must run again, how, and that it is not intact yet."""
    damage(job, job.orders, 0)
    for _ in range(2):
        result = run("verify", job.url, "nightly", "orders", "--repair")
        assert result.exit_code == 1
        assert "run again: map tasks 0 must run again" in result.stdout
        assert "run the job again: it runs these producers alone" in result.stdout
    details = json.loads(run("inspect", job.url, "nightly", "orders", "--json").stdout)["stage"]
    assert details["damaged_producers"] == [0]
    assert "must run again" in run("inspect", job.url, "nightly", "orders").stdout


def test_what_is_not_repaired_is_left_alone(job: Any, run: Callable[..., Any]) -> None:
    """A stage without a seal, and a damaged record: nothing is written, the way out is named."""
    damage(job, job.unsealed, 2)
    record = Path(job.url, job.orders.path.producer_log_prefix(1), "0000000000")
    record.write_bytes(record.read_bytes()[:-1])
    before = {path: path.read_bytes() for path in Path(job.url).rglob("*") if path.is_file()}
    result = run("verify", job.url, "nightly", "--repair")
    assert result.exit_code == 1
    assert "the stage is not sealed yet: run the job" in result.stdout
    assert "a control record cannot be rebuilt" in result.stdout
    assert {p: p.read_bytes() for p in Path(job.url).rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("word", ["--repair", "Examples:", "nightly --repair"])
def test_help_tells_of_it(run: Callable[..., Any], word: str) -> None:
    """With an example."""
    assert word in run("verify", "--help").stdout


def test_why_a_stage_is_good_for_one_call(job: Any, run: Callable[..., Any]) -> None:
    """`inspect` has the reasons that a task or the driver noted."""
    where = ("inspect", job.url, "nightly", job.unsealed.path.folder)
    assert json.loads(run(*where, "--json").stdout)["stage"]["unrecognised"] == []
    reason = "/rates.json, opened by a Python function"
    note_unrecognised(job.unsealed, [reason], generation=1, record_id="a" * 32)
    assert json.loads(run(*where, "--json").stdout)["stage"]["unrecognised"] == [reason]
    text = run(*where).stdout
    assert "good for its call alone" in text
    assert reason in text
