"""Arrow bodies of every layout, and their schemas."""

import random
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from durable_shuffle.serialization.arrow_codec import decode_batch, encode_slices
from durable_shuffle.serialization.arrow_schemas import (
    logical_schema,
    schema_from_bytes,
    storable_schema,
)

MAX_BATCH_BYTES = 1 << 20
"""Most that an Arrow body may become here."""
BOMB_BYTES = 300 << 20
"""More than a process that fuzzes may take."""
BOMB_VALUES = BOMB_BYTES // 8

SCHEMAS = (
    pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64())]),
    pa.schema([("a", pa.bool_()), ("b", pa.null()), ("c", pa.binary())]),
    pa.schema([("a", pa.list_(pa.string())), ("b", pa.large_string())]),
    pa.schema([("a", pa.map_(pa.string(), pa.list_(pa.int32())))]),
    pa.schema([("a", pa.struct([("x", pa.string()), ("y", pa.struct([("z", pa.bool_())]))]))]),
    pa.schema([("a", pa.list_(pa.int16(), 3)), ("b", pa.binary(5))]),
    pa.schema([("a", pa.decimal128(20, 3)), ("b", pa.decimal256(50, 3)), ("c", pa.date32())]),
    pa.schema([("a", pa.timestamp("us", "UTC")), ("b", pa.duration("us")), ("c", pa.time64("us"))]),
    pa.schema([("a", pa.dense_union([pa.field("x", pa.int64()), pa.field("y", pa.string())]))]),
    pa.schema([("a", pa.sparse_union([pa.field("x", pa.int64()), pa.field("y", pa.bool_())]))]),
    pa.schema([("a", pa.large_list(pa.large_binary())), ("b", pa.float16())]),
    # never written, but a forged DESCRIBE may say so
    pa.schema([("a", pa.string_view()), ("b", pa.binary_view())]),
    pa.schema([("a", pa.list_view(pa.int64()))]),
    pa.schema([("a", pa.run_end_encoded(pa.int32(), pa.string()))]),
    pa.schema([("a", pa.dictionary(pa.int8(), pa.string()))]),
    pa.schema([]),
    pa.schema([("a", pa.list_(pa.null())), ("b", pa.map_(pa.struct([]), pa.list_(pa.null(), 2)))]),
    pa.schema([("a", pa.list_(pa.struct([])))]),
)
CODECS = (None, "lz4", "zstd")
_BARE = (pa.list_(pa.null()), pa.list_(pa.struct([])))
_TO_PYTHON = (pa.string(), pa.binary(), pa.int64(), pa.list_(pa.string()), *_BARE)


def _column(kind: pa.DataType, rows: int, draw: random.Random) -> pa.Array:
    if pa.types.is_union(kind):
        children = [_column(kind.field(i).type, rows, draw) for i in range(kind.num_fields)]
        types = pa.array([draw.randrange(2) for _ in range(rows)], pa.int8())
        if kind.mode == "sparse":
            return pa.UnionArray.from_sparse(types, children, ["x", "y"])
        places = pa.array(range(rows), pa.int32())
        return pa.UnionArray.from_dense(types, places, children, ["x", "y"])
    if pa.types.is_run_end_encoded(kind):
        return pa.RunEndEncodedArray.from_arrays(pa.array([rows], pa.int32()), pa.array(["x"]))
    if pa.types.is_dictionary(kind):
        return pa.array(["a"] * rows).dictionary_encode().cast(kind)
    return pa.array(
        [None if draw.random() < 0.3 else _value(kind, draw) for _ in range(rows)], kind
    )


def _value(kind: pa.DataType, draw: random.Random) -> Any:
    t = pa.types
    if t.is_struct(kind):
        return {
            kind.field(i).name: _value(kind.field(i).type, draw) for i in range(kind.num_fields)
        }
    if t.is_map(kind):
        return [("k" if t.is_string(kind.key_type) else {}, _value(kind.item_type, draw))]
    if t.is_fixed_size_list(kind):
        return [_value(kind.value_type, draw) for _ in range(kind.list_size)]
    if t.is_nested(kind):
        return [_value(kind.value_type, draw) for _ in range(draw.randrange(4))]
    if t.is_boolean(kind):
        return draw.random() < 0.5
    if t.is_fixed_size_binary(kind):
        return b"12345"
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind):
        return bytes(draw.randrange(30))
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return "x" * draw.randrange(30)
    if t.is_decimal(kind):
        return Decimal(draw.randrange(1000))
    if t.is_float16(kind):
        return np.float16(1.5)
    return None if t.is_null(kind) else draw.randrange(1000)


