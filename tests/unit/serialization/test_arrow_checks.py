"""Arrow bodies that no writer of ours makes: with right checksums around them, wrong inside."""

import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from durable_shuffle.serialization import arrow_checks, arrow_codec
from durable_shuffle.serialization.arrow_codec import decode_batch, decode_frame, encode_slices
from durable_shuffle.serialization.arrow_schemas import schema_from_bytes, schema_to_bytes
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.serialization.frames import Frame, FrameKind

ROWS = 2000
"""More than the checks leave to Arrow's own validation."""


def body_of(array: pa.Array, codec: str | None = None) -> tuple[bytes, pa.Schema]:
    """Return the message of a batch of one column as Arrow's own writer gives it."""
    batch = pa.RecordBatch.from_arrays([array], names=["c"])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([pa.nulls(0, array.type)], names=["c"]))
        start = sink.tell()  # the schema goes out with the first batch
        writer.write_batch(batch)
        end = sink.tell()
    return sink.getvalue().to_pybytes()[start:end], batch.schema


def buffer(values: object, dtype: str) -> pa.Buffer:
    return pa.py_buffer(np.asarray(values, dtype=dtype))


def offsets(rows: int, dtype: str = "<i4") -> np.ndarray:
    """Return offsets of two units per row, one of which leads far out."""
    found = np.arange(rows + 1, dtype=dtype) * 2
    found[rows // 2] = 1 << 30
    return found


def without_offset(rows: int) -> dict[str, pa.Array]:
    """Return lists without elements; their empty elements lack the one offset that is due."""
    pairs = pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.int64())])
    longs, no_pairs = pa.array([], pa.int64()), pa.array([], pairs)
    nothing = pa.py_buffer(b"")
    bare = {
        "texts": pa.Array.from_buffers(pa.string(), 0, [None, nothing, nothing]),
        "large bytes": pa.Array.from_buffers(pa.large_binary(), 0, [None, nothing, nothing]),
        "lists": pa.Array.from_buffers(pa.list_(pa.int64()), 0, [None, nothing], children=[longs]),
        "maps": pa.Array.from_buffers(
            pa.map_(pa.string(), pa.int64()), 0, [None, nothing], children=[no_pairs]
        ),
    }
    bare["structs"] = pa.StructArray.from_arrays([bare["lists"]], names=["s"])
    zeros = buffer([0] * (rows + 1), "<i4")
    return {
        f"empty {kind} without offset": pa.Array.from_buffers(
            pa.list_(array.type), rows, [None, zeros], children=[array]
        )
        for kind, array in bare.items()
    }


