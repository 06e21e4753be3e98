"""Producers that are at work, killed or gone while their stage is released or collected.

Producers are real processes on local files, held at a gate in the middle of writing a segment or
right before their COMMIT. What must be left is known from what was committed, by looking at files.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from small_stage import SeededIds, new_stage, read_rows, seal

from durable_shuffle.shuffle.base.clock import SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.records import StageUse
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.release.gc_run import GcReport, collect_garbage
from durable_shuffle.shuffle.release.retention import Keep
from durable_shuffle.shuffle.release.stages import release_consumed, release_stage_of
from durable_shuffle.shuffle.storage.local import LocalStorage

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
Spawn = Callable[[int], list[Any]]


@pytest.fixture
def log(tmp_path: Path, ids: SeededIds) -> JobLog:
    """A claimed job on local files."""
    return JobLog.claim(LocalStorage(tmp_path), "job", ids.new_id())


@pytest.fixture
def stage(log: JobLog, tmp_path: Path, ids: SeededIds) -> StageHandle:
    """A stage of one producer that the job's log names."""
    stage = new_stage(LocalStorage(tmp_path), ids, SCHEMA, partitions=3)
    path = stage.path
    log.append(StageUse(ids.new_id(), 1, path.name, path.fingerprint, path.incarnation))
    return stage


def data(root: Path) -> list[str]:
    """All files that are no slot of a log, hidden ones too."""
    files = (p for p in root.rglob("*") if p.is_file())
    return sorted(p.relative_to(root).as_posix() for p in files if not p.name.isdigit())


def collect(root: Path, ids: SeededIds) -> GcReport:
    """Collect; every temporary file is old enough."""
    return collect_garbage(
        LocalStorage(root),
        "job",
        ids=ids,
        clock=SystemClock(),
        settings=Settings(),
        older_than_seconds=0,
        delete=True,
    )


def kill(attempt: Any) -> None:
    """End a process without a word."""
    os.kill(attempt.process.pid, signal.SIGKILL)
    assert attempt.process.wait() == -signal.SIGKILL


@pytest.mark.requirement("R-F135-4")
@pytest.mark.parametrize("gate", ["segment", "commit"])
def test_release_during_an_append_fences_the_writer_which_takes_its_data_along(
    log: JobLog, stage: StageHandle, tmp_path: Path, ids: SeededIds, spawn: Spawn, gate: str
) -> None:
    """The writer gets a clean error, and no half object remains, whoever deleted it."""
    (writer,) = spawn(1)
    writer.start(stage, ids.new_id(), 1, gate=gate)
    assert writer.heard() == {"at": gate}
    assert data(tmp_path)  # half an object, or a whole one without COMMIT
    release_stage_of(log, LocalStorage(tmp_path), stage.path, ids)
    writer.tell("go")
    told = writer.heard()
    assert told["outcome"] == "FencedError"
    assert "released by generation 1" in told["message"]
    assert data(tmp_path) == []


@pytest.mark.requirement("R-F135-4")
@pytest.mark.parametrize("gate", ["segment", "commit"])
def test_writer_that_is_killed_while_its_stage_is_released_leaves_it_to_gc(
    log: JobLog, stage: StageHandle, tmp_path: Path, ids: SeededIds, spawn: Spawn, gate: str
) -> None:
    """Whatever the dead could not take along, the next collection does."""
    (writer,) = spawn(1)
    writer.start(stage, ids.new_id(), 1, gate=gate)
    assert writer.heard() == {"at": gate}
    release_stage_of(log, LocalStorage(tmp_path), stage.path, ids)
    assert len(data(tmp_path)) == (1 if gate == "segment" else 0)
    kill(writer)
    report = collect(tmp_path, ids)
    assert report.freed.objects == (1 if gate == "segment" else 0)
    assert data(tmp_path) == []


@pytest.mark.requirement("R-F135-2")
@pytest.mark.parametrize("gate", ["segment", "commit"])
def test_killed_attempt_is_collected_and_its_successor_commits(
    stage: StageHandle, tmp_path: Path, ids: SeededIds, spawn: Spawn, gate: str
) -> None:
    """Died before its COMMIT: all it wrote goes; the next attempt is not in the way of it."""
    dead, next_one = spawn(2)
    dead.start(stage, ids.new_id(), 1, gate=gate)
    assert dead.heard() == {"at": gate}
    kill(dead)
    assert data(tmp_path)
    assert collect(tmp_path, ids).unknown == ()
    assert data(tmp_path) == []
    next_one.start(stage, ids.new_id(), 2, gate="")
    assert next_one.heard()["outcome"] == "won"
    sealed = seal(stage, 1, ids.new_id())
    assert sum(len(read_rows(stage, sealed, k)) for k in range(3)) == 80


def test_gc_meets_a_slow_attempt_at_its_commit(
    stage: StageHandle, tmp_path: Path, ids: SeededIds, spawn: Spawn
) -> None:
    """N24: gc aborts it before anything is deleted, so it cannot commit what is gone."""
    (slow,) = spawn(1)
    slow.start(stage, ids.new_id(), 1)
    assert slow.heard() == {"at": "commit"}
    report = collect(tmp_path, ids)
    assert report.freed.objects > 0
    slow.tell("go")
    told = slow.heard()
    assert told["outcome"] == "AbortedError"
    assert "failed before commit: collected by generation 2" in told["message"]
    assert data(tmp_path) == []


@pytest.mark.requirement("R-F135-3")
def test_executor_lost_after_its_commit_releases_nothing(
    log: JobLog, stage: StageHandle, tmp_path: Path, ids: SeededIds, spawn: Spawn
) -> None:
    """Committed is committed: neither its death nor release nor gc takes a byte."""
    (executor,) = spawn(1)
    executor.start(stage, ids.new_id(), 5, gate="")
    assert executor.heard()["outcome"] == "won"
    before = {name: (tmp_path / name).read_bytes() for name in data(tmp_path)}
    kill(executor)
    kept = release_consumed(log, LocalStorage(tmp_path), stage.path, ids)
    assert isinstance(kept, Keep)
    assert collect(tmp_path, ids).orphans == ()
    assert {name: (tmp_path / name).read_bytes() for name in data(tmp_path)} == before
    sealed = seal(stage, 1, ids.new_id())
    assert sum(len(read_rows(stage, sealed, k)) for k in range(3)) == 80
    assert collect(tmp_path, ids).orphans == ()
