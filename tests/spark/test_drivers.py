"""Competing drivers, dead drivers, killed executors, two attempts at one producer, killed readers.

Tests reach a moment by gates, which are files or pipes, never by time; SIGKILL ends processes.
"""

import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from other_driver import forget_claims, remember_claims
from processes import ancestor
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle import DurableShuffle
from durable_shuffle.bench.cluster.local_cluster import cluster_environment
from durable_shuffle.jobs.deploy.running_code import running_code
from durable_shuffle.jobs.engine.classic import ClassicEngine
from durable_shuffle.jobs.engine.tasks import MapJob, MapTasks, frames_function, map_function
from durable_shuffle.jobs.jvm_rows.route import RowsIn
from durable_shuffle.serialization.errors import ConflictError, FencedError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_floor import put_floor
from durable_shuffle.shuffle.log.job_log import JobLog, read_job
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.stage import open_stage
from durable_shuffle.shuffle.storage.local import LocalStorage

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

EXPECTED = sorted((i % 7, i) for i in range(40))


def numbers(session: SparkSession, partitions: int = 4) -> DataFrame:
    return session.range(0, 40, 1, partitions).selectExpr("id % 7 as k", "id as v")


def rows_of(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in df.collect())


def stage_folder(root: str) -> str:
    """Name of the one stage of the job."""
    (folder,) = (p.name for p in Path(root, "tests").iterdir() if p.name.startswith("repartition-"))
    return folder


