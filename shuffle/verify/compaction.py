"""Check that a compaction holds what its COMPACT states and changed only where extents are stored.

Strategy: the commits' index and the set of moved extents determine a compaction's index byte for
byte. All fields but the location are equal, and moved extents follow each other in their segments
without a gap. COMPACT states the SHA-256 of each segment. No byte is left unchecked.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.errors import DurableShuffleError
from durable_shuffle.shuffle.log.layout import COMPACTED, StagePath
from durable_shuffle.shuffle.log.records import Compact, Seal
from durable_shuffle.shuffle.seal.index import (
    ENTRY_BYTES,
    INDEX_ENTRY,
    entry_offset,
    pack_index,
    parse_entry,
    parse_slice,
)
from durable_shuffle.shuffle.storage.contract import MOST_BYTES, Storage
from durable_shuffle.shuffle.verify.index import check_index
from durable_shuffle.shuffle.verify.report import Finding, finding_of
from durable_shuffle.shuffle.verify.segment_bytes import StoredBytes, check_bytes


@dataclass(frozen=True, slots=True)
class CompactionCheck:
    """The result of checking one compaction."""

    objects: int
    checked_bytes: int
    findings: tuple[Finding, ...]


def check_compaction(
    storage: Storage,
    path: StagePath,
    seal: Seal,
    compact: Compact,
    original: bytes,
    partitions: int,
) -> CompactionCheck:
    """Read the index and the segments that a COMPACT names, and check every byte of them.

    Args:
        original: the index of the commits that SEAL names, intact.
        partitions: R.
    """
    key = path.index_key(compact.index)
    findings: list[Finding] = []
    objects = checked_bytes = 0
    try:
        data = storage.read(key, max(compact.index_bytes, MOST_BYTES))
    except DurableShuffleError as error:
        findings.append(finding_of(error, key, f"an index of {compact.index_bytes} bytes"))
    else:
        objects, checked_bytes = 1, len(data)
        stated = replace(seal, index=compact.index, index_bytes=compact.index_bytes)
        found = list(check_index(key, data, stated, partitions=partitions, rebuilt=None))
        if not found:
            rebuilt = _rebuilt(path, data, original, seal, compact, partitions)
            found = list(check_index(key, data, stated, partitions=partitions, rebuilt=rebuilt))
        findings.extend(found)
    for info in compact.segments:
        key = path.compacted_key(compact.record_id, info.number)
        try:
            moved = StoredBytes(storage, key, info.length)
            findings.extend(check_bytes(moved, info.length, info.sha256))
        except DurableShuffleError as error:
            findings.append(finding_of(error, key, f"a segment of {info.length} bytes"))
        else:
            objects, checked_bytes = objects + 1, checked_bytes + moved.size
    return CompactionCheck(objects, checked_bytes, tuple(findings))


def _rebuilt(
    path: StagePath, data: bytes, original: bytes, seal: Seal, compact: Compact, partitions: int
) -> bytes:
    """Return the index that the compaction must have if it moved the extents that `data` says."""
    key, producers = path.index_key(compact.index), seal.producers
    stated, _ = _entries(data, key, partitions, producers)
    entries, counts = _entries(original, path.index_key(seal.index), partitions, producers)
    expected = entries.copy()
    if len(stated) == len(expected):
        numbers = stated["segment"] & ~np.uint32(COMPACTED)
        moved = (stated["segment"] & COMPACTED) != 0
        for info in compact.segments:
            at = np.flatnonzero(moved & (numbers == info.number))
            lengths = expected["length"][at]
            expected["offset"][at] = np.cumsum(lengths) - lengths
            expected["segment"][at] = info.number | COMPACTED
            expected["attempt"][at] = np.frombuffer(bytes.fromhex(compact.record_id), dtype="V16")
    return pack_index(expected, counts, producers=producers, key=key)


def _entries(
    data: bytes, key: str, partitions: int, producers: int
) -> tuple[npt.NDArray[np.void], list[int]]:
    """Return all entries of an intact index, and the number of entries of each subpartition."""
    slices = [np.zeros(0, dtype=INDEX_ENTRY)]
    for k in range(partitions):
        at = entry_offset(k)
        entry = data[at : at + ENTRY_BYTES]
        start, length, crc = parse_entry(
            entry, k, key=key, partitions=partitions, producers=producers
        )
        slices.append(parse_slice(data[start : start + length], crc, name=key, subpartition=k))
    return np.concatenate(slices), [len(one) for one in slices[1:]]
