"""`repartition` and `durable` on classic Spark, compared with Spark's own `repartition`.

Rows are compared as multisets with Spark's rows, and their partitions with `spark_partition_id`
after Spark's own exchange. Plans are checked by walking the nodes of the physical plan.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_since import ARROW_TABLES, SINCE_4

from durable_shuffle import DurableShuffle

pytestmark = pytest.mark.spark


@pytest.fixture
def shuffle(session: SparkSession, root: str) -> DurableShuffle:
    return DurableShuffle(session, root, job="tests")


def frame(session: SparkSession, rows: int = 200, partitions: int = 3) -> DataFrame:
    """Keys of three kinds, including nulls, and a value that is unique."""
    return session.range(0, rows, 1, partitions).selectExpr(
        "if(id % 11 = 0, null, id % 7) as k",
        "concat('key ', id % 5) as s",
        "id % 3 = 0 as b",
        "id as v",
    )


def multiset(df: DataFrame) -> Counter[str]:
    """Return each row and its count; as text, because maps and lists are not hashable."""
    return Counter(repr(tuple(row)) for row in df.collect())


def placed(df: DataFrame) -> Counter[tuple[str, int]]:
    """Return the rows with their partitions."""
    found = df.select("*", F.spark_partition_id()).collect()
    return Counter((repr(tuple(row)[:-1]), tuple(row)[-1]) for row in found)


def partition_rows(df: DataFrame, partitions: Sequence[int]) -> list[list[tuple[Any, ...]]]:
    """Return the rows of some partitions, in order; compute no other partition."""
    found = df.sparkSession.sparkContext.runJob(
        df.rdd, lambda rows: [[tuple(row) for row in rows]], list(partitions)
    )
    return list(found)


def physical_nodes(df: DataFrame) -> list[str]:
    """Return class names of the initial physical plan, adaptive or not, from the JVM."""

    def walk(node: Any) -> Iterator[str]:
        name = node.getClass().getSimpleName()
        if name == "AdaptiveSparkPlanExec":
            yield from walk(node.initialPlan())
            return
        yield name
        children = node.children()
        for i in range(children.size()):
            yield from walk(children.apply(i))

    return list(walk(df._jdf.queryExecution().executedPlan()))


def exchanges(df: DataFrame) -> list[str]:
    return [name for name in physical_nodes(df) if "Exchange" in name]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "keys",
    [
        lambda: ["k"],
        lambda: ["s", "k"],
        lambda: ["b"],
        lambda: [F.col("k")],
        lambda: [F.col("k") + 1],
        lambda: [F.upper("s"), "v"],
    ],
    ids=["long", "string and long", "boolean", "column", "computed", "computed and plain"],
)
def test_rows_stand_where_spark_puts_them(
    session: SparkSession, shuffle: DurableShuffle, keys: Callable[[], list[str | Column]]
) -> None:
    """Every row occurs once, in the partition that Spark's own repartition chooses."""
    df = frame(session)
    out = shuffle.repartition(df, 7, *keys())
    assert placed(out) == placed(df.repartition(7, *keys()))
    assert out.rdd.getNumPartitions() == 7


def test_rows_and_groups_equal_duckdbs(session: SparkSession, shuffle: DurableShuffle) -> None:
    """DuckDB, given the same rows by formula, finds the same rows and groups."""
    out = shuffle.repartition(frame(session), 5, "k")
    source = (
        "select case when i % 11 = 0 then null else i % 7 end as k, i as v from range(200) t(i)"
    )
    with duckdb.connect() as duck:
        rows = duck.sql(source).fetchall()
        groups = duck.sql(f"select k, count(*), sum(v) from ({source}) group by k").fetchall()
    assert Counter((row.k, row.v) for row in out.collect()) == Counter(rows)
    found = out.groupBy("k").agg(F.count("*"), F.sum("v")).collect()
    assert Counter(tuple(row) for row in found) == Counter(groups)


