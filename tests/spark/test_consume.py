"""Consuming stored stages in one Spark session: results, repeats, concurrent attempts, refusals."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle import DurableShuffle
from durable_shuffle.jobs import claims
from durable_shuffle.jobs.consume.task import (
    RESULT_SCHEMA,
    ConsumeRequest,
    ConsumeSpec,
    consume_function,
    consume_result,
    consumer_log,
)
from durable_shuffle.jobs.deploy.running_code import running_code
from durable_shuffle.jobs.engine.classic import ClassicEngine
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    FencedError,
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
)
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.log import read_resume_set
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.log.stage import open_stage
from durable_shuffle.shuffle.storage.local import LocalStorage

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

ROWS = 2000
DOUBLED = [(v, 2 * v) for v in range(ROWS)]
SCHEMA = "v long, w long"


def numbers(session: SparkSession) -> DataFrame:
    return session.range(0, ROWS, 1, 3).selectExpr("id % 7 as `odd key`", "id as v")


def rows_of(df: DataFrame | None) -> list[tuple[Any, ...]]:
    assert df is not None
    return sorted(tuple(row) for row in df.collect())


class Ledger:
    """Records every call of a consumer in a file per task, before it does anything else."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder

    def doubling(self, meet: int = 0) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """A function that doubles `v`.

        Args:
            meet: number of attempts that wait for each other in their second call; 0 for none.
        """
        folder, count = str(self.folder), {"calls": 0}

        def process(batch: pa.RecordBatch) -> pa.RecordBatch:
            import time
            from pathlib import Path

            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            values = batch.column("v").to_pylist()
            with Path(folder, str(context.taskAttemptId())).open("a") as file:
                file.write(json.dumps(values) + "\n")
            count["calls"] += 1
            deadline = time.monotonic() + 300
            while count["calls"] == 2 and len(list(Path(folder).iterdir())) < meet:
                assert time.monotonic() < deadline, "the twin never came"
                time.sleep(0.02)
            return pa.RecordBatch.from_pydict({"v": values, "w": [2 * v for v in values]})

        return process

    def calls(self) -> list[list[list[int]]]:
        """The calls of each attempt."""
        return [
            [json.loads(line) for line in path.read_text().splitlines()]
            for path in sorted(self.folder.iterdir(), key=lambda p: int(p.name))
        ]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Written by the consumer's own code."""
    return Ledger(tmp_path / "ledger")


