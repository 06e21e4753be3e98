"""The index of a sealed stage: where the extents of each subpartition stand.

    header   40 bytes   magic, version, R, M, digest of the attempts, CRC32
    table    R x 36     part, offset, length, data bytes, CRC32 of the slice, CRC32 of the entry
    slices              per subpartition, a block of extents by producer (`log/extent_table.py`)

A reader of subpartition k makes two range reads: table entry k, then its slice. Slices of over
PART_BYTES in all stand in parts: further objects, of which the table names the number. Every byte
is under a checksum. The header's checksum is seeded with the object's key, an entry's with the key,
R, M and k, so bytes of another index, subpartition or plan fail.
"""

import hashlib
import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.shuffle.log.extent_table import EXTENT, PLACE, pack_block, unpack_block
from durable_shuffle.shuffle.log.layout import COMPACTED, index_part_key
from durable_shuffle.shuffle.log.records import Commit, Seal
from durable_shuffle.shuffle.storage.contract import MAX_WHOLE_BYTES, MOST_BYTES

INDEX_ENTRY = np.dtype(
    [("producer", "<u4"), *((name, EXTENT[name]) for name in PLACE), ("attempt", "V16")]
)
"""An EXTENT of a known subpartition, with its producer and the 16 bytes of the attempt's id. In a
compacted segment, its number has the bit `layout.COMPACTED` set and the id is the compaction's."""

_MAGIC = 0x58494453  # "SDIX"
_VERSION = 3
_HEADER = struct.Struct("<IIQI16sI")  # magic, version, R, M, digest of the attempts, crc
_ENTRY = struct.Struct("<IQQQII")  # part, offset, length, data bytes, slice crc, entry crc
HEADER_BYTES = _HEADER.size
ENTRY_BYTES = _ENTRY.size
MAX_SLICE_BYTES = MOST_BYTES
"""Longest slice of one subpartition."""
WHOLE_INDEX_BYTES = 512 * 1024
"""An index up to this size is passed on and read as a whole: 90 producers of 200 partitions."""
PART_BYTES = 64 << 20
"""Slices are held up to this many bytes, and then stored: a part is longer by at most a slice."""

Put = Callable[[str, list[bytes]], None]
"""Stores an object, given its key and the parts of its content."""


class Slice(NamedTuple):
    """Where the slice of a subpartition stands: one entry of the table."""

    part: int
    """0: in the index object itself."""
    offset: int
    length: int
    data_bytes: int
    """Bytes of all extents of the subpartition, as encoded."""
    crc: int


def content_tag(commit: Commit) -> bytes:
    """Return the 32-byte digest of a COMMIT's extents and strong checksums.

    Equal tags mean equal data, wherever and by whichever attempt it was written.
    """
    digest = hashlib.sha256(commit.extents)
    for segment in commit.segments:
        digest.update(struct.pack("<QQ", segment.number, segment.length))
        digest.update(segment.sha256)
    return digest.digest()


class IndexWriter:
    """Writes an index, subpartition after subpartition; holds a part and the table.

    Args:
        put: receives the parts as they are full, and the index object last.
        key: of the index object; an index is valid under this one alone.
        partitions: R.
        producers: M.
    """

    def __init__(self, put: Put, key: str, *, partitions: int, producers: int) -> None:
        self._put, self._key = put, key
        self._partitions, self._producers = partitions, producers
        self._table: list[Slice] = []
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._part = 1
        self.written: list[str] = []
        """Keys of all objects that may have reached the storage."""
        self.whole = b""
        """The index as it is stored, if it is small; b"" for a larger one."""

    def add(self, entries: npt.NDArray[np.void]) -> None:
        """Take the INDEX_ENTRY items of the next subpartition, by producer and first ordinal.

        Raises:
            InvalidInputError: there are more extents than readers accept.
        """
        data = pack_block(entries, "producer")
        if len(data) > MAX_SLICE_BYTES:
            raise InvalidInputError(
                f"{len(entries)} extents of one partition take {len(data)} bytes in an index, at "
                f"most {MAX_SLICE_BYTES} are possible: use fewer map tasks, or a larger "
                f"writer_memory_bytes; key={self._key!r} partition={len(self._table)}"
            )
        if self._held and self._held_bytes + len(data) > PART_BYTES:
            self._store_part()
        size = int(entries["length"].sum())
        self._table.append(Slice(self._part, self._held_bytes, len(data), size, zlib.crc32(data)))
        self._held.append(data)
        self._held_bytes += len(data)

    def finish(self, attempts: bytes, ready: Callable[[int], None] = lambda _: None) -> int:
        """Store what is held; return the length of the index object in bytes.

        Args:
            attempts: 16 bytes per producer, as in SEAL.
            ready: is told this length before the index object is stored.
        """
        assert len(self._table) == self._partitions
        begin = entry_offset(self._partitions)
        if self._part > 1:
            self._store_part()
        else:
            self._table = [s._replace(part=0, offset=begin + s.offset) for s in self._table]
        digest = hashlib.sha256(attempts).digest()[:16]
        head = _HEADER.pack(_MAGIC, _VERSION, self._partitions, self._producers, digest, 0)[:-4]
        head += struct.pack("<I", zlib.crc32(head, zlib.crc32(self._key.encode())))
        parts = [head, *map(self._entry, range(self._partitions)), *self._held]
        length = begin + self._held_bytes
        if length <= WHOLE_INDEX_BYTES:
            self.whole = b"".join(parts)
        ready(length)
        self._store(self._key, parts)
        return length

    def _entry(self, subpartition: int) -> bytes:
        entry = _ENTRY.pack(*self._table[subpartition], 0)[:-4]
        seed = _entry_seed(self._key, self._partitions, self._producers, subpartition)
        return entry + struct.pack("<I", zlib.crc32(entry, seed))

    def _store_part(self) -> None:
        self._store(index_part_key(self._key, self._part), self._held)
        self._part += 1
        self._held, self._held_bytes = [], 0

    def _store(self, key: str, parts: list[bytes]) -> None:
        self.written.append(key)
        self._put(key, parts)


