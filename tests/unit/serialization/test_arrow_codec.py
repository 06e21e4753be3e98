"""Arrow batches as frame bodies."""

import datetime as dt
import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_shuffle.serialization.arrow_codec import decode_batch, encode_slices, iter_slices
from durable_shuffle.serialization.arrow_schemas import (
    schema_from_bytes,
    schema_to_bytes,
    storable_batch,
    storable_schema,
)
from durable_shuffle.serialization.errors import CorruptDataError, InvalidInputError

CODECS = ["none", "lz4", "zstd"]
ROWS = 10
UTC = dt.UTC


def optional(make: Callable[[int], object]) -> list[object]:
    """Ten values, each third one null."""
    return [None if i % 3 == 1 else make(i) for i in range(ROWS)]


COLUMNS = {
    "bool": pa.array(optional(lambda i: i % 2 == 0), pa.bool_()),
    "int8": pa.array(optional(lambda i: i - 5), pa.int8()),
    "uint64": pa.array(optional(lambda i: 2**64 - 1 - i), pa.uint64()),
    "float": pa.array(optional(lambda i: i / 7), pa.float64()),
    "string": pa.array(optional(lambda i: "ä" * i), pa.string()),
    "large_string": pa.array(optional(str), pa.large_string()),
    "binary": pa.array(optional(lambda i: bytes(i)), pa.binary()),
    "fixed": pa.array(optional(lambda i: bytes([i] * 4)), pa.binary(4)),
    "decimal": pa.array(optional(lambda i: decimal.Decimal(i) / 100), pa.decimal128(20, 2)),
    "decimal256": pa.array(optional(lambda i: decimal.Decimal(i)), pa.decimal256(60, 2)),
    "date": pa.array(optional(lambda i: dt.date(1900 + i, 1, 1)), pa.date32()),
    "time": pa.array(optional(lambda i: dt.time(i, 2, 3, 4)), pa.time64("us")),
    "zoned": pa.array(
        optional(lambda i: dt.datetime(2000 + i, 1, 1, tzinfo=UTC)),
        pa.timestamp("us", "Europe/Berlin"),
    ),
    "nanos": pa.array(optional(lambda i: i * 1001), pa.timestamp("ns")),
    "duration": pa.array(optional(lambda i: i), pa.duration("s")),
    "interval": pa.array(optional(lambda i: (i, i, i)), pa.month_day_nano_interval()),
    "null": pa.nulls(ROWS),
    "all_null": pa.nulls(ROWS, pa.string()),
    "list": pa.array(optional(lambda i: [str(i)] * (i % 4)), pa.list_(pa.string())),
    "list_of_list": pa.array(optional(lambda i: [[i], []]), pa.list_(pa.list_(pa.int32()))),
    "fixed_list": pa.array(optional(lambda i: [i, None]), pa.list_(pa.int16(), 2)),
    "struct": pa.array(
        optional(lambda i: {"x": i, "y": [str(i)]}),
        pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))]),
    ),
    "map": pa.array(optional(lambda i: [("k", i)]), pa.map_(pa.string(), pa.int64())),
    "dense_union": pa.UnionArray.from_dense(
        pa.array([0, 1] * 5, pa.int8()),
        pa.array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4], pa.int32()),
        [pa.array(range(5)), pa.array(list("abcde"))],
    ),
    "sparse_union": pa.UnionArray.from_sparse(
        pa.array([0, 1] * 5, pa.int8()), [pa.array(range(10)), pa.array(list("abcdefghij"))]
    ),
    "uuid": pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array(optional(lambda i: bytes([i] * 16)), pa.binary(16))
    ),
}
MIXED = pa.record_batch(list(COLUMNS.values()), names=list(COLUMNS))
NUMBERS = pa.record_batch({"a": pa.array(range(100), pa.int64())})


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", sorted(COLUMNS))
def test_each_type_comes_back(name: str, codec: str) -> None:
    """Any slices, overlapping and empty ones too, of a batch that itself begins at an offset."""
    batch = pa.record_batch([COLUMNS[name]], names=["c"]).slice(1, 8)
    bounds = [(0, 3), (3, 0), (3, 5), (2, 4), (8, 0), (0, 8)]
    bodies = encode_slices(batch, bounds, codec)
    assert len(bodies) == len(bounds)
    rows = COLUMNS[name].to_pylist()[1:9]
    for (start, length), body in zip(bounds, bodies, strict=True):
        assert body.nbytes % 8 == 0
        decoded = decode_batch(body, batch.schema)
        decoded.validate(full=True)
        assert decoded.schema == batch.schema
        assert decoded.column(0).to_pylist() == rows[start : start + length]