def test_group_by_the_key_plans_no_exchange(session: SparkSession, shuffle: DurableShuffle) -> None:
    """With adaptive execution, aggregation on the key moves no row, and is right."""
    session.conf.set("spark.sql.adaptive.enabled", "true")
    df = frame(session)
    grouped = shuffle.repartition(df, 6, "k").groupBy("k").agg(F.sum("v").alias("sum"))
    assert exchanges(grouped) == []
    native = df.groupBy("k").agg(F.sum("v").alias("sum"))
    assert exchanges(native) == ["ShuffleExchangeExec"]
    assert multiset(grouped) == multiset(native)


@pytest.mark.also_with_storage_faults
def test_join_on_the_key_plans_no_exchange(session: SparkSession, shuffle: DurableShuffle) -> None:
    """Two durable sides join without an exchange; a native side adds only its own exchange."""
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    left = frame(session).select("k", "v")
    right = session.range(0, 20, 1, 2).selectExpr("id % 9 as k", "id * 10 as w")
    durable_left = shuffle.repartition(left, 6, "k", name="left")
    durable_right = shuffle.repartition(right, 6, "k", name="right")
    both = durable_left.join(durable_right, "k")
    assert "SortMergeJoinExec" in physical_nodes(both)
    assert exchanges(both) == []
    native = left.join(right, "k")
    assert multiset(both) == multiset(native)
    mixed = durable_left.join(right.repartition(6, "k"), "k")
    assert exchanges(mixed) == ["ShuffleExchangeExec"]
    assert multiset(mixed) == multiset(native)


def test_statistics_are_stated(session: SparkSession, shuffle: DurableShuffle) -> None:
    """Spark's optimizer sees the exact number of rows, and a size from the stored bytes."""
    rows = 1000
    df = session.range(0, rows, 1, 2).selectExpr("id as k", "id as v")
    stats = shuffle.repartition(df, 3, "k")._jdf.queryExecution().optimizedPlan().stats()
    assert int(str(stats.rowCount().get())) == rows
    assert 2 * 8 * rows <= int(str(stats.sizeInBytes())) <= 4 * 8 * rows


def test_small_durable_side_is_broadcast(session: SparkSession, shuffle: DurableShuffle) -> None:
    """The stated size lets Spark choose a broadcast join by itself."""
    small = shuffle.repartition(session.range(10).selectExpr("id as k"), 2, "k")
    large = session.range(0, 100_000_000, 1, 2).selectExpr("id as k")
    assert exchanges(large.join(small, "k")) == ["BroadcastExchangeExec"]


def test_odd_and_repeated_names_are_kept(session: SparkSession, shuffle: DurableShuffle) -> None:
    """Names with spaces, dots, other alphabets, empty names, and repeated names."""
    names = ["a b", "a.b", "ä", " ", "", "v", "v", "V", "c0", "__partition_id"]
    df = session.range(0, 20, 1, 2).select(*[F.col("id") + i for i in range(len(names))])
    df = df.toDF(*names)
    out = shuffle.repartition(df, 3, "a b", "`a.b`", "ä")
    assert out.columns == names
    assert out.schema == df.schema
    assert multiset(out) == Counter(
        repr(tuple(i + shift for shift in range(len(names)))) for i in range(20)
    )
    assert multiset(out.groupBy("a b").count()) == Counter(repr((i, 1)) for i in range(20))


def test_columns_of_the_input_select_from_the_result(
    session: SparkSession, shuffle: DurableShuffle
) -> None:
    """Expressions bound to the wrapped DataFrame still work, as after repartition."""
    df = frame(session)
    out = shuffle.repartition(df, 4, df.k)
    expected = multiset(df.select(df.v, df.s).where(df.v > 50))
    assert multiset(out.select(df.v, df.s).where(df.v > 50)) == expected


def test_self_join(session: SparkSession, shuffle: DurableShuffle) -> None:
    """A result joins with itself, and with the DataFrame that it was made from."""
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    df = session.range(0, 12, 1, 2).selectExpr("id % 4 as k", "id as v")
    out = shuffle.repartition(df, 3, "k")
    expected = Counter(repr((a, b)) for a in range(12) for b in range(12) if a % 4 == b % 4)
    for other in (out, df):
        pairs = out.alias("x").join(other.alias("y"), F.col("x.k") == F.col("y.k"))
        assert multiset(pairs.select("x.v", "y.v")) == expected


