"""Refuses malformed Arrow bodies before any code indexes into them. Pure.

A frame with a valid CRC but a malformed body is forged, or comes from a faulty machine. Arrow does
not check two things, so they are checked here:
- Before a body is decompressed: the size that its buffers claim, and that they do not share bytes.
  So a few bytes cannot take gigabytes of memory.
- Before a batch is returned: every offset of every column and the null counts. Arrow's kernels and
  Spark's JVM trust both.

Arrow's full validation is not used for plain columns: it takes twenty times as long for strings,
and it refuses strings that are not UTF-8, which Spark can write (`CAST(binary AS STRING)`).

Some values take no bytes in a frame: nulls of type null, structs without fields, rows without
columns. A list of 50 million nulls is two offsets, so the bytes of a body say nothing about how
many values its reader must make. Each such value counts as BARE_BYTES. Writers cut frames and
readers refuse bodies by the same count (`bare_bytes`).
"""

import struct
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from durable_shuffle.serialization.errors import CorruptDataError, DurableShuffleError

MAX_BATCH_BYTES = 2 * 1024 * 1024 * 1024
"""Limit on the buffers of one body: as large as the longest record."""

# Writers make far smaller frames, and do not compress a single row above this. So a body takes at
# most this much memory, or as much as is stored of it.
MAX_INFLATED_BYTES = 64 * 1024 * 1024
"""Limit on the total size of one body's compressed buffers after decompression."""

BARE_BYTES = 8
"""What a value without bytes counts as: a reference to it, in Python and in the JVM."""

_I32, _U16, _I64 = struct.Struct("<i"), struct.Struct("<H"), struct.Struct("<q")
_U32 = struct.Struct("<I")
# up to here Arrow's full validation is the fastest
_FEW_ROWS = 1000
_lib = pa.lib
_OFFSETS = MappingProxyType(
    {
        _lib.Type_STRING: "<i4",
        _lib.Type_BINARY: "<i4",
        _lib.Type_LIST: "<i4",
        _lib.Type_MAP: "<i4",
        _lib.Type_LARGE_STRING: "<i8",
        _lib.Type_LARGE_BINARY: "<i8",
        _lib.Type_LARGE_LIST: "<i8",
    }
)
_OFFSET_LISTS = frozenset({_lib.Type_LIST, _lib.Type_LARGE_LIST, _lib.Type_MAP})
_UNIONS = frozenset({_lib.Type_SPARSE_UNION, _lib.Type_DENSE_UNION})
_LISTS = frozenset({_lib.Type_LIST, _lib.Type_LARGE_LIST, _lib.Type_FIXED_SIZE_LIST})
# types without children, of which the cheap validation checks all but nulls and offsets
_FLAT = frozenset(
    (
        *(_lib.Type_NA, _lib.Type_BOOL, _lib.Type_HALF_FLOAT, _lib.Type_FLOAT, _lib.Type_DOUBLE),
        *(_lib.Type_INT8, _lib.Type_INT16, _lib.Type_INT32, _lib.Type_INT64),
        *(_lib.Type_UINT8, _lib.Type_UINT16, _lib.Type_UINT32, _lib.Type_UINT64),
        *(_lib.Type_STRING, _lib.Type_BINARY, _lib.Type_LARGE_STRING, _lib.Type_LARGE_BINARY),
        *(_lib.Type_FIXED_SIZE_BINARY, _lib.Type_DATE32, _lib.Type_DATE64, _lib.Type_TIMESTAMP),
        *(_lib.Type_TIME32, _lib.Type_TIME64, _lib.Type_DURATION),
        *(_lib.Type_INTERVAL_MONTHS, _lib.Type_INTERVAL_MONTH_DAY_NANO),
        *(_lib.Type_DECIMAL32, _lib.Type_DECIMAL64, _lib.Type_DECIMAL128, _lib.Type_DECIMAL256),
    )
)
# fields of Arrow's flatbuffers tables Message and RecordBatch, as numbered in its schemas
_HEADER, _BUFFERS, _COMPRESSION = 2, 2, 3
_STORED_AS_IS = -1  # in place of the length that a buffer of a compressed body becomes
# no lz4 block holds more than 255 times its bytes, no zstd block more than 128 KiB in 4 bytes
_MOST_RATIO = 32 * 1024
_SPARE_BYTES = 128 * 1024


