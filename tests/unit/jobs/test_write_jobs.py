"""Write jobs as Spark calls them, without Spark: commit again, overwrite, give up, clean up."""

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType
from small_stage import ManualClock

from durable_shuffle.jobs.streaming import writing
from durable_shuffle.jobs.streaming.options import read_options, write_options
from durable_shuffle.jobs.streaming.reading import stage_of
from durable_shuffle.jobs.streaming.writing import BatchWriter
from durable_shuffle.serialization.errors import (
    AbortedError,
    InvalidInputError,
    NotFoundError,
)
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import read_job
from durable_shuffle.shuffle.release.gc_run import GcReport, collect_garbage
from durable_shuffle.shuffle.storage.open import open_storage
from durable_shuffle.shuffle.stream.scan import read_row_ranges, standing_rows
from durable_shuffle.shuffle.verify.job import verify_job

SPARK_SCHEMA = StructType().add("n", LongType())
FUTURE = 1e12


class FakeTask:
    """What a writing task asks Spark for."""

    def __init__(self, numbers: Any) -> None:
        self._numbers = numbers

    def partitionId(self) -> int:
        return next(self._numbers)


class Job:
    """One write job: two tasks and a commit."""

    def __init__(self, folder: Path, mode: str, **options: str) -> None:
        place = {"url": str(folder), "job": "job", "stage": "stage", "partitions": "3"}
        found = write_options({**place, **options})
        self.writer = BatchWriter(found, SPARK_SCHEMA, overwrite=mode == "overwrite")
        self.messages: list[Any] = []

    def write(self, first: int, end: int) -> None:
        middle = (first + end) // 2
        for part in ((first, middle), (middle, end)):
            batch = pa.record_batch([pa.array(range(*part), pa.int64())], names=["n"])
            self.messages.append(self.writer.write(iter([batch])))

    def commit(self) -> None:
        self.writer.commit(self.messages)

    def abort(self) -> None:
        self.writer.abort(self.messages)


@pytest.fixture(autouse=True)
def _task(monkeypatch: pytest.MonkeyPatch) -> None:
    task = FakeTask(itertools.count())
    monkeypatch.setattr(writing, "_context", lambda: task)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "root"


def save(folder: Path, mode: str, first: int, end: int, **options: str) -> Job:
    job = Job(folder, mode, **options)
    job.write(first, end)
    job.commit()
    return job


def rows(folder: Path) -> Counter[int]:
    place = {"url": str(folder), "job": "job", "stage": "stage"}
    stage = stage_of(read_options(place, stream=False))
    found = read_row_ranges(stage, standing_rows(stage), Settings())
    return Counter(n for batch in found for n in batch.column(0).to_pylist())


def segments(folder: Path) -> int:
    return len(list(folder.glob("*/*/segments/*/*.seg")))


def collect(folder: Path, *, older_than: float = 0.0) -> GcReport:
    return collect_garbage(
        open_storage(str(folder)),
        "job",
        ids=RandomIds(),
        clock=ManualClock(FUTURE, []),
        settings=Settings(),
        older_than_seconds=older_than,
        delete=True,
    )


def check(folder: Path) -> None:
    """Nothing is unknown, and verify finds nothing."""
    report = verify_job(open_storage(str(folder)), "job", Settings())
    assert report.ok, report
    assert collect(folder).unknown == ()


def test_both_modes_may_be_committed_again(folder: Path) -> None:
    """Rows stand once, also if others wrote meanwhile."""
    first = save(folder, "append", 0, 100)
    other = save(folder, "append", 100, 150)
    first.commit()
    other.commit()
    assert rows(folder) == Counter(range(150))
    new = save(folder, "overwrite", 500, 520)
    new.commit()
    save(folder, "append", 520, 530)
    new.commit()
    assert rows(folder) == Counter(range(500, 530))
    newest = save(folder, "overwrite", 0, 5)
    new.commit()
    newest.commit()
    assert rows(folder) == Counter(range(5))
    check(folder)