def test_number_of_partitions_defaults_to_sparks(
    session: SparkSession, shuffle: DurableShuffle
) -> None:
    """Without n, or with a column in its place, `spark.sql.shuffle.partitions` decides."""
    session.conf.set("spark.sql.shuffle.partitions", "5")
    session.conf.set("spark.sql.adaptive.enabled", "false")  # otherwise Spark merges partitions
    df = frame(session)
    expected = placed(df.repartition("k"))
    assert placed(shuffle.repartition(df, None, "k")) == expected
    for n in ("k", F.col("k"), df.k):
        assert placed(shuffle.repartition(df, n)) == expected
    assert shuffle.report().total()["map_tasks_run"] == 3, "one stage serves all four"


def test_round_robin_spreads_rows_evenly(session: SparkSession, shuffle: DurableShuffle) -> None:
    """Without columns, every producer distributes its rows in turn."""
    producers, partitions = 3, 4
    out = shuffle.repartition(frame(session, 200, producers), partitions)
    rows = partition_rows(out, range(partitions))
    sizes = [len(part) for part in rows]
    assert sum(sizes) == 200
    assert max(sizes) - min(sizes) <= producers
    assert Counter(row[3] for part in rows for row in part) == Counter(range(200))


@pytest.mark.also_with_storage_faults
def test_durable_keeps_partitions_and_order(session: SparkSession, shuffle: DurableShuffle) -> None:
    """Partition i of the result holds the rows of partition i, in their order."""
    df = frame(session, 100, 5).where("v < 40 or v >= 60").sortWithinPartitions(F.desc("v"))
    expected = partition_rows(df, range(5))
    assert expected[2] == []
    assert partition_rows(shuffle.durable(df), range(5)) == expected


@pytest.mark.sampled(1)
@pytest.mark.parametrize("partitions", [0, 1, 2])
def test_empty_frames(session: SparkSession, shuffle: DurableShuffle, partitions: int) -> None:
    """Without rows, or even partitions, the schema and the number of partitions are right."""
    df = session.range(0, 4, 1, max(1, partitions)).selectExpr("id as k", "map('a', 1) as m")
    df = df.where("k < 0" if partitions else "false")
    assert df.rdd.getNumPartitions() == partitions
    out = shuffle.repartition(df, 3, "k")
    assert (out.columns, out.collect(), out.rdd.getNumPartitions()) == (["k", "m"], [], 3)
    assert out.groupBy("k").count().collect() == []
    dealt = shuffle.repartition(df, 2)
    assert (dealt.count(), dealt.rdd.getNumPartitions()) == (0, 2)
    kept = shuffle.durable(df)
    assert (kept.schema, kept.collect()) == (df.schema, [])
    assert kept.rdd.getNumPartitions() == max(1, partitions)
    assert [s.rows for s in shuffle.stages()] == [0, 0, 0]


def test_partition_without_rows(session: SparkSession, shuffle: DurableShuffle) -> None:
    """Empty producers and partitions are between others with rows."""
    df = session.range(0, 90, 1, 3).where("id < 30 or id >= 60").selectExpr("id % 2 as k", "id")
    out = shuffle.repartition(df, 9, "k")
    assert placed(out) == placed(df.repartition(9, "k"))
    assert len({partition for _, partition in placed(out)}) <= 2


TYPES = """
    if(id % 4 = 0, null, cast(id - 3 as byte)) as tiny,
    if(id % 5 = 0, null, float('-Infinity')) as f,
    if(id % 3 = 0, double('NaN'), -0.0D) as d,
    cast(id - 2 as decimal(9, 3)) as short_decimal,
    if(id = 1, null, cast(id as decimal(38, 10)) * -1) as long_decimal,
    if(id % 4 = 1, null, timestamp '2024-11-03 01:15:00' + make_dt_interval(0, id)) as t,
    if(id % 4 = 2, null, timestamp_ntz '2024-03-10 02:30:00.123456') as ntz,
    if(id % 4 = 3, null, date '1582-10-04') as day,
    if(id % 2 = 0, null, make_dt_interval(id, 1, 2, -3.000004)) as span,
    if(id % 2 = 1, null, cast(concat(char(0), 'x', id) as binary)) as raw,
    if(id % 3 = 0, null, concat('é\\u0000漢', repeat('z', id))) as text,
    if(id % 5 = 1, null, array(id, null, -id)) as list,
    if(id % 5 = 2, null, array(array(), null, array(struct(id as a)))) as nested_list,
    if(id % 5 = 3, null, struct(id as a, struct(null as n, 'x' as s) as inner)) as record,
    if(id % 5 = 4, null, map('a', id, 'b', null)) as dictionary,
    map(id, struct(array(map('k', date '0001-01-01')) as deep)) as deep_map,
    cast(null as void) as nothing,
    cast(null as array<map<string, timestamp>>) as always_null,
    slice(array(id), 1, 0) as empty_list, struct() as no_fields, id % 3 as k
"""