@pytest.mark.parametrize("codec", CODECS)
def test_all_types_in_one_batch(codec: str) -> None:
    """Many columns together, and the body is one message and nothing else."""
    (body,) = encode_slices(MIXED, [(2, 5)], codec)
    assert decode_batch(body, MIXED.schema).to_pylist() == MIXED.to_pylist()[2:7]
    reader = pa.BufferReader(pa.py_buffer(body))
    assert pa.ipc.read_message(reader).type == "record batch"
    assert reader.tell() == len(body)


@pytest.mark.parametrize("codec", CODECS)
def test_any_number_of_slices(codec: str) -> None:
    """None, one row each, and so many that several streams are needed."""
    assert encode_slices(NUMBERS, [], codec) == []
    wide = pa.record_batch({"a": pa.array(range(200_000), pa.int64())})
    bounds = [(i, 1000) for i in range(0, 200_000, 1000)]
    bodies = encode_slices(wide, bounds, codec)
    values = [v for body in bodies for v in decode_batch(body, wide.schema).column(0).to_pylist()]
    assert values == list(range(200_000))


def test_batch_without_columns_keeps_its_rows() -> None:
    """The number of rows is all there is."""
    batch = pa.RecordBatch.from_struct_array(pa.array([{}] * 5, pa.struct([])))
    bodies = encode_slices(batch, [(0, 3), (3, 0), (3, 2)], "lz4")
    assert [decode_batch(body, batch.schema).num_rows for body in bodies] == [3, 0, 2]


def test_slices_write_only_their_own_rows() -> None:
    """Arrow would write the offsets of the whole batch for a column of zero length."""
    count = 100_000
    strings = pa.array(["x"] * count)
    offsets = pa.array([0] * 11 + list(range(1, count + 1)), pa.int32())
    lists = pa.ListArray.from_arrays(offsets, strings)
    maps = pa.MapArray.from_arrays(offsets, strings, strings)
    columns = [strings.slice(0, 1000), lists.slice(0, 1000), maps.slice(0, 1000)]
    batch = pa.record_batch(columns, names=["s", "l", "m"])
    empty, no_elements, some = encode_slices(batch, [(5, 0), (0, 5), (5, 10)], "none")
    for body, rows in ((empty, []), (no_elements, range(5)), (some, range(5, 15))):
        assert body.nbytes < 4000
        expected = [row for i, row in enumerate(batch.to_pylist()) if i in rows]
        assert decode_batch(body, batch.schema).to_pylist() == expected


def test_uncompressed_bodies_are_read_in_place() -> None:
    """The decoded column's memory lies inside the body's."""
    (body,) = encode_slices(NUMBERS, [(0, 100)], "none")
    stored = pa.py_buffer(body)
    values = decode_batch(body, NUMBERS.schema).column(0).buffers()[1]
    assert stored.address <= values.address
    assert values.address + values.size <= stored.address + stored.size


def test_compression_is_applied() -> None:
    """Repetitive data takes less room, with each codec."""
    batch = pa.record_batch({"a": pa.array([7] * 10_000, pa.int64())})
    sizes = [encode_slices(batch, [(0, 10_000)], codec)[0].nbytes for codec in CODECS]
    assert sizes[0] > 80_000
    assert max(sizes[1:]) < 8_000


@pytest.mark.parametrize("bounds", [(0, 101), (-1, 2), (5, -1), (101, 0)])
def test_slices_outside_the_batch_are_refused(bounds: tuple[int, int]) -> None:
    """Before anything is encoded, and also by the lazy form at the call."""
    with pytest.raises(InvalidInputError, match="outside a batch of 100 rows"):
        iter_slices(NUMBERS, [(0, 1), bounds], "none")


def test_unknown_compression_is_refused() -> None:
    """The known ones are named."""
    with pytest.raises(InvalidInputError, match="one of lz4, zstd, none, found 'gzip'"):
        encode_slices(NUMBERS, [], "gzip")


