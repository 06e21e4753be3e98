"""Two inputs in one consumer: all rows once, checkpoints of both, ends, drops and restarts."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pipeline_steps import ROWS, Numbers, same
from pipelines import epochs, prefix_of_all, published, settings, threads, until

from durable_shuffle.recovery.job.phases import JobPhase
from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.plan.sinks import FileSink
from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource
from durable_shuffle.serialization.errors import InvalidInputError

WAIT = 300.0


class Every:
    """Of all numbers those of one remainder, up to an end that a test sets."""

    def __init__(self, rest: int, of: int) -> None:
        self.rest, self.of = rest, of
        self.over = threading.Event()

    def __deepcopy__(self, _: Any) -> "Every":
        return self

    def __call__(self, position: Any, producer: int) -> Iterator[Any]:
        for rows, made in Numbers(1)(position, producer):
            yield [{"n": row["n"] * self.of + self.rest} for row in rows], made
            if self.over.is_set():
                return


class Sees:
    """Passes rows on, and remembers the checkpoints that are complete."""

    stateless = True

    def __init__(self) -> None:
        self.checkpoints: list[int] = []
        self.fails: list[int] = []

    def __deepcopy__(self, _: Any) -> "Sees":
        return self

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.fails:
            self.fails.pop()
            raise OSError("a passing trouble")
        return batch

    def on_checkpoint(self, checkpoint: int) -> None:
        self.checkpoints.append(checkpoint)


def test_two_sources_are_read_as_one(tmp_path: Path) -> None:
    """Every row of both once, over restarts and a suspend; a checkpoint is complete once both have
    passed it; when one ends, the other goes on alone."""
    first, second, step = Every(0, 2), Every(1, 2), Sees()

    def made() -> Pipeline:
        pipeline = Pipeline(
            "union", str(tmp_path / "data"), settings=settings(checkpoint_seconds=0.01)
        )
        options: dict[str, Any] = {"schema": ROWS, "key": "n", "partitions": 2}
        evens = pipeline.source("evens", IteratorSource(first), **options)
        odds = pipeline.source("odds", IteratorSource(second), **options)
        both = evens.union(odds, name="both")
        both.consume("copy", step, schema=ROWS, sink=FileSink(str(tmp_path / "out"), "json"))
        return pipeline

    running = made().start(launcher=threads)
    until(lambda: len(step.checkpoints) > 4, "checkpoints of both")
    assert set(epochs(running)) == {"evens-p0000", "odds-p0000", "copy-k0000", "copy-k0001"}
    before = epochs(running)
    step.fails.append(1)
    until(lambda: running.phase is JobPhase.RUNNING and epochs(running) != before, "a restart")
    assert epochs(running)["evens-p0000"] == before["evens-p0000"]
    running.stop("SUSPEND")
    assert running.wait(WAIT).phase is JobPhase.SUSPENDED
    running = made().start(launcher=threads)
    first.over.set()
    until(lambda: str(running.progress()["evens-p0000"][0]) == "finished", "one has ended")
    seen = len(step.checkpoints)
    until(lambda: len(step.checkpoints) > seen + 4, "checkpoints of the other one")
    second.over.set()
    assert running.wait(WAIT).phase is JobPhase.FINISHED
    assert prefix_of_all(published(tmp_path), 2)
    assert min(published(tmp_path).values()) == 1


def test_a_union_of_what_passes_rows_on(tmp_path: Path) -> None:
    """Of a source and a stream, and again with a third one: producers of all, numbered in turn."""
    pipeline = Pipeline("union", str(tmp_path / "data"), settings=settings())
    options: dict[str, Any] = {"schema": ROWS, "key": "n"}
    streams = [
        pipeline.source(
            name, IteratorSource(_Below(rest, 3, 40)), partitions=2, producers=1, **options
        )
        for rest, name in enumerate(("a", "b", "c"))
    ]
    passed = streams[1].through("pass", same, partitions=2, **options)
    merged = streams[0].union(passed, name="two").union(streams[2], name="three")
    merged.consume("copy", same, schema=ROWS, sink=FileSink(str(tmp_path / "out"), "json"))
    assert set(pipeline.plan.stages) == {"b", "three"}
    assert pipeline.plan.stages["three"].producers == 1 + 2 + 1
    assert pipeline.run(launcher=threads).phase is JobPhase.FINISHED
    assert published(tmp_path) == dict.fromkeys(range(120), 1)


class _Below:
    def __init__(self, rest: int, of: int, count: int) -> None:
        self.rest, self.of, self.count = rest, of, count

    def __call__(self, position: Any, producer: int) -> Iterator[Any]:
        for rows, made in Numbers(1, self.count)(position, producer):
            yield [{"n": row["n"] * self.of + self.rest} for row in rows], made


def test_what_cannot_be_merged(tmp_path: Path) -> None:
    """Other columns, keys or counts; a stream that is read already."""
    pipeline = Pipeline("union", str(tmp_path / "data"))
    rows = IteratorSource(Numbers(1, 5))
    a = pipeline.source("a", rows, schema=ROWS, key="n", partitions=2)
    other = pipeline.source("other", rows, schema=ROWS, key="n", partitions=3)
    read = pipeline.source("read", rows, schema=ROWS, key="n", partitions=2)
    read.consume("c", same)
    with pytest.raises(InvalidInputError, match=r"'other'.*same columns, key and partitions"):
        a.union(other, name="x")
    with pytest.raises(InvalidInputError, match="'read' is read by consumer 'c'"):
        a.union(read, name="x")
    with pytest.raises(InvalidInputError, match="more than one stream"):
        a.union(a, name="x")
    b = pipeline.source("b", rows, schema=ROWS, key="n", partitions=2)
    with pytest.raises(InvalidInputError, match="has a 'b' already"):
        a.union(b, name="b")
    merged = a.union(b, name="x")
    with pytest.raises(InvalidInputError, match="'a' is part of a union"):
        a.consume("late", same)
    with pytest.raises(InvalidInputError, match="has a 'a' already"):
        pipeline.source("a", rows, schema=ROWS)
    assert merged.name == "x"
