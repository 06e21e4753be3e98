"""`stage` on classic Spark, compared with Spark's own map, repartition and reduce."""

import decimal
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle, Grouped
from durable_shuffle.shuffle.base.settings import Settings

pytestmark = pytest.mark.spark

Batches = Iterator[pa.RecordBatch]


@pytest.fixture
def shuffle(session: SparkSession, root: str) -> DurableShuffle:
    return DurableShuffle(session, root, job="tests")


@pytest.fixture
def tight(session: SparkSession, root: str) -> DurableShuffle:
    """A shuffle with so little memory that all data goes through many segments and scratch runs."""
    settings = Settings(writer_memory_bytes=1 << 16, reduce_memory_bytes=1 << 16)
    return DurableShuffle(session, root, job="tests", settings=settings)


def frame(session: SparkSession, rows: int = 500, partitions: int = 3) -> DataFrame:
    """Keys with nulls, and a value that is unique."""
    return session.range(0, rows, 1, partitions).selectExpr(
        "if(id % 11 = 0, null, id % 7) as k",
        "cast(id as decimal(12, 2)) / 4 as price",
        "concat('text ', id) as s",
        "id as v",
    )


def multiset(df: DataFrame) -> Counter[str]:
    return Counter(repr(tuple(row)) for row in df.collect())


def even(batches: Batches) -> Batches:
    for batch in batches:
        yield batch.filter(pc.equal(pc.bit_wise_and(batch.column("v"), 1), 0))


def sums(batches: Batches) -> Batches:
    table = pa.Table.from_batches(list(batches))
    found = table.group_by("k").aggregate([("v", "sum"), ("s", "max")])
    yield from found.rename_columns(["k", "total", "last"]).to_batches()


SUMS = "k long, total long, last string"


def test_map_and_reduce_equal_sparks_own(session: SparkSession, shuffle: DurableShuffle) -> None:
    """The same functions give the same rows through Spark's shuffle and through ours."""
    df = frame(session)
    found = shuffle.stage(df, map=even, keys="k", num_partitions=4, reduce=sums, schema=SUMS)
    native = df.mapInArrow(even, df.schema).repartition(4, "k").mapInArrow(sums, SUMS)
    assert multiset(found) == multiset(native)
    assert found.schema == native.schema
    (stage,) = shuffle.report().stages
    assert (stage.map_tasks, stage.map_tasks_run, stage.rows) == (3, 3, 250)


@pytest.mark.skipif(not hasattr(DataFrame, "toArrow"), reason="came with PySpark 4.0")
def test_grouped_equals_apply_in_arrow(session: SparkSession, tight: DurableShuffle) -> None:
    """Each key comes once with all its rows, from memory or from scratch files. The same functions
    run in Spark, with and without the key."""
    df = frame(session, 20_000).withColumn("price", F.col("price").cast("decimal(30, 4)"))

    def spread(key: tuple[pa.Scalar, ...], group: pa.Table) -> pa.Table:
        values = pc.sort_indices(group.column("v"))
        first = group.take(values).slice(0, 2)
        return pa.table(
            {
                "k": pa.array([key[0].as_py()] * first.num_rows, pa.int64()),
                "rows": pa.array([group.num_rows] * first.num_rows, pa.int64()),
                "price": first.column("price"),
            }
        )

    def count(group: pa.Table) -> pa.Table:
        return group.group_by("k").aggregate([("v", "sum")]).rename_columns(["k", "total"])

    for function, schema in (
        (spread, "k long, rows long, price decimal(30, 4)"),
        (count, "k long, total long"),
    ):
        found = tight.stage(df, keys="k", num_partitions=3, reduce=Grouped(function), schema=schema)
        native = df.groupBy("k").applyInArrow(function, schema)
        assert multiset(found) == multiset(native)
    assert [s.action for s in tight.report().stages] == ["computed", "reused"]


def test_giant_group_is_streamed(session: SparkSession, tight: DurableShuffle) -> None:
    """One key holds every row: the reducer gets it in batches far smaller than the group."""
    df = session.range(0, 60_000, 1, 3).selectExpr("1 as k", "id as v", "repeat('x', 20) as s")

    def total(key: tuple[pa.Scalar, ...], group: Batches) -> Batches:
        rows, added, largest = 0, 0, 0
        for batch in group:
            rows += batch.num_rows
            added += pc.sum(batch.column("v")).as_py()
            largest = max(largest, batch.nbytes)
        yield pa.record_batch(
            {"k": [key[0].as_py()], "rows": [rows], "total": [added], "largest": [largest]}
        )

    schema = "k long, rows long, total long, largest long"
    found = tight.stage(
        df, keys="k", num_partitions=4, reduce=Grouped(total, streamed=True), schema=schema
    )
    ((k, rows, added, largest),) = found.collect()
    assert (k, rows, added) == (1, 60_000, sum(range(60_000)))
    assert largest <= 1 << 17


