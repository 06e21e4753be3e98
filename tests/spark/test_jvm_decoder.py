"""Frames that Python wrote become rows inside Spark's JVM: every type, kept rows, long rows."""

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from local_spark import arrow_table
from pyspark import RDD
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType
from random_rows import random_batch, random_schema

from durable_shuffle.jobs.engine import rdd_frames
from durable_shuffle.jobs.engine.arrow_schema import narrow_arrow_schema, positional_schema
from durable_shuffle.jobs.engine.python_rdd import blocks_of_tasks
from durable_shuffle.jobs.jvm_rows.blocks import blocks_of, raw_frame
from durable_shuffle.jobs.jvm_rows.decoder import rows_of_blocks
from durable_shuffle.jobs.jvm_rows.encoder import Encoding, pieces_of_rows
from durable_shuffle.jobs.jvm_rows.kinds import column_kinds
from durable_shuffle.jobs.jvm_rows.written import JvmSegments
from durable_shuffle.jobs.spark_versions import ClassicFrame
from durable_shuffle.serialization.arrow_codec import decode_frame, encode_slices
from durable_shuffle.serialization.arrow_schemas import logical_batch
from durable_shuffle.serialization.frames import Frame, FrameKind
from durable_shuffle.shuffle.read.extents import Extent

STAGE = "0123456789abcdef" * 2

Bodies = list[list[tuple[bytes, int]]]
"""Per partition, the bodies of frames and their rows."""


@pytest.fixture(autouse=True)
def times_of_day(session: SparkSession) -> None:
    """Let Spark have columns of type TIME, from 4.1 on."""
    session.conf.set("spark.sql.timeType.enabled", "true")


def bodies_of(batch: pa.RecordBatch, compression: str, rows: int) -> list[tuple[bytes, int]]:
    """Return frames of at most so many rows."""
    starts = range(0, max(1, batch.num_rows), rows)
    bounds = [(start, min(rows, batch.num_rows - start)) for start in starts]
    bodies = encode_slices(batch, bounds, compression)
    return [(bytes(body), rows) for body, (_, rows) in zip(bodies, bounds, strict=True)]


def read(session: SparkSession, schema: StructType, parts: Bodies) -> DataFrame:
    """Return the DataFrame of the rows in the frames."""

    def send(number: int) -> Iterator[bytes]:
        frames = (Frame(FrameKind.ARROW, 0, n, memoryview(body)) for body, n in parts[number])
        return blocks_of(frames)

    blocks = blocks_of_tasks(session.sparkContext, send, len(parts))
    rdd = rows_of_blocks(session, blocks, schema, narrow_arrow_schema(schema))
    empty = cast("ClassicFrame", session.createDataFrame([], schema))
    output = empty._jdf.queryExecution().analyzed().output()
    return rdd_frames.from_rdd(session, output, rdd)


def test_workers_that_send_blocks_live_on(session: SparkSession, tmp_path: Path) -> None:
    """A new one takes a second to import what it needs. Spark takes the one idle the longest."""
    folder = str(tmp_path)

    def send(_: int) -> Iterator[bytes]:
        import os
        from pathlib import Path

        Path(folder, str(os.getpid())).touch()
        yield b"block"

    for _ in range(6):
        assert blocks_of_tasks(session.sparkContext, send, 1).count() == 1
    workers = [path.name for path in tmp_path.iterdir()]
    assert workers
    assert all(Path("/proc", worker).exists() for worker in workers)


def shown(table: pa.Table) -> list[list[str]]:
    """Return the columns as text, in which NaN and -0.0 are what they are."""
    return [[repr(value) for value in column.to_pylist()] for column in table.columns]


@pytest.mark.parametrize("compression", ["lz4", "none"])
def test_random_rows_arrive(session: SparkSession, seed: int, compression: str) -> None:
    """Rows of every type, nested too, are what was written, in their order.

    `toArrow` cannot have fields that are not nullable inside values that are null.
    """
    rng = random.Random(seed)
    for _ in range(5):
        schema = random_schema(rng, columns=rng.choice((1, 6, 25)), depth=3, nullable=1)
        stored = narrow_arrow_schema(schema)
        batch = random_batch(rng, stored, rng.choice((1, 90)))
        parts: Bodies = [bodies_of(batch, compression, 40), [], bodies_of(batch, "zstd", 40)]
        found = arrow_table(read(session, schema, parts))
        expected = pa.Table.from_batches([logical_batch(batch, stored)] * 2)
        assert shown(found) == shown(expected), schema.simpleString()


def encoded(df: DataFrame, stored: pa.Schema, compression: str) -> list[Frame]:
    """Return the frames that the Java encoder makes of one partition's rows, each checked."""
    schema = positional_schema(df.schema)
    kinds = column_kinds(schema, stored)
    encoding = Encoding(kinds, 1, "producer", STAGE, 1 << 20, 1 << 14, 1 << 20, compression)
    made = pieces_of_rows(cast("ClassicFrame", df.toDF(*schema.names)), encoding).toJavaRDD()
    pieces = RDD(made, df.sparkSession.sparkContext, NoOpSerializer()).collect()
    frames = []
    for segment, _ in JvmSegments(pieces, 0, STAGE, 1, 1 << 20):
        for k, number, offset, length, first, rows in segment.extents.tolist():
            extent = Extent(0, k, "pages", number, 0, offset, length, first, rows)
            data = b"".join(segment.parts)[offset : offset + length]
            frames += extent.frames([data], STAGE, raw_frame, max_body_bytes=1 << 20)
    return frames


