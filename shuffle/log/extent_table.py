"""Tables of extents: as numpy arrays, and as they are stored.

A COMMIT lists the extents of its producer by subpartition, a slice of an index lists those of its
subpartition by producer. Both are stored as one block: groups (subpartitions or producers) first,
then the extents, column by column. What follows from the rest is not stored: ordinals count a
group's records from 0. A group without rows is named, too, so that missing never reads as empty.

A column holds its smallest number, then what each number is above it, in as few bytes as the
largest takes. Reading number n takes no numbers before it, so numpy and Java need no loop.
"""

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.serialization.errors import CorruptDataError, InvalidInputError

EXTENT = np.dtype(
    [
        ("subpartition", "<u4"),
        ("segment", "<u4"),
        ("offset", "<u8"),
        ("length", "<u8"),
        ("first_ordinal", "<u8"),
        ("rows", "<u8"),
    ]
)
"""Where frames of one subpartition are: bytes [offset, offset + length) of a segment. A
subpartition without rows has one entry with rows 0 and length 0."""

PLACE = ("segment", "offset", "length", "first_ordinal", "rows")
"""The fields of an extent that say nothing of its group."""

MAX_EXTENTS = 1 << 21
"""Extents of one block: a column of equal numbers takes no bytes, so its length proves nothing."""

_FEW = 32
"""So many extents are packed as numbers, more as arrays."""

MAX_NUMBER_BYTES = 6
"""Of a number in a block: an offset is below 256 TiB."""

_HEAD = struct.Struct("<II")  # groups, extents
_COUNT = struct.Struct("<I")


def unpack_extents(
    data: bytes, name: str, *, partitions: int | None = None
) -> npt.NDArray[np.void]:
    """Return EXTENT entries that are stored as they are.

    Args:
        partitions: of the stage, to check the subpartitions.

    Raises:
        CorruptDataError: not a whole number of entries, or a subpartition that does not exist;
            names `name`.
    """
    if len(data) % EXTENT.itemsize:
        raise CorruptDataError(
            f"expected a multiple of {EXTENT.itemsize} bytes, found {len(data)}: {name}"
        )
    return of_partitions(np.frombuffer(data, dtype=EXTENT), partitions, name)


def of_partitions(
    entries: npt.NDArray[np.void], partitions: int | None, name: str
) -> npt.NDArray[np.void]:
    """Return the entries, all of which are of partitions that exist.

    Raises:
        CorruptDataError: one is not; names `name`.
    """
    if partitions is not None and len(entries) and entries["subpartition"].max() >= partitions:
        raise CorruptDataError(
            f"an extent of subpartition {entries['subpartition'].max()} of {partitions}: {name}"
        )
    return entries


def pack_table(entries: npt.NDArray[Any]) -> bytes:
    """Return entries of an APPEND: their count, then zstd of all first bytes, all second bytes, ...

    In this order the bytes of a column that are alike stand together, so 2,000 tasks of a write job
    into 1,000 partitions fit into one record.

    Raises:
        InvalidInputError: there are too many.
    """
    if len(entries) > MAX_EXTENTS:
        raise InvalidInputError(
            f"a batch has at most {MAX_EXTENTS} extents, about its tasks times the stage's "
            f"partitions; found {len(entries)}: write it with fewer tasks (coalesce), or to a "
            "stage with fewer partitions"
        )
    by_byte = np.frombuffer(entries.tobytes(), np.uint8).reshape(-1, entries.dtype.itemsize).T
    packed: bytes = pa.Codec("zstd").compress(by_byte.tobytes(), asbytes=True)
    return _COUNT.pack(len(entries)) + packed


def unpack_table(data: bytes, dtype: np.dtype[Any], name: str) -> npt.NDArray[Any]:
    """Return the entries that `pack_table` was given.

    Raises:
        CorruptDataError: no such table; names `name`.
    """
    count = _COUNT.unpack_from(data)[0] if len(data) > _COUNT.size else 0
    if not 0 < count <= MAX_EXTENTS:
        raise _damaged(name, f"{len(data)} bytes, {count} entries")
    try:
        by_byte = pa.Codec("zstd").decompress(data[_COUNT.size :], count * dtype.itemsize)
    except (OSError, ValueError) as error:
        raise _damaged(name, f"{count} entries: {error}") from error
    found = np.frombuffer(by_byte, np.uint8).reshape(dtype.itemsize, count).T
    return np.frombuffer(found.tobytes(), dtype=dtype)


def pack_block(entries: npt.NDArray[np.void], by: str) -> bytes:
    """Return extents as a block.

    Args:
        entries: with the fields of EXTENT, ordered by group and first ordinal. A group without
            rows has one entry with rows 0.
        by: name of the field that holds the group.

    Raises:
        InvalidInputError: the groups are out of order, there are too many extents or bytes of one,
            or an extent has bytes and no rows.
    """
    columns = (_columns_of_few if len(entries) <= _FEW else _columns)(entries, by)
    if columns is None:
        raise InvalidInputError(
            f"a block holds at most {MAX_EXTENTS} extents, by {by}, each with rows: found "
            f"{len(entries)}; use fewer map tasks or a larger writer_memory_bytes"
        )
    return _HEAD.pack(len(columns[0]), len(columns[2])) + b"".join(map(_packed, columns))


