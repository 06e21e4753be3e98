"""Check that a compaction agrees with the index of the COMMITs and with COMPACT.

That index and the set of moved extents determine the compaction's index: all fields but the
location are equal, and moved extents follow each other in their segments without a gap. COMPACT
states the SHA-256 of each segment. So no byte is left unchecked.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.errors import DurableShuffleError, NotFoundError
from durable_shuffle.shuffle.log.layout import COMPACTED, StagePath, index_part_key
from durable_shuffle.shuffle.log.records import Compact, Seal
from durable_shuffle.shuffle.seal.index import entry_offset, parse_entry, parse_slice
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.verify.index import StoredIndex, check_index, compare_index
from durable_shuffle.shuffle.verify.report import Finding, finding_of
from durable_shuffle.shuffle.verify.segment import StoredBytes, check_bytes


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
    original: Mapping[str, bytes],
    partitions: int,
) -> CompactionCheck:
    """Read the index and the segments that a COMPACT names, and check every byte of them.

    Args:
        original: the objects of the index of the commits that SEAL names, intact.
        partitions: R.
    """
    stated = replace(seal, index=compact.index, index_bytes=compact.index_bytes)
    findings: list[Finding] = []
    data = StoredIndex(storage, path, stated, partitions, findings)
    if not findings:
        findings += list(check_index(data.key, data, stated, partitions=partitions))
    if not findings:
        before = _slices(original, path.index_key(seal.index), partitions, seal.producers)
        after = _slices(data, data.key, partitions, seal.producers)
        slices = _moved(zip(before, after, strict=True), compact)
        try:
            findings += compare_index(data.key, data, slices, seal.attempts, partitions=partitions)
        except DurableShuffleError as error:
            findings.append(finding_of(error, data.key, "an index that can be compared"))
    objects, checked_bytes = len(data.sizes), sum(data.sizes.values())
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


def _moved(
    slices: Iterable[tuple[npt.NDArray[np.void], npt.NDArray[np.void]]], compact: Compact
) -> Iterator[npt.NDArray[np.void]]:
    """Yield the slices that a compaction must have if it moved the extents that its index says.

    Args:
        slices: of each subpartition, the original slice and that of the compaction.
    """
    ends = {info.number: 0 for info in compact.segments}
    for original, stated in slices:
        expected = original.copy()
        moved = (stated["segment"] & COMPACTED) != 0
        if len(stated) == len(original) and moved.any():
            numbers = stated["segment"] & ~np.uint32(COMPACTED)
            for number in np.intersect1d(numbers[moved], list(ends)).tolist():
                rows = np.flatnonzero(moved & (numbers == number))
                lengths = expected["length"][rows]
                expected["offset"][rows] = ends[number] + np.cumsum(lengths) - lengths
                expected["segment"][rows] = number | COMPACTED
                ends[number] += int(lengths.sum())
        yield expected


def _slices(
    objects: Mapping[str, bytes], key: str, partitions: int, producers: int
) -> Iterator[npt.NDArray[np.void]]:
    """Yield the entries of each subpartition of an intact index.

    Raises:
        NotFoundError, CorruptDataError: it cannot be read again.
    """
    for k in range(partitions):
        entry = objects[key][entry_offset(k) : entry_offset(k + 1)]
        part, start, length, _, crc = parse_entry(
            entry, k, key=key, partitions=partitions, producers=producers
        )
        data = objects.get(name := index_part_key(key, part))
        if data is None:
            raise NotFoundError(f"a part of an index went while it was checked: {name!r}")
        data = data[start : start + length]
        yield parse_slice(data, crc, name=key, subpartition=k, producers=producers)