@pytest.mark.sampled(1)
@pytest.mark.parametrize("direction", ["ascending", "descending"])
def test_sorted_within_partitions_as_spark_sorts(
    session: SparkSession, tight: DurableShuffle, direction: str
) -> None:
    """Partitions have the order of `sortWithinPartitions`, including nulls and NaN, although they
    are far larger than the memory for sorting."""
    df = session.range(0, 20_000, 1, 3).selectExpr(
        "if(id % 5 = 0, null, hash(id) % 100) as a",
        "if(id % 7 = 0, double('NaN'), if(id % 11 = 0, null, hash(id, 1) / 7)) as d",
        "concat('é', hash(id, 2) % 1000) as s",
        "id % 16 as k",
    )
    found = tight.stage(
        df,
        keys="k",
        num_partitions=3,
        sort_by=[("a", direction), ("d", direction), ("s", direction)],
    )
    columns = [getattr(F, "asc" if direction == "ascending" else "desc")(c) for c in "ads"]
    native = df.repartition(3, "k").sortWithinPartitions(*columns)

    def in_order(frame: DataFrame) -> list[list[str]]:
        return frame.rdd.mapPartitions(lambda rows: [[repr(tuple(r)[:3]) for r in rows]]).collect()

    assert in_order(found) == in_order(native)


def test_sorted_within_groups(session: SparkSession, tight: DurableShuffle) -> None:
    """A grouped reducer gets its rows in the requested order."""
    df = session.range(0, 9_000, 1, 3).selectExpr("id % 4 as k", "hash(id) as h", "'x' as s")

    def ordered(group: pa.Table) -> pa.Table:
        values = group.column("h").to_numpy()
        return pa.table(
            {"rows": [len(values)], "ordered": [bool((values[1:] <= values[:-1]).all())]}
        )

    found = tight.stage(
        df,
        keys="k",
        num_partitions=2,
        reduce=Grouped(ordered),
        sort_by=[("h", "descending")],
        schema="rows long, ordered boolean",
    )
    assert [tuple(row) for row in found.collect()] == [(2250, True)] * 4


def test_combine_shuffles_less_and_changes_nothing(
    session: SparkSession, shuffle: DurableShuffle
) -> None:
    """Sums combined on the map side are the same, from a hundredth of the rows."""
    df = session.range(0, 30_000, 1, 3).selectExpr("id % 50 as k", "id as v")

    def add(batches: Batches) -> Batches:
        rows = list(batches)
        if not rows:
            return
        table = pa.Table.from_batches(rows)
        found = table.group_by("k").aggregate([("v", "sum")])
        yield from found.select(["k", "v_sum"]).rename_columns(["k", "v"]).to_batches()

    found = shuffle.stage(df, keys="k", num_partitions=4, combine=add, reduce=add)
    assert multiset(found) == multiset(df.groupBy("k").agg(F.sum("v")))
    plain = shuffle.stage(df, keys="k", num_partitions=4, reduce=add)
    assert multiset(plain) == multiset(found)
    combined, not_combined = shuffle.report().stages
    assert (combined.rows, not_combined.rows) == (150, 30_000)
    assert combined.data_bytes < not_combined.data_bytes / 10


def test_key_function_places_rows(session: SparkSession, shuffle: DurableShuffle) -> None:
    """A function may return the partition number of each row."""
    df = frame(session)

    def place(batch: pa.RecordBatch) -> Any:
        return pc.bit_wise_and(batch.column("v"), 3)

    found = shuffle.stage(df, keys=place, num_partitions=4).select("v", F.spark_partition_id())
    assert sorted(tuple(row) for row in found.collect()) == [(v, v % 4) for v in range(500)]


COLUMNS = [
    "if(id % {n} = 0, null, cast(id % 100 as tinyint))",
    "if(id % {n} = 1, null, cast(id % 100 as decimal(9, 3)))",
    "if(id % {n} = 1, null, cast(id as decimal(38, 6)) * 10000000000)",
    "if(id % {n} = 2, null, timestamp_micros(id * 1234567890123))",
    "if(id % {n} = 2, null, cast(timestamp_micros(id * 7000000000) as timestamp_ntz))",
    "if(id % {n} = 0, null, date_add(date '1970-01-01', cast(id as int)))",
    "if(id % {n} = 0, null, cast(concat(char(0), id) as binary))",
    "if(id % {n} = 1, null, repeat('é', cast(id % 20 as int)))",
    "if(id % {n} = 0, null, array(id, null))",
    "if(id % {n} = 1, null, struct(id as a, if(id % 2 = 0, null, array(struct('x' as s))) as b))",
    "if(id % {n} = 0, null, map(cast(id as string), array(id)))",
    "if(id % {n} = 0, null, id / 3)",
    "if(id % {n} = 2, null, make_dt_interval(id, 1, 2, -3.000004))",
    "cast(null as void)",
    "id % {n} = 1",
]


