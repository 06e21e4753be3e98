"""Sessions on which a pipeline's tasks cannot run, and local paths: without a JVM."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.clientserver import ClientServer
from py4j.protocol import Py4JNetworkError

from durable_shuffle.jobs.spark_tasks.attempt import with_absolute_paths
from durable_shuffle.jobs.spark_tasks.cluster import await_slots, check_session
from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.plan.folder import FolderSource
from durable_shuffle.recovery.pipeline.plan.sinks import FileSink
from durable_shuffle.serialization.errors import InvalidInputError, UnavailableError

ROWS = pa.schema([("n", pa.int64())])


class Executors(list[Any]):
    """As Scala gives a list."""

    def size(self) -> int:
        return len(self)

    def apply(self, i: int) -> Any:
        return self[i]


def session(stopped: Callable[[], bool] = lambda: False, slots: int = 0, **conf: str) -> Any:
    """What is asked of a session, of one that runs."""
    executors = Executors([SimpleNamespace(id=lambda: "0", maxTasks=lambda: slots)])
    store = SimpleNamespace(executorList=lambda _: executors)
    scala = SimpleNamespace(isStopped=stopped, statusStore=lambda: store)
    context = SimpleNamespace(
        _jsc=SimpleNamespace(sc=lambda: scala),
        _gateway=ClientServer.__new__(ClientServer),
        getConf=lambda: {key.replace("_", "."): value for key, value in conf.items()},
    )
    return SimpleNamespace(sparkContext=context)


def gone() -> bool:
    raise Py4JNetworkError("connection refused")


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (session(stopped=lambda: True), "SparkContext is stopped"),
        (session(stopped=gone), "SparkContext is stopped"),
        (
            session(spark_speculation="true", spark_speculation_task_duration_threshold="1h"),
            "set spark.speculation=false",
        ),
    ],
)
def test_sessions_that_will_not_do(made: Any, says: str) -> None:
    """Each is refused in words that say what to do."""
    with pytest.raises(InvalidInputError, match=says):
        check_session(made)


def test_threads_that_are_not_pinned() -> None:
    """Jobs of several threads would share a group."""
    made = session()
    made.sparkContext._gateway = object()
    with pytest.raises(InvalidInputError, match="PYSPARK_PIN_THREAD"):
        check_session(made)
    made.sparkContext._jsc = None
    with pytest.raises(InvalidInputError, match="is stopped"):
        check_session(made)


def test_sessions_that_will_do() -> None:
    """Speculation by share of finished tasks never doubles the one task of a job."""
    check_session(session())
    check_session(session(spark_speculation="true"))


class Clock:
    """Moves by being slept on."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("slots", "wanted", "least", "most"), [(2, 2, 0, 0), (1, 2, 3, 4)])
def test_executors_that_are_late_are_waited_for(
    slots: int, wanted: int, least: float, most: float
) -> None:
    """Not at all if all are there, and not for long if some are."""
    clock = Clock()
    await_slots(session(slots=slots), wanted, clock)
    assert least <= clock.now <= most


def test_no_executor_is_an_error() -> None:
    """Within a minute, in words."""
    clock = Clock()
    with pytest.raises(UnavailableError, match="0 task slots"):
        await_slots(session(), 1, clock)
    assert clock.now <= 61


def test_relative_paths_are_the_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Roots, folders and sinks; what is absolute or no file stays."""
    monkeypatch.chdir(tmp_path)

    def made(url: str, inbox: str, out: str) -> Pipeline:
        pipeline = Pipeline("paths", url)
        source = pipeline.source("s", FolderSource(inbox, "json", ROWS), schema=ROWS)
        source.consume("c", lambda b: b, schema=ROWS, sink=FileSink(out, "json"))
        return pipeline

    def places(pipeline: Pipeline) -> tuple[Any, ...]:
        plan = with_absolute_paths(pipeline.plan)
        folder: Any = plan.sources["s"].source
        sink: Any = plan.consumers["c"].sink
        return plan.url, folder.folder, sink.url

    here = str(tmp_path)
    assert places(made("d", "./in", "file:o")) == (f"{here}/d", f"{here}/in", f"{here}/o")
    assert places(made("s3://b/d", "/in", "file:///o")) == ("s3://b/d", "/in", "file:///o")
