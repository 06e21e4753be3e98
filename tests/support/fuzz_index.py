"""The index of a sealed stage, and the extents that it is made of."""

import struct
import zlib

import numpy as np

from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.log.records import EXTENT, Commit, Seal, unpack_extents
from durable_shuffle.shuffle.read.position import unpack_positions
from durable_shuffle.shuffle.read.sealed_reader import check_entries
from durable_shuffle.shuffle.seal import index
from durable_shuffle.shuffle.verify.index import check_index

_INDEX = "job/m1/index/" + "a" * 32
_HEAD = struct.Struct("<QI")  # R and M, as small as they are, then entries
R, M = 3, 2


def index_of(data: bytes) -> bytes:
    """Return an index whose header, entries and slices are what `data` says, with right CRCs."""
    partitions, producers = _HEAD.unpack(data[: _HEAD.size].ljust(_HEAD.size, b"\0"))
    head = struct.pack("<IIQI", 0x58494453, index._VERSION, partitions, producers)
    head += struct.pack("<I", zlib.crc32(head, zlib.crc32(_INDEX.encode())))
    at, table = _HEAD.size, b""
    payload = data[at + 16 * R :]
    for k in range(R):
        offset, length = struct.unpack("<QQ", data[at : at + 16].ljust(16, b"\0"))
        at += 16
        start = offset - index.HEADER_BYTES - index.ENTRY_BYTES * R
        crc = zlib.crc32(payload[max(0, start) : max(0, start) + min(length, len(payload))])
        entry = struct.pack("<QQI", offset, length, crc)
        seed = index._entry_seed(_INDEX, R, M, k)
        table += entry + struct.pack("<I", zlib.crc32(entry, seed))
    return head + table + payload


def run_index(data: bytes) -> None:
    """Read every partition as a reader would, then check the object as `verify` does."""
    whole = index_of(data)
    seal = Seal("r", 1, M, "a" * 32, len(whole), bytes(8), bytes(32), bytes(64), 0, 0, 0)
    for _ in check_index(_INDEX, whole, seal, partitions=R, rebuilt=None):
        pass
    index.parse_header(whole[: index.HEADER_BYTES], key=_INDEX)
    for k in range(R):
        at = index.entry_offset(k)
        entry = whole[at : at + index.ENTRY_BYTES]
        start, length, crc = index.parse_entry(entry, k, key=_INDEX, partitions=R, producers=M)
        if start + length > len(whole):
            raise CorruptDataError("as `read_extents` says")
        found = index.parse_slice(whole[start : start + length], crc, name=_INDEX, subpartition=k)
        check_entries(found, range(M), name=_INDEX, subpartition=k)


def index_seed() -> bytes:
    entries = np.zeros(2 * R, dtype=index.INDEX_ENTRY)
    for k in range(R):
        entries[2 * k] = (0, 0, 64 * k, 64, 0, 5, b"\1" * 16)
        entries[2 * k + 1] = (1, 0, 0, 0, 0, 0, b"\2" * 16)
    start = index.HEADER_BYTES + index.ENTRY_BYTES * R
    size = 2 * index.INDEX_ENTRY.itemsize
    places = [struct.pack("<QQ", start + k * size, size) for k in range(R)]
    return _HEAD.pack(R, M) + b"".join(places) + entries.tobytes()


def extents_seed() -> bytes:
    entries = np.zeros(R, dtype=EXTENT)
    entries["subpartition"] = range(R)
    entries["length"] = entries["rows"] = 64
    return entries.tobytes()


def run_commits(data: bytes) -> None:
    """Make the index of a COMMIT whose extents are any bytes."""
    commit = Commit("a" * 32, 0, 1, 5, 5, (), data)
    index.build_index([commit], R, key=_INDEX)


def run_packed(data: bytes) -> None:
    unpack_extents(data[1:], "name") if data[:1] < b"\x80" else unpack_positions(
        data[1:], name="name"
    )