def seeded_frames(session: SparkSession, seed: int, count: int) -> Iterator[DataFrame]:
    """Frames of random columns; the first has no rows, and one has a single key."""
    rng = random.Random(seed)
    for number in range(count):
        rows = 0 if number == 0 else rng.choice([1, 300])
        key = "1" if number == 1 else "if(id % 5 = 0, null, concat('k', id % 9))"
        chosen = rng.sample(COLUMNS, rng.randint(1, 6))
        columns = [f"{c.format(n=rng.randint(1, 4))} as `c {i}`" for i, c in enumerate(chosen)]
        yield session.range(0, rows, 1, 2).selectExpr(f"{key} as k", *columns)


class Through:
    """A resumable reducer that yields its input."""

    def process(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        return [batch]

    def snapshot(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None:
        assert state == b""

    def finish(self) -> None:
        return None


def test_every_reducer_kind_over_random_schemas(
    session: SparkSession, shuffle: DurableShuffle, seed: int
) -> None:
    """Rows of any type pass every reducer kind as they pass Spark's own operators, in a time zone
    other than UTC; map functions may choose the dictionary layout."""
    session.conf.set("spark.sql.session.timeZone", "America/New_York")

    def through(batches: Batches) -> Batches:
        yield from batches

    def encoded(batches: Batches) -> Batches:
        for batch in batches:
            columns = [batch.column(0).dictionary_encode(), *batch.columns[1:]]
            yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    def whole(group: pa.Table) -> pa.Table:
        return group

    for df in seeded_frames(session, seed, 4):
        expected = multiset(df)
        for reduce in (None, through, Grouped(whole), Through()):
            found = shuffle.stage(df, map=encoded, keys="k", num_partitions=3, reduce=reduce)
            assert multiset(found) == expected, df.schema.simpleString()
            assert found.schema == df.schema


def test_numbers_of_a_decimal_survive_arithmetic(
    session: SparkSession, shuffle: DurableShuffle
) -> None:
    """Map functions get decimals as decimals, and decimals that they compute are stored exactly."""
    df = session.sql("select 1 as k, cast(12.34 as decimal(7, 2)) as d")

    def double(batches: Batches) -> Batches:
        for batch in batches:
            made = pc.multiply(batch.column("d"), 2).cast(pa.decimal128(20, 4))
            yield pa.record_batch([batch.column("k"), made], names=["k", "d"])

    found = shuffle.stage(
        df, map=double, keys="k", num_partitions=2, map_schema="k int, d decimal(20, 4)"
    )
    assert [row.d for row in found.collect()] == [decimal.Decimal("24.6800")]


def test_chain_stays_in_one_worker(session: SparkSession, root: str) -> None:
    """The reducer of one stage and the map of the next run in the same process and give the same
    rows as Spark's own chain; both stages are recognised again."""
    shuffle = DurableShuffle(session, root, job="tests", version="processes do not count")

    def with_process(batches: Batches) -> Batches:
        import os

        for batch in batches:
            process = pa.array([os.getpid()] * batch.num_rows, pa.int64())
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, process], names=[*batch.schema.names, f"p{batch.num_columns}"]
            )

    df = session.range(0, 300, 1, 3).selectExpr("id % 7 as k", "id as v")
    first, second = "k long, v long, p2 long", "k long, v long, p2 long, p3 long"
    for _ in range(2):
        lower = shuffle.stage(df, keys="k", num_partitions=3, reduce=with_process, schema=first)
        upper = shuffle.stage(
            lower, map=with_process, keys="v", num_partitions=2, map_schema=second, name="upper"
        )
        rows = upper.collect()
        assert sorted((row.k, row.v) for row in rows) == sorted((i % 7, i) for i in range(300))
        assert all(row.p2 == row.p3 for row in rows)
    assert [s.action for s in shuffle.report().stages] == [
        "computed",
        "computed",
        "reused",
        "reused",
    ]
    assert [s.map_tasks for s in shuffle.report().stages] == [3, 3, 3, 3]
    # any Spark operation in between sends the rows through the JVM; results are still right
    between = shuffle.stage(lower.where("v < 10"), keys="v", num_partitions=2)
    assert sorted(row.v for row in between.collect()) == list(range(10))


def test_small_partitions_are_read_together(session: SparkSession, shuffle: DurableShuffle) -> None:
    """Few tasks read many small partitions; the reducer is called separately for each."""
    df = session.range(0, 100, 1, 2).selectExpr("id as k")

    def one_row(batches: Batches) -> Batches:
        rows = sorted(key for batch in batches for key in batch.column("k").to_pylist())
        yield pa.record_batch({"keys": [str(rows)]})

    found = shuffle.stage(df, keys="k", num_partitions=300, reduce=one_row, schema="keys string")
    assert found.rdd.getNumPartitions() == 4
    places: dict[int, list[int]] = {place: [] for place in range(300)}
    for key, place in df.selectExpr("k", "pmod(hash(k), 300)").collect():
        places[place].append(key)
    assert Counter(row[0] for row in found.collect()) == Counter(
        str(sorted(keys)) for keys in places.values()
    )
    apart = shuffle.stage(df, keys=lambda b: b.column("k"), num_partitions=300)
    assert apart.rdd.getNumPartitions() == 300
