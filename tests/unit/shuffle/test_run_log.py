"""What commits of streaming queries and write jobs come to: again, beside others, too late."""

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from run_engine import PARTITIONS, ROWS, SCHEMA, EngineRun, new_log_stage
from small_log import read_log_rows
from small_stage import (
    SMALL,
    ManualClock,
    SeededIds,
    new_stage,
    patient,
)

from durable_shuffle.serialization.arrow_schemas import schema_to_bytes
from durable_shuffle.serialization.errors import (
    AbortedError,
    FencedError,
    IncompatibleError,
    InvalidInputError,
    OutcomeUnknownError,
)
from durable_shuffle.shuffle.log.appender_log import Part
from durable_shuffle.shuffle.log.job_log import enter_stage
from durable_shuffle.shuffle.log.layout import parse_segment_key
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.release.gc_run import GcReport, collect_garbage
from durable_shuffle.shuffle.storage.contract import Storage, StorageLayer
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.stream.scan import StageScan, read_row_ranges, standing_rows
from durable_shuffle.shuffle.testing.faulty_storage import FaultyStorage, Rule
from durable_shuffle.shuffle.write.log_producer import LogProducer
from durable_shuffle.shuffle.write.run_log import (
    LOOK_BACK,
    abort_job,
    append_batch,
    clear_behind,
)


@pytest.fixture
def stage(draw: random.Random) -> StageHandle:
    return new_log_stage(draw)


def on(stage: StageHandle, storage: Storage) -> StageHandle:
    """The same stage through another storage."""
    return StageHandle(storage, stage.path, stage.describe)


def rows(stage: StageHandle) -> Counter[int]:
    """All rows, as a batch reader gets them; a follower gets the same."""
    found = read_row_ranges(stage, standing_rows(stage), SMALL)
    table = Counter(n for b in found for n in b.column(0).to_pylist())
    followed = [read_log_rows(stage, k)[0] for k in range(PARTITIONS)]
    assert Counter(n for events in followed for _, _, n in events) == table
    return table


def batches(*numbers: int) -> Counter[int]:
    return Counter(n for b in numbers for n in range(b * ROWS, (b + 1) * ROWS))


def attempts(stage: StageHandle) -> set[str]:
    """Who has segments on storage."""
    return {parse_segment_key(i.key)[1] for i in stage.storage.list(stage.path.segments_prefix)}


@pytest.mark.requirement("R-F135-1")
@pytest.mark.parametrize("query", ["query-1", ""])
def test_a_commit_that_comes_again_changes_nothing(
    stage: StageHandle, draw: random.Random, query: str
) -> None:
    """Of a query's batch and of a write job, at once and after others have written."""
    run = EngineRun(stage, draw, query=query)
    parts = run.tasks(0)
    first = run.append(0, parts)
    assert first.wrote
    again = run.append(0, parts)
    assert (again.wrote, again.slot, again.rows) == (False, first.slot, 0)
    other = EngineRun(stage, draw, query="")
    assert other.commit(1, other.tasks(1))
    if query:
        assert run.commit(1, run.tasks(1))
    assert not run.append(0, parts).wrote
    assert rows(stage) == (batches(0, 1, 1) if query else batches(0, 1))


@pytest.mark.parametrize("query", ["query-1", ""])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_without_an_answer_may_be_called_again(
    stage: StageHandle, draw: random.Random, query: str, when: str
) -> None:
    """Whether the record had landed or not, the rows stand once."""
    run = EngineRun(stage, draw, query=query)
    parts = run.tasks(0)
    rules = [Rule("put_if_absent", "", when, n, "lost_reply") for n in (1, 2)]
    faulty = FaultyStorage(stage.storage, rules)
    run.stage = on(stage, patient(faulty, tries=2))
    with pytest.raises(OutcomeUnknownError):
        run.commit(0, parts)
    assert faulty.fired == 2
    assert run.commit(0, parts) is (when == "before")
    assert rows(stage) == batches(0)


