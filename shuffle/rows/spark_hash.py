"""Spark's `hash(columns...)` over Arrow columns, bit for bit.

Strategy: each column is prepared once as a `Folder`: numpy arrays over Arrow's own buffers, and the
function that folds its values into running hashes. Columns, struct fields and list elements chain:
the hash of one is the seed of the next, and a null leaves the hash unchanged. Rows are processed in
chunks that fit into the CPU's cache.

A type whose hash Spark does not define (maps, variants), or whose meaning Arrow does not carry, is
refused by name. Not checked: Arrow drops the collation of strings, and only UTF8_BINARY strings
hash by their bytes, so the caller that has the Spark schema must refuse other collations. Columns
with intervals of months never arrive here, because pyarrow cannot read them (as of 26.0).

It must not import pyspark or loop in Python over the rows of a column.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.rows.murmur3 import (
    Bytes,
    Indices,
    UInt32s,
    hash_bytes,
    hash_ints,
    hash_longs,
)

SPARK_SEED = 42

# Rows per step: about ten arrays of 4 bytes per row are alive at once and fit into the L2 cache.
CHUNK_ROWS = 32_768

# Spark hashes a decimal of at most 18 digits as a long, and a wider one as a BigInteger's bytes.
MAX_LONG_DIGITS = 18

Rows = slice | Indices
Mask = npt.NDArray[np.bool_]
AnyArray = npt.NDArray[Any]


class Folder(Protocol):
    """A prepared column."""

    def fold(self, hashes: UInt32s, rows: Rows) -> UInt32s:
        """Fold this column's values at `rows` into the hashes and return the new hashes.

        The result may share memory with `hashes`.
        """


def spark_hash(
    columns: Sequence[pa.Array | pa.ChunkedArray], seed: int = SPARK_SEED
) -> npt.NDArray[np.int32]:
    """Hash each row of the columns as Spark's `hash` does, in the order of the columns.

    The cost of a list column grows with its longest list, by about 30 microseconds per element.
    The collation of strings is not checked, because Arrow does not carry it.

    Args:
        columns: at least one; all of the same length.
        seed: for the first column; Spark's `hash` and hash partitioning use 42.

    Raises:
        InvalidInputError: no columns, different lengths, a seed beyond int32, or a type that has no
            Spark hash; the message names the column by its index and its type.
    """
    if not -(2**31) <= seed < 2**31:
        raise InvalidInputError(f"hash seed must fit into a signed 32-bit integer, found {seed}")
    if not columns:
        raise InvalidInputError("a hash needs at least one column, found none")
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise InvalidInputError(f"hash columns differ in length: {lengths}")
    for index, column in enumerate(columns):
        check_key_type(f"#{index}", column.type)
    out = np.full(lengths[0], seed, np.int32).view(np.uint32)
    start = 0
    # A table cuts all columns at the chunk borders of every column, without copying.
    names = [str(index) for index in range(len(columns))]
    for batch in pa.Table.from_arrays(list(columns), names=names).to_batches():
        _fold_batch([_prepare(column) for column in batch.columns], out[start:][: len(batch)])
        start += len(batch)
    return out.view(np.int32)


def check_key_type(name: str, data_type: pa.DataType) -> None:
    """Refuse a column that has no Spark hash here.

    Args:
        name: the column's name, for the message.
        data_type: the column's Arrow type, as it arrives from Spark.

    Raises:
        InvalidInputError: the type, or one nested in it, is unsupported; the message names both.
    """
    bad = _unsupported(data_type)
    if bad is not None:
        inside = "" if bad is data_type else f" inside {data_type}"
        raise InvalidInputError(f"key column {name} has a type without a Spark hash: {bad}{inside}")


def _fold_batch(folders: list[Folder], out: UInt32s) -> None:
    for first in range(0, out.size, CHUNK_ROWS):
        rows = slice(first, min(first + CHUNK_ROWS, out.size))
        hashes = out[rows]
        for folder in folders:
            hashes = folder.fold(hashes, rows)
        out[rows] = hashes


def _unsupported(data_type: pa.DataType) -> pa.DataType | str | None:
    """Return the first unsupported type in a type, or None."""
    if pt.is_dictionary(data_type):
        return _unsupported(data_type.value_type)
    if _is_list(data_type):
        return _unsupported(data_type.value_type)
    if pt.is_struct(data_type):
        fields = [data_type.field(index) for index in range(data_type.num_fields)]
        for field in fields:
            tags = field.metadata or {}
            for tag in (b"variant", b"geometry", b"geography"):
                if tags.get(tag) == b"true":
                    return tag.decode()
        inner = (_unsupported(field.type) for field in fields)
        return next((bad for bad in inner if bad is not None), None)
    return None if _leaf(data_type) is not None else data_type


def _is_list(data_type: pa.DataType) -> bool:
    listed = pt.is_list(data_type) or pt.is_large_list(data_type)
    return bool(listed or pt.is_fixed_size_list(data_type))


@dataclass(frozen=True, slots=True)
class _Nothing:
    """A column of nulls only."""

    def fold(self, hashes: UInt32s, rows: Rows) -> UInt32s:
        return hashes


@dataclass(frozen=True, slots=True)
class _Fixed:
    """Integers of 4 or 8 bytes, and types that hash like them."""

    hash_values: Callable[[UInt32s, AnyArray], UInt32s]
    values: AnyArray
    valid: Mask | None

    def fold(self, hashes: UInt32s, rows: Rows) -> UInt32s:
        return _unless_null(hashes, self.hash_values(hashes, self.values[rows]), self.valid, rows)


@dataclass(frozen=True, slots=True)
class _ByteStrings:
    """Strings, binaries, wide decimals."""

    data: Bytes
    starts: AnyArray
    ends: AnyArray
    valid: Mask | None

    def fold(self, hashes: UInt32s, rows: Rows) -> UInt32s:
        starts = self.starts[rows].astype(np.intp)
        hashed = hash_bytes(hashes, self.data, starts, self.ends[rows] - starts)
        return _unless_null(hashes, hashed, self.valid, rows)


@dataclass(frozen=True, slots=True)
class _Struct:
    """Fields, one after the other."""

    fields: tuple[Folder, ...]
    valid: Mask | None

    def fold(self, hashes: UInt32s, rows: Rows) -> UInt32s:
        folded = hashes
        for field in self.fields:
            folded = field.fold(folded, rows)
        return _unless_null(hashes, folded, self.valid, rows)


@dataclass(frozen=True, slots=True)
class _List:
    """Lists, folded one element position at a time. Rows are sorted longest first, so that the rows
    with an element left are a prefix."""

    elements: Folder
    starts: Indices
    lengths: Indices

    def fold(self, hashes: UInt32s, rows: Rows) -> UInt32s:
        lengths = self.lengths[rows]
        order = np.argsort(-lengths, kind="stable")
        starts = self.starts[rows][order]
        ascending = lengths[order][::-1]
        folded = hashes[order]
        for nth in range(int(ascending[-1]) if ascending.size else 0):
            count = ascending.size - int(np.searchsorted(ascending, nth, side="right"))
            folded[:count] = self.elements.fold(folded[:count], starts[:count] + nth)
        out = np.empty_like(folded)
        out[order] = folded
        return out


def _unless_null(before: UInt32s, after: UInt32s, valid: Mask | None, rows: Rows) -> UInt32s:
    return after if valid is None else np.where(valid[rows], after, before)


def _prepare(array: pa.Array) -> Folder:
    data_type = array.type
    if pt.is_dictionary(data_type):
        return _prepare(array.dictionary_decode())
    if _is_list(data_type):
        return _list(array)
    if pt.is_struct(data_type):
        fields = (array.field(index) for index in range(data_type.num_fields))
        return _Struct(tuple(_prepare(field) for field in fields), _valid(array))
    prepare = _leaf(data_type)
    if prepare is None:
        raise InvalidInputError(f"a value has a type without a Spark hash: {data_type}")
    return prepare(array)


def _leaf(data_type: pa.DataType) -> Callable[[pa.Array], Folder] | None:
    """Return the function that prepares a column of an atomic type; None if unsupported."""
    if pt.is_null(data_type):
        return lambda _: _Nothing()
    if pt.is_boolean(data_type):
        return _booleans
    if data_type in (pa.int8(), pa.int16(), pa.int32(), pa.date32()):
        return _ints
    if data_type in (pa.int64(), pa.duration("us"), pa.time64("ns")):
        return _longs
    if pt.is_timestamp(data_type) and data_type.unit == "us":
        return _longs
    if pt.is_float32(data_type) or pt.is_float64(data_type):
        return _floats
    if pt.is_decimal128(data_type):
        return _longs if data_type.precision <= MAX_LONG_DIGITS else _wide_decimals
    if data_type in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        return _byte_strings
    if data_type in (pa.string_view(), pa.binary_view()):
        return lambda array: _byte_strings(array.cast(pa.large_binary()))
    if pt.is_fixed_size_binary(data_type):
        return _fixed_bytes
    if data_type == pa.month_day_nano_interval():
        return _intervals
    return None


def _booleans(array: pa.Array) -> Folder:
    bits = _bits(array.buffers()[1], array.offset, len(array))
    return _Fixed(hash_ints, bits.astype(np.uint32), _valid(array))


def _ints(array: pa.Array) -> Folder:
    values = _values(array, np.dtype(f"<i{array.type.bit_width // 8}"))
    return _Fixed(hash_ints, values.astype(np.int32, copy=False).view(np.uint32), _valid(array))


def _longs(array: pa.Array) -> Folder:
    words = array.type.bit_width // 64
    # A narrow decimal has 16 bytes, but the low 8 hold its whole value.
    values = _values(array, np.dtype("<u8"), words)[::words]
    return _Fixed(hash_longs, values, _valid(array))


def _floats(array: pa.Array) -> Folder:
    """Hash the bits. All NaNs hash as Java's canonical NaN, and both zeros as 0."""
    if pt.is_float32(array.type):
        ints = _values(array, np.dtype("<u4"))
        return _Fixed(hash_ints, _canonical(ints, 0x7F800000, 0x7FC00000), _valid(array))
    longs = _values(array, np.dtype("<u8"))
    return _Fixed(hash_longs, _canonical(longs, 0x7FF << 52, 0xFFF << 51), _valid(array))