def test_all_kinds_of_types_survive(session: SparkSession, shuffle: DurableShuffle) -> None:
    """Nested, null and extreme values of every type come back equal, in a zone other than UTC."""
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    columns = [c for c in _columns(TYPES) if ARROW_TABLES or "struct()" not in c]
    df = session.range(0, 40, 1, 3).selectExpr(*columns)
    out = shuffle.repartition(df, 4, "t", "long_decimal", "record", "nested_list", "d", "span")
    assert out.schema == df.schema
    expected = df.repartition(4, "t", "long_decimal", "record", "nested_list", "d", "span")
    assert placed(out) == placed(expected)
    as_text = [F.col(c).cast("string") for c in ("t", "ntz", "day", "span", "f", "d")]
    assert multiset(out.select(*as_text)) == multiset(df.select(*as_text))
    micros = Counter(row[0] for row in df.selectExpr("unix_micros(t)").collect())
    assert Counter(row[0] for row in out.selectExpr("unix_micros(t)").collect()) == micros
    # the repeated hour in New York: 01:15 summer time is 05:15 UTC
    assert 1730610900 * 10**6 in micros


def _columns(text: str) -> list[str]:
    """Split a select list at the commas outside brackets."""
    parts, depth = [""], 0
    for char in text.strip():
        depth += (char == "(") + (char == "<") - (char == ")") - (char == ">")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def test_one_partition(session: SparkSession, shuffle: DurableShuffle) -> None:
    """n=1 puts all rows into one partition, with and without keys."""
    df = frame(session)
    for keys in ([], ["k"]):
        out = shuffle.repartition(df, 1, *keys)
        assert out.rdd.getNumPartitions() == 1
        assert multiset(out) == multiset(df)


def test_a_thousand_partitions_of_ten_rows(session: SparkSession, shuffle: DurableShuffle) -> None:
    """Few rows in many partitions: every row is in its partition and the others are empty."""
    session.conf.set("spark.sql.adaptive.enabled", "false")
    df = session.range(0, 10, 1, 2).selectExpr("id as k")
    places = {row.k: row.p for row in df.selectExpr("k", "pmod(hash(k), 1000) as p").collect()}
    out = shuffle.repartition(df, 1000, "k")
    assert out.rdd.getNumPartitions() == 1000
    empty = next(p for p in range(1000) if p not in places.values())
    wanted = [*sorted(set(places.values())), empty, 999]
    found = partition_rows(out, wanted)
    assert {row[0]: p for p, rows in zip(wanted, found, strict=True) for row in rows} == places
    assert shuffle.report().stages[0].rows == 10


@SINCE_4
def test_plain_python_rows_come_back(session: SparkSession, shuffle: DurableShuffle) -> None:
    """Rows of an Arrow table come back as that table."""
    table = pa.table({"k": [3, 1, None, 2], "v": ["c", "a", None, "b"]})
    out = shuffle.durable(session.createDataFrame(table)).toArrow()
    assert out.sort_by("k").equals(table.sort_by("k"))


def test_progress_of_a_stage(
    table: DataFrame, root: str, session: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """If requested, a stage prints its start and its result; otherwise it prints nothing."""
    shuffle = DurableShuffle(session, root, job="tests")
    shuffle.repartition(table, 2)
    assert "repartition:" not in capsys.readouterr().err
    shuffle.repartition(table, 2, progress=True)
    lines = capsys.readouterr().err
    assert "repartition: started" in lines
    assert "repartition: reused, map tasks run 0, reused" in lines
