"""Rows that the JVM encodes: the product's own decoder reads them back, with all its checks."""

from __future__ import annotations

import datetime as dt
import math
import random
import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
import pytest
from local_spark import arrow_table
from pyspark import RDD
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from durable_shuffle.jobs.engine.arrow_schema import narrow_arrow_schema
from durable_shuffle.jobs.engine.python_rdd import results_of_pieces
from durable_shuffle.jobs.jvm_rows import compiled as compiling
from durable_shuffle.jobs.jvm_rows import probe as probing
from durable_shuffle.jobs.jvm_rows.encoder import Encoding, pieces_of_rows
from durable_shuffle.jobs.jvm_rows.kinds import UncoveredTypeError, column_kinds
from durable_shuffle.jobs.jvm_rows.probe import probe
from durable_shuffle.jobs.jvm_rows.written import JvmSegments
from durable_shuffle.jobs.spark_versions import ClassicFrame
from durable_shuffle.serialization.arrow_codec import decode_frame
from durable_shuffle.serialization.arrow_schemas import logical_batch
from durable_shuffle.serialization.checksum import frame_seed
from durable_shuffle.serialization.frame_decoder import NEED_DATA, FrameDecoder

pytestmark = pytest.mark.spark

STAGE = "0123456789abcdef" * 2
MIB = 1 << 20


def encoding_of(df: DataFrame, partitions: int = 4, **changes: Any) -> tuple[Encoding, pa.Schema]:
    """The encoding for the columns of `df` and their stored schema; the id column comes later."""
    stored = narrow_arrow_schema(df.schema)
    values = {
        "kinds": column_kinds(df.schema, stored),
        "partitions": partitions,
        "placed": "computed",
        "stage_id": STAGE,
        "memory_bytes": 4 * MIB,
        "frame_bytes": MIB,
        "max_frame_bytes": 256 * MIB,
        "compression": "lz4",
        **changes,
    }
    return Encoding(**values), stored


def pieces(df: DataFrame, encoding: Encoding) -> dict[int, list[bytes]]:
    """The pieces that the encoder yields, by task."""
    context = df.sparkSession.sparkContext
    made = pieces_of_rows(cast("ClassicFrame", df), encoding).toJavaRDD()
    found = RDD(made, context, NoOpSerializer()).mapPartitions(lambda part: [list(part)])
    return dict(enumerate(found.collect()))


def decoded(
    pieces: list[bytes], producer: int, encoding: Encoding, stored: pa.Schema
) -> dict[int, list[dict[str, Any]]]:
    """Subpartition -> its rows, read with the product's own checks."""
    segments = JvmSegments(
        pieces,
        producer,
        encoding.stage_id,
        encoding.partitions,
        encoding.max_frame_bytes,
    )
    rows: dict[int, list[dict[str, Any]]] = {}
    for segment, memory_bytes in segments:
        data = b"".join(segment.parts)
        nbytes = 0
        for entry in segment.extents:
            k, first = int(entry["subpartition"]), int(entry["first_ordinal"])
            for frame, position in frames_of(data, entry, producer, k, first, encoding):
                part = decode_frame(frame, stored, position=position)
                part.validate(full=True)
                nbytes += part.nbytes
                rows.setdefault(k, []).extend(logical_batch(part, stored).to_pylist())
        assert memory_bytes <= nbytes + 64 * len(stored) * len(segment.extents) * 4
    assert segments.rows == sum(map(len, rows.values()))
    return rows


def frames_of(
    data: bytes, entry: Any, producer: int, k: int, first: int, encoding: Encoding
) -> Iterator[Any]:
    decoder = FrameDecoder(
        lambda ordinal: frame_seed(encoding.stage_id, producer, k, ordinal),
        first_ordinal=first,
        max_body_bytes=encoding.max_frame_bytes,
    )
    begin = int(entry["offset"])
    decoder.feed(data[begin : begin + int(entry["length"])])
    while True:
        position = decoder.record_position
        frame = decoder.next_record()
        if frame is NEED_DATA:
            break
        yield frame, position
    assert decoder.position == int(entry["length"])
    assert decoder.next_ordinal == first + int(entry["rows"])