def _columns(entries: npt.NDArray[np.void], by: str) -> tuple[npt.NDArray[Any], ...] | None:
    """Return gaps and counts of the groups, and four columns of the extents; None if wrong."""
    numbers, held = entries[by].astype(np.int64), entries["rows"] > 0
    begins = np.ones(len(entries), dtype=bool)
    begins[1:] = numbers[1:] != numbers[:-1]
    gaps = np.diff(numbers[begins], prepend=-1) - 1
    counts = np.bincount((np.cumsum(begins) - 1)[held], minlength=len(gaps))
    extents = entries[held]
    if len(extents) > MAX_EXTENTS or (gaps < 0).any() or entries["length"][~held].any():
        return None
    # the highest bit of a segment's number says whose it is; as the lowest it takes no bytes
    segments = extents["segment"] << np.uint32(1) | extents["segment"] >> np.uint32(31)
    return gaps, counts, segments, *(extents[n] for n in ("offset", "length", "rows"))


def _columns_of_few(entries: npt.NDArray[np.void], by: str) -> tuple[list[int], ...] | None:
    """Return the same columns: an array costs more than a few numbers, and an index has a block for
    each of its partitions."""
    gaps, counts, places, last = list[int](), list[int](), list[tuple[int, ...]](), -1
    fields = [by, "segment", "offset", "length", "rows"]
    for number, segment, *place in entries[fields].tolist():
        if number != last:
            gaps.append(number - last - 1)
            counts.append(0)
        last = number
        if place[2]:
            counts[-1] += 1
            places.append((segment << 1 & 0xFFFFFFFF | segment >> 31, *place))
        elif place[1]:
            return None
    extents = map(list, zip(*places, strict=True)) if places else ([], [], [], [])
    return None if min(gaps, default=0) < 0 else (gaps, counts, *extents)


def unpack_block(
    data: bytes | memoryview, by: str, dtype: np.dtype[np.void], name: str, *, groups: int
) -> npt.NDArray[np.void]:
    """Return the extents of a block, as they were given to `pack_block`; other fields are 0.

    Args:
        by: field of `dtype` for the group.
        groups: how many there can be: all are below it.

    Raises:
        CorruptDataError: no such block; names `name`.
    """
    if len(data) < _HEAD.size:
        raise _damaged(name, f"{len(data)} bytes")
    count, extents = _HEAD.unpack_from(data)
    if count > groups or extents > MAX_EXTENTS:
        raise _damaged(name, f"{count} of {groups} {by}s, {extents} extents")
    columns = _Columns(data, name)
    gaps, counts = columns.take(count), columns.take(count)
    if count and (gaps.max() >= groups or counts.max() > extents):
        raise _damaged(name, f"{by}s that are not there, or more extents than there are")
    numbers = np.cumsum(gaps + np.uint64(1)) - np.uint64(1)
    if int(counts.sum()) != extents or (count and numbers[-1] >= groups):
        raise _damaged(name, f"{by} {numbers[-1:]} of {groups}, {counts.sum()} extents")
    segments = columns.take(extents)
    offsets, lengths, rows = (columns.take(extents) for _ in range(3))
    columns.end()
    if extents and (segments.max() >> np.uint64(32) or not lengths.min() or not rows.min()):
        raise _damaged(name, "an extent without rows or bytes, or of no segment")
    each = np.maximum(counts, 1).astype(np.int64)
    found = np.zeros(int(each.sum()), dtype=dtype)
    held = np.repeat(counts > 0, each)
    found[by] = np.repeat(numbers, each)
    found["segment"][held] = segments >> np.uint64(1) | (segments & np.uint64(1)) << np.uint64(31)
    for field, column in (("offset", offsets), ("length", lengths), ("rows", rows)):
        found[field][held] = column
    before = np.cumsum(found["rows"]) - found["rows"]
    begins = np.cumsum(each) - each
    found["first_ordinal"] = before - np.repeat(before[begins], each)
    return found


def _packed(column: npt.NDArray[np.integer] | list[int]) -> bytes:
    """Return one byte with the bytes of the smallest number and of the rest, then these."""
    if not len(column):
        return b"\0"
    if isinstance(column, list):
        least, most = min(column), max(column)
    else:
        least, most = int(column.min()), int(column.max())
    least_bytes, width = (least.bit_length() + 7) // 8, ((most - least).bit_length() + 7) // 8
    if max(least_bytes, width) > MAX_NUMBER_BYTES:
        raise InvalidInputError(f"a number in a block is below 2**48, found {most}")
    head = bytes((least_bytes | width << 4,)) + least.to_bytes(least_bytes, "little")
    if not width:
        return head
    if isinstance(column, list):
        return head + b"".join([(n - least).to_bytes(width, "little") for n in column])
    above = (column.astype("<u8") - np.uint64(least)).view(np.uint8).reshape(len(column), 8)
    return head + above[:, :width].tobytes()


class _Columns:
    """Columns of a block, one after the other."""

    def __init__(self, data: bytes | memoryview, name: str) -> None:
        self._data, self._name, self._at = data, name, _HEAD.size

    def take(self, count: int) -> npt.NDArray[np.uint64]:
        """Return the next column, of `count` numbers."""
        data, at = self._data, self._at
        widths = data[at] if at < len(data) else 0xFF
        begin, width = at + 1 + (widths & 15), widths >> 4
        self._at = begin + width * count
        if max(widths & 15, width) > MAX_NUMBER_BYTES or self._at > len(data):
            raise _damaged(self._name, f"a column at byte {at} of {len(data)}")
        above = np.zeros((count, 8), dtype=np.uint8)
        packed = np.frombuffer(data, dtype=np.uint8, count=width * count, offset=begin)
        above[:, :width] = packed.reshape(count, width)
        least = np.uint64(int.from_bytes(data[at + 1 : begin], "little"))
        return above.view("<u8").reshape(count).astype(np.uint64, copy=False) + least

    def end(self) -> None:
        """Refuse bytes behind the last column."""
        if self._at != len(self._data):
            raise _damaged(self._name, f"{len(self._data) - self._at} bytes too many")


def _damaged(name: str, found: str) -> CorruptDataError:
    return CorruptDataError(f"a table of extents is damaged: {name} found={found}")