def slice_follows(last: Slice, entry: Slice) -> bool:
    """Return whether a slice stands behind the last one: in its part, or first in the next."""
    if entry.part == last.part:
        return entry.offset == last.offset + last.length
    return last.part > 0 and entry.part == last.part + 1 and entry.offset == 0


def _entry_seed(key: str, partitions: int, producers: int, subpartition: int) -> int:
    return zlib.crc32(f"{key} {partitions} {producers} {subpartition}".encode())


def parse_header(data: bytes | memoryview, *, key: str) -> tuple[int, int]:
    """Return (R, M) of the index object `key` from its first 40 bytes.

    Raises:
        CorruptDataError: damaged, or the header of another object.
        IncompatibleError: of another version.
    """
    if len(data) != HEADER_BYTES:
        raise CorruptDataError(
            f"the index object's header is short: key={key!r} expected={HEADER_BYTES} bytes "
            f"found={len(data)}"
        )
    magic, version, partitions, producers, _, crc = _HEADER.unpack(data)
    if magic != _MAGIC or crc != zlib.crc32(bytes(data[:-4]), zlib.crc32(key.encode())):
        raise CorruptDataError(
            f"the index object's header is damaged, or that of another object: key={key!r}"
        )
    if version != _VERSION:
        raise IncompatibleError(
            f"index object of version {version}, this library reads {_VERSION}: key={key!r}"
        )
    return partitions, producers


def entry_offset(subpartition: int) -> int:
    """Byte offset of a subpartition's table entry."""
    return HEADER_BYTES + ENTRY_BYTES * subpartition


def parse_entry(
    data: bytes | memoryview, subpartition: int, *, key: str, partitions: int, producers: int
) -> Slice:
    """Return where a subpartition's slice stands.

    Args:
        key: of the index object.
        partitions: R, as DESCRIBE has it.
        producers: M, as SEAL has it.

    Raises:
        CorruptDataError: damaged, or the entry of another index, subpartition, R or M.
    """
    if len(data) != ENTRY_BYTES:
        raise CorruptDataError(
            f"an index entry is short: key={key!r} subpartition={subpartition} "
            f"expected={ENTRY_BYTES} bytes found={len(data)}"
        )
    *fields, own = _ENTRY.unpack(data)
    found = Slice(*fields)
    crc = zlib.crc32(bytes(data[:-4]), _entry_seed(key, partitions, producers, subpartition))
    too_far = found.length > MAX_SLICE_BYTES or found.offset + found.length > MAX_WHOLE_BYTES
    if own != crc or too_far or found.data_bytes >= 1 << 63:
        raise CorruptDataError(
            f"an index entry is damaged, or that of another index: key={key!r} "
            f"subpartition={subpartition} of {partitions} producers={producers}"
        )
    return found


def parse_slice(
    data: bytes | memoryview, crc: int, *, name: str, subpartition: int, producers: int
) -> npt.NDArray[np.void]:
    """Return the INDEX_ENTRY items of one subpartition, without the attempts.

    Args:
        producers: M.

    Raises:
        CorruptDataError: damaged; names the object.
    """
    where = f"key={name!r} subpartition={subpartition}"
    if zlib.crc32(data) != crc:
        raise CorruptDataError(f"an index slice is damaged: {where}")
    return unpack_block(data, "producer", INDEX_ENTRY, where, groups=producers)


def name_attempts(entries: npt.NDArray[np.void], seal: Seal) -> None:
    """Fill in the attempts: they are those of SEAL, or the compaction that made its index."""
    entries["attempt"] = np.frombuffer(seal.attempts, dtype="V16")[entries["producer"]]
    moved = (entries["segment"] & COMPACTED) != 0
    entries["attempt"][moved] = np.frombuffer(bytes.fromhex(seal.index), dtype="V16")
