"""Files written behind a stored frame are those that Spark writes, by number and order."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle

pytestmark = pytest.mark.spark

SHAPES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "sorted within partitions": lambda df: df.repartition(4, "p").sortWithinPartitions("p", "ts"),
    "sorted": lambda df: df.orderBy("p", "ts"),
    "sorted, computed": lambda df: df.orderBy((F.col("p") + 1).desc()).select("ts", "p"),
    "aggregated": lambda df: df.groupBy("p").agg(F.max("ts").alias("ts")),
    "joined": lambda df: df.hint("merge").join(df.select("id"), "id").select("p", "ts"),
    "fixed": lambda df: df.repartition(5),
    "by key and number": lambda df: df.repartition(3, "p"),
    "by key": lambda df: df.repartition("p"),
    "coalesced": lambda df: df.coalesce(1),
    "scanned": lambda df: df,
}
CALLS: dict[str, Callable[[DurableShuffle, DataFrame], DataFrame]] = {
    "checkpoint": lambda s, df: s.checkpoint(df),
    "query": lambda s, df: s.query(df),
}


@pytest.fixture
def source(session: SparkSession, tmp_path: Path) -> DataFrame:
    """Return 20,000 rows in 4 files; a writer's own sort spills."""
    rows = session.range(0, 20_000, 1, 4)
    columns = [(F.hash("id") % 3).alias("p"), F.hash("id", F.lit(1)).alias("ts"), F.col("id")]
    rows.select(*columns).write.parquet(str(tmp_path / "in"))
    session.conf.set("spark.sql.shuffle.partitions", "4")
    return session.read.parquet(str(tmp_path / "in"))


def _files(df: DataFrame, folder: Path, by: str | None) -> list[list[int]]:
    """Write rows; return the values of `ts` in each file, in the order of the files."""
    writer = df.write.partitionBy(by) if by else df.write
    writer.parquet(str(folder))
    paths = sorted(folder.rglob("*.parquet"), key=lambda path: path.name.split("-")[1])
    return [pq.ParquetFile(path).read(["ts"]).column(0).to_pylist() for path in paths]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("shape", SHAPES)
def test_as_many_files_as_spark_writes(
    source: DataFrame, root: str, tmp_path: Path, shape: str, call: str
) -> None:
    """Small partitions of a shuffle are joined where adaptive execution joins them."""
    df = SHAPES[shape](source)
    wanted = _files(df, tmp_path / "plain", None)
    durable = DurableShuffle(source.sparkSession, root, job="tests")
    for run in ("first", "second"):
        found = _files(CALLS[call](durable, df), tmp_path / run, None)
        assert len(found) == len(wanted), run
        assert sorted(v for file in found for v in file) == sorted(v for f in wanted for v in f)
        if shape == "sorted":
            assert found == wanted


@pytest.mark.sampled(1)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("shape", ["sorted within partitions", "sorted"])
def test_rows_stay_sorted_behind_partition_by(
    source: DataFrame, root: str, tmp_path: Path, shape: str, call: str
) -> None:
    """Spark sorts by the partition column only if it does not know that rows are sorted, and then
    loses the order within a key. The plan shows that it does not sort."""
    df = SHAPES[shape](source)
    durable = DurableShuffle(source.sparkSession, root, job="tests")
    for run in ("first", "second"):
        frame = CALLS[call](durable, df)
        order = str(frame._jdf.queryExecution().executedPlan().outputOrdering().toString())
        assert order.index("p#") < order.index("ts#")
        for values in _files(frame, tmp_path / run, "p"):
            assert values == sorted(values)


def test_joined_partitions_follow_sparks_switches(source: DataFrame, root: str) -> None:
    """Without adaptive execution a checkpoint has the partitions of its DataFrame."""
    session = source.sparkSession
    df = source.groupBy("p").count()
    durable = DurableShuffle(session, root, job="tests")
    assert durable.checkpoint(df).rdd.getNumPartitions() == 1
    for switch in ("spark.sql.adaptive.enabled", "spark.sql.adaptive.coalescePartitions.enabled"):
        session.conf.set(switch, "false")
        assert durable.checkpoint(df).rdd.getNumPartitions() == 4
        session.conf.set(switch, "true")