def bodies(schema: pa.Schema, codec: int) -> list[bytes]:
    """Return messages of batches as Arrow writes them, also of layouts that we never write."""
    draw, found = random.Random(5), []
    for rows in (20, 1300, 1):
        columns = [_column(field.type, rows, draw) for field in schema]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        found.append(message(batch, CODECS[codec]))
    return found


def message(batch: pa.RecordBatch, codec: str | None) -> bytes:
    """Return the message of a batch as Arrow's own writer gives it."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch.slice(0, 0))
        start = sink.tell()
        writer.write_batch(batch)
        end = sink.tell()
    return sink.getvalue().to_pybytes()[start:end]


def bombs() -> list[bytes]:
    """Return inputs of `run_arrow` of some kB that become more than a process that fuzzes may take.

    One long text, text of many rows, columns that are harmless one by one; lz4 makes at most 8 MiB
    of what an input holds. Lists of values that have no bytes become as much as Python objects.
    """
    size, every = BOMB_BYTES, []
    text = pa.py_buffer(bytes(size))
    offsets = np.zeros(1001, "<i4")
    offsets[-1] = size
    rows = pa.Array.from_buffers(pa.binary(), 1000, [None, pa.py_buffer(offsets), text])
    kinds = (pa.decimal128(20, 3), pa.decimal256(50, 3), pa.date32())
    long = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(offsets[[0, -1]]), text])
    columns = {
        0: [pa.array([1]), long, pa.array([0.5])],
        1: [pa.nulls(1000, pa.bool_()), pa.nulls(1000), rows],
        6: [pa.nulls(size // 32, kind) for kind in kinds],
    }
    for number, arrays in columns.items():
        batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMAS[number])
        every.append(bytes([number]) + message(batch, "zstd"))
        if number == 6:
            every.append(bytes([number]) + message(batch.slice(0, 100_000), "lz4"))
    nothing = pa.nulls(BOMB_VALUES)
    structs = pa.Array.from_buffers(pa.struct([]), BOMB_VALUES, [None])
    bare = {
        16: [one_list(nothing), pa.nulls(1, SCHEMAS[16].field(1).type)],
        17: [one_list(structs)],
    }
    for number, arrays in bare.items():
        batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMAS[number])
        every.append(bytes([number]) + message(batch, None))
    return every


def one_list(values: pa.Array) -> pa.Array:
    """Return a list array of one row that holds `values`."""
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


def run_arrow(data: bytes) -> None:
    """Decode a body by the schema that its first byte chooses, and use every value."""
    if data:
        touch(decode_batch(data[1:], SCHEMAS[data[0] % len(SCHEMAS)], max_bytes=MAX_BATCH_BYTES))


def touch(batch: pa.RecordBatch) -> None:
    """Do what readers do: copy rows by number, join, write again, give values to Python."""
    rows = min(batch.num_rows, 5000)
    for column in batch.slice(0, rows).columns:
        kind = column.type
        if not _views(kind):
            column.take(pa.array(range(rows - 1, -1, -1), pa.int64()))
            pa.concat_arrays([column, column])
        if kind in _TO_PYTHON:
            with suppress(UnicodeDecodeError):  # legal: Spark does not check
                column.to_pylist()
    if batch.num_columns and storable_schema(batch.schema) == batch.schema and rows:
        encode_slices(batch, [(0, rows // 2), (rows // 2, rows - rows // 2)], "none")


def _views(kind: pa.DataType) -> bool:
    t = pa.types
    rare = (t.is_list_view, t.is_run_end_encoded, t.is_string_view, t.is_binary_view)
    return any(check(kind) for check in rare)


def run_schema(data: bytes) -> None:
    logical_schema(schema_from_bytes(data, name="s"))