def _canonical(bits: AnyArray, infinity: int, nan: int) -> AnyArray:
    magnitude = bits & bits.dtype.type(np.iinfo(bits.dtype).max >> 1)
    bits = np.where(magnitude > infinity, bits.dtype.type(nan), bits)
    return np.where(magnitude == 0, bits.dtype.type(0), bits)


def _intervals(array: pa.Array) -> Folder:
    """Hash microseconds, days, months, in this order. Arrow stores months, days, nanoseconds."""
    layout = np.dtype([("months", "<u4"), ("days", "<u4"), ("nanos", "<i8")])
    values = _values(array, layout)
    micros = (values["nanos"] // 1000).view(np.uint64)
    parts = (
        _Fixed(hash_longs, micros, None),
        _Fixed(hash_ints, values["days"], None),
        _Fixed(hash_ints, values["months"], None),
    )
    return _Struct(parts, _valid(array))


def _byte_strings(array: pa.Array) -> Folder:
    wide = pt.is_large_string(array.type) or pt.is_large_binary(array.type)
    offsets = _offsets(array, np.dtype("<i8" if wide else "<i4"))
    return _ByteStrings(_bytes(array.buffers()[2]), offsets[:-1], offsets[1:], _valid(array))


def _fixed_bytes(array: pa.Array) -> Folder:
    width = array.type.byte_width
    starts = (np.arange(len(array)) + array.offset) * width
    return _ByteStrings(_bytes(array.buffers()[1]), starts, starts + width, _valid(array))


def _wide_decimals(array: pa.Array) -> Folder:
    """Hash the unscaled value as BigInteger.toByteArray gives it: big-endian, shortest form."""
    little_endian = _values(array, np.dtype(np.uint8), 16).reshape(-1, 16)
    big_endian = np.ascontiguousarray(little_endian[:, ::-1])
    fill = np.where(big_endian[:, :1] >= 0x80, np.uint8(0xFF), np.uint8(0))
    significant = big_endian ^ fill
    first = np.argmax(significant != 0, axis=1)
    first[~significant.any(axis=1)] = 15
    # Keep one more byte if the leading bit would give the wrong sign.
    leading = np.take_along_axis(significant, first[:, np.newaxis], axis=1)[:, 0]
    first -= leading >> 7
    starts = np.arange(len(array)) * 16
    return _ByteStrings(big_endian.reshape(-1), starts + first, starts + 16, _valid(array))


def _list(array: pa.Array) -> Folder:
    if pt.is_fixed_size_list(array.type):
        size = array.type.list_size
        starts = (np.arange(len(array)) + array.offset) * size
        lengths = np.full(len(array), size)
    else:
        wide = pt.is_large_list(array.type)
        offsets = _offsets(array, np.dtype("<i8" if wide else "<i4")).astype(np.intp)
        starts, lengths = offsets[:-1], np.diff(offsets)
    valid = _valid(array)
    if valid is not None:
        lengths = np.where(valid, lengths, 0)
    return _List(_prepare(array.values), starts, lengths)


def _valid(array: pa.Array) -> Mask | None:
    """Return a mask of the rows that are not null; None if no row is null."""
    if array.null_count == 0:
        return None
    return _bits(array.buffers()[0], array.offset, len(array))


def _bits(buffer: pa.Buffer | None, offset: int, count: int) -> Mask:
    packed = _bytes(buffer)[offset // 8 : (offset + count + 7) // 8]
    return np.unpackbits(packed, bitorder="little")[offset % 8 :][:count].view(np.bool_)


def _bytes(buffer: pa.Buffer | None) -> Bytes:
    if buffer is None or buffer.size == 0:
        return np.empty(0, np.uint8)
    return np.frombuffer(buffer, np.uint8)


def _values(array: pa.Array, dtype: np.dtype[Any], per_row: int = 1) -> AnyArray:
    """Return the fixed-width values of all rows, including the values under nulls."""
    return _slots(array, dtype, array.offset * per_row, len(array) * per_row)


def _offsets(array: pa.Array, dtype: np.dtype[Any]) -> AnyArray:
    """Return the start offset of each row, followed by the end offset of the last row."""
    if len(array) == 0:
        return np.zeros(1, dtype)
    return _slots(array, dtype, array.offset, len(array) + 1)


def _slots(array: pa.Array, dtype: np.dtype[Any], first: int, count: int) -> AnyArray:
    raw = _bytes(array.buffers()[1])
    return raw[first * dtype.itemsize : (first + count) * dtype.itemsize].view(dtype)
