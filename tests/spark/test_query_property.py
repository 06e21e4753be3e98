"""Random DataFrame programs: a durable query gives the rows that Spark gives natively."""

import random
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle
from durable_shuffle.shuffle.settings import Settings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

ALWAYS, SOAK = 6, 150


class Programmer:
    """Makes DataFrames with columns k (long), v (decimal), s (string, may be null)."""

    def __init__(self, session: SparkSession, folder: Path) -> None:
        self._session = session
        self.sources = [str(folder / name) for name in ("a", "b")]
        for i, path in enumerate(self.sources):
            session.range(0, 300 + 100 * i, 1, 3).selectExpr(
                f"(id * {7 + i}) % 41 as k",
                "cast((id * 37) % 1000 as decimal(12, 2)) / 10 as v",
                "case when id % 6 = 0 then null else concat('s', id % 9) end as s",
            ).selectExpr("k", "cast(v as decimal(20, 4)) as v", "s").write.parquet(path)

    def program(self, draw: random.Random, depth: int) -> DataFrame:
        """Return a random program; deeper ones have more steps."""
        if depth == 0:
            return self._session.read.parquet(draw.choice(self.sources))
        df = self.program(draw, depth - 1)
        return draw.choice(STEPS)(draw, df, self, depth - 1)


def shaped(df: DataFrame) -> DataFrame:
    return df.selectExpr("cast(k as long) k", "cast(v as decimal(20, 4)) v", "cast(s as string) s")


def aggregate(draw: random.Random, df: DataFrame, *_: object) -> DataFrame:
    key = draw.choice(["k % 5", "k", "length(s)", "coalesce(k, 0) - 3"])
    value = draw.choice(["sum(v)", "max(v)", "count(distinct v)", "min(k)"])
    return shaped(
        df.groupBy(F.expr(key).alias("k")).agg(F.expr(value).alias("v"), F.max("s").alias("s"))
    )


def join(draw: random.Random, df: DataFrame, by: Programmer, depth: int) -> DataFrame:
    other = (
        by.program(draw, min(depth, 1))
        .groupBy("k")
        .agg(F.max("v").alias("w"), F.min("s").alias("t"))
    )
    how = draw.choice(["inner", "left", "left_semi", "left_anti", "full"])
    hint = draw.choice(["merge", "shuffle_hash", "broadcast", ""])
    joined = df.join(other.hint(hint) if hint else other, "k", how)
    return shaped(
        joined.selectExpr("k", "v", "s")
        if how != "full"
        else joined.selectExpr("k", "w as v", "t as s")
    )


def self_join(draw: random.Random, df: DataFrame, *_: object) -> DataFrame:
    sums = df.groupBy("k").agg(F.sum("v").alias("v"), F.max("s").alias("s"))
    both = sums.alias("x").join(sums.alias("y"), F.expr("x.k = y.k"))
    return shaped(both.selectExpr("x.k as k", "y.v as v", "x.s as s"))


def window(draw: random.Random, df: DataFrame, *_: object) -> DataFrame:
    over = Window.partitionBy(draw.choice(["k", "s"])).orderBy("v", "k", "s")
    return shaped(df.withColumn("v", F.rank().over(over) + F.col("k")))


def union(draw: random.Random, df: DataFrame, by: Programmer, depth: int) -> DataFrame:
    return df.union(by.program(draw, min(depth, 2)))


def repartition(draw: random.Random, df: DataFrame, *_: object) -> DataFrame:
    how = draw.choice(["n", "k", "nk", "range"])
    if how == "n":
        return df.repartition(draw.randint(1, 7))
    if how == "range":
        return df.repartitionByRange(draw.randint(1, 5), F.col("v").desc(), "k")
    return df.repartition("k") if how == "k" else df.repartition(draw.randint(1, 9), "k")


def distinct_sorted(draw: random.Random, df: DataFrame, *_: object) -> DataFrame:
    ordered = df.distinct().orderBy(F.col("s").desc(), "v", "k")
    return ordered.limit(draw.randint(0, 60)) if draw.random() < 0.5 else ordered