def test_columns_that_are_not_plain_are_refused() -> None:
    """A dictionary message would get into the body."""
    batch = pa.record_batch({"a": pa.array(["x"]).dictionary_encode()})
    with pytest.raises(InvalidInputError, match="must be stored plain"):
        encode_slices(batch, [(0, 1)], "none")


@pytest.mark.parametrize("codec", CODECS)
def test_cut_or_longer_body_is_corruption(codec: str) -> None:
    """Every cut, and bytes behind the message."""
    (body,) = encode_slices(NUMBERS, [(0, 10)], codec)
    for cut in range(body.nbytes):
        with pytest.raises(CorruptDataError):
            decode_batch(body[:cut], NUMBERS.schema)
    with pytest.raises(CorruptDataError, match=r"expected \d+ bytes, found"):
        decode_batch(bytes(body) + bytes(8), NUMBERS.schema)


@pytest.mark.parametrize("schema", [pa.schema([]), MIXED.schema, pa.schema([("a", pa.string())])])
def test_body_of_another_schema_is_never_another_error(schema: pa.Schema) -> None:
    """Where the number or layout of buffers tells, it is corruption; Arrow cannot always tell."""
    (body,) = encode_slices(NUMBERS, [(0, 10)], "none")
    try:
        decoded = decode_batch(body, schema)
    except CorruptDataError:
        return
    assert decoded.num_rows == 10


def test_schema_message_is_no_batch() -> None:
    """Well-formed Arrow, but not what belongs there."""
    with pytest.raises(CorruptDataError, match="schema"):
        decode_batch(schema_to_bytes(NUMBERS.schema), NUMBERS.schema)


@settings(deadline=None)
@given(data=st.binary(max_size=300))
def test_any_bytes_give_a_batch_or_corruption(data: bytes) -> None:
    """No other error leaves the decoders."""
    for decode in (
        lambda: decode_batch(data, NUMBERS.schema),
        lambda: schema_from_bytes(data, name="s"),
    ):
        try:
            decode()
        except CorruptDataError as error:
            assert "arrow" in str(error)  # noqa: PT017 either outcome is right


@settings(deadline=None)
@given(at=st.integers(0, 300), value=st.integers(0, 255), codec=st.sampled_from(CODECS))
def test_damaged_bodies_give_a_batch_or_corruption(at: int, value: int, codec: str) -> None:
    """One byte changed in a real message, as if the frame's CRC had let it through."""
    (body,) = encode_slices(NUMBERS, [(0, 10)], codec)
    damaged = bytearray(body)
    damaged[at % len(damaged)] = value
    try:
        decoded = decode_batch(bytes(damaged), NUMBERS.schema)
    except CorruptDataError:
        return
    assert decoded.schema == NUMBERS.schema


def test_schema_comes_back() -> None:
    """With nullability, field metadata and schema metadata; cuts are corruption."""
    field = pa.field("id", pa.int64(), nullable=False, metadata={"m": "1"})
    schema = pa.schema([field, *MIXED.schema], metadata={"k": "v"})
    data = schema_to_bytes(schema)
    assert schema_from_bytes(data, name="s").equals(schema, check_metadata=True)
    with pytest.raises(CorruptDataError, match="arrow schema of 40 bytes"):
        schema_from_bytes(data[:40], name="s")


def convertible() -> list[Any]:
    words = pa.array(["b", None, "a", "b"])
    codes = words.dictionary_encode()
    offsets = pa.array([0, 1, 1, 3, 4], pa.int32())
    ends = pa.array([1, 2, 4], pa.int32())
    lists = pa.array([["x"], None, ["y", "z"]])
    plain = pa.string()
    return [
        (codes, plain),
        (words.cast(pa.string_view()), plain),
        (pa.array([b"b", None, b"", b"x"], pa.binary_view()), pa.binary()),
        (pa.RunEndEncodedArray.from_arrays(ends, words.slice(0, 3)), plain),
        (pa.DictionaryArray.from_arrays(pa.array([2, None, 0, 0]), lists), lists.type),
        (pa.ListArray.from_arrays(offsets, codes), pa.list_(plain)),
        (pa.array([["a"], None, [], ["b"]], pa.list_view(plain)), pa.list_(plain)),
        (pa.array([["a"], None, [], ["b"]], pa.large_list_view(plain)), pa.large_list(plain)),
        (pa.StructArray.from_arrays([codes], names=["x"]), pa.struct([("x", plain)])),
        (pa.FixedSizeListArray.from_arrays(codes, 1), pa.list_(plain, 1)),
        (
            pa.MapArray.from_arrays(offsets, pa.array(list("abcd")).dictionary_encode(), codes),
            pa.map_(plain, plain),
        ),
    ]