def check_lengths(metadata: memoryview, body: memoryview, max_bytes: int) -> None:
    """Refuse a message whose buffers would take too much memory or lie outside the body.

    Args:
        metadata: the metadata of a record batch message, verified by Arrow.
        body: the buffers of the message.
        max_bytes: limit on the total size of the compressed buffers after decompression. Arrow
            itself refuses a buffer whose decompressed size differs from its claim.

    Raises:
        CorruptDataError: names the length found.
        struct.error: the metadata cannot be read.
    """
    message = _U32.unpack_from(metadata)[0]
    batch = _pointed(metadata, message, _HEADER)
    vector = None if batch is None else _pointed(metadata, batch, _BUFFERS)
    if batch is None or vector is None:
        return
    count = _U32.unpack_from(metadata, vector)[0]
    places = np.frombuffer(metadata, "<i8", 2 * count, vector + 4).tolist()
    compressed = _pointed(metadata, batch, _COMPRESSION) is not None
    taken = total = 0
    for start, stored in zip(places[::2], places[1::2], strict=True):
        if not stored:
            continue
        if start < 0 or stored < (_I64.size if compressed else 1) or start + stored > body.nbytes:
            raise CorruptDataError(
                f"a buffer of {stored} bytes at {start} in a body of {body.nbytes}"
            )
        taken += stored
        becomes = _I64.unpack_from(body, start)[0] if compressed else _STORED_AS_IS
        if becomes == _STORED_AS_IS:
            continue
        if becomes < 0 or becomes > stored * _MOST_RATIO + _SPARE_BYTES:
            raise CorruptDataError(f"a buffer of {stored} bytes says that it becomes {becomes}")
        total += becomes
    if taken > body.nbytes:
        raise CorruptDataError(f"buffers of {taken} bytes share a body of {body.nbytes}")
    if total > max_bytes:
        raise CorruptDataError(f"buffers become {total} bytes, at most {max_bytes} are expected")


def check_columns(batch: pa.RecordBatch) -> None:
    """Refuse offsets that point outside their data or name a value twice, and wrong null counts.

    Args:
        batch: has passed Arrow's cheap validation.

    Raises:
        CorruptDataError: names the column's number.
        pa.ArrowInvalid: Arrow's full validation refuses a column of a rare type.
    """
    for number, column in enumerate(batch.columns):
        _check_first_offset(column, number)
    if batch.num_rows <= _FEW_ROWS and not holds_dense_union(batch.schema):
        try:
            batch.validate(full=True)
        except pa.ArrowInvalid:
            pass  # perhaps only a string that is not UTF-8; the checks below decide
        else:
            return
    for number in range(batch.num_columns):
        _check(batch.column(number), number)


def _check_first_offset(array: pa.Array, number: int) -> None:
    """Refuse an empty array of texts, lists or maps without its one offset.

    Arrow's validation allows it, but pyarrow reads that offset to add up bytes, and crashes.
    """
    kind = array.type
    if not len(array) and kind.id in _OFFSETS:
        offsets = array.buffers()[1]
        if offsets is None or offsets.size < np.dtype(_OFFSETS[kind.id]).itemsize:
            raise CorruptDataError(f"column {number}: {kind} is empty and has no offset")
    if kind.id in _LISTS:
        _check_first_offset(array.values, number)
    elif kind.id == _lib.Type_MAP:
        _check_first_offset(array.keys, number)
        _check_first_offset(array.items, number)
    elif isinstance(array, pa.ExtensionArray):
        _check_first_offset(array.storage, number)
    elif kind.id == _lib.Type_STRUCT or kind.id in _UNIONS:
        for child in range(kind.num_fields):
            _check_first_offset(array.field(child), number)


def _check(array: pa.Array, number: int) -> None:
    kind, rows = array.type.id, len(array)
    if array.null_count and kind != _lib.Type_NA:
        bits = pa.Array.from_buffers(
            pa.bool_(), rows, [None, array.buffers()[0]], offset=array.offset
        )
        if bits.true_count != rows - array.null_count:
            claim = f"{array.null_count} nulls, the bits say {rows - bits.true_count}"
            raise CorruptDataError(f"column {number}: {array.type} says that it has {claim}")
    if kind in _OFFSETS:
        _check_offsets(array, number, _OFFSETS[kind])
    if kind in _FLAT:
        return
    if kind in _LISTS:
        _check(array.values, number)
    elif kind == _lib.Type_MAP:
        _check(array.keys, number)
        _check(array.items, number)
    elif kind == _lib.Type_STRUCT:
        for child in range(array.type.num_fields):
            _check(array.field(child), number)
    elif isinstance(array, pa.ExtensionArray):
        _check(array.storage, number)
    else:
        array.validate(full=True)
        if kind in _UNIONS and rows:  # without rows Arrow has no buffers to look at
            _check_union(array, number)