def set_operation(draw: random.Random, df: DataFrame, by: Programmer, depth: int) -> DataFrame:
    other = by.program(draw, min(depth, 1))
    how = draw.choice(["intersect", "intersectAll", "exceptAll", "subtract"])
    found: DataFrame = getattr(df, how)(other)
    return found


def grouping_sets(draw: random.Random, df: DataFrame, *_: object) -> DataFrame:
    of = draw.choice([df.rollup, df.cube])
    return shaped(of("k", "s").agg(F.sum("v").alias("v")).where("k is null or k % 3 = 0"))


def cross(draw: random.Random, df: DataFrame, by: Programmer, depth: int) -> DataFrame:
    total = by.program(draw, min(depth, 1)).agg(F.max("k").alias("m"), F.avg("v").alias("a"))
    joined = df.crossJoin(total) if draw.random() < 0.5 else df.join(total, F.expr("v > a"))
    return shaped(joined.selectExpr("k + m as k", "v", "s"))


def over_all(draw: random.Random, df: DataFrame, *_: object) -> DataFrame:
    over = Window.orderBy("v", "k", "s")
    value = draw.choice([F.row_number(), F.sum("k"), F.ntile(4)])
    return shaped(df.withColumn("v", value.over(over)))


def python(draw: random.Random, df: DataFrame, *_: object) -> DataFrame:
    step = draw.randint(1, 3)
    moved = F.udf(lambda k: None if k is None else k + step, "long")
    return shaped(df.withColumn("k", moved("k")).dropDuplicates(["k", "v", "s"]))


def filtered(draw: random.Random, df: DataFrame, by: Programmer, depth: int) -> DataFrame:
    if draw.random() < 0.5:
        return df.where(F.expr(draw.choice(["k > 3", "v < 60", "s is not null", "k % 2 = 0"])))
    df.createOrReplaceTempView("outside")
    by.program(draw, 1).createOrReplaceTempView("inside")
    text = draw.choice(
        [
            "select * from outside where v >= (select avg(v) from inside)",
            "select * from outside where k in (select k from inside where v > 40)",
            "select * from outside o where not exists (select 1 from inside i where i.k = o.k + 9)",
        ]
    )
    return shaped(df.sparkSession.sql(text))


STEPS = [
    *(aggregate, join, self_join, window, union, repartition, distinct_sorted, filtered),
    *(set_operation, grouping_sets, cross, over_all, python),
]


def check(session: SparkSession, programmer: Programmer, root: str, seed: int) -> None:
    draw = random.Random(seed)
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", draw.choice(["-1", "10485760"]))
    session.conf.set("spark.sql.shuffle.partitions", str(draw.choice([1, 3, 8])))
    df = programmer.program(draw, draw.randint(2, 5))
    wanted = sorted(map(repr, df.collect()))
    settings = Settings(result_least_bytes=draw.choice([0, 1 << 30]))
    durable = DurableShuffle(session, root, job="tests", settings=settings)
    found = sorted(map(repr, durable.query(df).collect()))
    assert found == wanted, f"seed {seed}"
    again = sorted(map(repr, durable.query(df).collect()))
    assert again == wanted, f"seed {seed}, from storage"


@pytest.fixture
def programmer(session: SparkSession, tmp_path: Path) -> Programmer:
    return Programmer(session, tmp_path)


def test_random_programs(
    session: SparkSession, programmer: Programmer, root: str, seed: int
) -> None:
    """A few programs, other ones in each run; the seed is in the report's header."""
    for i in range(ALWAYS):
        check(session, programmer, root, seed * 1000 + i)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_random_programs_many(
    session: SparkSession, programmer: Programmer, root: str, seed: int
) -> None:
    """As the test that always runs, with many programs."""
    for i in range(SOAK):
        check(session, programmer, root, seed * 1000 + i)
