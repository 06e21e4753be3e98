"""What type checkers see of the public names; never executed. mypy and pyright must agree."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, assert_type

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import durable_shuffle
from durable_shuffle import (
    DurableShuffle,
    DurableShuffleError,
    FencedError,
    Grouped,
    ResumableReducer,
)
from durable_shuffle.aio import AsyncOperator, AsyncStep, Backoff, RetryPolicy, async_map, raised
from durable_shuffle.jobs.stages.report import Report
from durable_shuffle.jobs.stages.stored import StageInfo
from durable_shuffle.pipelines import (
    CallbackSink,
    FileSink,
    FolderSource,
    IteratorSource,
    Pipeline,
    PipelineClient,
    PipelineSettings,
    StageSource,
    spark_tasks,
)
from durable_shuffle.recovery.job.phases import JobPhase
from durable_shuffle.recovery.pipeline.running import RunningPipeline
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.views import named_stage, open_view, write_output

SCHEMA = pa.schema([("n", pa.int64())])


class Counting:
    """Has the methods of a resumable reducer, and does not derive from it."""

    def process(self, batch: pa.RecordBatch) -> None:
        """Take rows."""

    def snapshot(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None:
        """Become that."""

    def finish(self) -> list[pa.RecordBatch]:
        return []


def first_half(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def count(text: str) -> int:
    return len(text)


async def count_later(text: str) -> int:
    return len(text)


async def ask(row: dict[str, Any]) -> dict[str, Any]:
    return row


def spark_calls(spark: SparkSession, df: DataFrame) -> None:
    with DurableShuffle(spark, "url", job="nightly", retention=timedelta(days=1)) as durable:
        assert_type(durable, DurableShuffle)
        assert_type(durable.durable(df), DataFrame)
        assert_type(durable.repartition(df, 4, "n"), DataFrame)
        assert_type(durable.repartition(df, "n"), DataFrame)
        assert_type(durable.query(df), DataFrame)
        assert_type(durable.report(), Report)
        listed: list[StageInfo] = durable.stages()
        assert_type(listed[0], StageInfo)
        assert_type(durable.generation, int)
        assert_type(durable.url, str)
        staged = durable.stage(df, map=first_half, keys="n", num_partitions=2, reduce=first_half)
        assert_type(staged, DataFrame)
        durable.stage(df, keys=["n"], num_partitions=2, reduce=Grouped(lambda table: table))
        durable.stage(df, keys="n", num_partitions=2, reduce=Counting(), schema="n long")
        durable.stage(df, keys="n", num_partitions=2, sort_by=[("n", "descending")])
        consumed = durable.consume(df, consumer="c", process=Counting())
        assert_type(consumed, DataFrame | None)
        with durable.transparent():
            df.count()


def without_spark() -> None:
    stage = named_stage("url", "nightly", "repartition")
    assert_type(stage, StageHandle)
    with open_view(stage, 0, consumer="loader", resume="exact") as view:
        assert_type(view, View)
        for batch in view:
            view.ack(outputs=[write_output(view.task, SCHEMA, [batch])])
        view.finish()


async def calls() -> None:
    policy = RetryPolicy(Backoff(max_retries=3), on_exception=raised(ConnectionError))
    async with AsyncOperator(ask, capacity=10, retry=policy) as operator:
        assert_type(operator.cursor, int)
    assert_type(AsyncOperator(count, capacity=1), AsyncOperator[str, int])
    assert_type(AsyncOperator(count_later, capacity=1), AsyncOperator[str, int])
    step: ResumableReducer = AsyncStep(ask, SCHEMA, capacity=10)
    step.snapshot()
    async_map(ask, SCHEMA, capacity=10, retry=policy)


def pipelines(spark: SparkSession) -> None:
    settings = PipelineSettings(max_restarts=5, start_seconds=60)
    pipeline = Pipeline("orders", "url", settings=settings)
    folder = FolderSource("inbox", "json", SCHEMA)
    stream = pipeline.source("orders", folder, schema=SCHEMA, key="n", partitions=2)
    stream.consume("totals", Counting(), schema=SCHEMA, sink=FileSink("out", "json"))
    stream.consume("other", lambda batch: batch, schema=SCHEMA, sink=CallbackSink(print))
    pipeline.source(
        "numbers",
        IteratorSource(lambda position, producer: iter(())),
        schema=SCHEMA,
        key="n",
        partitions=1,
    )
    assert_type(StageSource("nightly", "repartition").url, str | None)
    running = pipeline.start(launcher=spark_tasks(spark))
    assert_type(running, RunningPipeline)
    assert_type(running.phase, JobPhase)
    assert_type(PipelineClient("orders", "url"), PipelineClient)


def errors(error: FencedError) -> None:
    assert_type(durable_shuffle.__version__, str)
    root: DurableShuffleError = error
    print(root.kind)
