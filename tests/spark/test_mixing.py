"""What is proven to give the same rows in each run, operator by operator, and what is not."""

from collections.abc import Callable, Iterator

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from durable_shuffle.jobs.engine import catalyst
from durable_shuffle.jobs.identity.jvm.calls import Jvm, items, query_execution, simple_name
from durable_shuffle.jobs.identity.plan import mixing
from durable_shuffle.jobs.identity.plan.mixing import why_not_mixed, why_rdd_not_mixed

pytestmark = pytest.mark.spark

Make = Callable[[DataFrame], DataFrame]


def _planned(df: DataFrame) -> tuple[Jvm, object]:
    spark = df.sparkSession
    session = catalyst.planning_session(spark, {})
    plan = query_execution(catalyst.on_session(df, session)).executedPlan()
    return Jvm(spark.sparkContext), plan


def why(df: DataFrame) -> tuple[str, ...]:
    return why_not_mixed(*_planned(df))


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _same_frames(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from frames


def _batched(values: pd.Series) -> pd.Series:
    return values + 1


PROVEN: dict[str, Make] = {
    "scan, filter, project": lambda df: df.where("id > 3").selectExpr("k", "id * 2 AS v"),
    "count": lambda df: df.groupBy("k").count(),
    "exact sums": lambda df: df.groupBy("k").agg(
        F.sum("id"), F.min("s"), F.max("id"), F.sum(F.col("id").cast("decimal(20,2)"))
    ),
    "average of decimals": lambda df: df.groupBy("k").agg(F.avg(F.col("id").cast("decimal(20,2)"))),
    "bits": lambda df: df.groupBy("k").agg(F.bit_xor("id"), F.every(F.col("id") > 1)),
    "objects": lambda df: df.groupBy("k").agg(F.count_if(F.col("id") > 3), F.max("s")),
    "texts as keys": lambda df: df.groupBy("s").agg(F.max("s")),
    "doubles as keys": lambda df: df.groupBy(F.col("id").cast("double").alias("d")).count(),
    "distinct": lambda df: df.select("k", "s").distinct(),
    "shuffled join": lambda df: df.hint("merge").join(df.select("id", "s"), "id"),
    "hashed join": lambda df: df.hint("shuffle_hash").join(df.select("id", "s"), "id"),
    "broadcast join": lambda df: df.join(F.broadcast(df.select("id", "s")), "id"),
    "nested loops": lambda df: df.join(F.broadcast(df.select(F.expr("id AS j"))), F.expr("id < j")),
    "product": lambda df: df.hint("shuffle_replicate_nl").crossJoin(df.select("s")),
    "rank": lambda df: df.withColumn("r", F.rank().over(Window.partitionBy("k").orderBy("s"))),
    "few ranks": lambda df: df.withColumn(
        "r", F.dense_rank().over(Window.partitionBy("k").orderBy("s"))
    ).where("r<3"),
    "window": lambda df: df.withColumn("r", F.sum("id").over(Window.partitionBy("k"))),
    "window by value": lambda df: df.withColumn(
        "r", F.sum("id").over(Window.partitionBy("k").orderBy("s"))
    ),
    "union": lambda df: df.union(df.where("id > 5")),
    "rollup": lambda df: df.rollup("k", "s").count(),
    "explode": lambda df: df.select("k", F.explode(F.array("id", "k")).alias("e")),
    "function of rows": lambda df: df.select(
        "k", F.udf(lambda x: x + 1, "long", useArrow=False)("id").alias("v")
    ),
    "function of batches": lambda df: df.select(
        "k", F.pandas_udf(_batched, "long")("id").alias("v")
    ),
    "map": lambda df: df.mapInArrow(_same, df.schema),
    "map of frames": lambda df: df.mapInPandas(_same_frames, df.schema),
    "sample of a scan": lambda df: df.sample(0.5, seed=3),
    "coalesced": lambda df: df.coalesce(1),
    "range": lambda df: df.sparkSession.range(9).selectExpr("id", "id AS k", "string(id) AS s"),
    "rows in memory": lambda df: df.sparkSession.createDataFrame(
        [(1, 2, "a")], "id long, k long, s string"
    ),
    "one row": lambda df: df.sparkSession.sql("SELECT 1 AS id, 2 AS k, 'a' AS s"),
    "nothing": lambda df: df.where("false"),
    "subquery": lambda df: df.where(F.expr("id > (SELECT max(id) - 5 FROM range(9))")),
    "command": lambda df: df.sparkSession.sql("SHOW DATABASES").selectExpr("namespace AS k"),
    "cached": lambda df: df.where("id > 1").cache(),
}
"""Shapes that are proven, also with a shuffle above them."""
UNPROVEN: dict[str, tuple[Make, str]] = {
    "sum of doubles": (
        lambda df: df.groupBy("k").agg(F.sum(F.col("id") / 3)),
        "sum of type double",
    ),
    "largest double": (
        lambda df: df.groupBy("k").agg(F.max(F.col("id") / 3)),
        "max of type double",
    ),
    "average": (lambda df: df.groupBy("k").agg(F.avg("id")), "avg of rows as they arrive"),
    "first": (lambda df: df.groupBy("k").agg(F.first("id")), "first of rows as they arrive"),
    "a key with a collation": (
        lambda df: df.groupBy(F.expr("s COLLATE UTF8_LCASE").alias("c")).count(),
        "a key of type string collate UTF8_LCASE",
    ),
    "ties": (
        lambda df: df.select("k", F.row_number().over(Window.partitionBy("k").orderBy("s"))),
        "row_number over",
    ),
    "rows": (
        lambda df: df.select(
            "k", F.sum("id").over(Window.partitionBy("k").orderBy("s").rowsBetween(-1, 0))
        ),
        "sum over ROWS that may tie",
    ),
    "first ties": (
        lambda df: df.withColumn(
            "n", F.row_number().over(Window.partitionBy("k").orderBy("s"))
        ).where("n < 3"),
        "row_number",
    ),
    "limit": (lambda df: df.limit(3), "GlobalLimit"),
    "limit in order": (lambda df: df.orderBy("s").limit(3), "rows that tie in ORDER BY with LIMIT"),
    "random": (lambda df: df.withColumn("r", F.rand(7)), "rand"),
    "identifiers": (lambda df: df.withColumn("u", F.expr("uuid()")), "uuid"),
    "numbers": (lambda df: df.withColumn("n", F.monotonically_increasing_id()), "monotonically_in"),
    "a function that is not deterministic": (
        lambda df: df.select("k", F.udf(lambda x: x, "long").asNondeterministic()("id")),
        "<lambda>",
    ),
    "groups in Python": (
        lambda df: df.groupBy("k").applyInArrow(lambda t: t, df.schema),
        "FlatMapGroupsInArrow",
    ),
    "a map behind a shuffle": (
        lambda df: df.repartition(2, "k").mapInArrow(_same, df.schema),
        "MapInArrow of rows as they arrive",
    ),
    "a sample behind a shuffle": (
        lambda df: df.repartition(2, "k").sample(0.5, seed=3),
        "Sample of rows as they arrive",
    ),
    "ranges": (lambda df: df.orderBy("s"), "RangePartitioning"),
    "a broadcast of ties": (
        lambda df: df.join(
            F.broadcast(df.dropDuplicates(["k"]).select("k", F.expr("s AS t"))), "k"
        ),
        "first of rows as they arrive",
    ),
    "a subquery of ties": (
        lambda df: df.where(F.expr("id > (SELECT first(id) FROM range(9))")),
        "first of rows as they arrive",
    ),
    "a shuffle of an RDD": (
        lambda df: df.sparkSession.createDataFrame(
            df.rdd.map(lambda row: (row.k, row.id)).distinct(), "k long, id long"
        ),
        "an RDD behind a ShuffleDependency",
    ),
}
"""Shapes that are not proven with a shuffle above them, and what is said about them."""


@pytest.fixture
def rows(session: SparkSession, table: DataFrame) -> DataFrame:
    """Return the columns id, k and s of a Parquet table."""
    session.conf.set("spark.sql.shuffle.partitions", "3")
    return session.read.parquet(table.inputFiles()[0].rpartition("/")[0]).select(
        "id", F.col("k").cast("long").alias("k"), F.col("id").cast("string").alias("s")
    )


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", PROVEN)
def test_proven(rows: DataFrame, name: str) -> None:
    """Producers of two runs may be mixed, with or without a shuffle above."""
    df = PROVEN[name](rows)
    assert why(df) == ()
    assert why(df.repartition(5, df.columns[0])) == ()
    assert why(df.repartition(3)) == ()


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", UNPROVEN)
def test_not_proven(rows: DataFrame, name: str) -> None:
    """Below a shuffle it is named; whatever a task makes of its own input needs no proof."""
    make, text = UNPROVEN[name]
    df = make(rows)
    found = why(df.repartition(5, df.columns[0])) or why(df)  # the optimizer may drop a sort
    assert any(text in reason for reason in found), found


def test_a_task_may_do_what_it_wants_with_its_own_input(rows: DataFrame) -> None:
    """Rows of a producer count whole: chance and order matter only below an exchange."""
    assert why(rows.withColumn("r", F.rand(7))) == ()
    grouped = rows.repartition(5, "k").groupBy("k")
    assert why(grouped.applyInArrow(lambda t: t, rows.schema)) == ()
    assert why(rows.withColumn("r", F.rand(7)).repartition(3, "r")) == (
        "rand below a native exchange",
    )


@pytest.mark.usefixtures("compiled_plans")
def test_every_operator_on_the_list_has_a_case(rows: DataFrame) -> None:
    """Each operator that is called proven occurs in a shape above, below a shuffle."""
    seen: set[str] = set()

    def look(node: object) -> None:
        seen.add(simple_name(str(node.getClass().getName())))  # type: ignore[attr-defined]
        for below in (*items(node.children()), *items(node.subqueries())):  # type: ignore[attr-defined]
            look(below)

    for make in PROVEN.values():
        for df in (make(rows), make(rows.hint("rebalance"))):
            look(_planned(df)[1])
    listed = mixing._LEAVES | mixing._WRAPPERS | mixing._IN_ORDER | mixing._ANY_ORDER
    assert listed - seen <= {
        *("BatchScanExec", "RowToColumnarExec"),  # of other sources
        *("ObjectHashAggregateExec", "SortAggregateExec"),  # how Spark falls back
        *("EmptyRelationExec", "OneRowRelationExec"),  # the optimizer makes rows in memory of them
        "LocalLimitExec",
    }, sorted(listed - seen)


def test_what_is_not_listed_is_not_proven(rows: DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator of a newer Spark makes the stage start again."""
    df = rows.where("id > 3").repartition(3, "k")
    assert why(df) == ()
    monkeypatch.setattr(mixing, "_WRAPPERS", mixing._WRAPPERS - {"FilterExec"})
    assert why(df) == ("Filter below a native exchange",)


def test_a_version_vouches_for_no_exchange(rows: DataFrame) -> None:
    """What only a version vouches for may do what it wants in its own task, but nowhere below."""
    for make in (
        lambda df: df.repartition(5, "k"),
        lambda df: df.join(F.broadcast(df.select("id", F.expr("s AS t"))), "id"),
        lambda df: df.where(F.expr("id > (SELECT max(id) - 5 FROM range(9))")),
        lambda df: df.orderBy("s").limit(3),
    ):
        assert why_not_mixed(*_planned(rows), vouched=True) == ()
        assert any(
            "version=" in reason for reason in why_not_mixed(*_planned(make(rows)), vouched=True)
        )


def test_rdds_of_the_user(session: SparkSession) -> None:
    """An RDD is proven as long as its partitions are made one by one."""
    context = session.sparkContext
    numbers = context.parallelize(range(9), 3).map(lambda x: (x % 2, x))
    jvm = Jvm(context)
    assert why_rdd_not_mixed(jvm, numbers._jrdd.rdd()) == ()
    assert why_rdd_not_mixed(jvm, numbers.union(numbers)._jrdd.rdd()) == ()
    shuffled = numbers.groupByKey(2)
    assert why_rdd_not_mixed(jvm, shuffled._jrdd.rdd()) == ("an RDD behind a ShuffleDependency",)
