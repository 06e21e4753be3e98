"""Whole pipelines whose tasks are threads of this process."""

import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pipeline_steps import ROWS, Numbers
from pipelines import copying, published, settings, threads, until

from durable_shuffle.bench.consumer_demo.stage import JOB, store_stage
from durable_shuffle.recovery.job.phases import JobPhase, JobResult
from durable_shuffle.recovery.pipeline.lines.launcher import Threads
from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.plan.folder import FolderSource
from durable_shuffle.recovery.pipeline.plan.settings import PipelineSettings
from durable_shuffle.recovery.pipeline.plan.sinks import CallbackSink, FileSink
from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource, StageSource
from durable_shuffle.recovery.pipeline.running import RunningPipeline
from durable_shuffle.serialization.errors import IncompatibleError, InvalidInputError
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.storage.local import LocalStorage

WAIT = 120.0


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def run(pipeline: Pipeline) -> JobResult:
    return pipeline.start(launcher=threads).wait(WAIT)


def test_a_pipeline_runs_to_the_end_of_its_source(tmp_path: Path) -> None:
    """Two producers, two partitions: every row once, and a second run has nothing to do."""
    pipeline = copying(tmp_path, Numbers(2, 100), same, producers=2)
    assert run(pipeline) == JobResult(JobPhase.FINISHED)
    assert published(tmp_path) == Counter(range(200))
    before = sorted(path.name for path in (tmp_path / "out").glob("part-*"))
    assert run(pipeline).phase is JobPhase.FINISHED
    assert sorted(path.name for path in (tmp_path / "out").glob("part-*")) == before


@pytest.mark.requirement("R-F46-11")
def test_suspended_and_resumed_is_as_uninterrupted(tmp_path: Path) -> None:
    """Suspended twice at whatever rows it was, drained in the end: a gapless prefix, once."""
    pipeline = copying(tmp_path, Numbers(2), same, producers=2)
    reached = 0
    for mode in ("SUSPEND", "SUSPEND", "DRAIN"):
        running = pipeline.start(launcher=threads)
        until(lambda: published(tmp_path).total() > reached, "new rows")  # noqa: B023
        running.stop(mode)
        result = running.wait(WAIT)
        assert result.phase is (JobPhase.FINISHED if mode == "DRAIN" else JobPhase.SUSPENDED)
        reached = published(tmp_path).total()
    rows = published(tmp_path)
    assert set(rows.values()) == {1}
    for producer in (0, 1):
        ours = sorted(n for n in rows if n % 2 == producer)
        assert ours == list(range(producer, 2 * len(ours), 2))


@pytest.mark.requirement("R-F46-12")
@pytest.mark.requirement("R-F46-21")
def test_a_consumer_passes_rows_on_to_another_stage(tmp_path: Path) -> None:
    """Source, stage, consumer, stage, consumer; the drain travels along."""
    kept = settings(release_seconds=0)
    pipeline = Pipeline("chain", str(tmp_path / "data"), settings=kept)
    numbers = pipeline.source("n", IteratorSource(Numbers(2)), schema=ROWS, producers=2, key="n")
    even = numbers.through("even", _Even(), schema=ROWS, key="n", partitions=3)
    even.consume("copy", same, schema=ROWS, sink=FileSink(str(tmp_path / "out"), "json"))
    running = pipeline.start(launcher=threads)
    until(lambda: published(tmp_path).total() > 20, "rows at the end of the chain")
    running.stop("DRAIN")
    assert running.wait(WAIT).phase is JobPhase.FINISHED
    rows = published(tmp_path)
    assert rows == Counter(range(0, 2 * len(rows), 2))

    # another pipeline reads a stage of this one, where it is
    reader = Pipeline("reader", str(tmp_path / "data"), settings=settings())
    stream = reader.source("theirs", StageSource("chain", "even.out"))
    stream.consume("again", same, schema=ROWS, sink=FileSink(str(tmp_path / "2" / "out"), "json"))
    assert run(reader).phase is JobPhase.FINISHED
    assert published(tmp_path / "2") == rows