@pytest.mark.parametrize("others", [1, 150])
def test_write_jobs_at_once_all_succeed(
    stage: StageHandle, draw: random.Random, others: int
) -> None:
    """However many others come between the first rows of a slow one and its commit."""
    slow = EngineRun(stage, draw, query="")
    parts = slow.tasks(0)
    for n in range(others):
        job = EngineRun(stage, draw, query="")
        assert job.commit(n + 1, job.tasks(n + 1))
    assert slow.commit(0, parts)
    assert not slow.commit(0, parts)
    assert rows(stage) == batches(*range(others + 1))


def test_a_write_job_beside_a_query(stage: StageHandle, draw: random.Random) -> None:
    """Neither fences the other; the query's numbers go on."""
    query, job = EngineRun(stage, draw), EngineRun(stage, draw, query="")
    mine, theirs = query.tasks(0), job.tasks(7)
    assert job.commit(7, theirs)
    assert query.commit(0, mine)
    assert query.commit(1, query.tasks(1))
    assert rows(stage) == batches(0, 1, 7)


def test_a_run_that_stood_still_cannot_bring_back_what_was_cleared(
    stage: StageHandle, draw: random.Random
) -> None:
    """After more starts than anybody remembers: its commit is fenced, nothing named is deleted."""
    zombie = EngineRun(stage, draw)
    assert zombie.commit(0, zombie.tasks(0))
    late = zombie.tasks(1)
    for n in range(1, LOOK_BACK + 70):
        newest = EngineRun(stage, draw)
        parts = newest.tasks(n)
        came = newest.append(n, parts)
        assert came.first
        (attempt,) = {part.begun.attempt for part in parts if part}
        cleared = clear_behind(stage, 0, attempt)
        assert (cleared > 0) is (n == 1)
    with pytest.raises(FencedError, match="another run of query"):
        zombie.commit(1, late)
    with pytest.raises(IncompatibleError, match="another start of the query went on"):
        zombie.tasks(1)
    assert rows(stage) == batches(*range(LOOK_BACK + 70))


def test_a_checkpoint_that_was_restored_from_a_backup_is_refused(
    stage: StageHandle, draw: random.Random
) -> None:
    """Its batches may be cut otherwise: none of them is taken for one that is there. Only the
    newest batch is replayed, as Spark does when it was killed behind a commit."""
    run = EngineRun(stage, draw)
    for n in range(4):
        assert run.commit(n, run.tasks(n))
    restored = EngineRun(stage, draw)
    for n in range(3):
        with pytest.raises(IncompatibleError, match="restored from a backup"):
            restored.tasks(n)
    assert restored.tasks(3) == [None, None]
    assert rows(stage) == batches(*range(4))


@pytest.mark.parametrize("beside", [0, 3])
def test_a_repeated_batch_with_another_number_of_rows_is_refused(
    stage: StageHandle, draw: random.Random, beside: int
) -> None:
    """Whatever write jobs, and a run that never committed, put behind the batch."""
    run = EngineRun(stage, draw)
    for n in range(2):
        assert run.commit(n, run.tasks(n))
    for n in range(beside):
        job = EngineRun(stage, draw, query="")
        assert job.commit(n, job.tasks(n))
        EngineRun(stage, draw).tasks(2)
    restored = EngineRun(stage, draw)
    parts = restored.tasks(1)
    assert not restored.append(1, parts, repeated=ROWS).wrote
    for other in (ROWS - 1, ROWS + 1, 0):
        with pytest.raises(IncompatibleError, match=f"repeats it with {other}"):
            restored.append(1, parts, repeated=other)


def test_the_older_run_stops_at_its_next_task_and_commit(
    stage: StageHandle, draw: random.Random
) -> None:
    """A newer start fences it, also before the newer one has committed anything."""
    older, newer = EngineRun(stage, draw), EngineRun(stage, draw)
    assert older.commit(0, older.tasks(0))
    parts = older.tasks(1)
    theirs = newer.tasks(1)
    for call in (lambda: older.tasks(1), lambda: older.commit(1, parts)):
        with pytest.raises(FencedError, match="took over"):
            call()
    assert newer.commit(1, theirs)
    with pytest.raises(FencedError, match="took over"):
        older.commit(1, parts)
    assert rows(stage) == batches(0, 1)


