"""Kills where the JVM encodes and decodes rows: of a Python worker, of an executor, of a job.

A worker is killed when segments of its attempt are stored already, or when the JVM has taken blocks
from it. Nothing waits for a time, and a kill that did not happen fails its test.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from other_driver import forget_claims
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle import DurableShuffle, Settings
from durable_shuffle.bench.cluster.faults import EXECUTOR, session_processes
from durable_shuffle.bench.cluster.local_cluster import cluster_environment
from durable_shuffle.jobs.engine import tasks
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.release.gc_run import GcReport, collect_garbage
from durable_shuffle.shuffle.storage.local import LocalStorage

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

Died = (PySparkException, Py4JJavaError)
Sent = Iterator[bytes]
SMALL = Settings(writer_memory_bytes=1 << 16, frame_bytes=1 << 12)
ROWS, VICTIM = 60_000, 2


def rows(session: SparkSession) -> DataFrame:
    return session.range(0, ROWS, 1, 3).selectExpr("id", "repeat(CAST(id AS string), 9) AS text")


def opened(session: SparkSession, root: str) -> DurableShuffle:
    return DurableShuffle(session, root, job="tests", rows_in="jvm", settings=SMALL)


def contents(df: DataFrame) -> list[list[tuple[Any, ...]]]:
    """The rows of each partition, sorted."""
    return [sorted(map(tuple, part)) for part in df.rdd.glom().collect()]


def in_mid_write(root: str, then: Callable[[], None]) -> Callable[[Sent], Sent]:
    """Pass pieces on, in one producer, and call `then` when segments of it are stored."""
    stored = f"tests/*/segments/*/p{VICTIM:06d}-*.seg"

    def watch(pieces: Sent) -> Sent:
        from pathlib import Path

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for piece in pieces:
            yield piece
            if context.partitionId() == VICTIM and any(Path(root).glob(stored)):
                then()

    return watch


def between_jvm_and_worker(monkeypatch: pytest.MonkeyPatch, change: Callable[[Sent], Sent]) -> None:
    """Let workers that store frames take them through `change`."""
    whole = tasks.frames_function

    def changed(map_tasks: Any) -> Any:
        write = whole(map_tasks)
        return lambda pieces: write(change(pieces))

    monkeypatch.setattr("durable_shuffle.jobs.engine.classic.frames_function", changed)


def dying(marker: Path) -> Callable[[], None]:
    """SIGKILL this worker, once."""
    path = str(marker)

    def die() -> None:
        import os
        import signal
        from pathlib import Path

        if not Path(path).exists():
            Path(path).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return die


def garbage(root: str, *, delete: bool = False) -> GcReport:
    return collect_garbage(
        LocalStorage(root),
        "tests",
        ids=RandomIds(),
        clock=SystemClock(),
        settings=Settings(),
        older_than_seconds=0,
        delete=delete,
    )


def named(root: str) -> tuple[int, int]:
    """How many segments of dead attempts gc names, and nothing else; how much it cannot explain."""
    found = garbage(root)
    assert all("/segments/" in item.key for item in found.orphans)
    return len(found.orphans), len(found.unknown)


def test_worker_killed_in_mid_write(
    session: SparkSession, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments of the dead attempt never count, gc names them all, and one producer runs again."""
    died = tmp_path / "died"
    between_jvm_and_worker(monkeypatch, in_mid_write(root, dying(died)))
    shuffle = opened(session, root)
    with pytest.raises(Died):
        shuffle.repartition(rows(session), 4, "id")
    assert died.exists()
    left = {p.name for p in Path(root).rglob(f"p{VICTIM:06d}-*.seg")}
    assert left
    stored = shuffle.repartition(rows(session), 4, "id")
    assert contents(stored) == contents(rows(session).repartition(4, "id"))
    (stage,) = shuffle.report().stages
    assert (stage.action, stage.map_tasks_rerun) == ("resumed", 0)
    orphans = {p.name for p in Path(root).rglob("*.seg")} & left
    assert named(root) == (len(orphans), 0)
    garbage(root, delete=True)
    assert not {p.name for p in Path(root).rglob("*.seg")} & left
    assert contents(stored) == contents(rows(session).repartition(4, "id"))


