"""`version=` stands for data that a plan does not show; it never makes two different inputs equal.

Every case compares a stage's rows with Spark's own rows at that time. The tests change a row of the
source without the library's knowledge, which shows whether the stage was read or computed."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader

from durable_shuffle import DurableShuffle
from durable_shuffle.serialization.errors import InvalidInputError

pytestmark = pytest.mark.spark
URL = "jdbc:derby:memory:told_apart;create=true"
QUERY = '(select * from customers where "k" = 1) q'
DRIVER = {"driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver"}

Call = Callable[[DurableShuffle, DataFrame], DataFrame]
CALLS: dict[str, Call] = {
    "durable": lambda shuffle, df: shuffle.durable(df, version="v"),
    "repartition": lambda shuffle, df: shuffle.repartition(df, 2, "id", version="v"),
    "query": lambda shuffle, df: shuffle.query(df.repartition(2, "id"), version="v"),
}


def rows(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, df.collect()))


def decisions(shuffle: DurableShuffle) -> list[str]:
    return [stage.action for stage in shuffle.report().stages]


@pytest.fixture
def tables(spark: SparkSession) -> Iterator[Callable[..., DataFrame]]:
    """Give two tables of a database with equal columns; both are dropped at the end."""
    data = {"customers": range(6), "suppliers": range(100, 104)}
    for name, ids in data.items():
        made = spark.createDataFrame([(i, i % 2) for i in ids], "id int, k int")
        made.write.jdbc(URL, name, mode="overwrite", properties=DRIVER)

    def read(name: str, **properties: str) -> DataFrame:
        return spark.read.jdbc(URL, name, properties={**DRIVER, **properties})

    yield read
    execute(spark, "drop table customers")
    execute(spark, "drop table suppliers")


def execute(spark: SparkSession, statement: str) -> None:
    """Run a statement in the database, without Spark."""
    connection = spark.sparkContext._jvm.java.sql.DriverManager.getConnection(URL)
    try:
        connection.createStatement().executeUpdate(statement)
    finally:
        connection.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("call", CALLS)
def test_jdbc_tables_and_pushed_filters(
    spark: SparkSession, tables: Callable[..., DataFrame], root: str, call: str
) -> None:
    """Tables, filters, columns and partitions of a read distinguish inputs. The version stands for
    the table's rows. Neither a password nor a new object makes a new input."""
    shuffle = DurableShuffle(spark, root, job="tests")
    plans = [
        tables("customers"),
        tables("suppliers"),
        tables("customers").where("id < 3"),
        tables("customers").where("id >= 3"),
        tables("customers").where("id in (1, 3)"),
        tables(QUERY),
        spark.read.jdbc(URL, "customers", predicates=['"id" > 2'], properties=DRIVER),
        spark.read.jdbc(URL, "customers", predicates=['"id" > 3'], properties=DRIVER),
    ]
    for plan in plans:
        assert rows(CALLS[call](shuffle, plan)) == rows(plan)
    assert set(decisions(shuffle)) == {"computed"}
    before = rows(tables("customers"))
    execute(spark, "insert into customers values (77, 1)")
    again = DurableShuffle(spark, root, job="tests")
    assert rows(CALLS[call](again, tables("customers", password="changed"))) == before
    assert rows(CALLS[call](again, plans[3])) == [row for row in before if row[0] >= 3]
    assert decisions(again) == ["reused", "reused"]
    assert again.explain.repartition(tables(QUERY), 2).why == (
        f"the JDBC table {QUERY} cannot be recognised in another run: give version= for the rows "
        "that it holds now; nothing else tells them"
    )
    other = CALLS[call](again, tables("customers").where("id >= 4"))
    assert rows(other) == [(4, 0), (5, 1), (77, 1)]


def test_jdbc_queries_with_pushed_aggregates(
    spark: SparkSession, tables: Callable[..., DataFrame], root: str
) -> None:
    """Queries over one table under one version that ask the database for different things."""
    shuffle = DurableShuffle(spark, root, job="tests", version="one for all")
    plans = [
        tables("customers").where("id < 5").groupBy("k").count(),
        tables("customers").where("id >= 2 and k = 1").groupBy("k").count(),
        tables("customers").where("id >= 2").groupBy("k").count(),
        tables("customers").where("id >= 2").groupBy("k").agg(F.max("id")),
        tables("suppliers").where("id >= 2").groupBy("k").count(),
    ]
    for _ in range(2):
        for plan in plans:
            assert rows(shuffle.query(plan)) == rows(plan)
    assert decisions(shuffle) == ["computed"] * 5 + ["reused"] * 5
    shuffle.query(plans[0], version="another")
    assert decisions(shuffle)[-1] == "computed"


class Days(DataSource):
    """Rows that depend on an option."""

    @classmethod
    def name(cls) -> str:
        return "told_apart_days"

    def schema(self) -> str:
        return "day string, id int"

    def reader(self, schema: Any) -> DataSourceReader:
        day = self.options["day"]

        class Reader(DataSourceReader):
            def read(self, partition: Any) -> Iterator[tuple[str, int]]:
                yield from ((day, number) for number in range(4))

        return Reader()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("call", CALLS)
