"""Spark's own hash and placement of the same rows, in the same job, are the reference.

The rows and Spark's answer pass through `mapInArrow` together; the worker compares them.
"""

import datetime as dt
import random
import string
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

pytestmark = pytest.mark.spark

ROWS = 600
ALPHABET = string.ascii_letters + "äöüßéñ漢字かな🙂\x00 "


def texts(rng: random.Random) -> str:
    size = rng.choice([0, 1, 2, 3, 4, 5, 7, 8, 20, 60, rng.choice([20, 5_000])])
    return "".join(rng.choices(ALPHABET, k=size))


def floats(rng: random.Random) -> float:
    special = [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 5e-324, 1.5]
    return rng.choice([*special, rng.uniform(-1e30, 1e30), rng.uniform(-1, 1)])


def decimals(precision: int, scale: int) -> Callable[[random.Random], Decimal]:
    def one(rng: random.Random) -> Decimal:
        digits = rng.choice([1, precision, rng.randint(1, precision)])
        unscaled = rng.choice([-1, 1]) * rng.randrange(10**digits)
        edge = rng.choice([0, 1, -1, -128, 128, -(10**precision) + 1, unscaled, unscaled, unscaled])
        return Decimal(f"{edge if abs(edge) < 10**precision else 0}E-{scale}")

    return one


def ints(bits: int) -> Callable[[random.Random], int]:
    edges = [0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))]
    return lambda rng: rng.choice([*edges, *[rng.getrandbits(bits) - 2 ** (bits - 1)] * 5])


def lists(one: Callable[[random.Random], Any]) -> Callable[[random.Random], list[Any]]:
    return lambda rng: [maybe(one, rng) for _ in range(rng.randrange(7))]


def maybe(one: Callable[[random.Random], Any], rng: random.Random) -> Any:
    return None if rng.random() < 0.15 else one(rng)


def moments(rng: random.Random) -> dt.datetime:
    start = dt.datetime(1, 1, 2, tzinfo=dt.UTC)
    return start + dt.timedelta(microseconds=rng.randrange(9_998 * 365 * 86_400 * 10**6))


def points(rng: random.Random) -> dict[str, Any]:
    return {"x": maybe(ints(64), rng), "t": maybe(texts, rng), "d": maybe(decimals(30, 4), rng)}


def nests(rng: random.Random) -> dict[str, Any]:
    return {"p": maybe(points, rng), "ps": maybe(lists(points), rng), "b": rng.random() < 0.5}


POINT = pa.struct([("x", pa.int64()), ("t", pa.string()), ("d", pa.decimal128(30, 4))])
NEST = pa.struct([("p", POINT), ("ps", pa.list_(POINT)), ("b", pa.bool_())])

COLUMNS: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "boolean": (pa.bool_(), lambda rng: rng.random() < 0.5),
    "byte": (pa.int8(), ints(8)),
    "short": (pa.int16(), ints(16)),
    "int": (pa.int32(), ints(32)),
    "long": (pa.int64(), ints(64)),
    "float": (pa.float32(), floats),
    "double": (pa.float64(), floats),
    "decimal_5": (pa.decimal128(5, 2), decimals(5, 2)),
    "decimal_18": (pa.decimal128(18, 3), decimals(18, 3)),
    "decimal_19": (pa.decimal128(19, 0), decimals(19, 0)),
    "decimal_38": (pa.decimal128(38, 10), decimals(38, 10)),
    "string": (pa.string(), texts),
    "binary": (pa.binary(), lambda rng: rng.randbytes(rng.randrange(30))),
    "date": (pa.date32(), lambda rng: moments(rng).date()),
    "timestamp": (pa.timestamp("us", "UTC"), moments),
    "timestamp_ntz": (pa.timestamp("us"), lambda rng: moments(rng).replace(tzinfo=None)),
    "day_time_interval": (
        pa.duration("us"),
        lambda rng: dt.timedelta(microseconds=rng.randrange(-(10**16), 10**16)),
    ),
    "null": (pa.null(), lambda _: None),
    "ints": (pa.list_(pa.int32()), lists(ints(32))),
    "texts": (pa.list_(pa.string()), lists(texts)),
    "lists": (pa.list_(pa.list_(pa.float64())), lists(lists(floats))),
    "struct": (POINT, points),
    "nest": (NEST, nests),
}
KEYS = [
    *[(name,) for name in COLUMNS],
    ("string", "long"),
    ("long", "string"),
    ("null", "nest", "double", "decimal_38", "boolean"),
    tuple(COLUMNS),
]
# Built in the JVM: types that cannot be sent there through Arrow.
EXPRESSIONS = {
    "calendar_interval": "if(id % 7 = 0, null, make_interval(id % 5, -id, 0, id, 4, 5, id / -7))",
    "nan_bits": "if(id % 2 = 0, -double('NaN'), sqrt(-id - 1.0d))",
    "minus_zero": "cast(if(id % 2 = 0, '-0.0', '0.0') as double)",
    "char": "cast(if(id % 7 = 0, null, id) as varchar(20))",
}


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> Iterator[DataFrame]:
    """Seeded random values of every type, with nulls, spread over three partitions."""
    rng = random.Random(20240229)
    arrays = {
        name: pa.array([maybe(one, rng) for _ in range(ROWS)], data_type)
        for name, (data_type, one) in COLUMNS.items()
    }
    frame = spark.createDataFrame(pa.table(arrays)).repartition(3).cache()
    yield frame
    frame.unpersist()


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


