"""Spark reads what a pipeline writes, as a table and as a stream, and a pipeline follows Spark."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pipeline_steps import ROWS, Numbers, same
from pipelines import published, settings, threads, until
from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle
from durable_shuffle.recovery.job.phases import JobPhase
from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.plan.sinks import FileSink
from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource, StageSource
from durable_shuffle.streaming import register

pytestmark = pytest.mark.spark
UPTO = 300


@pytest.mark.soak
def test_a_stream_of_a_pipeline_is_a_table_and_a_stream(
    session: SparkSession, tmp_path: Path
) -> None:
    """A query with a name reads on where it was, and the pipeline deletes nothing that it has not
    read, although its own consumers have; then it does."""
    register(session)
    pipeline = Pipeline(
        "feeds", str(tmp_path / "data"), settings=settings(append_rows=20, release_seconds=0.05)
    )
    numbers = pipeline.source("numbers", IteratorSource(Numbers(1, None)), schema=ROWS, key="n")
    passed = numbers.through("pass", same, schema=ROWS, key="n", partitions=2, readers=["nightly"])
    passed.consume("copy", same, schema=ROWS, sink=FileSink(str(tmp_path / "out"), "json"))
    place = {"url": str(tmp_path / "data"), "job": "feeds", "stage": "pass.out"}

    def read_on(reached: int) -> set[int]:
        options: dict[str, Any] = {**place, "consumer": "nightly", "startingOffsets": "latest"}
        frame = session.readStream.format("durable_shuffle").options(**options).load()
        sink = frame.writeStream.format("parquet").option("path", str(tmp_path / "read"))
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()
        found = session.read.schema("n long").parquet(str(tmp_path / "read"))
        rows = Counter(row.n for row in found.collect())
        assert set(rows.values()) <= {1}
        assert max(rows, default=0) >= reached
        return set(rows)

    running = pipeline.start(launcher=threads)
    until(lambda: published(tmp_path).total() > 100, "rows")
    read_on(0)
    until(lambda: published(tmp_path).total() > UPTO, "more rows")
    reached = max(published(tmp_path))
    first = read_on(reached - 100)
    table = session.read.format("durable_shuffle").options(**place).load()
    stored = {row.n for row in table.collect()}
    assert stored
    assert max(stored) > max(first) - 100
    until(lambda: published(tmp_path).total() > reached + 300, "more rows")
    second = read_on(reached + 200)
    both = sorted(second)
    assert both == list(range(both[0], both[-1] + 1)), "none was deleted before it was read"
    running.stop("DRAIN")
    assert running.wait(300).phase is JobPhase.FINISHED


def test_a_pipeline_follows_a_stage_of_spark(session: SparkSession, tmp_path: Path) -> None:
    """A stored repartition, read in place, by the name that the job gave it."""
    root = str(tmp_path / "root")
    with DurableShuffle(session, root, job="tests") as shuffle:
        expected = Counter(
            row.n
            for row in shuffle.repartition(
                session.range(100).withColumnRenamed("id", "n"), 3, "n", name="hop"
            ).collect()
        )
    pipeline = Pipeline("follows", root, settings=settings())
    stored = pipeline.source("stored", StageSource("tests", "hop"))
    stored.consume("copy", same, schema=ROWS, sink=FileSink(str(tmp_path / "out"), "json"))
    assert pipeline.run(launcher=threads).phase is JobPhase.FINISHED
    assert published(tmp_path) == expected
