"""The index of a sealed stage, and the extents that it is made of."""

import struct
import zlib

import numpy as np
from whole_index import index_of_commits

from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.log.extent_table import EXTENT, pack_block, unpack_extents
from durable_shuffle.shuffle.log.records import Commit, Seal
from durable_shuffle.shuffle.read.position import unpack_positions
from durable_shuffle.shuffle.seal import index
from durable_shuffle.shuffle.verify.index import check_index

_INDEX = "job/m1/index/" + "a" * 32
_HEAD = struct.Struct("<QI")  # R and M, as small as they are, then entries
_PLACE = struct.Struct("<IQQQ")  # of an entry, all but the CRCs
R, M = 3, 2


def index_of(data: bytes) -> bytes:
    """Return an index whose header, entries and slices are what `data` says, with right CRCs."""
    partitions, producers = _HEAD.unpack(data[: _HEAD.size].ljust(_HEAD.size, b"\0"))
    names = 0x58494453, index._VERSION, partitions, producers, b""
    head = struct.pack("<IIQI16s", *names)
    head += struct.pack("<I", zlib.crc32(head, zlib.crc32(_INDEX.encode())))
    at, table = _HEAD.size, b""
    payload = data[at + _PLACE.size * R :]
    for k in range(R):
        part, offset, length, size = _PLACE.unpack(data[at:][: _PLACE.size].ljust(28, b"\0"))
        at += _PLACE.size
        start = offset - index.HEADER_BYTES - index.ENTRY_BYTES * R
        crc = zlib.crc32(payload[max(0, start) : max(0, start) + min(length, len(payload))])
        entry = struct.pack("<IQQQI", part, offset, length, size, crc)
        seed = index._entry_seed(_INDEX, R, M, k)
        table += entry + struct.pack("<I", zlib.crc32(entry, seed))
    return head + table + payload


def run_index(data: bytes) -> None:
    """Read every partition as a reader would, then check the object as `verify` does."""
    whole = index_of(data)
    seal = Seal("r", 1, M, "a" * 32, len(whole), bytes(8), bytes(32), bytes(64), 0, 0, 0)
    for _ in check_index(_INDEX, {_INDEX: whole}, seal, partitions=R):
        pass
    index.parse_header(whole[: index.HEADER_BYTES], key=_INDEX)
    for k in range(R):
        at = index.entry_offset(k)
        entry = whole[at : at + index.ENTRY_BYTES]
        found = index.parse_entry(entry, k, key=_INDEX, partitions=R, producers=M)
        if found.part or found.offset + found.length > len(whole):
            raise CorruptDataError("as `read_table` says")
        data = whole[found.offset : found.offset + found.length]
        entries = index.parse_slice(data, found.crc, name=_INDEX, subpartition=k, producers=M)
        index.name_attempts(entries, seal)


def index_seed() -> bytes:
    start = index.HEADER_BYTES + index.ENTRY_BYTES * R
    places, slices = [], b""
    for k in range(R):
        entries = np.zeros(2, dtype=index.INDEX_ENTRY)
        entries[0] = (0, 0, 64 * k, 64, 0, 5, b"")
        entries[1] = (1, 0, 0, 0, 0, 0, b"")
        data = pack_block(entries, "producer")
        places.append(_PLACE.pack(0, start + len(slices), len(data), 64))
        slices += data
    return _HEAD.pack(R, M) + b"".join(places) + slices


def extents_seed() -> bytes:
    entries = np.zeros(R, dtype=EXTENT)
    entries["subpartition"] = range(R)
    entries["length"] = entries["rows"] = 64
    return pack_block(entries, "subpartition")


def run_commits(data: bytes) -> None:
    """Make the index of a COMMIT whose extents are any bytes."""
    commit = Commit("a" * 32, 0, 1, 5, 5, (), data)
    index_of_commits([commit], R, key=_INDEX)


def run_packed(data: bytes) -> None:
    unpack_extents(data[1:], "name") if data[:1] < b"\x80" else unpack_positions(
        data[1:], name="name"
    )
