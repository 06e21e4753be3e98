"""Gives an index other slices or entries, with checksums that are right."""

import struct
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from durable_shuffle.shuffle.log.extent_table import pack_block, unpack_block
from durable_shuffle.shuffle.seal.index import INDEX_ENTRY

HEADER, ENTRY = 40, struct.Struct("<IQQQI")


def slices_of(index: bytes) -> list[bytes]:
    """Return the slices of an index without parts."""
    (partitions,) = struct.unpack_from("<Q", index, 8)
    entries = (ENTRY.unpack_from(index, HEADER + 36 * k) for k in range(partitions))
    return [index[offset : offset + length] for _, offset, length, _, _ in entries]


def entries_of(index: bytes, k: int) -> npt.NDArray[np.void]:
    """Return the INDEX_ENTRY items of subpartition k, without attempts."""
    return unpack_block(slices_of(index)[k], "producer", INDEX_ENTRY, "test", groups=1 << 20)


def index_with(index: bytes, key: str, slices: Sequence[bytes]) -> bytes:
    """Return the index with these slices instead, one behind the other."""
    start, table = HEADER + 36 * len(slices), b""
    for k, data in enumerate(slices):
        data_bytes = ENTRY.unpack_from(index, HEADER + 36 * k)[3]
        table += entry_with(index, key, k, (0, start, len(data), data_bytes, zlib.crc32(data)))
        start += len(data)
    return index[:HEADER] + table + b"".join(slices)


def entry_with(index: bytes, key: str, k: int, fields: Sequence[int]) -> bytes:
    """Return the entry of subpartition k with these fields and its own checksum."""
    partitions, producers = struct.unpack_from("<QI", index, 8)
    entry = ENTRY.pack(*fields)
    seed = zlib.crc32(f"{key} {partitions} {producers} {k}".encode())
    return entry + struct.pack("<I", zlib.crc32(entry, seed))


def with_entries(index: bytes, key: str, k: int, entries: npt.NDArray[np.void]) -> bytes:
    """Return the index with these INDEX_ENTRY items for subpartition k."""
    slices = slices_of(index)
    slices[k] = pack_block(entries, "producer")
    return index_with(index, key, slices)