def _check_union(array: pa.UnionArray, number: int) -> None:
    """Refuse a union of which a few stored values would become many, because rows share them."""
    if array.type.id == _lib.Type_DENSE_UNION:
        codes = np.asarray(array.type_codes)
        offsets = np.asarray(array.offsets)
        for code in array.type.type_codes:
            own = offsets[codes == code]
            if np.count_nonzero(own[1:] <= own[:-1]):
                raise CorruptDataError(f"column {number}: rows of {array.type} share a value")
    for child in range(array.type.num_fields):
        _check(array.field(child), number)


def holds_dense_union(schema: pa.Schema) -> bool:
    """Return whether a column is a dense union or is built on one."""
    return any(map(_is_dense, schema.types))


def _is_dense(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _is_dense(kind.storage_type)
    below = (kind.field(child).type for child in range(kind.num_fields))
    return kind.id == _lib.Type_DENSE_UNION or any(map(_is_dense, below))


def _check_offsets(array: pa.Array, number: int, dtype: str) -> None:
    if not len(array):
        return
    buffers = array.buffers()
    width = np.dtype(dtype).itemsize
    offsets = np.frombuffer(buffers[1], dtype, len(array) + 1, array.offset * width)
    if array.type.id in _FLAT:
        most = buffers[2].size if buffers[2] is not None else 0
    else:
        most = len(array.keys if array.type.id == _lib.Type_MAP else array.values)
    if offsets[0] < 0 or offsets[-1] > most or np.count_nonzero(offsets[1:] < offsets[:-1]):
        raise CorruptDataError(f"column {number}: offsets of {array.type} lead out of its {most}")


def _pointed(data: memoryview, table: int, field: int) -> int | None:
    """Return where a field of a flatbuffers table points to; None if the field is left out."""
    described = table - _I32.unpack_from(data, table)[0]
    if _U16.unpack_from(data, described)[0] <= 4 + 2 * field:
        return None
    entry = _U16.unpack_from(data, described + 4 + 2 * field)[0]
    return table + entry + int(_U32.unpack_from(data, table + entry)[0]) if entry else None


def bare_bytes(batch: pa.RecordBatch) -> int:
    """Return what the values of `batch` that have no bytes count as, in all.

    Rows without columns are such values. Lists count what lies between their first and their last
    offset, as Arrow writes them. Of layouts that are never stored nothing counts.
    """
    if not batch.num_columns:
        return BARE_BYTES * int(batch.num_rows)
    count = 0
    for number, kind in enumerate(batch.schema.types):
        if _may_hold_bare(kind):
            count += _count_bare(batch.column(number))
    return BARE_BYTES * count


def full_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes of `batch`, and what its values without any count as."""
    return int(batch.nbytes) + bare_bytes(batch)


def may_be_bare(schema: pa.Schema) -> bool:
    """Return True if rows of `schema` may hold values without bytes, or be such."""
    return not len(schema) or any(map(_may_hold_bare, schema.types))


def refuse_bare(batch: pa.RecordBatch, most_bytes: int, error: type[DurableShuffleError]) -> None:
    """Refuse a batch whose values without bytes count as more than `most`.

    Raises:
        error: says how many there are, and how many may be.
    """
    size_bytes = bare_bytes(batch)
    if size_bytes > most_bytes:
        raise error(
            f"{size_bytes // BARE_BYTES} values have no bytes in a frame (nulls of type null, "
            f"structs without fields, rows without columns): it holds at most "
            f"{most_bytes // BARE_BYTES}, rows={batch.num_rows}"
        )


def _may_hold_bare(kind: pa.DataType) -> bool:
    if kind.id == _lib.Type_FIXED_SIZE_BINARY:
        return not kind.byte_width
    held = kind.id in (_lib.Type_NA, _lib.Type_STRUCT) or kind.num_fields > 0
    return held or isinstance(kind, pa.BaseExtensionType)


def _count_bare(array: pa.Array) -> int:
    kind, rows = array.type, len(array)
    if not rows or not _may_hold_bare(kind):
        return 0
    if kind.id in _OFFSET_LISTS:
        offsets = array.offsets
        first, last = offsets[0].as_py(), offsets[rows].as_py()
        return _count_bare(array.values.slice(first, max(0, last - first)))
    if kind.id == _lib.Type_FIXED_SIZE_LIST and kind.list_size:
        size = kind.list_size
        return _count_bare(array.values.slice(array.offset * size, rows * size))
    if kind.num_fields and (kind.id == _lib.Type_STRUCT or kind.id in _UNIONS):
        return sum(_count_bare(array.field(child)) for child in range(kind.num_fields))
    if isinstance(array, pa.ExtensionArray):
        return _count_bare(array.storage)
    bare = (_lib.Type_NA, _lib.Type_FIXED_SIZE_BINARY, _lib.Type_FIXED_SIZE_LIST, _lib.Type_STRUCT)
    return rows if kind.id in bare else 0