def hashes(root: str) -> dict[str, str]:
    """Every file below the root, including hidden ones, with a digest of its bytes."""
    files = (p for p in Path(root).rglob("*") if p.is_file())
    return {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def wait_until(there: Callable[[], bool]) -> None:
    """Poll a condition; fail the test at the time limit."""
    deadline = time.monotonic() + 300
    while not there():
        assert time.monotonic() < deadline, "the moment never came"
        time.sleep(0.02)


@pytest.mark.sampled(1)
@pytest.mark.also_with_storage_faults
@pytest.mark.requirement("R-F135-7")
def test_older_driver_is_fenced(session: SparkSession, root: str) -> None:
    """The newest driver works; the older one stops at its next write and can still read."""
    df = numbers(session)
    older = DurableShuffle(session, root, job="tests")
    out = older.repartition(df, 3, "k")
    forget_claims()
    newer = DurableShuffle(session, root, job="tests")
    assert (older.generation, newer.generation) == (1, 2)
    for write in (lambda: older.repartition(df, 4, "k"), lambda: older.durable(df), older.release):
        with pytest.raises(FencedError, match="mine=generation 1, newest=generation 2"):
            write()
    assert rows_of(newer.repartition(df, 4, "k")) == EXPECTED
    assert rows_of(out) == EXPECTED
    assert len(newer.stages()) == 2


@pytest.mark.requirement("R-F135-7")
def test_older_process_is_fenced(session: SparkSession, root: str, programs: Any) -> None:
    """All tasks have attempt number 0; of two processes, the one that claimed first stops."""
    older = programs.start("waiting_driver", root)
    assert programs.answer(older) == {"generation": 1}
    newer = DurableShuffle(session, root, job="tests")
    assert newer.generation == 2
    before = hashes(root)
    programs.tell(older, "go")
    answer = programs.answer(older)
    assert answer["kind"] == "fenced"
    assert "another driver took over job 'tests'" in answer["message"]
    assert {key: hashes(root)[key] for key in before} == before
    assert newer.stages() == []
    assert rows_of(newer.repartition(numbers(session), 3, "k")) == EXPECTED


def test_driver_that_loses_its_job_in_mid_map_does_not_seal(
    session: SparkSession, root: str, tmp_path: Path
) -> None:
    """It stops although all its producers committed; the newer driver uses their commits."""
    at_gate, gate = str(tmp_path / "at-gate"), str(tmp_path / "gate")

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time
        from pathlib import Path

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 3:
            Path(at_gate).touch()
            deadline = time.monotonic() + 300
            while not Path(gate).exists() and time.monotonic() < deadline:
                time.sleep(0.02)
        yield from batches

    df = numbers(session).mapInArrow(wait, "k long, v long")
    older = DurableShuffle(session, root, job="tests", version="1")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(older.repartition, df, 3, "k")
        wait_until(lambda: Path(at_gate).exists() or running.done())
        forget_claims()
        newer = DurableShuffle(session, root, job="tests", version="1")
        Path(gate).touch()
        with pytest.raises(FencedError, match="newest=generation 2"):
            running.result()
    assert [stage.status for stage in newer.stages()] == ["partial"]
    assert rows_of(newer.repartition(df, 3, "k")) == EXPECTED
    (stage,) = newer.report().stages
    assert (stage.action, stage.map_tasks_run, stage.map_tasks_reused) == ("resumed", 0, 4)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("call", ["query", "checkpoint"])
@pytest.mark.parametrize("map_tasks", ["run", "committed before"])
def test_driver_whose_log_was_purged_hands_out_no_rows(
    session: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch, call: str, map_tasks: str
) -> None:
    """Another driver takes over and purges the job's log behind the last look of this one, which
    finds empty slots from then on: it learns of it from the floor. It does if it only seals."""
    df = numbers(session).groupBy("k").sum("v").groupBy("sum(v)").count()
    if map_tasks == "committed before":  # by a driver that died before it sealed its last stage
        first = DurableShuffle(session, root, job="tests", retention="until_released")
        rows_of(getattr(first, call)(df))
        (*_, last) = (stage.path("tests").prefix for stage in first.stages())
        ends = [*Path(root, last, "log").glob("*1"), *Path(root, last, "index").iterdir()]
        assert len(ends) == 2
        for end in ends:
            end.unlink()
        forget_claims()
    shuffle = DurableShuffle(session, root, job="tests", retention="until_released")
    storage, look, purged = LocalStorage(root), JobLog.look, []

    def then_purged(log: JobLog) -> None:
        look(log)
        if not purged:
            newer = JobLog.claim(storage, "tests", "e" * 32)
            assert put_floor(storage, newer.state, "f" * 32)
            storage.delete([f"tests/log/{n:010d}" for n in range(newer.state.next_slot)])
            purged.append(newer.state)

    monkeypatch.setattr(JobLog, "look", then_purged)
    with pytest.raises(FencedError, match=f"newest=generation {shuffle.generation + 1}"):
        getattr(shuffle, call)(df)
    found = read_job(storage, "tests")
    assert (found.owner, found.live) == ("e" * 32, purged[0].live)


def test_conflict_is_refused_on_request(session: SparkSession, root: str) -> None:
    """`on_conflict="fail"` refuses a job while another driver is active, which is not disturbed; a
    second object of the same process shares the claim."""
    first = DurableShuffle(session, root, job="tests", on_conflict="fail")
    second = DurableShuffle(session, root, job="tests", on_conflict="fail")
    assert (first.generation, second.generation) == (1, 1)
    claims = forget_claims()
    with pytest.raises(ConflictError, match="job 'tests' is claimed by generation 1"):
        DurableShuffle(session, root, job="tests", on_conflict="fail")
    assert DurableShuffle(session, root, job="other", on_conflict="fail").generation == 1
    remember_claims(claims)
    with second:
        pass
    assert rows_of(first.repartition(numbers(session), 3, "k")) == EXPECTED
    first.close()
    forget_claims()
    with DurableShuffle(session, root, job="tests", on_conflict="fail") as third:
        assert third.generation == 2
        assert len(third.stages()) == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first_to_commit", ["orphan", "new driver"])
def test_orphan_of_a_dead_driver(
    session: SparkSession,
    root: str,
    breaker: Any,
    programs: Any,
    committed_producers: Callable[[str], set[int]],
    first_to_commit: str,
) -> None:
    """If a worker commits after its driver died, it wins or loses completely: rows are right."""
    df = numbers(session).mapInArrow(breaker.function(3, after=3), "k long, v long")
    with pytest.raises(Exception, match="broken on purpose"):
        DurableShuffle(session, root, job="tests").repartition(df, 3, "k")
    assert committed_producers(root) == {0, 1, 2}
    breaker.mend()
    orphan = programs.start("late_producer", root, stage_folder(root), 3, 30, 40)
    assert programs.answer(orphan) == {"at": "commit"}
    shuffle = DurableShuffle(session, root, job="tests")
    if first_to_commit == "orphan":
        programs.tell(orphan, "go")
        assert programs.answer(orphan) == {"outcome": "won"}
        out = shuffle.repartition(df, 3, "k")
    else:
        out = shuffle.repartition(df, 3, "k")
        assert rows_of(out) == EXPECTED
        sealed = hashes(root)
        programs.tell(orphan, "go")
        assert programs.answer(orphan)["outcome"] in ("lost", "aborted")
        assert {key: hashes(root).get(key) for key in sealed} == sealed
    assert rows_of(out) == EXPECTED
    (stage,) = shuffle.report().stages
    ran = 0 if first_to_commit == "orphan" else 1
    assert (stage.map_tasks_run, stage.map_tasks_reused) == (ran, 4 - ran)
    assert len(list(Path(root).rglob("*.seg"))) == 4, "one segment per producer, no orphan is left"
    again = DurableShuffle(session, root, job="tests").repartition(df, 3, "k")
    assert rows_of(again) == EXPECTED


def test_executor_killed_in_mid_map(tmp_path: Path, root: str, programs: Any) -> None:
    """SIGKILL of an executor: the rest runs elsewhere, and no committed producer runs again."""
    folder = tmp_path / "gate"
    (folder / "runs").mkdir(parents=True)
    driver = programs.start(
        "cluster_driver", root, folder, env=cluster_environment(tmp_path, os.environ)
    )
    worker = folder / "worker"
    wait_until(lambda: worker.exists() or driver.poll() is not None)
    assert driver.poll() is None, "the driver ended early"
    executor = ancestor(int(worker.read_text()), "CoarseGrainedExecutorBackend")
    assert os.getsid(executor) == driver.pid, "only processes of that driver are killed"
    os.kill(executor, signal.SIGKILL)
    answer = programs.answer(driver)
    assert [tuple(row) for row in answer["rows"]] == EXPECTED
    (stage,) = answer["stages"]
    assert (stage["map_tasks"], stage["map_tasks_run"], stage["map_tasks_rerun"]) == (6, 6, 0)
    assert stage["retries"] >= 1
    runs = {int(p.name): len(p.read_text().splitlines()) for p in (folder / "runs").iterdir()}
    assert (set(runs), runs[2]) == (set(range(6)), 2)
    assert sum(runs.values()) <= 8, "at most the tasks of one executor ran twice"


@pytest.mark.parametrize("rows_in", ["jvm", "python"])
def test_twin_of_a_producer_returns_the_winners_result(
    session: SparkSession, root: str, tmp_path: Path, rows_in: RowsIn
) -> None:
    """Two attempts at one producer that both wrote end with one COMMIT, which both report."""
    folder = tmp_path / "twins"
    folder.mkdir()
    meeting = str(folder)

    engine = ClassicEngine(session, rows_in)
    shuffle = DurableShuffle(session, root, job="tests", reuse="never")
    df = numbers(session, 2)
    # the run that creates the stage cannot end, so the stage is described but not sealed
    with pytest.raises(Exception, match="refuse"):
        shuffle.repartition(df.mapInArrow(_refuse(), "k long, v long"), 3, "k")
    name, fingerprint, incarnation = stage_folder(root).rsplit("-", 2)
    stage = open_stage(LocalStorage(root), StagePath("tests", name, fingerprint, incarnation))
    tasks = MapTasks(stage, 2, Settings(), 1, running_code(), ends=engine.ends_partitions)
    function = frames_function(tasks) if rows_in == "jvm" else map_function(tasks)

    def meet(given: Iterator[Any]) -> Iterator[Any]:
        import time
        from pathlib import Path

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        Path(meeting, str(context.taskAttemptId())).touch()
        deadline = time.monotonic() + 300
        while len(list(Path(meeting).iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        yield from given

    def write_as_twins(given: Iterator[Any]) -> Iterator[Any]:
        # a writer asks for rows after it saw that there is no COMMIT: there they wait
        return function(meet(given))

    planned = engine.plan(df, ("k",), 3, engine.planning_settings(), large_rows=False)
    job = MapJob([1, 1], "twins")
    if rows_in == "jvm":
        results = engine.store_pieces(engine.pieces(planned, tasks), write_as_twins, job)
    else:
        results = engine.run(planned, write_as_twins, job)
    assert len({result.committed.commit.record_id for result in results}) == 1
    assert sorted((result.wrote, result.won) for result in results) == [(True, False), (True, True)]
    attempts = {p.name.split("-")[1] for p in Path(root).rglob("p000001-*.seg")}
    assert attempts == {results[0].committed.commit.record_id}, "the loser's segment is gone"


def _refuse() -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def refuse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise RuntimeError("refuse")

    return refuse


@pytest.mark.requirement("R-F135-1")
def test_killed_reader_changes_no_byte(session: SparkSession, root: str, programs: Any) -> None:
    """A reader SIGKILLed inside a partition leaves every object unchanged."""
    shuffle = DurableShuffle(session, root, job="tests")
    out = shuffle.repartition(numbers(session), 1, "k")
    before = hashes(root)
    reader = programs.start("stopped_reader", root, stage_folder(root))
    assert 0 < programs.answer(reader)["rows"] < 40
    programs.kill(reader)
    assert reader.returncode == -signal.SIGKILL
    assert hashes(root) == before
    assert rows_of(out) == EXPECTED
    assert hashes(root) == before


@pytest.mark.requirement("R-F135-1")
def test_killed_worker_changes_no_byte(session: SparkSession, root: str) -> None:
    """A Python worker killed while reading fails only its own job, and changes nothing."""
    shuffle = DurableShuffle(session, root, job="tests", version="1")
    out = shuffle.repartition(numbers(session), 2, "k")
    before = hashes(root)

    def die(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import signal

        for _ in batches:
            os.kill(os.getpid(), signal.SIGKILL)
        yield from ()

    with pytest.raises(Exception, match="Python worker exited unexpectedly"):
        out.mapInArrow(die, "k long").collect()
    assert hashes(root) == before
    assert rows_of(out) == EXPECTED
