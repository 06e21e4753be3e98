"""Attempts of one producer that race, are paused, aborted or answered by silence: one counts.

Racing and stopped attempts are real processes on local files, held at a gate right before their
COMMIT. Their rows differ, so that a mix of two attempts would show.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from small_stage import (
    SeededIds,
    new_stage,
    read_rows,
    records_below,
    seal,
)

from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.release.stages import delete_orphans, release_stage
from durable_shuffle.shuffle.storage.local import LocalStorage

PARTITIONS = 3
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


@pytest.fixture
def stage(tmp_path: Path, ids: SeededIds) -> StageHandle:
    """A stage of one producer on local files."""
    return new_stage(LocalStorage(tmp_path), ids, SCHEMA, partitions=PARTITIONS)


def rows_of(salt: int) -> dict[int, list[dict[str, object]]]:
    """What a stage of the one attempt with this salt must read as."""
    found: dict[int, list[dict[str, object]]] = {k: [] for k in range(PARTITIONS)}
    for r in range(80):
        found[(r * 7 + salt) % PARTITIONS].append({"k": r, "v": f"{salt}:{r}:".ljust(2000, "x")})
    return found


def owners(stage: StageHandle) -> set[str]:
    """Attempts that have segments on storage."""
    return {i.key.split("-")[-2] for i in stage.storage.list(stage.path.segments_prefix)}


def producer_records(stage: StageHandle) -> list[tuple[str, str]]:
    """(kind, attempt) of the records in the producer's log."""
    return [
        (kind, fields["attempt"] if kind == "ABORT" else fields["record_id"])
        for _, kind, fields in records_below(stage.storage, stage.path.producer_log_prefix(0))
    ]


def assert_reads_as(stage: StageHandle, salt: int, ids: SeededIds) -> None:
    """The sealed stage holds the rows of exactly this salt."""
    sealed = seal(stage, 1, ids.new_id())
    assert {k: read_rows(stage, sealed, k) for k in range(PARTITIONS)} == rows_of(salt)


@pytest.mark.parametrize(
    "rounds", [8, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
def test_racing_attempts_one_counts_and_the_loser_returns_it(
    tmp_path: Path, ids: SeededIds, spawn: Callable[[int], list[Any]], rounds: int
) -> None:
    """Two processes commit at the same moment: one wins, the other hands back the winner's."""
    racers = spawn(2)
    for _ in range(rounds):
        stage = new_stage(LocalStorage(tmp_path), ids, SCHEMA, partitions=PARTITIONS)
        attempts = [ids.new_id(), ids.new_id()]
        for salt, (racer, attempt) in enumerate(zip(racers, attempts, strict=True)):
            racer.start(stage, attempt, salt)
        assert [r.heard() for r in racers] == [{"at": "commit"}] * 2
        assert owners(stage) == set(attempts)
        for racer in racers:
            racer.tell("go")
        told = [r.heard() for r in racers]
        assert sorted(t["outcome"] for t in told) == ["lost", "won"]
        winner = [t["outcome"] for t in told].index("won")
        assert [t["commit"] for t in told] == [attempts[winner]] * 2
        assert owners(stage) == {attempts[winner]}
        assert producer_records(stage) == [
            ("COMMIT", attempts[winner]),
            ("ABORT", attempts[1 - winner]),
        ]
        assert_reads_as(stage, winner, ids)


@pytest.mark.requirement("R-F135-7")
@pytest.mark.requirement("R-F135-18")
def test_attempt_stopped_before_its_commit_wakes_up_to_its_abort(
    stage: StageHandle, ids: SeededIds, spawn: Callable[[int], list[Any]]
) -> None:
    """A process frozen by SIGSTOP is cleaned up and replaced; it wakes up and commits nothing."""
    stopped, other = spawn(2)
    slow, fast = ids.new_id(), ids.new_id()
    stopped.start(stage, slow, 1)
    assert stopped.heard() == {"at": "commit"}
    os.kill(stopped.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, stopped.process.pid, os.WSTOPPED | os.WNOWAIT)
    assert owners(stage) == {slow}
    freed = delete_orphans(stage, ids, cause="believed dead")
    assert freed.objects == 2
    assert owners(stage) == set()
    other.start(stage, fast, 2, gate="")
    assert other.heard() == {"outcome": "won", "commit": fast}
    before = producer_records(stage)
    stopped.tell("go")
    os.kill(stopped.process.pid, signal.SIGCONT)
    told = stopped.heard()
    assert told["outcome"] == "AbortedError"
    assert "believed dead" in told["message"]
    assert producer_records(stage) == before == [("ABORT", slow), ("COMMIT", fast)]
    assert owners(stage) == {fast}
    assert_reads_as(stage, 2, ids)


def test_attempt_stopped_before_its_commit_loses_to_one_that_committed(
    stage: StageHandle, ids: SeededIds, spawn: Callable[[int], list[Any]]
) -> None:
    """Without a cleaner, the frozen attempt wakes up to another's COMMIT and returns that."""
    stopped, other = spawn(2)
    slow, fast = ids.new_id(), ids.new_id()
    stopped.start(stage, slow, 1)
    assert stopped.heard() == {"at": "commit"}
    os.kill(stopped.process.pid, signal.SIGSTOP)
    other.start(stage, fast, 2, gate="")
    assert other.heard() == {"outcome": "won", "commit": fast}
    stopped.tell("go")
    os.kill(stopped.process.pid, signal.SIGCONT)
    assert stopped.heard() == {"outcome": "lost", "commit": fast}
    assert owners(stage) == {fast}
    assert_reads_as(stage, 2, ids)


def test_attempt_stopped_across_a_release_is_fenced(
    stage: StageHandle, ids: SeededIds, spawn: Callable[[int], list[Any]]
) -> None:
    """The stage is released while the attempt is frozen: FencedError, nothing left behind."""
    (stopped,) = spawn(1)
    stopped.start(stage, ids.new_id(), 1)
    assert stopped.heard() == {"at": "commit"}
    os.kill(stopped.process.pid, signal.SIGSTOP)
    release_stage(stage, ids, generation=1, producers=1, cause="no longer wanted")
    stopped.tell("go")
    os.kill(stopped.process.pid, signal.SIGCONT)
    told = stopped.heard()
    assert told["outcome"] == "FencedError"
    assert "no longer wanted" in told["message"]
    assert [kind for kind, _ in producer_records(stage)] == ["CLOSED"]
    assert owners(stage) == set()


def test_attempt_killed_before_its_commit_leaves_nothing_that_counts(
    stage: StageHandle, ids: SeededIds, spawn: Callable[[int], list[Any]]
) -> None:
    """SIGKILL at the gate: its segments are orphans, the next attempt's rows count alone."""
    killed, other = spawn(2)
    dead, alive = ids.new_id(), ids.new_id()
    killed.start(stage, dead, 1)
    assert killed.heard() == {"at": "commit"}
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.process.wait()
    assert producer_records(stage) == []
    other.start(stage, alive, 2, gate="")
    assert other.heard()["outcome"] == "won"
    assert owners(stage) == {dead, alive}
    delete_orphans(stage, ids, cause="dead")
    assert owners(stage) == {alive}
    assert_reads_as(stage, 2, ids)
