"""Values that take no bytes in a frame: nulls of type null, structs without fields, and the like.

A list of 50 million nulls is two offsets, so the bytes of a body say nothing about how many values
who reads it must make. Each such value counts as BARE_BYTES: what a reference to it takes in
Python and in the JVM. Writers cut frames by it and readers refuse by it, with the same function.
Pure.
"""

import pyarrow as pa

from durable_shuffle.serialization.errors import DurableShuffleError

BARE_BYTES = 8
"""What a value without bytes counts as: a reference to it."""

_lib = pa.lib
_LISTS = frozenset({_lib.Type_LIST, _lib.Type_LARGE_LIST, _lib.Type_MAP})
_UNIONS = frozenset({_lib.Type_SPARSE_UNION, _lib.Type_DENSE_UNION})


def bare_bytes(batch: pa.RecordBatch) -> int:
    """Return what the values of `batch` that have no bytes count as, in all.

    Rows without columns are such values. Lists count what lies between their first and their last
    offset, as Arrow writes them. Of layouts that are never stored nothing counts.
    """
    if not batch.num_columns:
        return BARE_BYTES * int(batch.num_rows)
    found = 0
    for number, kind in enumerate(batch.schema.types):
        if _may_hold(kind):
            found += _count(batch.column(number))
    return BARE_BYTES * found


def full_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes of `batch`, and what its values without any count as."""
    return int(batch.nbytes) + bare_bytes(batch)


def may_be_bare(schema: pa.Schema) -> bool:
    """Return True if rows of `schema` may hold values without bytes, or be such."""
    return not len(schema) or any(map(_may_hold, schema.types))


def refuse_bare(batch: pa.RecordBatch, most: int, error: type[DurableShuffleError]) -> None:
    """Refuse a batch whose values without bytes count as more than `most`.

    Raises:
        error: says how many there are, and how many may be.
    """
    found = bare_bytes(batch)
    if found > most:
        raise error(
            f"{found // BARE_BYTES} values have no bytes in a frame (nulls of type null, structs "
            f"without fields, rows without columns): it holds at most {most // BARE_BYTES}, "
            f"rows={batch.num_rows}"
        )


def _may_hold(kind: pa.DataType) -> bool:
    if kind.id == _lib.Type_FIXED_SIZE_BINARY:
        return not kind.byte_width
    held = kind.id in (_lib.Type_NA, _lib.Type_STRUCT) or kind.num_fields > 0
    return held or isinstance(kind, pa.BaseExtensionType)


def _count(array: pa.Array) -> int:
    kind, rows = array.type, len(array)
    if not rows or not _may_hold(kind):
        return 0
    if kind.id in _LISTS:
        offsets = array.offsets
        first, last = offsets[0].as_py(), offsets[rows].as_py()
        return _count(array.values.slice(first, max(0, last - first)))
    if kind.id == _lib.Type_FIXED_SIZE_LIST and kind.list_size:
        size = kind.list_size
        return _count(array.values.slice(array.offset * size, rows * size))
    if kind.num_fields and (kind.id == _lib.Type_STRUCT or kind.id in _UNIONS):
        return sum(_count(array.field(child)) for child in range(kind.num_fields))
    if isinstance(array, pa.ExtensionArray):
        return _count(array.storage)
    bare = (_lib.Type_NA, _lib.Type_FIXED_SIZE_BINARY, _lib.Type_FIXED_SIZE_LIST, _lib.Type_STRUCT)
    return rows if kind.id in bare else 0