def disagreements(keyed: DataFrame, partitions: int) -> list[tuple[int, int, int, str]]:
    """Return per batch: rows, differing hashes, differing ids, the first row that differs.

    The last two columns of `keyed` are Spark's hash and partition id of the other columns.
    """

    def compare(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from durable_shuffle.shuffle.rows.partitioner import hash_partition_ids
        from durable_shuffle.shuffle.rows.spark_hash import spark_hash

        for batch in batches:
            *keys, hashes, ids = batch.columns
            bad_hashes = spark_hash(keys) != hashes.to_numpy()
            bad_ids = hash_partition_ids(keys, partitions) != ids.to_numpy()
            bad = (bad_hashes | bad_ids).nonzero()[0]
            first = str(batch.slice(int(bad[0]), 1).to_pylist()) if len(bad) else ""
            counts = (batch.num_rows, int(bad_hashes.sum()), int(bad_ids.sum()))
            yield pa.RecordBatch.from_pylist(
                [dict(zip("nhpf", (*counts, first), strict=True))],
                pa.schema([("n", "int64"), ("h", "int64"), ("p", "int64"), ("f", "string")]),
            )

    found = keyed.mapInArrow(compare, "n long, h long, p long, f string").collect()
    return [tuple(row) for row in found]


def check(frame: DataFrame, keys: tuple[str, ...], partitions: int, expected_rows: int) -> None:
    placed = frame.select(*keys).repartition(partitions, *keys)
    found = disagreements(
        placed.withColumn("h", F.hash(*keys)).withColumn("p", F.spark_partition_id()), partitions
    )
    assert [row for row in found if row[1] or row[2]] == []
    assert sum(row[0] for row in found) == expected_rows


@pytest.mark.sampled(5)
@pytest.mark.parametrize("keys", KEYS, ids=lambda keys: "+".join(keys)[:40])
def test_hash_and_placement_equal_sparks(rows: DataFrame, keys: tuple[str, ...]) -> None:
    """For every type and for several columns: Spark's hash, and the partition Spark chose."""
    check(rows, keys, 7, ROWS)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_types_made_in_the_jvm_equal_sparks(spark: SparkSession, name: str) -> None:
    """Types that only Spark's own expressions produce, including unusual NaNs and zeros."""
    frame = spark.range(0, 300, 1, 2).select(F.expr(EXPRESSIONS[name]).alias("k"))
    check(frame, ("k",), 5, 300)


def test_times_of_day_equal_sparks(spark: SparkSession) -> None:
    """Nanoseconds of the day, a type that needs a Spark setting."""
    with setting(spark, "spark.sql.timeType.enabled", "true"):
        time = F.expr("if(id % 7 = 0, null, make_time(id % 24, id % 60, id % 59 + 0.123456))")
        check(spark.range(0, 300, 1, 2).select(time.alias("k")), ("k",), 5, 300)


def test_nan_payloads_survive_to_the_worker_and_hash_alike(spark: SparkSession) -> None:
    """NaNs with bits that differ from Java's own hash as in Spark."""
    bits = np.array([0x7FF8 << 48, (0x7FF8 << 48) + 77, 0xFFF8 << 48, 0, 1 << 63], np.uint64)
    values = pa.Array.from_buffers(pa.float64(), len(bits), [None, pa.py_buffer(bits)])
    check(spark.createDataFrame(pa.table({"k": values})), ("k",), 9, len(bits))


def test_large_layouts_equal_sparks(spark: SparkSession, rows: DataFrame) -> None:
    """If Spark is set to send strings with 64-bit offsets, the hash is the same."""
    with setting(spark, "spark.sql.execution.arrow.useLargeVarTypes", "true"):
        check(rows, ("string", "binary", "texts"), 7, ROWS)


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ("map(id, 1)", "map<int64, int32>"),
        ("array(map(id, 1))", "map<int64, int32>"),
        ("parse_json(string(id))", "variant"),
        ("named_struct('v', parse_json('1'))", "variant"),
        ("st_geomfromwkb(X'0101000000000000000000F03F0000000000000040')", "geometry"),
    ],
)
def test_types_that_spark_refuses_are_refused(
    spark: SparkSession, expression: str, named: str
) -> None:
    """Maps, variants and shapes are refused by name when they arrive in the worker."""

    def refuse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from durable_shuffle.serialization.errors import InvalidInputError
        from durable_shuffle.shuffle.rows.spark_hash import check_key_type

        for batch in batches:
            try:
                check_key_type("k", batch.schema.field("k").type)
            except InvalidInputError as error:
                yield pa.RecordBatch.from_pydict({"e": [str(error)]})

    frame = spark.range(1).select(F.expr(expression).alias("k"))
    (message,) = frame.mapInArrow(refuse, "e string").collect()
    assert "key column k" in message.e
    assert named in message.e