def exact(value: Any) -> Any:
    """A value that is equal only to itself: also NaN, -0.0 and times in any zone."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("<d", value)
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC)
    if isinstance(value, dict):
        return {name: exact(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [exact(each) for each in value]
    return value


def check(df: DataFrame, partitions: int = 4, **changes: Any) -> dict[int, list[dict[str, Any]]]:
    """Encode the rows of a DataFrame of one partition, decode them, compare; return them."""
    keyed = df.withColumn("__id", F.pmod(F.hash(df.columns[0]), F.lit(partitions)))
    keyed = keyed.toDF(*(f"c{i}" for i in range(len(keyed.columns))))
    encoding, stored = encoding_of(df, partitions, **changes)
    (only,) = pieces(keyed, encoding).values()
    found = decoded(only, 0, encoding, stored)
    expected: dict[int, list[dict[str, Any]]] = {}
    last = f"c{len(df.columns)}"
    for row in arrow_table(keyed).to_pylist():
        expected.setdefault(row.pop(last), []).append(row)
    assert exact_parts(found) == exact_parts(expected)
    return found


def exact_parts(parts: dict[int, list[dict[str, Any]]]) -> dict[int, Any]:
    return {k: exact(parts[k]) for k in sorted(parts)}


FLAT = T.StructType(
    [
        T.StructField("key", T.LongType()),
        T.StructField("flag", T.BooleanType()),
        T.StructField("tiny", T.ByteType()),
        T.StructField("small", T.ShortType()),
        T.StructField("int", T.IntegerType()),
        T.StructField("float", T.FloatType()),
        T.StructField("double", T.DoubleType()),
        T.StructField("text", T.StringType()),
        T.StructField("bytes", T.BinaryType()),
        T.StructField("date", T.DateType()),
        T.StructField("time", T.TimestampType()),
        T.StructField("local", T.TimestampNTZType()),
        T.StructField("span", T.DayTimeIntervalType()),
        T.StructField("money", T.DecimalType(12, 2)),
        T.StructField("big", T.DecimalType(38, 6)),
        T.StructField("nothing", T.NullType()),
        T.StructField("always_null", T.StringType()),
    ]
)
NESTED = T.StructType(
    [
        T.StructField("key", T.LongType()),
        T.StructField("ints", T.ArrayType(T.IntegerType())),
        T.StructField("texts", T.ArrayType(T.StringType())),
        T.StructField("lists", T.ArrayType(T.ArrayType(T.ShortType()))),
        T.StructField("map", T.MapType(T.StringType(), T.IntegerType())),
        T.StructField("decimals", T.ArrayType(T.DecimalType(9, 3))),
        T.StructField("bigs", T.ArrayType(T.DecimalType(30, 3))),
        T.StructField("flags", T.ArrayType(T.BooleanType())),
        T.StructField(
            "struct",
            T.StructType(
                [
                    T.StructField("a", T.StringType()),
                    T.StructField("b", T.DoubleType()),
                    T.StructField("c", T.ArrayType(T.BinaryType())),
                    T.StructField("d", T.StructType([T.StructField("e", T.ByteType())])),
                ]
            ),
        ),
        T.StructField(
            "deep",
            T.ArrayType(
                T.StructType(
                    [
                        T.StructField("m", T.MapType(T.LongType(), T.ArrayType(T.DateType()))),
                        T.StructField("x", T.TimestampNTZType()),
                    ]
                )
            ),
        ),
    ]
)
WORDS = (
    "",
    "a",
    "seven77",
    "eight888",
    "nine99999",
    "é€😀",
    "x" * 63,
    "y" * 64,
    "z" * 65,
    "w" * 999,
)


def value_of(kind: T.DataType, random: random.Random, nulls: float = 0.2) -> Any:
    """A random value as PySpark takes it."""
    if isinstance(kind, T.NullType) or random.random() < nulls:
        return None
    if isinstance(kind, T.ArrayType):
        count = random.choice((0, 1, 2, 3, 70))
        return [value_of(kind.elementType, random, nulls) for _ in range(count)]
    if isinstance(kind, T.MapType):
        count = random.choice((0, 1, 5))
        return {
            value_of(kind.keyType, random, 0): value_of(kind.valueType, random, nulls)
            for _ in range(count)
        }
    if isinstance(kind, T.StructType):
        return tuple(value_of(field.dataType, random, nulls) for field in kind)
    if isinstance(kind, T.DecimalType):
        most = 10 ** random.choice((1, kind.precision)) - 1
        return Decimal(random.randint(-most, most)).scaleb(-kind.scale)
    bits = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}.get(type(kind))
    if bits:
        return random.randrange(-(1 << bits - 1), 1 << bits - 1)
    second = dt.timedelta(microseconds=random.randrange(-(10**15), 10**15))
    values = {
        T.BooleanType: lambda: random.random() < 0.5,
        T.FloatType: lambda: random.choice((0.0, -0.0, math.nan, math.inf, 1.5)),
        T.DoubleType: lambda: random.choice((0.0, -0.0, math.nan, -math.inf, random.random())),
        T.StringType: lambda: random.choice(WORDS),
        T.BinaryType: lambda: random.randbytes(random.choice((0, 3, 64, 200))),
        T.DateType: lambda: dt.date(1970, 1, 1) + dt.timedelta(days=random.randrange(-9999, 9999)),
        T.TimestampType: lambda: dt.datetime(2020, 1, 1, tzinfo=dt.UTC) + second,
        T.TimestampNTZType: lambda: dt.datetime.fromisoformat("2020-01-01") + second,
        T.DayTimeIntervalType: lambda: second,
    }
    return values[type(kind)]()


def frame_of(
    spark: SparkSession, schema: T.StructType, rows: int, seed: int, nulls: float = 0.2
) -> DataFrame:
    source = random.Random(seed)
    data = [
        (i, *(value_of(field.dataType, source, nulls) for field in schema.fields[1:]))
        for i in range(rows)
    ]
    return spark.createDataFrame(data, schema, verifySchema=False).coalesce(1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
@pytest.mark.parametrize("schema", [FLAT, NESTED], ids=["flat", "nested"])
def test_every_type_is_read_back_as_it_was(
    session: SparkSession, seed: int, schema: T.StructType, compression: str
) -> None:
    check(frame_of(session, schema, 1500, seed), compression=compression)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("nulls", [0.0, 1.0])
@pytest.mark.parametrize("schema", [FLAT, NESTED], ids=["flat", "nested"])
def test_columns_without_nulls_and_of_nulls_only(
    session: SparkSession, seed: int, schema: T.StructType, nulls: float
) -> None:
    check(frame_of(session, schema, 700, seed, nulls))


def test_many_small_segments_and_frames(session: SparkSession, seed: int) -> None:
    df = frame_of(session, FLAT, 3000, seed)
    check(df, 3, memory_bytes=64 << 10, frame_bytes=1024, max_frame_bytes=MIB)


def test_more_partitions_than_rows_of_a_segment(session: SparkSession, seed: int) -> None:
    df = frame_of(session, FLAT, 3000, seed)
    found = check(df, 5000, memory_bytes=256 << 10)
    assert len(found) > 2000


def test_a_row_over_the_limit_of_a_frame_takes_several(session: SparkSession) -> None:
    long = F.when(F.col("id") % 10 == 3, F.expr("repeat(uuid(), 100000)")).otherwise("short")
    df = session.range(0, 30, 1, 1).select("id", long.alias("text"), F.lit(7).alias("int"))
    df = session.createDataFrame(df.collect(), df.schema).coalesce(1)
    found = check(df, 2, max_frame_bytes=MIB, memory_bytes=2 * MIB, compression="none")
    assert max(len(row["c1"]) for rows in found.values() for row in rows) == 3_600_000


def test_rows_without_columns_are_counted(session: SparkSession) -> None:
    df = session.range(0, 100_000, 1, 1).select((F.col("id") % 3).cast("int").alias("c0"))
    encoding, stored = encoding_of(df.select(), 3)
    (only,) = pieces(df, encoding).values()
    found = decoded(only, 0, encoding, stored)
    assert {k: len(rows) for k, rows in found.items()} == {0: 33334, 1: 33333, 2: 33333}


def test_rows_in_turn_from_the_producer_on(session: SparkSession) -> None:
    df = session.range(0, 40, 1, 4)
    encoding, stored = encoding_of(df, 3, placed="turns")
    for task, of_task in pieces(df, encoding).items():
        found = decoded(of_task, task, encoding, stored)
        expected: dict[int, list[dict[str, int]]] = {}
        for i in range(10):
            expected.setdefault((task + i) % 3, []).append({"c0": 10 * task + i})
        assert found == expected


def test_all_rows_in_the_producers_own_partition(session: SparkSession) -> None:
    df = session.range(0, 40, 1, 4)
    encoding, stored = encoding_of(df, 4, placed="producer")
    for task, of_task in pieces(df, encoding).items():
        rows = [{"c0": i} for i in range(10 * task, 10 * task + 10)]
        assert decoded(of_task, task, encoding, stored) == {task: rows}


@pytest.mark.soak
def test_500_columns_and_no_rows(session: SparkSession) -> None:
    wide = session.range(0, 5000, 1, 1).select(
        "id", *((F.col("id") * i).cast(("int", "string", "boolean")[i % 3]) for i in range(500))
    )
    check(wide.toDF(*(f"c{i}" for i in range(501))), 2)
    assert check(session.range(0, 9, 1, 1).where("id < 0")) == {}


def test_a_type_that_is_not_covered_is_named(session: SparkSession) -> None:
    df = session.sql("SELECT 1 AS a, array(array(NULL)) AS b")
    with pytest.raises(UncoveredTypeError, match=r"column b.element.element: void"):
        encoding_of(df)


def test_pieces_reach_python_workers(session: SparkSession) -> None:
    df = session.range(0, 200_000, 1, 3).withColumn("text", F.expr("repeat(uuid(), 3)"))
    encoding, _ = encoding_of(df, 7, placed="turns", memory_bytes=MIB)

    def count(pieces: Iterator[bytes]) -> Iterator[tuple[int | None, int, int]]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        segments = JvmSegments(pieces, context.partitionId(), STAGE, 7, 256 * MIB)
        sizes = [segment.info.length for segment, _ in segments]
        yield segments.rows, sum(sizes), len(sizes)

    made = pieces_of_rows(cast("ClassicFrame", df), encoding)
    found: Any = results_of_pieces(session.sparkContext, made, count, range(3))
    assert sum(rows for rows, _, _ in found) == 200_000
    assert all(size > 2 * MIB and segments > 5 for _, size, segments in found)


def test_workers_of_spark_sql_take_pieces(session: SparkSession) -> None:
    """Another Python per executor would take time to start, and memory."""

    def daemon(_: object) -> Iterator[int]:
        import os

        yield os.getppid()

    def in_sql(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from (pa.record_batch({"daemon": [pid]}) for pid in daemon(list(batches)))

    encoding, _ = encoding_of(session.range(4), 7, placed="turns")
    made = pieces_of_rows(cast("ClassicFrame", session.range(4)), encoding)
    partitions = range(made.getNumPartitions())
    found = set(results_of_pieces(session.sparkContext, made, daemon, partitions))
    asked = session.range(4).mapInArrow(in_sql, "daemon long").collect()
    assert found == {row.daemon for row in asked}
    assert len(found) == 1


def test_the_probe_accepts_this_spark_without_a_job(session: SparkSession) -> None:
    tracker = session.sparkContext.statusTracker()
    session.sparkContext.setJobGroup("probe", "none")
    assert probe(session) == ""
    assert tracker.getJobIdsForGroup("probe") == []


def test_the_probe_refuses_what_it_does_not_know(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(type(session), "version", "4.9.0")
        assert probe(session) == "Spark 4.9.0 is not known: expected 3.5 or 4.0 to 4.3"
    with monkeypatch.context() as patch:
        patch.setattr(probing, "encoder_text", lambda: "this is no Java")
        assert "this Spark differs: Py4JJavaError" in probe(session)
    with monkeypatch.context() as patch:
        patch.setattr(compiling, "_FACTORY", "org.apache.spark.NoSuchClass")
        assert "this Spark differs" in probe(session)
