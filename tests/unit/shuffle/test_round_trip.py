"""What producers were given is what readers get: whole stages of random shape, against oracles.

The oracles are a dictionary filled row by row and, for one large stage, DuckDB.
"""

import random
from dataclasses import dataclass
from decimal import Decimal

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_stage import (
    SeededIds,
    model_of,
    new_stage,
    partition_of,
    read_rows,
    seal,
    write,
)

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.read.sealed_reader import read_subpartition
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.write.segments import IdBatch

SCHEMA = pa.schema(
    [
        ("n", pa.int32()),
        ("s", pa.string()),
        ("b", pa.binary()),
        ("d", pa.decimal128(20, 3)),
        ("l", pa.list_(pa.struct([("x", pa.float64()), ("y", pa.string())]))),
        ("nothing", pa.null()),
    ]
)


@dataclass(frozen=True)
class Shape:
    """How a random stage looks; its contents follow from the seed."""

    batches: list[list[int]]
    """Per producer, the rows of each batch."""
    partitions: int
    compression: str
    frame_bytes: int
    value_bytes: int
    wide_ids: bool
    encoded: bool
    """Strings arrive dictionary-encoded, in slices of a larger batch."""
    seed: int


SHAPES = st.builds(
    Shape,
    batches=st.lists(st.lists(st.integers(0, 40), max_size=4), max_size=3),
    partitions=st.sampled_from([1, 2, 7, 300]),
    compression=st.sampled_from(["lz4", "zstd", "none"]),
    frame_bytes=st.sampled_from([1024, 20_000, 8 << 20]),
    value_bytes=st.sampled_from([0, 10, 5000]),
    wide_ids=st.booleans(),
    encoded=st.booleans(),
    seed=st.integers(0, 2**32),
)


