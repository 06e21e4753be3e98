"""Spark cancels the jobs of this library as it cancels its own actions."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle import DurableShuffle
from durable_shuffle.jobs import in_one_call as calls
from durable_shuffle.jobs.engine import catalyst

pytestmark = pytest.mark.spark

CALLS: dict[str, Callable[[DurableShuffle, DataFrame], object]] = {
    "checkpoint": lambda s, df: s.checkpoint(df, version="1"),
    "query": lambda s, df: s.query(df.repartition(2), version="1"),
    "stage": lambda s, df: s.stage(
        df, keys=lambda b: [0] * b.num_rows, num_partitions=1, version="1"
    ),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("call", CALLS)
def test_interrupt_all_ends_a_call(
    session: SparkSession, root: str, tmp_path: Path, call: str
) -> None:
    """While a map task runs, `interruptAll` of the session ends the call with an error."""
    started, errors = tmp_path / "started", list[BaseException]()

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        started.touch()
        threading.Event().wait(60)
        yield from batches

    df = session.range(4).mapInArrow(wait, "id long")
    durable = DurableShuffle(session, root, job="tests")

    def work() -> None:
        try:
            CALLS[call](durable, df)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    deadline = time.monotonic() + 60
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    interrupted = time.monotonic()
    session.interruptAll()
    thread.join(60)
    assert time.monotonic() - interrupted < 30
    assert "cancel" in str(errors[0]).lower()
    assert durable.report().stages == ()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("call", CALLS)
def test_tags_of_the_session_reach_the_tasks(session: SparkSession, root: str, call: str) -> None:
    """A tag that the user added counts for the tasks of a call, and no other tag stays."""

    def tags(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        text = context.getLocalProperty("spark.job.tags")
        for batch in batches:
            yield pa.record_batch({"tags": [text] * batch.num_rows})

    before = session.sparkContext.getJobTags()
    durable = DurableShuffle(session, root, job="tests")
    session.addTag("mine")
    try:
        frame = CALLS[call](durable, session.range(4).mapInArrow(tags, "tags string"))
    finally:
        session.removeTag("mine")
    assert isinstance(frame, DataFrame)
    found = {row.tags for row in frame.collect()}
    assert len(found) == 1
    assert any(tag.endswith("-mine") for tag in found.pop().split(","))
    assert session.sparkContext.getJobTags() == before


def test_a_stopped_context_does_not_hide_the_error(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of a query that fails because Spark was stopped meanwhile stays the first one."""
    stopped = []

    def fail(*_: object) -> None:
        stopped.append(1)
        raise AttributeError("'NoneType' object has no attribute 'sc'")

    def fails() -> None:
        with monkeypatch.context() as patch, catalyst.with_properties(session, {}):
            patch.setattr(calls, "in_one_call", fail)
            raise ValueError("the first")

    with pytest.raises(ValueError, match="the first"):
        fails()
    assert stopped
    session.sparkContext.setLocalProperty("spark.job.tags", None)  # type: ignore[arg-type]
