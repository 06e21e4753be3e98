"""A pipeline follows what Spark stored."""

from collections import Counter
from pathlib import Path

import pytest
from pipeline_steps import ROWS, same
from pipelines import published, settings, threads
from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle
from durable_shuffle.recovery.job.phases import JobPhase
from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.plan.sinks import FileSink
from durable_shuffle.recovery.pipeline.plan.sources import StageSource

pytestmark = pytest.mark.spark


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