def random_rows(rng: random.Random, rows: int, value_bytes: int) -> pa.RecordBatch:
    """Rows with nulls, empty values, nesting and text beyond ASCII."""

    def maybe(value: object) -> object:
        return None if rng.random() < 0.2 else value

    def text() -> str:
        return "".join(rng.choice("aé漢😀\0") for _ in range(rng.randrange(4)))

    columns = [
        [maybe(rng.randrange(-(2**31), 2**31)) for _ in range(rows)],
        [maybe(text()) for _ in range(rows)],
        [maybe(rng.randbytes(rng.randrange(value_bytes + 1))) for _ in range(rows)],
        [maybe(Decimal(rng.randrange(-(10**9), 10**9)) / 1000) for _ in range(rows)],
        [
            maybe([{"x": maybe(rng.random()), "y": maybe(text())} for _ in range(rng.randrange(3))])
            for _ in range(rows)
        ],
        [None] * rows,
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def random_batch(rng: random.Random, rows: int, shape: Shape) -> IdBatch:
    """A batch and its ids; few partitions get most rows."""
    batch = random_rows(rng, rows + 3 * shape.encoded, shape.value_bytes)
    if shape.encoded:
        batch = batch.set_column(1, "s", batch.column(1).dictionary_encode()).slice(2, rows)
    used = rng.sample(range(shape.partitions), rng.randint(1, min(3, shape.partitions)))
    ids = [rng.choice([*used, rng.randrange(shape.partitions)]) for _ in range(rows)]
    return batch, np.array(ids, np.uint32 if shape.wide_ids else np.uint16)


def check_round_trip(shape: Shape) -> int:
    """Write, seal, read all partitions; return the number of segments."""
    rng, ids = random.Random(shape.seed), SeededIds(random.Random(shape.seed))
    inputs = [[random_batch(rng, r, shape) for r in sizes] for sizes in shape.batches]
    stage = new_stage(
        MemoryStorage(),
        ids,
        SCHEMA,
        partitions=shape.partitions,
        producers=len(inputs),
        compression=shape.compression,
    )
    small = Settings(writer_memory_bytes=1 << 16, frame_bytes=shape.frame_bytes)
    for p in rng.sample(range(len(inputs)), len(inputs)):
        attempt = ids.new_id()
        write(stage, p, iter(inputs[p]), attempt, producers=len(inputs), settings=small)
    sealed = seal(stage, len(inputs), ids.new_id())
    model = model_of(inputs)
    assert sealed.rows == sum(len(rows) for rows in model.values())
    for k in range(shape.partitions):
        assert read_rows(stage, sealed, k, small) == partition_of(model, k, len(inputs))
    return len(list(stage.storage.list(stage.path.segments_prefix)))


@given(SHAPES)
def test_any_stage_reads_back_as_it_was_written(shape: Shape) -> None:
    """Rows of each subpartition, in producer order and in their own order, equal the dictionary."""
    check_round_trip(shape)


@pytest.mark.soak
@settings(max_examples=3000)
@given(SHAPES)
def test_any_stage_reads_back_as_it_was_written_soak(shape: Shape) -> None:
    """The same, many more shapes."""
    check_round_trip(shape)


@pytest.mark.parametrize(
    ("batches", "segments"),
    [([], 0), ([[]], 0), ([[0, 0]], 0), ([[0], [5], []], 1), ([[40] * 10], 6)],
)
def test_edges_of_the_shape(batches: list[list[int]], segments: int) -> None:
    """No producers, no batches, no rows, one partition; and a producer of several segments."""
    for partitions in (1, 7):
        shape = Shape(batches, partitions, "none", 1024, 5000, True, False, 1)
        found = check_round_trip(shape)
        assert found == segments if segments < 2 else found >= segments


@pytest.mark.soak
def test_seventy_thousand_partitions(ids: SeededIds) -> None:
    """Ids of 32 bits; most subpartitions are empty, and say so."""
    partitions, rng = 70_000, random.Random(3)
    schema = pa.schema([("x", pa.int64())])
    stage = new_stage(MemoryStorage(), ids, schema, partitions=partitions)
    inputs = []
    for p in range(2):
        keys = [0, 65_535, 65_536, 69_999, *(rng.randrange(partitions) for _ in range(500))]
        batch = pa.record_batch([pa.array(range(504), pa.int64())], schema=schema)
        inputs.append([(batch, np.array(keys, np.uint32))])
        write(stage, p, inputs[p], ids.new_id(), producers=2)
    sealed = seal(stage, 2, ids.new_id())
    model = model_of(inputs)
    used = {k for _, k in model}
    assert len(used) > 900
    for k in [*sorted(used), *(k for k in range(2000) if k not in used)]:
        assert read_rows(stage, sealed, k) == partition_of(model, k, 2)


def test_passthrough_keeps_producers_apart(ids: SeededIds) -> None:
    """Producer p is partition p, also the one without rows."""
    schema = pa.schema([("x", pa.int64())])
    stage = new_stage(MemoryStorage(), ids, schema, partitions=3, partitioner="passthrough")
    for p, values in enumerate([[1, 2], [], [3]]):
        batch = pa.record_batch([pa.array(values, pa.int64())], schema=schema)
        write(stage, p, [(batch, np.full(len(values), p, np.uint16))], ids.new_id(), producers=3)
    sealed = seal(stage, 3, ids.new_id())
    found = [[r["x"] for r in read_rows(stage, sealed, k)] for k in range(3)]
    assert found == [[1, 2], [], [3]]


def test_rows_without_columns_keep_their_number(ids: SeededIds) -> None:
    """A batch may have rows and no columns: a count needs no more."""
    schema = pa.schema([])
    stage = new_stage(MemoryStorage(), ids, schema, partitions=2)
    batch = pa.RecordBatch.from_struct_array(pa.array([{}] * 10, pa.struct([])))
    assert batch.num_rows == 10
    write(stage, 0, [(batch, np.array([0, 0, 0, 1, 1, 1, 1, 1, 1, 1], np.uint16))], ids.new_id())
    sealed = seal(stage, 1, ids.new_id())
    assert [len(read_rows(stage, sealed, k)) for k in range(2)] == [3, 7]


def test_a_larger_stage_agrees_with_duckdb(ids: SeededIds) -> None:
    """50,000 rows in 16 partitions: the same rows per partition, by SQL over the inputs."""
    rng = np.random.default_rng(4)
    schema = pa.schema([("x", pa.int64()), ("s", pa.string())])
    stage = new_stage(MemoryStorage(), ids, schema, partitions=16)
    tables = []
    for p in range(5):
        values = rng.integers(0, 1000, 10_000)
        columns = [pa.array(values), pa.array([f"v{v}" for v in values])]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        part = rng.integers(0, 16, 10_000).astype(np.uint16)
        write(stage, p, [(batch, part)], ids.new_id(), producers=5, settings=Settings())
        tables.append(pa.table({"k": part.astype(np.int64), "x": values, "s": columns[1]}))
    sealed = seal(stage, 5, ids.new_id())
    given_rows = pa.concat_tables(tables)
    found = []
    for k in range(16):
        table = pa.Table.from_batches(read_subpartition(stage, sealed, k, Settings()), schema)
        found.append(table.add_column(0, "k", pa.array([k] * len(table), pa.int64())))
    read = pa.concat_tables(found)
    database = duckdb.connect()
    database.register("given_rows", given_rows)
    database.register("read", read)
    for one, other in (("given_rows", "read"), ("read", "given_rows")):
        query = f"select count(*) from (from {one} except all from {other})"
        assert database.execute(query).fetchone() == (0,)
    assert len(read) == 50_000


@pytest.mark.parametrize(
    ("ids_given", "said"),
    [
        (np.array([0, 1], np.uint16), "rows=3 ids=2"),
        (np.array([0, 1, 5], np.uint16), "found=5 partitions=5"),
        (np.array([0, 1, 2], np.int64), "uint16 or uint32"),
        (np.array([0, -1, 2], np.int32), "uint16 or uint32"),
    ],
)
def test_bad_partition_ids_are_refused_and_leave_nothing(
    ids: SeededIds, ids_given: np.ndarray, said: str
) -> None:
    """The user's mistake is named; no segment, no COMMIT."""
    schema = pa.schema([("x", pa.int64())])
    stage = new_stage(MemoryStorage(), ids, schema, partitions=5)
    batch = pa.record_batch([pa.array([1, 2, 3], pa.int64())], schema=schema)
    with pytest.raises(InvalidInputError, match=said):
        write(stage, 0, [(batch, ids_given)], ids.new_id())
    assert [i.key.split("/")[-2] for i in stage.storage.list("")] == ["log"]


def test_a_batch_of_another_schema_is_refused(ids: SeededIds) -> None:
    """A column that cannot be converted is named; nothing is left."""
    stage = new_stage(MemoryStorage(), ids, pa.schema([("x", pa.int64())]), partitions=1)
    batch = pa.record_batch([["text"]], names=["x"])
    with pytest.raises(InvalidInputError, match="'x'"):
        write(stage, 0, [(batch, np.zeros(1, np.uint16))], ids.new_id())
    assert list(stage.storage.list(stage.path.segments_prefix)) == []