def forged(rows: int) -> dict[str, pa.Array]:
    """Return arrays that Arrow's cheap validation passes and that crash who uses them."""
    data, longs = pa.py_buffer(b"x" * (2 * rows)), pa.array(range(2 * rows))
    small, large = pa.py_buffer(offsets(rows)), pa.py_buffer(offsets(rows, "<i8"))
    text = pa.Array.from_buffers(pa.string(), rows, [None, small, data])
    bits = buffer([255] * (rows // 8 + 1), "u1")
    keys = pa.array([str(i) for i in range(2 * rows)])
    entries = pa.StructArray.from_arrays([keys, longs], names=["key", "value"])
    union = pa.dense_union([pa.field("a", pa.int64())])
    types, inner = buffer([0] * rows, "i1"), buffer([1 << 30] * rows, "<i4")
    return {
        **without_offset(rows),
        "text": text,
        "bytes": pa.Array.from_buffers(pa.binary(), rows, [None, small, data]),
        "large text": pa.Array.from_buffers(pa.large_string(), rows, [None, large, data]),
        "list": pa.Array.from_buffers(pa.list_(pa.int64()), rows, [None, small], children=[longs]),
        "large list": pa.Array.from_buffers(
            pa.large_list(pa.int64()), rows, [None, large], children=[longs]
        ),
        "map": pa.Array.from_buffers(
            pa.map_(pa.string(), pa.int64()), rows, [None, small], children=[entries]
        ),
        "text in a struct": pa.StructArray.from_arrays([text], names=["s"]),
        "text in a list": pa.ListArray.from_arrays(pa.array([0, rows], pa.int32()), text),
        "text in a list of a fixed size": pa.FixedSizeListArray.from_arrays(text, 2),
        "nulls that are none": pa.Array.from_buffers(
            pa.int64(), rows, [bits, longs.buffers()[1]], null_count=7
        ),
        "union": pa.Array.from_buffers(union, rows, [None, types, inner], children=[longs]),
        "union of an unknown type": pa.Array.from_buffers(
            union, rows, [None, buffer([5] * rows, "i1"), inner], children=[longs]
        ),
    }


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
@pytest.mark.parametrize("rows", [10, ROWS])
@pytest.mark.parametrize("kind", sorted(forged(10)))
def test_forged_columns_are_corruption(kind: str, rows: int, codec: str | None) -> None:
    """Offsets out of the data, of every layout and depth, and counts of nulls that are not true."""
    body, schema = body_of(forged(rows)[kind], codec)
    decode_batch(body, schema, check_offsets=False)  # Arrow's cheap validation lets it through
    with pytest.raises(CorruptDataError, match="arrow body of"):
        decode_batch(body, schema)


@pytest.mark.parametrize("rows", [10, ROWS])
def test_what_spark_writes_is_not_refused(rows: int) -> None:
    """Text that is not UTF-8, decimals beyond their precision, times beyond a day: legal bytes."""
    raw = pa.array([b"\xff\xfe%d" % i if i % 3 else None for i in range(rows)], pa.binary())
    wide = pa.array([Decimal(10) ** 30] * rows, pa.decimal128(38, 0))
    batch = pa.RecordBatch.from_arrays(
        [
            pa.Array.from_buffers(pa.string(), rows, raw.buffers(), null_count=raw.null_count),
            pa.Array.from_buffers(pa.decimal128(5, 0), rows, wide.buffers()),
            pa.array([2**40] * rows, pa.int64()).view(pa.time64("us")),
            pa.array([[None, "x"], [], None] * rows)[:rows],
        ],
        names=list("abcd"),
    )
    with pytest.raises(pa.ArrowInvalid):
        batch.validate(full=True)
    for codec in ("none", "lz4"):
        (body,) = encode_slices(batch, [(0, rows)], codec)
        assert decode_batch(body, batch.schema).equals(batch)


@pytest.mark.parametrize("becomes", [1 << 33, 1 << 50, (1 << 63) - 1, -2, 100_000_000])
def test_a_buffer_that_lies_about_its_length(becomes: int) -> None:
    """What a buffer says that it becomes is refused before any memory is taken for it."""
    body, schema = body_of(pa.array([7] * 1000), "lz4")
    at = body.index(b"\x04\x22\x4d\x18") - 8
    lying = body[:at] + struct.pack("<q", becomes) + body[at + 8 :]
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(CorruptDataError, match=f"becomes {becomes}"):
        decode_batch(lying, schema)
    assert pa.default_memory_pool().max_memory() == before


def test_a_bomb_is_refused_unread() -> None:
    """A body that truly becomes more than the limit is refused before it is decompressed."""
    size = arrow_checks.MAX_INFLATED_BYTES
    body, schema = body_of(pa.array([bytes(size)]), "zstd")
    assert len(body) < size // 1000
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(CorruptDataError, match=f"at most {size} are expected"):
        decode_batch(body, schema)
    assert pa.default_memory_pool().max_memory() == before
    assert decode_batch(body, schema, max_bytes=size + 64).num_rows == 1


def test_small_buffers_do_not_add_up_to_a_bomb() -> None:
    """The limit is that of all buffers of a body together, not of each."""
    columns = {f"c{n}": pa.array([bytes(20_000)]) for n in range(10)}
    batch = pa.record_batch(columns)
    (body,) = encode_slices(batch, [(0, 1)], "zstd")
    with pytest.raises(CorruptDataError, match="at most 100000 are expected"):
        decode_batch(body, batch.schema, max_bytes=100_000)
    assert decode_batch(body, batch.schema).equals(batch)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("off", [-100_000, -1, 1, 100_000])
def test_a_codec_that_knows_another_length(codec: str, off: int) -> None:
    """A buffer that becomes more or less than it says is refused."""
    size = 1_000_000
    body, schema = body_of(pa.array(np.full(size, 7, np.int8)), codec)
    at = body.index(struct.pack("<q", size))
    lying = body[:at] + struct.pack("<q", size + off) + body[at + 8 :]
    with pytest.raises(CorruptDataError, match="arrow body of"):
        decode_batch(lying, schema)


@pytest.mark.parametrize("codec", [None, "lz4"])
def test_buffers_that_share_bytes(codec: str | None) -> None:
    """Columns that all point to the same bytes would multiply them when they are copied."""
    raw = np.random.default_rng(7).bytes(10_000)
    columns = {"a": pa.array([raw]), "b": pa.array([b"x" * 50]), "c": pa.array([b"y" * 50])}
    batch = pa.record_batch(columns)
    (body,) = encode_slices(batch, [(0, 1)], codec or "none")
    metadata = bytearray(memoryview(pa.ipc.read_message(pa.py_buffer(body)).metadata))
    vector, places = buffers_of(bytes(metadata))
    longest = max(places, key=lambda place: place[1])
    for n in (5, 8):  # what the texts of the others are
        struct.pack_into("<qq", metadata, vector + 4 + 16 * n, *longest)
    shared = bytes(body[:8]) + metadata + bytes(body[8 + len(metadata) :])
    with pytest.raises(CorruptDataError, match="share a body"):
        decode_batch(shared, batch.schema)


def buffers_of(metadata: bytes) -> tuple[int, list[tuple[int, int]]]:
    """Return where the vector of buffers stands in a message's metadata, and its entries."""
    message = struct.unpack_from("<I", metadata)[0]
    header = arrow_checks._pointed(memoryview(metadata), message, 2)
    vector = arrow_checks._pointed(memoryview(metadata), header or 0, 2) or 0
    count = struct.unpack_from("<I", metadata, vector)[0]
    return vector, [struct.unpack_from("<qq", metadata, vector + 4 + 16 * n) for n in range(count)]


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_row_over_the_limit_is_stored_as_it_is(compression: str) -> None:
    """A row that is too large for a compressed body is written and read without compression."""
    size = arrow_checks.MAX_INFLATED_BYTES + 1
    batch = pa.record_batch({"a": pa.array(["x", "\0" * size, "y"], pa.large_string())})
    bodies = encode_slices(batch, [(0, 1), (1, 1), (2, 1)], compression)
    assert bodies[1].nbytes > size
    assert sum(bodies[n].nbytes for n in (0, 2)) < 2000
    for n, body in enumerate(bodies):
        assert decode_batch(body, batch.schema).equals(batch.slice(n, 1))


@pytest.mark.parametrize(
    "kind",
    [
        pa.string_view(),
        pa.list_view(pa.int64()),
        pa.run_end_encoded(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.string()),
        pa.struct([("x", pa.list_(pa.binary_view()))]),
    ],
    ids=str,
)
def test_a_stored_schema_has_plain_layouts(kind: pa.DataType) -> None:
    """Nobody writes views, runs or dictionaries: a few bytes would become any number of values."""
    with pytest.raises(CorruptDataError, match="not stored plain"):
        schema_from_bytes(schema_to_bytes(pa.schema([("c", kind)])), name="c")


def test_nobody_writes_what_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice over the limit of readers is refused by the writer."""
    monkeypatch.setattr(arrow_codec, "MAX_BATCH_BYTES", 10_000)
    batch = pa.record_batch({"a": pa.array(range(2000))})
    encode_slices(batch, [(0, 1000), (1000, 1000)], "none")
    with pytest.raises(InvalidInputError, match="2000 rows take"):
        encode_slices(batch, [(0, 2000)], "none")
    assert arrow_checks.MAX_BATCH_BYTES == 2 << 30


def test_a_frame_holds_the_rows_that_it_states() -> None:
    """Other rows are corruption, another kind belongs to another stage."""
    body, schema = body_of(pa.array([1, 2, 3]))
    assert (
        decode_frame(Frame(FrameKind.ARROW, 0, 3, memoryview(body)), schema, position=0).num_rows
        == 3
    )
    with pytest.raises(CorruptDataError, match="byte 96: it states 4 rows and holds 3"):
        decode_frame(Frame(FrameKind.ARROW, 0, 4, memoryview(body)), schema, position=96)
    with pytest.raises(IncompatibleError, match="kind MSGPACK"):
        decode_frame(Frame(FrameKind.MSGPACK, 0, 3, memoryview(body)), schema, position=0)


def shared_union(rows: int) -> pa.Array:
    """Return a dense union whose rows all name one value."""
    values = pa.array(["x" * 1000])
    codes, places = pa.array([0] * rows, pa.int8()), pa.array([0] * rows, pa.int32())
    return pa.UnionArray.from_dense(codes, places, [values], ["a"])


SHARED = {
    "plain": lambda u: u,
    "in a list": lambda u: pa.ListArray.from_arrays(pa.array([*range(len(u) + 1)], pa.int32()), u),
    "in a struct": lambda u: pa.StructArray.from_arrays([u], names=["s"]),
    "in a union": lambda u: pa.UnionArray.from_sparse(pa.array([0] * len(u), pa.int8()), [u]),
}


@pytest.mark.parametrize("rows", [10, ROWS])
@pytest.mark.parametrize("place", sorted(SHARED))
def test_a_value_that_many_rows_share_is_refused(place: str, rows: int) -> None:
    """Rows of a dense union that name one value multiply it; each gets its own when written."""
    array = SHARED[place](shared_union(rows))
    body, schema = body_of(array)
    with pytest.raises(CorruptDataError, match=r"column 0: rows of dense_union.* share a value"):
        decode_batch(body, schema)
    batch = pa.RecordBatch.from_arrays([array], names=["c"])
    (written,) = encode_slices(batch, [(0, rows)], "none")
    assert decode_batch(written, schema).to_pylist() == batch.to_pylist()
