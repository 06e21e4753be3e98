"""Stages over the rows of a query are recognised by the query's plan and its stages."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle

pytestmark = pytest.mark.spark

CALLS: dict[str, Callable[[DurableShuffle, DataFrame], DataFrame]] = {
    "checkpoint": lambda s, df: s.checkpoint(df),
    "repartition": lambda s, df: s.repartition(df, 3, "k"),
    "stage": lambda s, df: s.stage(df, keys="k", num_partitions=3),
    "query": lambda s, df: s.query(df.groupBy("s").agg(F.max("k").alias("k"))),
}


def summed(session: SparkSession, folder: Path, least: int = 0) -> DataFrame:
    df = session.read.parquet(str(folder)).where(F.col("id") >= least)
    return df.groupBy((F.col("id") % 5).alias("k")).agg(F.sum("id").alias("s"))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("call", CALLS)
def test_rows_of_a_query_are_recognised(
    session: SparkSession, root: str, tmp_path: Path, call: str
) -> None:
    """A second run finds the stage; another query, other files, or another stage below do not."""
    folder = tmp_path / "in"
    session.range(0, 100, 1, 2).write.parquet(str(folder))

    def run(least: int = 0) -> set[str]:
        shuffle = DurableShuffle(session, root, job="tests")
        wanted = summed(session, folder, least)
        rows = CALLS[call](shuffle, shuffle.query(wanted, name="below"))
        found = sorted(tuple(row) for row in rows.select("k", "s").collect())
        if call == "query":
            wanted = wanted.groupBy("s").agg(F.max("k").alias("k"))
        assert found == sorted(tuple(row) for row in wanted.select("k", "s").collect())
        return {s.action for s in shuffle.report().stages if s.name != "below"}

    assert run() == {"computed"}
    assert run() == {"reused"}
    assert run(7) == {"computed"}
    session.range(100, 110, 1, 1).write.mode("append").parquet(str(folder))
    assert run() == {"computed"}
    assert run() == {"reused"}
    assert DurableShuffle(session, root, job="tests").release("below")
    assert run() == {"computed"}


def test_queries_with_functions_stay_unrecognised(session: SparkSession, root: str) -> None:
    """What a function of the query opens is told under another identity."""
    for _ in range(2):
        shuffle = DurableShuffle(session, root, job="tests")
        df = session.range(0, 20, 1, 2).select(F.udf(lambda n: n % 3, "long")("id").alias("k"))
        out = shuffle.checkpoint(shuffle.query(df.groupBy("k").count(), name="below"))
        assert out.count() == 3
        assert [s.action for s in shuffle.report().stages if s.name != "below"] == ["computed"]
