"""The index object of a sealed stage: where the extents of each subpartition stand.

    header   24 bytes   magic, version, R, M, CRC32
    table    R x 24     offset, length, CRC32 of the slice, CRC32 of the entry
    slices              per subpartition, INDEX_ENTRY items ordered by (producer, first ordinal)

A reader of subpartition k makes two range reads: table entry k, then its slice. Every byte is under
a checksum. The header's checksum is seeded with the object's key, an entry's with the key, R, M and
k, so bytes of another index, subpartition or plan fail.
"""

import hashlib
import struct
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.shuffle.log.records import Commit
from durable_shuffle.shuffle.storage.contract import MAX_WHOLE_BYTES, MOST_BYTES

INDEX_ENTRY = np.dtype(
    [
        ("producer", "<u4"),
        ("segment", "<u4"),
        ("offset", "<u8"),
        ("length", "<u8"),
        ("first_ordinal", "<u8"),
        ("rows", "<u8"),
        ("attempt", "V16"),
    ]
)
"""An EXTENT with its producer and the 16 bytes of the attempt's id. In a compacted segment, its
number has the bit `layout.COMPACTED` set and the id is the compaction's."""

_MAGIC = 0x58494453  # "SDIX"
_VERSION = 2
_HEADER = struct.Struct("<IIQII")  # magic, version, R, M, crc
_ENTRY = struct.Struct("<QQII")  # offset, length, slice crc, entry crc
HEADER_BYTES = _HEADER.size
ENTRY_BYTES = _ENTRY.size
_CHECKED = 20  # of either struct: all but its own CRC
MAX_SLICE_BYTES = MOST_BYTES
"""Longest slice of one subpartition: 1,198,372 extents."""


def content_tag(commit: Commit) -> bytes:
    """Return the 32-byte digest of a COMMIT's extents and strong checksums.

    Equal tags mean equal data, wherever and by whichever attempt it was written.
    """
    digest = hashlib.sha256(commit.extents)
    for segment in commit.segments:
        digest.update(struct.pack("<QQ", segment.number, segment.length))
        digest.update(segment.sha256)
    return digest.digest()


def build_index(commits: list[Commit], partitions: int, *, key: str) -> bytes:
    """Return the index object of the commits of producers 0 to M-1, to be stored under `key`."""
    per_producer = []
    subpartitions = []
    for commit in commits:
        extents = commit.extent_array()
        entries = np.zeros(len(extents), dtype=INDEX_ENTRY)
        for field in ("segment", "offset", "length", "first_ordinal", "rows"):
            entries[field] = extents[field]
        entries["producer"] = commit.producer
        entries["attempt"] = np.frombuffer(bytes.fromhex(commit.record_id), dtype="V16")
        per_producer.append(entries)
        subpartitions.append(extents["subpartition"])
    everything = np.concatenate([*per_producer, np.zeros(0, dtype=INDEX_ENTRY)])
    k = np.concatenate([*subpartitions, np.zeros(0, dtype="<u4")])
    # extents are ordered within a producer and producers ascend: stable by k keeps both orders
    everything = everything[np.argsort(k, kind="stable")]
    if len(k) and k.max() >= partitions:
        raise CorruptDataError(f"a COMMIT names subpartition {k.max()} of {partitions}")
    counts = np.bincount(k, minlength=partitions)
    return pack_index(everything, counts.tolist(), producers=len(commits), key=key)


def pack_index(
    entries: npt.NDArray[np.void], counts: Sequence[int], *, producers: int, key: str
) -> bytes:
    """Return the index object of INDEX_ENTRY items that are ordered by subpartition.

    Args:
        counts: how many of them each subpartition has, by number.
        producers: M.
        key: of the object; an index is valid under this one alone.

    Raises:
        InvalidInputError: there are more extents than readers accept.
    """
    partitions = len(counts)
    offset = HEADER_BYTES + ENTRY_BYTES * partitions
    length, longest = entries.nbytes, max(counts, default=0) * INDEX_ENTRY.itemsize
    if offset + length > MAX_WHOLE_BYTES or longest > MAX_SLICE_BYTES:
        raise InvalidInputError(
            f"the index has {offset + length} bytes, {longest} for one partition; at most "
            f"{MAX_WHOLE_BYTES} and {MAX_SLICE_BYTES} are possible: use fewer map tasks or "
            f"partitions, or a larger writer_memory_bytes; key={key!r}"
        )
    payload = entries.tobytes()
    table = bytearray()
    start = 0
    for subpartition, count in enumerate(counts):
        length = count * INDEX_ENTRY.itemsize
        crc = zlib.crc32(payload[start : start + length])
        entry = struct.pack("<QQI", offset + start, length, crc)
        seed = _entry_seed(key, partitions, producers, subpartition)
        table += entry + struct.pack("<I", zlib.crc32(entry, seed))
        start += length
    head = struct.pack("<IIQI", _MAGIC, _VERSION, partitions, producers)
    crc = zlib.crc32(head, zlib.crc32(key.encode()))
    return head + struct.pack("<I", crc) + bytes(table) + payload


def _entry_seed(key: str, partitions: int, producers: int, subpartition: int) -> int:
    return zlib.crc32(f"{key} {partitions} {producers} {subpartition}".encode())


def parse_header(data: bytes | memoryview, *, key: str) -> tuple[int, int]:
    """Return (R, M) of the index object `key` from its first 24 bytes.

    Raises:
        CorruptDataError: damaged, or the header of another object.
        IncompatibleError: of another version.
    """
    if len(data) != HEADER_BYTES:
        raise CorruptDataError(
            f"the index object's header is short: key={key!r} expected={HEADER_BYTES} bytes "
            f"found={len(data)}"
        )
    magic, version, partitions, producers, crc = _HEADER.unpack(data)
    if magic != _MAGIC or crc != zlib.crc32(bytes(data[:_CHECKED]), zlib.crc32(key.encode())):
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
) -> tuple[int, int, int]:
    """Return (offset, length, CRC32) of a subpartition's slice.

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
    offset, length, crc, own = _ENTRY.unpack(data)
    seed = _entry_seed(key, partitions, producers, subpartition)
    wrong = length % INDEX_ENTRY.itemsize or length > MAX_SLICE_BYTES
    if own != zlib.crc32(bytes(data[:_CHECKED]), seed) or wrong:
        raise CorruptDataError(
            f"an index entry is damaged, or that of another index: key={key!r} "
            f"subpartition={subpartition} of {partitions} producers={producers}"
        )
    return offset, length, crc


def parse_slice(
    data: bytes | memoryview, crc: int, *, name: str, subpartition: int
) -> npt.NDArray[np.void]:
    """Return the INDEX_ENTRY items of one subpartition."""
    if zlib.crc32(data) != crc:
        raise CorruptDataError(
            f"an index slice is damaged: key={name!r} subpartition={subpartition}"
        )
    return np.frombuffer(data, dtype=INDEX_ENTRY)