class _Even:
    stateless = True

    def process(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        return [row for row in batch.to_pylist() if row["n"] % 2 == 0]


class FailsInOpen:
    """Fails as often as it is told to, while the others open."""

    stateless = True

    left: list[BaseException]

    def __init__(self, left: list[BaseException]) -> None:
        self.left = left

    def __deepcopy__(self, memo: Any) -> "FailsInOpen":
        return FailsInOpen(self.left)

    def open(self) -> None:
        if self.left:
            raise self.left.pop()

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


@pytest.mark.requirement("R-ARR-4")
@pytest.mark.requirement("R-ARR-6")
@pytest.mark.requirement("R-ARR-19")
def test_a_failure_while_opening_restarts_all_and_is_counted(tmp_path: Path) -> None:
    """Three times it goes wrong, then it runs; the budget of a second job allows two."""
    pipeline = copying(tmp_path, Numbers(1, 20), FailsInOpen([ValueError("no table")] * 3))
    result = run(pipeline)
    assert result.phase is JobPhase.FINISHED
    assert 2 <= result.restarts <= 3, "two of the three may fall in one start"
    assert published(tmp_path) == Counter(range(20))
    few = settings(max_restarts=2, first_restart_seconds=0.01)
    again = Pipeline("again", str(tmp_path / "data"), settings=few)
    stream = again.source("n", IteratorSource(Numbers(1, 20)), schema=ROWS)
    broken = FailsInOpen([ValueError("no table") for _ in range(50)])
    stream.consume("c", broken, schema=ROWS, sink=FileSink(str(tmp_path / "x"), "json"))
    failed = run(again)
    assert (failed.phase, failed.restarts, len(broken.left)) == (JobPhase.FAILED, 2, 47)
    assert failed.cause is not None
    assert re.fullmatch(
        r"ValueError: no table \(test_running\.py:\d+ in open\)", str(failed.cause)
    ), "the line of the user's own code is named"


@pytest.mark.requirement("R-ARR-12")
def test_an_error_that_cannot_go_away_is_not_tried_again(tmp_path: Path) -> None:
    """A step that makes rows of another schema."""
    result = run(copying(tmp_path, Numbers(1, 20), _Wrong()))
    assert (result.phase, result.restarts) == (JobPhase.FAILED, 0)
    assert result.cause is not None
    assert "a column that the schema does not have: 'm'" in result.cause.text


class _Wrong:
    stateless = True

    def process(self, batch: pa.RecordBatch) -> Any:
        return [{"m": 1}]


class HangsInOpen:
    """Until it is let go."""

    stateless = True

    def __init__(self, gate: threading.Event, inside: threading.Event) -> None:
        self.gate, self.inside = gate, inside

    def __deepcopy__(self, memo: Any) -> "HangsInOpen":
        return self

    def open(self) -> None:
        self.inside.set()
        assert self.gate.wait(WAIT)

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


@pytest.mark.requirement("R-ARR-13")
@pytest.mark.requirement("R-ARR-14")
@pytest.mark.parametrize("end", ["SUSPEND", "CANCEL", "timeout"])
def test_a_task_that_hangs_while_it_opens(tmp_path: Path, end: str) -> None:
    """A stop is honoured; without one the start timeout names the tasks, a bounded number of times.

    The bounds are short: what hangs, hangs for good.
    """
    gate, inside = threading.Event(), threading.Event()
    times = {"start_seconds": 0.5 if end == "timeout" else 60, "start_tries": 2, "stop_seconds": 1}
    running = copying(tmp_path, Numbers(1), HangsInOpen(gate, inside), **times).start(
        launcher=threads
    )
    try:
        assert inside.wait(WAIT)
        if end != "timeout":
            running.stop(end)
        result = running.wait(WAIT)
    finally:
        gate.set()
    phases = {"SUSPEND": JobPhase.SUSPENDED, "CANCEL": JobPhase.CANCELED}
    assert result.phase is phases.get(end, JobPhase.FAILED)
    if end == "timeout":
        assert result.cause is not None
        assert "try 1 of 2: copy-k0000, copy-k0001" in result.cause.text, "the first cause"
        assert result.restarts == 1
    assert published(tmp_path).total() == 0


class _CannotKill(Threads):
    """A launcher whose kills fail; the old attempts go on."""

    kills = 0

    def kill(self, task: str, epoch: int) -> None:
        type(self).kills += 1
        raise OSError("no permission")

    def close(self) -> None:
        for task, epoch in list(self._links):
            super().kill(task, epoch)


@pytest.mark.requirement("R-ARR-15")
def test_correct_although_nothing_can_be_killed(tmp_path: Path) -> None:
    """A failing consumer is started again beside an old attempt that lives."""
    failing = FailsInOpen([ValueError("once")])
    pipeline = copying(tmp_path, Numbers(1, 200), failing)
    running = pipeline.start(launcher=lambda run_task, _, hear: _CannotKill(run_task, hear))
    assert running.wait(WAIT).phase is JobPhase.FINISHED
    assert _CannotKill.kills > 0
    assert published(tmp_path) == Counter(range(200))


def test_a_second_supervisor_takes_over(tmp_path: Path) -> None:
    """The first one's tasks are fenced; it ends with that; the rows are still there once."""
    first = copying(tmp_path, Numbers(2), same, producers=2).start(launcher=threads)
    until(lambda: published(tmp_path).total() > 10, "rows of the first")
    second = copying(tmp_path, Numbers(2), same, producers=2).start(launcher=threads)
    result = first.wait(WAIT)
    assert result.phase is JobPhase.FAILED
    assert result.cause is not None
    assert result.cause.kind == "fenced"
    reached = published(tmp_path).total()
    until(lambda: published(tmp_path).total() > reached, "rows of the second")
    second.stop("DRAIN")
    assert second.wait(WAIT).phase is JobPhase.FINISHED
    assert set(published(tmp_path).values()) == {1}


def test_stops_are_checked(tmp_path: Path) -> None:
    """A word that is none, one that nobody can ask for, one that comes too late."""
    running: RunningPipeline = copying(tmp_path, Numbers(1), same).start(launcher=threads)
    with pytest.raises(InvalidInputError, match="DRAIN, SUSPEND or CANCEL"):
        running.stop("PAUSE")
    with pytest.raises(InvalidInputError, match="ask for a drain"):
        running.stop("FINITE")
    running.stop("SUSPEND")
    running.stop("SUSPEND")
    assert running.wait(WAIT).phase is JobPhase.SUSPENDED
    with pytest.raises(InvalidInputError, match="has ended"):
        running.stop("DRAIN")


def test_what_a_pipeline_must_not_be(tmp_path: Path) -> None:
    """Refused at once, by name."""
    pipeline = Pipeline("p", str(tmp_path))
    source = IteratorSource(Numbers(1))
    with pytest.raises(InvalidInputError, match="no source"):
        pipeline.start()
    with pytest.raises(InvalidInputError, match="needs the schema"):
        pipeline.source("a", source)
    with pytest.raises(InvalidInputError, match="no column 'k'"):
        pipeline.source("b", source, schema=ROWS, key="k")
    stream = pipeline.source("n", source, schema=ROWS)
    with pytest.raises(InvalidInputError, match="has a 'n' already"):
        pipeline.source("n", source, schema=ROWS)
    with pytest.raises(InvalidInputError, match="schema of the rows for its sink"):
        stream.consume("c", same, sink=FileSink(str(tmp_path / "o")))
    with pytest.raises(InvalidInputError, match="no sink"):
        stream.consume("d", same, schema=ROWS)
    with pytest.raises(InvalidInputError, match="a function or an object"):
        stream.consume("e", 7)
    with pytest.raises(InvalidInputError, match="append_seconds"):
        PipelineSettings(append_seconds=0)
    with pytest.raises(InvalidInputError, match="one of json, csv, parquet, found='xml'"):
        FolderSource(str(tmp_path), "xml", ROWS)
    with pytest.raises(InvalidInputError, match="one of parquet, json, found='csv'"):
        FileSink(str(tmp_path / "o"), "csv")  # type: ignore[arg-type]


def test_two_sinks_of_one_folder_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With both consumers, once; folders of their own say nothing."""
    stream = Pipeline("p", str(tmp_path)).source("n", IteratorSource(Numbers(1)), schema=ROWS)
    for name, folder in (("a", "one"), ("b", "two"), ("c", "one/")):
        stream.consume(name, same, schema=ROWS, sink=FileSink(f"{tmp_path}/{folder}"))
    (record,) = caplog.records
    assert "consumers 'a' and 'c' of pipeline 'p' publish into one folder" in record.message


@pytest.mark.parametrize(
    ("make", "step", "sink", "named"),
    [
        (Numbers(1), lambda batch: batch, CallbackSink(print), "the step of consumer 'copy'"),
        (Numbers(1), same, CallbackSink(lambda *_: None), "the sink of consumer 'copy'"),
        (lambda *_: iter(()), same, CallbackSink(print), "source 'numbers'"),
    ],
    ids=["step", "sink", "source"],
)
def test_what_cannot_be_sent_to_a_process_is_named(
    tmp_path: Path, make: Any, step: Any, sink: Any, named: str
) -> None:
    """A lambda, wherever it stands: no process is started."""
    pipeline = Pipeline("p", str(tmp_path))
    stream = pipeline.source("numbers", IteratorSource(make), schema=ROWS)
    stream.consume("copy", step, schema=ROWS, sink=sink)
    cause = pipeline.start().wait(WAIT).cause
    assert cause is not None
    assert cause.text.startswith(f"{named} cannot be sent to a process")


def test_a_folder_that_is_not_there_is_not_tried_again(tmp_path: Path) -> None:
    """A misspelt name shows at once."""
    pipeline = Pipeline("p", str(tmp_path / "data"))
    nowhere = FolderSource(str(tmp_path / "nowhere"), "json", ROWS)
    pipeline.source("n", nowhere, schema=ROWS).consume("c", same)
    result = run(pipeline)
    assert (result.phase, result.restarts) == (JobPhase.FAILED, 0)
    assert result.cause is not None
    assert "nowhere' to read: make it first" in result.cause.text


def test_another_shape_under_the_same_name_is_refused(tmp_path: Path) -> None:
    """What the stage holds does not fit: nothing is guessed."""
    assert run(copying(tmp_path, Numbers(1, 5), same)).phase is JobPhase.FINISHED
    other = Pipeline("copying", str(tmp_path / "data"), settings=settings())
    other.source("numbers", IteratorSource(Numbers(1)), schema=ROWS, partitions=3)
    result = run(other)
    assert result.cause is not None
    assert result.cause.kind == str(IncompatibleError.kind)
    assert "give the pipeline another name" in result.cause.text


class Hangs:
    """In its prepare hook, until the test is over."""

    stateless = True

    def __init__(self, gate: threading.Event) -> None:
        self.gate = gate

    def __deepcopy__(self, memo: Any) -> "Hangs":
        return self

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def prepare_to_shutdown(self, token: str) -> None:
        assert self.gate.wait(WAIT)


def test_a_hook_that_hangs_ends_the_job_in_time(tmp_path: Path) -> None:
    """The cause names task and phase; what was committed before is there."""
    gate = threading.Event()
    more = {"start_seconds": 60, "start_tries": 3, "stop_seconds": 0.5, "max_restarts": 0}
    running = copying(tmp_path, Numbers(1, 20), Hangs(gate), **more).start(launcher=threads)
    try:
        result = running.wait(WAIT)
    finally:
        gate.set()
    assert result.phase is JobPhase.FAILED
    assert result.cause is not None
    assert "did not get on with its end in time: it is preparing" in result.cause.text
    assert set(published(tmp_path).values()) <= {1}


@pytest.mark.requirement("R-F46-10")
@pytest.mark.requirement("R-F46-14")
def test_what_could_not_be_published_is_published_by_the_next_run(tmp_path: Path) -> None:
    """The result names task and commit; nothing is read again for them."""
    calls: list[tuple[str, list[int]]] = []
    broken = [True]

    class Receiver(CallbackSink):
        def __deepcopy__(self, memo: Any) -> "Receiver":
            return Receiver(self.call)

    def receive(token: str, table: pa.Table) -> None:
        if broken:
            raise OSError("the receiver is away")
        calls.append((token, table.column("n").to_pylist()))

    few = settings(max_restarts=1, first_restart_seconds=0.01)
    pipeline = Pipeline("calling", str(tmp_path / "data"), settings=few)
    stream = pipeline.source("n", IteratorSource(Numbers(1, 20)), schema=ROWS)
    stream.consume("c", same, schema=ROWS, sink=Receiver(receive))
    result = run(pipeline)
    assert result.phase is JobPhase.EFFECTS_PENDING
    assert result.pending == (("c-k0000", 1),)
    assert result.cause is not None
    assert result.cause.text == "the receiver is away"
    broken.clear()
    assert run(pipeline).phase is JobPhase.FINISHED
    assert [n for _, numbers in calls for n in numbers] == list(range(20))
    assert len({token for token, _ in calls}) == len(calls)


def test_a_sealed_stage_as_source(tmp_path: Path) -> None:
    """No producer runs; the consumers read it where it is and finish."""
    ids = RandomIds()
    store_stage(LocalStorage(tmp_path / "data"), 500, ids, SystemClock())
    pipeline = Pipeline("reader", str(tmp_path / "data"), settings=settings())
    stream = pipeline.source("stored", StageSource(JOB, "numbers"))
    out = FileSink(str(tmp_path / "out"), "json")
    stream.consume("copy", _Renamed(), schema=ROWS, sink=out)
    assert run(pipeline).phase is JobPhase.FINISHED
    assert published(tmp_path) == Counter(range(1000))
    with pytest.raises(InvalidInputError, match="has a schema, keys and partitions"):
        pipeline.source("x", StageSource(JOB, "numbers"), schema=ROWS)


class _Renamed:
    stateless = True

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.rename_columns(["n"])


def test_a_drain_of_a_stage_that_others_still_write(tmp_path: Path) -> None:
    """Its consumers are where the drain begins: they end where they are."""
    writer = copying(tmp_path / "w", Numbers(1), same).start(launcher=threads)
    until(lambda: published(tmp_path / "w").total() > 0, "rows of the writer")
    reader = Pipeline("reader", str(tmp_path / "r"), settings=settings())
    theirs = StageSource("copying", "numbers", url=str(tmp_path / "w" / "data"))
    sink = FileSink(str(tmp_path / "out"), "json")
    reader.source("theirs", theirs).consume("again", same, schema=ROWS, sink=sink)
    running = reader.start(launcher=threads)
    until(lambda: published(tmp_path).total() > 0, "rows of the reader")
    running.stop("DRAIN")
    assert running.wait(WAIT).phase is JobPhase.FINISHED
    assert set(published(tmp_path).values()) == {1}
    writer.stop("CANCEL")
    assert writer.wait(WAIT).phase is JobPhase.CANCELED
