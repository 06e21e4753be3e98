"""Tables of features have hundreds of columns: their rows are right, and no column costs a call."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle import DurableShuffle

pytestmark = pytest.mark.spark

CALLS: dict[str, Callable[[DurableShuffle, DataFrame], DataFrame]] = {
    "checkpoint": lambda s, df: s.checkpoint(df),
    "hash": lambda s, df: s.repartition(df, 3, "k", "c1"),
    "turns": lambda s, df: s.repartition(df, 3),
    "query": lambda s, df: s.query(df.repartition(3, "k")),
}


def wide(session: SparkSession, columns: int) -> DataFrame:
    """200 rows of longs and texts, some of them null."""
    values = ("if(id % 7 = {i} % 7, NULL, id * {i})", "concat('v', id % {i})")
    columns_of = (f"{values[i % 2].format(i=i)} AS c{i}" for i in range(1, columns))
    return session.range(0, 200, 1, 4).selectExpr("id % 11 AS k", *columns_of)


def placed(df: DataFrame) -> list[list[str]]:
    """The rows of each partition, sorted."""
    return df.rdd.glom().map(lambda rows: sorted(map(str, rows))).collect()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("call", sorted(CALLS))
@pytest.mark.parametrize("columns", [99, 101, 1200])
def test_rows_stand_where_spark_puts_them(
    session: SparkSession, root: str, call: str, columns: int
) -> None:
    """Also behind the width at which Spark generates code for single operators only."""
    session.conf.set("spark.sql.adaptive.enabled", "false")
    df = wide(session, columns)
    shuffle = DurableShuffle(session, root, job="wide")
    native = {
        "checkpoint": df,
        "hash": df.repartition(3, "k", "c1"),
        "query": df.repartition(3, "k"),
    }
    found = CALLS[call](shuffle, df)
    if call in native:
        assert placed(found) == placed(native[call])
    else:
        assert sorted(map(str, found.collect())) == sorted(map(str, df.collect()))
    assert not shuffle.report().native
    assert all(stage.rows == 200 for stage in shuffle.report().stages)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("call", ["checkpoint", "hash", "turns"])
def test_columns_cost_no_calls(
    session: SparkSession,
    root: str,
    call: str,
    jvm_calls: Callable[[], AbstractContextManager[list[str]]],
) -> None:
    """A frame of 600 columns takes as many calls into the JVM as one of 120."""
    shuffle = DurableShuffle(session, root, job="wide")
    counts = []
    for columns in (110, 120, 600):  # the first one warms up
        df = wide(session, columns)
        df.schema  # noqa: B018 - PySpark reads it once
        with jvm_calls() as calls:
            CALLS[call](shuffle, df)
        counts.append(len(calls))
    assert abs(counts[2] - counts[1]) < 40, counts