def test_every_row_is_processed_and_published_once(
    session: SparkSession, root: str, ledger: Ledger
) -> None:
    """Batches end where an acknowledgement is due; each subpartition gives one result partition."""
    shuffle = DurableShuffle(session, root, job="tests")
    stored = shuffle.repartition(numbers(session), 2, "odd key")
    out = shuffle.consume(
        stored, consumer="c", process=ledger.doubling(), schema=SCHEMA, checkpoint_every=300
    )
    assert rows_of(out) == DOUBLED
    assert out is not None
    assert (out.rdd.getNumPartitions(), len(out.limit(7).collect())) == (2, 7)
    calls = ledger.calls()
    assert sorted(v for task in calls for call in task for v in call) == list(range(ROWS))
    assert all(len(call) == 300 for task in calls for call in task[:-1])
    (report,) = shuffle.report().consumers
    assert (report.tasks, report.tasks_run, report.views, report.retries) == (2, 2, 2, 0)
    assert (report.records, report.records_delivered, report.output_rows) == (ROWS, ROWS, ROWS)
    # a subpartition of n rows has an acknowledgement per 300 and one at its end
    assert report.acknowledgements == sum(sum(map(len, task)) // 300 + 1 for task in calls)
    assert re.search(r"^c +exact ", str(shuffle.report()), re.MULTILINE)
    json.dumps(shuffle.report().to_dict())


@pytest.mark.requirement("R-F135-7")
def test_a_finished_consumer_runs_nothing(session: SparkSession, root: str, ledger: Ledger) -> None:
    """Another driver, and a stage named by `stages()`: the same rows; no call of the function."""
    first = DurableShuffle(session, root, job="tests")
    stored = first.repartition(numbers(session), 2, "odd key")
    arguments: dict[str, Any] = {"consumer": "c", "process": ledger.doubling(), "schema": SCHEMA}
    first.consume(stored, **arguments)
    calls = ledger.calls()
    claims._held.clear()  # the next object is another driver, as in another process
    second = DurableShuffle(session, root, job="tests")
    (stage,) = second.stages()
    assert rows_of(second.consume(stage, **arguments)) == DOUBLED
    assert ledger.calls() == calls
    (report,) = second.report().consumers
    assert (report.tasks_run, report.tasks_reused, report.views) == (0, 2, 0)
    assert rows_of(second.consume(stage, **{**arguments, "consumer": "other"})) == DOUBLED
    assert len(ledger.calls()) == 2 * len(calls), "another name is another consumer"
    with pytest.raises(FencedError):
        first.consume(stored, **{**arguments, "consumer": "late"})


def test_other_code_under_the_same_name_is_refused(session: SparkSession, root: str) -> None:
    """Refused whether the consumer is finished or half done, and in another driver, unless the call
    asks to continue or has another name. Code that acknowledged nothing blocks nobody."""

    def times(factor: int, *, fails: bool = False) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        def process(batch: pa.RecordBatch) -> pa.RecordBatch:
            values = batch.column("v").to_pylist()
            if fails and values[0] > 0:
                raise ValueError("on purpose")
            return pa.RecordBatch.from_pydict({"v": [factor * v for v in values]})

        return process

    first = DurableShuffle(session, root, job="tests")
    stored = first.durable(session.range(0, 40, 1, 2).selectExpr("id as v"))
    some: dict[str, Any] = {"schema": "v long", "checkpoint_every": 5}
    assert rows_of(first.consume(stored, consumer="done", process=times(2), **some)) == [
        (2 * v,) for v in range(40)
    ]
    assert rows_of(first.consume(stored, consumer="done", process=times(2), **some))
    with pytest.raises(Exception, match="on purpose"):  # 5 rows of one partition are acknowledged
        first.consume(stored, consumer="half", process=times(2, fails=True), **some)
    second = DurableShuffle(session, root, job="tests")
    (stage,) = second.stages()
    for consumer, count in (("done", 2), ("half", 1)):
        with pytest.raises(IncompatibleError, match=f"{count} of 2 partitions") as refused:
            second.consume(stage, consumer=consumer, process=times(3), **some)
        assert "give another consumer name" in str(refused.value)
        assert "on_new_code='go_on'" in str(refused.value)
    more = {**some, "process": times(3), "on_new_code": "go_on"}
    assert rows_of(second.consume(stage, consumer="done", **more)) == [(2 * v,) for v in range(40)]
    mixed = [(2 * v if v < 5 else 3 * v,) for v in range(40)]
    assert rows_of(second.consume(stage, consumer="half", **more)) == sorted(mixed)
    third = second.consume(stage, consumer="third", process=times(3), **some)
    assert rows_of(third) == [(3 * v,) for v in range(40)]
    with pytest.raises(Exception, match="on purpose"):
        second.consume(stage, consumer="none", process=_fail, **some)
    assert rows_of(second.consume(stage, consumer="none", process=times(2), **some))


def _fail(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise ValueError("on purpose")


def test_other_frames_are_stored_first(session: SparkSession, root: str, ledger: Ledger) -> None:
    """A DataFrame that is not a stage is stored as one; without a schema there is no result."""
    shuffle = DurableShuffle(session, root, job="tests")
    stored = shuffle.repartition(numbers(session), 2, "odd key")
    process = ledger.doubling()

    def silent(batch: pa.RecordBatch) -> None:
        process(batch)

    changed = stored.where("v < 100")
    assert shuffle.consume(changed, consumer="c", process=silent, name="some") is None
    assert [stage.name for stage in shuffle.stages()] == ["repartition", "some"]
    assert sorted(v for task in ledger.calls() for call in task for v in call) == list(range(100))
    with pytest.raises(InvalidInputError, match="no schema for what it returns"):
        shuffle.consume(stored, consumer="loud", process=process)


@pytest.mark.requirement("R-F135-8")
def test_twins_of_one_task(session: SparkSession, root: str, ledger: Ledger) -> None:
    """Of two running attempts, one is fenced, waits, and reports the end as well."""
    shuffle = DurableShuffle(session, root, job="tests")
    stored = shuffle.repartition(numbers(session), 1, "odd key")
    (path,) = shuffle._driver.log.state.order
    engine = ClassicEngine(session, "auto")
    spec = ConsumeSpec(
        stage=open_stage(LocalStorage(root), path),
        request=ConsumeRequest("twins", ledger.doubling(meet=2), None, 300, "exact", "fail", ""),
        schema=pa.schema([("v", pa.int64()), ("w", pa.int64())]),
        generation=shuffle.generation,
        settings=Settings(winner_wait_seconds=120),
        tries=1,
        code=running_code(),
    )
    consume, folder = consume_function(spec, (0, 0)), str(ledger.folder)

    def one_after_the_other(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Task 1 begins once task 0 is in its second call, so task 0 has acknowledged its first."""
        import time
        from pathlib import Path

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        deadline = time.monotonic() + 300
        while context.partitionId() == 1 and not any(
            path.read_text().count("\n") == 2 for path in Path(folder).iterdir()
        ):
            assert time.monotonic() < deadline, "the first one never came to its second call"
            time.sleep(0.02)
        yield from consume(batches)

    # two tasks for subpartition 0, like a task and its speculative copy
    rows = engine.run_numbered(one_after_the_other, 2, RESULT_SCHEMA, "twins")
    assert [consume_result(row).subpartition for row in rows] == [0, 0]
    fenced, winner = sorted(ledger.calls(), key=len)
    assert len(fenced) == 2, "fenced at its second acknowledgement"
    assert fenced[1] == winner[0], "the other one began behind the first"
    assert [v for call in winner for v in call] == sorted(set(range(ROWS)) - set(fenced[0]))
    assert read_resume_set(consumer_log(spec.stage, "twins", 0)).epoch == 2, "both opened a view"
    out = shuffle.consume(stored, consumer="twins", process=spec.request.process, schema=SCHEMA)
    assert rows_of(out) == DOUBLED
    assert shuffle.report().consumers[0].tasks_run == 0


@pytest.mark.requirement("R-F135-8")
def test_a_winner_that_died_is_taken_over(session: SparkSession, root: str) -> None:
    """A straggler of an earlier call opened the consumer and was killed before it wrote anything:
    the fenced task waits, opens the consumer again, and delivers every row; Spark retries none."""
    settings = Settings(winner_wait_seconds=0.5)
    shuffle = DurableShuffle(session, root, job="tests", settings=settings)
    stored = shuffle.repartition(numbers(session), 1, "odd key")
    (path,), generation = shuffle._driver.log.state.order, shuffle.generation
    marker = Path(root, "..", "fenced").resolve()

    def process(batch: pa.RecordBatch) -> pa.Table:
        if not marker.exists():
            marker.touch()
            stage = open_stage(LocalStorage(root), path)
            process.left = open_view(  # type: ignore[attr-defined]
                stage, 0, consumer="c", generation=generation
            )
        v = batch.column("v")
        return pa.table({"v": v, "w": pa.array([2 * x for x in v.to_pylist()])})

    out = shuffle.consume(
        stored, consumer="c", process=process, schema=SCHEMA, checkpoint_every=300
    )
    assert rows_of(out) == DOUBLED
    assert marker.exists()
    (report,) = shuffle.report().consumers
    assert (report.tasks_run, report.views) == (1, 3), "the dead one's view is the second of three"


def test_an_error_of_the_user_comes_out_as_it_is(session: SparkSession, root: str) -> None:
    """It fails the job under its own name; the next call continues after the last ack."""
    shuffle = DurableShuffle(session, root, job="tests")
    stored = shuffle.repartition(numbers(session), 1, "odd key")
    marker = Path(root, "..", "mended").resolve()

    def process(batch: pa.RecordBatch) -> pa.Table:
        if marker.exists():
            assert batch.num_rows <= 500
        elif process.calls == 2:
            raise InvalidInputError("the user's own")
        process.calls += 1
        v = batch.column("v")
        return pa.table({"v": v, "w": pa.array([2 * x for x in v.to_pylist()])})

    process.calls = 0  # type: ignore[attr-defined]
    arguments: dict[str, Any] = {"consumer": "c", "schema": SCHEMA, "checkpoint_every": 500}
    with pytest.raises(Exception, match=r"InvalidInputError: the user's own"):
        shuffle.consume(stored, process=process, **arguments)
    marker.touch()
    assert rows_of(shuffle.consume(stored, process=process, **arguments)) == DOUBLED
    (report,) = shuffle.report().consumers
    assert report.resumed_from == {0: 1000}
    assert (report.records_delivered, report.records_acknowledged) == (1000, 1000)


def test_what_cannot_be_mended_comes_back_typed(session: SparkSession, root: str) -> None:
    """Wrong columns, a changed schema, a damaged segment, a released stage: each has its error."""
    shuffle = DurableShuffle(session, root, job="tests", settings=Settings(heal=False))
    stored = shuffle.repartition(numbers(session), 2, "odd key")
    arguments: dict[str, Any] = {"consumer": "c", "process": lambda batch: batch.select(["v"])}
    with pytest.raises(InvalidInputError, match="must yield column 'w'"):
        shuffle.consume(stored, schema=SCHEMA, **arguments)
    assert len(rows_of(shuffle.consume(stored, schema="v long", **arguments))) == ROWS
    with pytest.raises(IncompatibleError, match="outputs of another schema: found v: int64"):
        shuffle.consume(stored, schema="v long, w long", **arguments)
    segment = sorted(Path(root).rglob("*.seg"))[0]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    with pytest.raises(CorruptDataError, match="segment="):
        shuffle.consume(stored, schema="v long", **{**arguments, "consumer": "other"})
    shuffle.release()
    with pytest.raises(NotFoundError, match="released"):
        shuffle.consume(stored, schema="v long", **arguments)


def test_tries_are_those_that_spark_makes(session: SparkSession, tmp_path: Path) -> None:
    """A task that always fails runs as often as the engine of this session says."""

    def fail(batches: Any) -> Any:
        (tmp_path / str(len(list(tmp_path.iterdir())))).touch()
        raise ValueError("on purpose")

    with pytest.raises(Exception, match="on purpose"):
        session.range(0, 1, 1, 1).mapInArrow(fail, "id long").collect()
    assert len(list(tmp_path.iterdir())) == ClassicEngine(session, "auto").task_tries


def test_bad_arguments(session: SparkSession, root: str) -> None:
    """Refused before anything runs."""
    shuffle = DurableShuffle(session, root, job="tests")
    df = numbers(session)

    class Half:
        def process(self, batch: pa.RecordBatch) -> None: ...

    good: dict[str, Any] = {"consumer": "c", "process": lambda batch: None}
    for bad, message in (
        ({"consumer": "a/b"}, "consumer must be"),
        ({"process": Half()}, "Half has no snapshot, restore"),
        ({"process": None}, "process must be a function"),
        ({"process": (lambda lock: lambda _: lock)(Lock())}, "cannot be sent to workers"),
        ({"schema": "no schema at all"}, "schema"),
        ({"checkpoint_every": 0}, "at least 1"),
        ({"checkpoint_every": True}, "must be an integer"),
        ({"resume": "roughly"}, "resume must be one of exact, approximate"),
        ({"on_new_code": "ask"}, "on_new_code must be one of"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            shuffle.consume(df, **{**good, **bad})
    assert shuffle.stages() == []