def test_worker_killed_in_mid_read(
    session: SparkSession, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that sends blocks to the JVM dies behind its first block."""
    monkeypatch.setattr(tasks, "stored_files", lambda *_: None)
    whole, die = tasks.blocks_of, dying(tmp_path / "died")

    def dies(frames: Any) -> Sent:
        for block in whole(frames, block_bytes=4096):
            yield block
            die()

    monkeypatch.setattr(tasks, "blocks_of", dies)
    stored = opened(session, root).repartition(rows(session), 4, "id")
    with pytest.raises(Died):
        stored.collect()
    assert (tmp_path / "died").exists()
    assert contents(stored) == contents(rows(session).repartition(4, "id"))


def test_a_cancelled_job_leaves_only_what_gc_names(
    session: SparkSession, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is cancelled while one producer has stored segments and waits; Spark ends its
    worker."""
    at_gate = tmp_path / "at-gate"
    reached = str(at_gate)

    def wait() -> None:
        import os
        import time
        from pathlib import Path

        Path(f"{reached}.new").write_text(str(os.getpid()))
        Path(f"{reached}.new").rename(reached)
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            time.sleep(0.02)

    between_jvm_and_worker(monkeypatch, in_mid_write(root, wait))
    shuffle = opened(session, root)
    context = session.sparkContext
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(shuffle.repartition, rows(session), 4, "id")
        until(lambda: at_gate.exists() or running.done())
        context.cancelAllJobs()
        with pytest.raises(Died, match=r"(?i)cancel"):
            running.result()
    with suppress(ProcessLookupError):  # Spark ends it, too, unless the task had ended before
        os.kill(int(at_gate.read_text()), signal.SIGKILL)
    until(lambda: has_ended(at_gate.read_text()))
    monkeypatch.undo()
    forget_claims()
    count, unknown = named(root)
    assert count > 0
    assert unknown == 0

    def deleted() -> bool:  # a worker of another task may write for two seconds more
        garbage(root, delete=True)
        return named(root) == (0, 0)

    until(deleted)
    forget_claims()
    stored = opened(session, root).repartition(rows(session), 4, "id")
    assert contents(stored) == contents(rows(session).repartition(4, "id"))


def has_ended(process: str) -> bool:
    """Whether a process is gone, or dead and not yet collected by its parent."""
    try:
        stat = Path("/proc", process, "stat").read_text()
    except FileNotFoundError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not there():
        assert time.monotonic() < deadline, "the moment never came"
        time.sleep(0.02)


@pytest.mark.soak
def test_executors_killed_in_mid_write_and_in_mid_read(
    tmp_path: Path, root: str, programs: Any
) -> None:
    """SIGKILL of the executor that stores frames, then of one whose JVM reads files."""
    folder = tmp_path / "gates"
    folder.mkdir()
    env = cluster_environment(tmp_path, os.environ)
    driver = programs.start("jvm_rows_driver", root, folder, env=env)
    for step in ("write", "read"):
        until(lambda step=step: (folder / step).exists() or driver.poll() is not None)
        assert driver.poll() is None, f"the driver ended before its {step}"
        worker = int((folder / step).read_text())
        os.kill(executor_of(worker, driver.pid), signal.SIGKILL)
        with suppress(ProcessLookupError):  # else it may commit what it has, without its JVM
            os.kill(worker, signal.SIGKILL)
        (folder / f"{step}-go-on").touch()
    answer = programs.answer(driver)
    assert answer["equal"]
    assert answer["second_attempt"]
    (stage,) = answer["stages"]
    assert (stage["map_tasks_run"], stage["map_tasks_rerun"]) == (3, 0)
    found = garbage(root)
    assert not found.unknown
    assert all("/segments/" in item.key for item in found.orphans)


def executor_of(pid: int, session: int) -> int:
    """The process at or above `pid` that is an executor of the driver's process session."""
    mine = session_processes(session)
    while EXECUTOR not in mine.get(pid, ""):
        assert pid > 1, "no executor above"
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        pid = int(fields[1])
    return pid
