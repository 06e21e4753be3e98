"""The data source `durable_shuffle`: streams and batches through one stage, against plain Spark."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from durable_shuffle import register

pytestmark = pytest.mark.spark


class Streams:
    """Queries over one stage below a folder; each waits for its end."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        register(spark)
        self.spark, self.folder = spark, folder
        self.place = {"url": str(folder / "root"), "job": "tests", "stage": "hop"}

    def rows(self, first: int, end: int, **more: str) -> None:
        """Put a file of rows numbered [first, end) into the input folder."""
        columns = [f"{text} AS {name}" for name, text in more.items()]
        df = self.spark.range(first, end, 1, 1).selectExpr("id", "id % 7 AS k", *columns)
        df.write.mode("append").parquet(str(self.folder / "in"))

    def write(self, schema: str = "id long, k long", **options: Any) -> StreamingQuery:
        """Write all files that are new to the stage."""
        stream = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        frame = stream.parquet(str(self.folder / "in"))
        chosen = {"keys": "k", "partitions": 4, **self.place, **options}
        checkpoint = chosen.pop("checkpoint", self.folder / "write")
        writer = frame.writeStream.format("durable_shuffle").options(**chosen)
        return self._run(writer, checkpoint)

    def read(self, **options: Any) -> StreamingQuery:
        """Read what is new to files."""
        chosen = {**self.place, **options}
        checkpoint = chosen.pop("checkpoint", self.folder / "read")
        frame = self.spark.readStream.format("durable_shuffle").options(**chosen).load()
        sink = frame.writeStream.format("parquet").option("path", str(self.folder / "out"))
        return self._run(sink, checkpoint)

    def stored(self, **options: Any) -> DataFrame:
        """The stage as a table."""
        chosen = {**self.place, **options}
        return self.spark.read.format("durable_shuffle").options(**chosen).load()

    def delivered(self) -> Counter[int]:
        """How often each row came out of the reader."""
        found = self.spark.read.parquet(str(self.folder / "out")).collect()
        return Counter(row.id for row in found)

    def _run(self, writer: Any, checkpoint: Path) -> StreamingQuery:
        named = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        query: StreamingQuery = named.start()
        query.awaitTermination()
        return query


@pytest.fixture
def streams(session: SparkSession, tmp_path: Path) -> Streams:
    return Streams(session, tmp_path)


def once(first: int, end: int) -> Counter[int]:
    return Counter(range(first, end))


@pytest.mark.requirement("R-F135-1")
def test_rows_pass_a_stage_once_and_in_place(streams: Streams) -> None:
    """Written by one query, read by another in steps, both stopped and started again."""
    streams.rows(0, 300)
    streams.write()
    query = streams.read(maxRecordsPerTrigger=70)
    steps = [p.numInputRows for p in query.recentProgress if p.numInputRows]
    assert sum(steps) == 300
    assert max(steps) <= 70
    assert streams.delivered() == once(0, 300)

    streams.rows(300, 500)
    streams.write()
    streams.read()
    assert streams.delivered() == once(0, 500)

    rows = streams.stored().selectExpr("id", "k", "spark_partition_id() AS p").collect()
    assert Counter(row.id for row in rows) == once(0, 500)
    stored = json.loads(query.recentProgress[-1].sources[0].endOffset)
    assert [len(p["next"]) for p in stored["producers"]] == [4]