def test_data_source_v2_options(spark: SparkSession, root: str, call: str) -> None:
    """Options, filters and limits distinguish inputs of a source that shows nothing else."""
    spark.dataSource.register(Days)
    shuffle = DurableShuffle(spark, root, job="tests")

    def read(day: str) -> DataFrame:
        return spark.read.format("told_apart_days").option("day", day).load()

    plans = [read("1"), read("2"), read("1").where("id > 1"), read("1").where("id > 2")]
    for expected in ("computed", "reused"):
        for plan in plans:
            assert rows(CALLS[call](shuffle, plan)) == rows(plan)
        assert set(decisions(shuffle)[-len(plans) :]) == {expected}
    assert rows(CALLS[call](shuffle, read("1"))) == rows(read("1"))
    assert decisions(shuffle)[-1] == "reused"


def test_cached_frames_count_by_their_plans(spark: SparkSession, root: str) -> None:
    """Two cached frames with equal columns are two inputs; the same frame again is a hit.

    No version is needed: cached rows are those of their plan."""
    shuffle = DurableShuffle(spark, root, job="tests")
    train, test = spark.range(0, 5, 1, 2).cache(), spark.range(50, 55, 1, 2).cache()
    try:
        for call in (shuffle.durable, lambda df: shuffle.query(df.repartition(2, "id"))):
            for frame in (train, test, train, test):
                assert rows(call(frame)) == rows(frame)
        assert decisions(shuffle) == ["computed", "computed", "reused", "reused"] * 2
    finally:
        train.unpersist()
        test.unpersist()


def test_rows_of_the_driver_are_recognised(spark: SparkSession, root: str) -> None:
    """Lists that are passed to Spark count by their rows and functions, without a version."""

    def plans() -> list[DataFrame]:
        context = spark.sparkContext
        return [
            spark.createDataFrame([(1, "a"), (2, "b")], "id int, name string"),
            spark.createDataFrame([(1, "a"), (3, "b")], "id int, name string"),
            context.parallelize(range(3), 2).map(lambda n: (n,)).toDF("id long"),
            context.parallelize(range(3), 2).map(lambda n: (n + 1,)).toDF("id long"),
            context.parallelize(range(4), 2).map(lambda n: (n,)).toDF("id long"),
        ]

    shuffle = DurableShuffle(spark, root, job="tests")
    for expected in ("computed", "reused"):
        for plan in plans():
            assert rows(shuffle.durable(plan)) == rows(plan)
        assert set(decisions(shuffle)[-5:]) == {expected}


def test_frames_that_nothing_tells_apart_are_refused(spark: SparkSession, root: str) -> None:
    """Two checkpointed frames under one version are refused by name; the same one twice is not."""
    shuffle = DurableShuffle(spark, root, job="tests", version="v")
    base = spark.range(0, 6, 1, 2)
    low, high = base.where("id < 3").localCheckpoint(), base.where("id >= 3").localCheckpoint()
    assert rows(shuffle.durable(low)) == rows(shuffle.durable(low)) == rows(low)
    assert decisions(shuffle) == ["computed", "reused"]
    with pytest.raises(InvalidInputError, match=r"two different inputs .* version= or a name="):
        shuffle.durable(high)
    assert rows(shuffle.durable(high, name="high")) == rows(high)
    assert rows(shuffle.durable(high, version="high")) == rows(high)
    query = low.groupBy((F.col("id") % 2).alias("k")).sum("id")
    assert rows(shuffle.query(query)) == rows(query)
    with pytest.raises(InvalidInputError, match="two different inputs"):
        shuffle.query(high.groupBy((F.col("id") % 2).alias("k")).sum("id"))
    with pytest.raises(InvalidInputError, match="version must be a text"):
        shuffle.durable(low, version=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="two different inputs"):
        DurableShuffle(spark, root, job="tests").durable(high, version="v")


def test_object_stages(spark: SparkSession, root: str) -> None:
    """Pairs count by their rows and functions; two indistinguishable inputs are refused."""
    context = spark.sparkContext
    shuffle = DurableShuffle(spark, root, job="tests")

    def pairs(text: str) -> Any:
        return context.parallelize([(letter, 1) for letter in text], 2)

    for expected in ("computed", "reused"):
        for text in ("ab", "cd"):
            found = shuffle.stage_objects(pairs(text), 2).collect()
            assert sorted(found) == [(letter, 1) for letter in text]
            assert decisions(shuffle)[-1] == expected
        doubled = shuffle.stage_objects(pairs("ab").mapValues(lambda one: 2 * one), 2).collect()
        assert sorted(doubled) == [("a", 2), ("b", 2)]
        assert decisions(shuffle)[-1] == expected
    grouped = [pairs(text).groupByKey().mapValues(list) for text in ("ab", "cd")]
    for expected in ("computed", "reused"):
        for text, rdd in zip(("ab", "cd"), grouped, strict=True):
            found = shuffle.stage_objects(rdd, 2, version="v").collect()
            assert sorted(found) == [(letter, [1]) for letter in text]
            assert decisions(shuffle)[-1] == expected
    one, two = (spark.range(n).localCheckpoint().rdd.map(lambda row: (row.id, 1)) for n in (2, 3))
    for _ in range(2):
        assert sorted(shuffle.stage_objects(one, 2, version="v").collect()) == [(0, 1), (1, 1)]
    with pytest.raises(InvalidInputError, match="two different inputs"):
        shuffle.stage_objects(two, 2, version="v")