def test_an_overwrite_releases_what_it_replaced(folder: Path) -> None:
    """Each one the stage before; with keepReplaced it stays until somebody releases it."""
    save(folder, "append", 0, 100)
    count = segments(folder)
    for n in range(4):
        save(folder, "overwrite", n, n + 100)
        assert segments(folder) == count
    save(folder, "overwrite", 7, 107, keepReplaced="true")
    assert segments(folder) == 2 * count
    assert rows(folder) == Counter(range(7, 107))
    assert len(read_job(open_storage(str(folder)), "job").order) == 2
    check(folder)
    with pytest.raises(InvalidInputError, match="must be true or false"):
        Job(folder, "overwrite", keepReplaced="perhaps")


@pytest.mark.parametrize("died", ["planned", "wrote", "appended"])
def test_gc_takes_what_a_dead_overwrite_left(folder: Path, died: str) -> None:
    """Wherever it died: all of its rows go, what stood stays; a commit after that is refused."""
    save(folder, "append", 0, 100)
    count = segments(folder)
    job = Job(folder, "overwrite")
    if died != "planned":
        job.write(500, 600)
    if died == "appended":
        writing._commit(job.messages, 0)  # dies between its two records
    assert rows(folder) == Counter(range(100))
    assert collect(folder, older_than=2 * FUTURE).orphans == ()  # it may be at work
    report = collect(folder)
    assert report.unknown == ()
    assert segments(folder) == count
    assert rows(folder) == Counter(range(100))
    if died != "planned":
        with pytest.raises((AbortedError, NotFoundError, writing.DurableShuffleError)):
            job.commit()
    assert rows(folder) == Counter(range(100))
    assert collect(folder).orphans == ()
    check(folder)


def test_an_overwrite_that_commits_while_gc_looks_is_spared(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gc judges it as never finished; before it can say so, the writer enters it."""
    save(folder, "append", 0, 100)
    job = Job(folder, "overwrite")
    job.write(500, 600)
    storage = open_storage(str(folder))

    from durable_shuffle.shuffle.release import gc_run

    survey = gc_run.survey

    def surveyed(*args: Any, **kwargs: Any) -> Any:
        found = survey(*args, **kwargs)
        job.commit()
        return found

    monkeypatch.setattr(gc_run, "survey", surveyed)
    report = collect(folder)
    monkeypatch.setattr(gc_run, "survey", survey)
    assert {one.reason for one in report.spared} == {"it counts now"}
    assert rows(folder) == Counter(range(500, 600))
    assert read_job(storage, "job").begun == ()
    check(folder)


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_what_spark_called_off_is_gone(folder: Path, mode: str) -> None:
    """The rows of its tasks are deleted behind an ABORT; of a commit that landed nothing is."""
    save(folder, "append", 0, 100)
    count = segments(folder)
    job = Job(folder, mode)
    job.write(500, 600)
    job.abort()
    assert segments(folder) == count
    with pytest.raises(AbortedError):
        job.commit()
    landed = save(folder, mode, 100, 150)
    landed.abort()
    landed.commit()
    assert rows(folder) == Counter(range(150) if mode == "append" else range(100, 150))
    check(folder)


def test_a_late_overwrite_takes_the_place_of_a_newer_one(folder: Path) -> None:
    """Both planned over the same stage: the last that commits stands, and releases the other."""
    save(folder, "append", 0, 100)
    slow, fast = Job(folder, "overwrite"), Job(folder, "overwrite")
    slow.write(200, 300)
    fast.write(400, 500)
    fast.commit()
    slow.commit()
    assert rows(folder) == Counter(range(200, 300))
    fast.commit()
    assert rows(folder) == Counter(range(200, 300))
    state = read_job(open_storage(str(folder)), "job")
    assert len(state.order) == 1
    assert len(state.released) == 2
    check(folder)


def test_an_append_to_a_stage_that_was_overwritten_is_told(folder: Path) -> None:
    """It is not lost without a word."""
    save(folder, "append", 0, 100)
    job = Job(folder, "append")
    job.write(100, 200)
    save(folder, "overwrite", 500, 600)
    with pytest.raises(writing.DurableShuffleError, match="released"):
        job.commit()
    assert rows(folder) == Counter(range(500, 600))


def test_parts_without_a_commit_of_another_job_are_refused(folder: Path) -> None:
    """Messages of two jobs are not one batch."""
    one, two = Job(folder, "append"), Job(folder, "append")
    one.write(0, 10)
    two.write(10, 20)
    one.messages.append(replace(two.messages[0]))
    with pytest.raises(writing.DurableShuffleError, match="for other stages or batches"):
        one.commit()