@pytest.mark.parametrize("before", ["nothing", "a batch of this run", "a run before this one"])
@pytest.mark.parametrize("beside", ["its other task", "its other task and commit", "a new run"])
def test_others_overtake_a_task_before_any_request(
    draw: random.Random, before: str, beside: str
) -> None:
    """Tasks of one run that begin at once agree; of two runs one commits. No batch counts twice."""
    for at in range(100):
        stage = new_log_stage(draw)
        run, newer = EngineRun(stage, draw), EngineRun(stage, draw)
        batch = 0 if before == "nothing" else 1
        first = run if before == "a batch of this run" else EngineRun(stage, draw)
        assert not batch or first.commit(0, first.tasks(0))
        other = newer if beside == "a new run" else run
        parts: list[Part | None] = []

        def overtake(other: EngineRun = other, parts: list[Part | None] = parts) -> None:
            parts += other.tasks(batch)  # noqa: B023 - the same in all turns
            assert "commit" not in beside or other.commit(batch, parts)  # noqa: B023

        storage = Overtaken(stage.storage, at, overtake)
        mine = EngineRun(on(stage, storage), draw)
        mine.run = run.run
        try:
            mine.tasks(batch)
            late = False
        except FencedError:
            late = True
        if storage.requests <= at:
            break
        assert not late or beside == "a new run"
        if beside != "a new run":
            assert run.commit(batch, parts) == ("commit" not in beside)
        else:
            with suppress(FencedError):
                newer.commit(batch, parts)
            with suppress(FencedError):
                run.commit(batch, run.tasks(batch))
        assert rows(stage) == batches(*range(batch + 1))
    assert 1 <= at < 99


class Overtaken(StorageLayer):
    """Lets something else happen before one of its requests."""

    def __init__(self, storage: Storage, at: int, meanwhile: Callable[[], None]) -> None:
        super().__init__(storage)
        self.requests, self._at, self._meanwhile = 0, at, meanwhile

    def _call(self, verb: str, keys: tuple[str, ...], request: Any) -> Any:
        self.requests += 1
        if self.requests == self._at + 1:
            self._meanwhile()
        return request()


def test_parts_of_two_openings_are_not_one_batch(stage: StageHandle, draw: random.Random) -> None:
    """What was written before another run's OPEN does not count, although the run opened again."""
    run, other = EngineRun(stage, draw), EngineRun(stage, draw)
    before = run.tasks(0)
    for _ in range(LOOK_BACK + 1):  # so many that the run does not find its OPEN any more
        job = EngineRun(stage, draw, query="")
        assert job.commit(9, job.tasks(9))
    assert any(other.tasks(0))
    for _ in range(LOOK_BACK):
        job = EngineRun(stage, draw, query="")
        assert job.commit(9, job.tasks(9))
    after = run.tasks(0)
    with pytest.raises(FencedError):
        run.commit(0, [before[0], after[1]])
    with pytest.raises(FencedError):
        run.commit(0, before)
    assert run.commit(0, after)


def collect(stage: StageHandle, draw: random.Random, *, age: float) -> GcReport:
    return collect_garbage(
        stage.storage,
        "job",
        ids=SeededIds(draw),
        clock=ManualClock(1e12, []),
        settings=SMALL,
        older_than_seconds=age,
        delete=True,
    )


def entered(stage: StageHandle, draw: random.Random) -> None:
    ids = SeededIds(draw)
    enter_stage(
        stage.storage, stage.path, record_id=ids.new_id(), claim_id=ids.new_id(), replaces=False
    )


@pytest.mark.parametrize("dead", [True, False])
def test_gc_gives_a_write_job_up_before_it_deletes(
    stage: StageHandle, draw: random.Random, *, dead: bool
) -> None:
    """Its rows go, and a later commit is refused: by an ABORT_JOB, whoever wrote since."""
    entered(stage, draw)
    slow, done = (EngineRun(stage, draw, query="") for _ in range(2))
    parts = slow.tasks(0)
    assert done.commit(1, done.tasks(1))
    report = collect(stage, draw, age=0)
    assert {one.reason for one in report.orphans} == {"its write job has no APPEND"}
    assert report.unknown == ()
    assert attempts(stage) == {done.run.id}
    if not dead:
        with pytest.raises(AbortedError, match="given up"):
            slow.commit(0, parts)
    assert rows(stage) == batches(1)
    assert collect(stage, draw, age=0).orphans == ()