@pytest.mark.parametrize(("column", "stored"), convertible(), ids=lambda v: str(v)[:30])
def test_columns_are_stored_plain(column: pa.Array, stored: pa.DataType) -> None:
    """Dictionaries, views and run ends become plain values, also inside other types."""
    batch = pa.record_batch([column], names=["c"])
    schema = storable_schema(batch.schema)
    assert schema.field("c").type == stored
    converted = storable_batch(batch, schema)
    assert converted.schema == schema
    assert converted.column(0).to_pylist() == column.to_pylist()
    assert storable_schema(schema) == schema
    (body,) = encode_slices(converted, [(1, 3)], "lz4")
    assert decode_batch(body, schema).column(0).to_pylist() == column.to_pylist()[1:]


def test_list_view_of_any_order_is_stored_in_order() -> None:
    """A view's rows may overlap and go backwards, and null rows may have a length."""
    column = pa.ListViewArray.from_arrays(
        pa.array([2, 0, 0, 1], pa.int32()),
        pa.array([1, 2, 3, 2], pa.int32()),
        pa.array(["a", "b", "c"]).dictionary_encode(),
        mask=pa.array([False, False, True, False]),
    )
    batch = pa.record_batch([column], names=["c"])
    for part in (batch, batch.slice(1, 3), batch.slice(4)):
        stored = storable_batch(part, storable_schema(batch.schema))
        stored.validate(full=True)
        assert stored.column(0).to_pylist() == part.column(0).to_pylist()


def test_views_that_arrow_cannot_convert_are_refused() -> None:
    """Arrow's cast of an inner list view gives an invalid array, which must not get through."""
    inner = pa.array([{"x": ["a"]}, {"x": []}], pa.struct([("x", pa.list_view(pa.string()))]))
    batch = pa.record_batch([inner], names=["c"])
    try:
        stored = storable_batch(batch, storable_schema(batch.schema))
    except InvalidInputError as error:
        assert "column 'c'" in str(error)  # noqa: PT017 a later Arrow may be able to
    else:
        stored.validate(full=True)
        assert stored.column(0).to_pylist() == inner.to_pylist()


def test_storable_keeps_what_is_plain() -> None:
    """Schema metadata, field metadata and nullability stay, and a plain batch is not touched."""
    field = pa.field(
        "d", pa.dictionary(pa.int8(), pa.string()), nullable=False, metadata={"m": "1"}
    )
    stored = storable_schema(pa.schema([field], metadata={"k": "v"}))
    expected = pa.schema([field.with_type(pa.string())], metadata={"k": "v"})
    assert stored.equals(expected, check_metadata=True)
    assert storable_schema(MIXED.schema) == MIXED.schema
    assert storable_batch(MIXED, MIXED.schema) is MIXED


def test_batch_that_does_not_fit_is_refused() -> None:
    """The column and both types are named."""
    with pytest.raises(InvalidInputError, match="column 'a': cannot store int64 as list"):
        storable_batch(NUMBERS, pa.schema([("a", pa.list_(pa.string()))]))
    with pytest.raises(InvalidInputError, match="expected 0 columns, found 1"):
        storable_batch(NUMBERS, pa.schema([]))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_buffers_that_a_codec_makes_longer(compression: str) -> None:
    """Ten thousand columns of one random number: every compressed buffer is longer than plain."""
    rng = np.random.default_rng(1)
    columns = [pa.array(rng.integers(0, 2**62, 1)) for _ in range(10_000)]
    batch = pa.RecordBatch.from_arrays(columns, names=[f"c{i}" for i in range(len(columns))])
    (body,) = encode_slices(batch, [(0, 1)], compression)
    assert body.nbytes > pa.ipc.get_record_batch_size(batch) + 64 * 1024
    assert decode_batch(body, batch.schema).equals(batch)