@pytest.mark.sampled(1)
@pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
def test_both_encoders_and_both_decoders_agree(
    session: SparkSession, seed: int, compression: str
) -> None:
    """Rows from Python's frames, encoded in Java, are the same to both decoders."""
    rng = random.Random(seed)
    for _ in range(4):
        schema = random_schema(rng, columns=rng.choice((0, 1, 8, 30)), depth=3, nullable=1)
        stored = narrow_arrow_schema(schema)
        batch = random_batch(rng, stored, rng.choice((1, 90, 300)))
        rows = read(session, schema, [bodies_of(batch, compression, 70)])
        frames = encoded(rows, stored, compression)
        assert sum(frame.rows for frame in frames) == batch.num_rows
        again = read(session, schema, [[(bytes(f.body), f.rows) for f in frames]])
        assert again.count() == batch.num_rows
        if not len(schema):
            continue
        batches = [decode_frame(frame, stored, position=0) for frame in frames]
        expected = shown(pa.Table.from_batches([logical_batch(batch, stored)]))
        found = pa.Table.from_batches([logical_batch(each, stored) for each in batches])
        assert shown(found) == expected, schema.simpleString()
        assert shown(arrow_table(again)) == expected, schema.simpleString()


def test_user_defined_types(session: SparkSession) -> None:
    """They are read as the types in which Spark stores them."""
    schema = StructType([StructField("v", VectorUDT()), StructField("w", ArrayType(VectorUDT()))])
    vectors = [Vectors.dense([1.0, -0.0]), Vectors.sparse(9, {3: 2.0}), None]
    plain = [vector and VectorUDT().serialize(vector) for vector in vectors]
    names = ("type", "size", "indices", "values")
    values = [vector and dict(zip(names, vector, strict=True)) for vector in plain]
    stored = narrow_arrow_schema(schema)
    columns = [values, [values, [], None]]
    arrays = [pa.array(c, field.type) for c, field in zip(columns, stored, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=stored)
    rows = read(session, schema, [bodies_of(batch, "lz4", 2)]).collect()
    assert [list(row) for row in rows] == [[vectors[0], vectors], [vectors[1], []], [None, None]]


def test_five_hundred_columns(session: SparkSession, seed: int) -> None:
    """Many columns, few rows."""
    rng = random.Random(seed)
    schema = random_schema(rng, columns=500, depth=1, nullable=1)
    stored = narrow_arrow_schema(schema)
    batch = random_batch(rng, stored, 7)
    found = arrow_table(read(session, schema, [bodies_of(batch, "lz4", 4)]))
    assert shown(found) == shown(pa.Table.from_batches([logical_batch(batch, stored)]))


def test_rows_without_columns(session: SparkSession) -> None:
    """Only their number arrives."""
    batch = random_batch(random.Random(0), pa.schema([]), 7)
    assert read(session, StructType(), [bodies_of(batch, "lz4", 3)] * 2).count() == 14


KEPT: Sequence[Callable[[DataFrame], DataFrame]] = (
    lambda df: df.orderBy("k2", "k1", "k0"),
    lambda df: df.groupBy("k0").agg(F.max("k1"), F.first("k2"), F.collect_list("k3")),
    lambda df: df.join(df.withColumnRenamed("k1", "o").select("k0", "o"), "k0"),
    lambda df: df.repartition(3, "k1").select(F.max(F.struct("k1", "k2", "k4.d", "k3"))),
    lambda df: df.select("*", F.lag("k1").over(_window())),
    lambda df: df.select(F.explode("k3"), "k1"),
    lambda df: df.limit(5),
    lambda df: df.where("k0 > 4").select(F.collect_list("k4")),
)


def _window() -> Any:
    from pyspark.sql import Window

    return Window.partitionBy("k0").orderBy("k2")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "interpreted"])
def test_operators_that_keep_rows(session: SparkSession, *, compiled: bool) -> None:
    """Sorts, joins, aggregates and windows get the same rows as from Spark's own table."""
    session.conf.set("spark.sql.codegen.wholeStage", str(compiled).lower())
    session.conf.set("spark.sql.codegen.factoryMode", "FALLBACK" if compiled else "NO_CODEGEN")
    source = session.range(200).selectExpr(
        "id % 9 as k0",
        "if(id % 7 = 0, null, repeat(cast(id % 31 as string), cast(id % 5 as int))) as k1",
        "id as k2",
        "transform(sequence(0, id % 4), x -> if(x = 1, null, concat('e', id - x))) as k3",
        "named_struct('d', cast(id / 3 as decimal(20, 4)), 'm', map('a', id)) as k4",
    )
    schema = source.schema
    table = arrow_table(source).combine_chunks()
    (batch,) = table.to_batches()
    stored = narrow_arrow_schema(schema)
    columns = [c.cast(f.type) for c, f in zip(batch.columns, stored, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, schema=stored)
    df = read(session, schema, [bodies_of(batch, "lz4", 37)])
    for operation in KEPT:
        expected = sorted(map(str, operation(source.coalesce(1)).collect()))
        assert sorted(map(str, operation(df).collect())) == expected


@pytest.mark.parametrize("mib", [80, pytest.param(300, marks=pytest.mark.soak)])
def test_a_long_row(session: SparkSession, mib: int) -> None:
    """A row of many blocks, between short ones."""
    schema = StructType([StructField("n", LongType()), StructField("s", StringType())])
    count = mib << 19  # two bytes each
    columns = [pa.array([1, 2, 3], pa.int64()), pa.array(["a", "é" * count, "b"])]
    batch = pa.RecordBatch.from_arrays(columns, schema=narrow_arrow_schema(schema))
    df = read(session, schema, [bodies_of(batch, "lz4", 1)])
    found = df.select("n", F.length("s"), F.sha2("s", 256)).collect()
    assert [tuple(row)[:2] for row in found] == [(1, 1), (2, count), (3, 1)]
    assert found[1][2] == hashlib.sha256("é".encode() * count).hexdigest()