def test_gc_spares_a_write_job_at_work_and_one_that_commits_meanwhile(
    stage: StageHandle, draw: random.Random
) -> None:
    """A young one is not aborted; of one that won its record nothing goes."""
    entered(stage, draw)
    job = EngineRun(stage, draw, query="")
    parts = job.tasks(0)
    assert collect(stage, draw, age=1e13).orphans == ()
    assert job.commit(0, parts)
    assert not abort_job(stage, 0, job.run.id, "f" * 32, "test")
    assert collect(stage, draw, age=0).orphans == ()
    assert rows(stage) == batches(0)


def test_leftovers_of_a_job_that_committed_go_without_an_abort(
    stage: StageHandle, draw: random.Random
) -> None:
    """A task that Spark ran twice leaves segments that no record names."""
    entered(stage, draw)
    job = EngineRun(stage, draw, query="")
    parts, _twice = job.tasks(0), job.tasks(0)
    assert job.commit(0, parts)
    report = collect(stage, draw, age=0)
    assert {one.reason for one in report.orphans} == {
        "its attempt was stopped and no APPEND names it"
    }
    assert rows(stage) == batches(0)


def test_rows_of_an_older_schema_behind_a_newer_one(
    stage: StageHandle, draw: random.Random
) -> None:
    """A write job that planned before a column was added is refused by name."""
    slow, wide = (EngineRun(stage, draw, query="") for _ in range(2))
    parts, theirs = slow.tasks(0), wide.tasks(1)
    wider = schema_to_bytes(SCHEMA.append(pa.field("extra", pa.string())))
    append_batch(stage, 0, wide.run, 0, [p for p in theirs if p], wider)
    with pytest.raises(IncompatibleError, match="only nullable columns can be added"):
        slow.commit(0, parts)


def test_pipelines_and_streams_do_not_share_a_log(stage: StageHandle, draw: random.Random) -> None:
    """Whoever comes second is refused, and told who writes there."""
    ids = SeededIds(draw)

    def open_producer(stage: StageHandle) -> LogProducer:
        new = ids.new_id()
        return LogProducer.open(stage, 0, record_id=new, generation=1, settings=SMALL)

    job = EngineRun(stage, draw, query="")
    assert job.commit(0, job.tasks(0))
    with pytest.raises(InvalidInputError, match="streaming queries or write jobs write here"):
        open_producer(stage)
    other = new_stage(MemoryStorage(), ids, SCHEMA, partitions=PARTITIONS, writing="log")
    open_producer(other)
    for query in ("q", ""):
        with pytest.raises(InvalidInputError, match="written by a pipeline"):
            EngineRun(other, draw, query=query).tasks(0)


def test_a_sealed_stage_is_no_stream(draw: random.Random) -> None:
    """It is refused by name, with what reads it."""
    stage = new_stage(MemoryStorage(), SeededIds(draw), SCHEMA, partitions=PARTITIONS)
    with pytest.raises(InvalidInputError, match=r"read it as a table with spark\.read"):
        StageScan(stage)


def test_the_record_of_a_rebased_job_is_that_of_its_new_slot(
    stage: StageHandle, draw: random.Random
) -> None:
    """Ordinals go on behind whoever was faster: every frame is found under its own seed."""
    jobs = [EngineRun(stage, draw, query="") for _ in range(5)]
    parts = [job.tasks(n) for n, job in enumerate(jobs)]
    for n in draw.sample(range(5), 5):
        assert jobs[n].commit(n, parts[n])
    assert rows(stage) == batches(*range(5))
    ordinals = [np.array([o for _, o, _ in read_log_rows(stage, k)[0]]) for k in range(PARTITIONS)]
    assert all((found == np.arange(len(found))).all() for found in ordinals)
