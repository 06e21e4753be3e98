"""Check that COMMITs, the index and a compaction agree with each other and with SEAL and COMPACT.

A COMMIT states where every record of a producer is stored. In each subpartition its extents must
number the records from 0 without a gap. Together they must cover each segment from its first byte
to its last. The COMMITs determine the index byte for byte. They and the set of moved extents
determine a compaction's index: all fields but the location are equal, and moved extents follow each
other in their segments without a gap. COMPACT states the SHA-256 of each segment. So no byte is
left unchecked.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.errors import CorruptDataError, DurableShuffleError
from durable_shuffle.shuffle.log.layout import COMPACTED, StagePath, index_part_key
from durable_shuffle.shuffle.log.records import Commit, Compact, Seal
from durable_shuffle.shuffle.seal.index import (
    ENTRY_BYTES,
    HEADER_BYTES,
    INDEX_ENTRY,
    MAX_SLICE_BYTES,
    PART_BYTES,
    Slice,
    entry_offset,
    index_objects,
    parse_entry,
    parse_header,
    parse_slice,
    slice_follows,
)
from durable_shuffle.shuffle.storage.contract import MOST_BYTES, Storage
from durable_shuffle.shuffle.verify.report import Finding, damage, finding_of
from durable_shuffle.shuffle.verify.segment import StoredBytes, check_bytes


def read_index(
    storage: Storage, path: StagePath, seal: Seal, partitions: int | None, findings: list[Finding]
) -> dict[str, bytes]:
    """Return the objects of the index that `seal` names, by key: the index object, then its parts.

    What cannot be read is left out, with a finding.

    Args:
        partitions: R; None if DESCRIBE could not be read, then the header's R is used.
    """
    objects: dict[str, bytes] = {}

    def read(key: str, most_bytes: int, expected: str) -> None:
        try:
            objects[key] = storage.read(key, most_bytes)
        except DurableShuffleError as error:
            findings.append(finding_of(error, key, expected))

    key = path.index_key(seal.index)
    read(key, max(seal.index_bytes, MOST_BYTES), f"an index of {seal.index_bytes} bytes")
    data = objects.get(key, b"")
    table = _table(key, data, seal, _partitions(key, data, partitions))
    for part in range(1, max((s.part for _, s in table if isinstance(s, Slice)), default=0) + 1):
        read(index_part_key(key, part), PART_BYTES + MAX_SLICE_BYTES, "a part of the index")
    return objects


def check_index(
    key: str,
    objects: Mapping[str, bytes],
    seal: Seal,
    *,
    partitions: int | None,
    rebuilt: Mapping[str, bytes] | None,
) -> Iterator[Finding]:
    """Yield what is wrong with the objects of the index `key`, of those that could be read.

    Args:
        partitions: R; None if DESCRIBE could not be read, then the header's R is used.
        rebuilt: the index built from the commits; None if not all of them could be read.
    """
    partitions = _partitions(key, objects[key], partitions)
    findings = [*_check_header(key, objects[key], seal, partitions)]
    findings += _check_slices(key, objects, seal, partitions)
    yield from findings
    if rebuilt is None or findings:
        return
    for name, ours, other in ((n, objects.get(n), rebuilt.get(n)) for n in {**rebuilt, **objects}):
        expected, actual = "the index of the commits that SEAL names", "another index"
        if ours is None or other is None:
            yield damage(name, expected, actual if other is None else "no such object")
        elif ours != other:
            yield damage(name, expected, actual, *_difference(ours, other))


def _difference(ours: bytes, other: bytes) -> tuple[int, int]:
    """Return (start, length) of the bytes from the first to the last that differ."""
    shorter, longer = sorted((len(ours), len(other)))
    a, b = (np.frombuffer(data, dtype=np.uint8, count=shorter) for data in (ours, other))
    differing = np.flatnonzero(a != b)
    start = int(differing[0]) if len(differing) else shorter
    end = int(differing[-1]) + 1 if shorter == longer else longer
    return start, end - start


def _check_header(key: str, data: bytes, seal: Seal, partitions: int | None) -> Iterator[Finding]:
    yield from _check_length(key, data, seal.index_bytes)
    if len(data) < HEADER_BYTES:
        return
    header = {"start": 0, "length": HEADER_BYTES}
    try:
        found_r, found_m = parse_header(data[:HEADER_BYTES], key=key)
    except DurableShuffleError as error:
        yield finding_of(error, key, "an intact header", **header)
        return
    if (found_r, found_m) != (partitions, seal.producers):
        expected, actual = f"R={partitions} M={seal.producers}", f"R={found_r} M={found_m}"
        yield damage(key, expected, actual, **header)


def _check_length(key: str, data: bytes, expected: int) -> Iterator[Finding]:
    if len(data) != expected:
        start, end = sorted((len(data), expected))
        yield damage(key, f"{expected} bytes", f"{len(data)} bytes", start, end - start)


def _partitions(key: str, data: bytes, partitions: int | None) -> int:
    """Return R: the one given, else the header's; 0 if that cannot be read."""
    if partitions is not None:
        return partitions
    try:
        return parse_header(data[:HEADER_BYTES], key=key)[0]
    except DurableShuffleError:
        return 0


def _table(
    key: str, data: bytes, seal: Seal, partitions: int
) -> Iterator[tuple[int, Slice | DurableShuffleError]]:
    """Yield each entry of the table that is there, or why it cannot be used."""
    for k in range(min(partitions, (len(data) - HEADER_BYTES) // ENTRY_BYTES)):
        entry = data[entry_offset(k) : entry_offset(k + 1)]
        how = {"partitions": partitions, "producers": seal.producers}
        try:
            yield k, parse_entry(entry, k, key=key, **how)
        except DurableShuffleError as error:
            yield k, error


def _check_slices(
    key: str, objects: Mapping[str, bytes], seal: Seal, partitions: int
) -> Iterator[Finding]:
    """Check each entry and its slice, that slices stand one behind the other, and nothing else."""
    last: Slice | None = None
    ends: dict[int, int] = {}
    for k, found in _table(key, objects[key], seal, partitions):
        where = {"start": entry_offset(k), "length": ENTRY_BYTES}
        if not isinstance(found, Slice):
            yield finding_of(found, key, f"entry of {k}", **where)
            last = None
            continue
        begin = (found.part, found.offset) in ((0, entry_offset(partitions)), (1, 0))
        if not (begin if k == 0 else last is None or slice_follows(last, found)):
            yield damage(key, f"slice of {k} behind {last}", f"{found}", **where)
        last = found
        ends[found.part] = found.offset + found.length
        yield from _check_slice(key, objects, seal, k, found)
    for part, end in ends.items():
        if part and (name := index_part_key(key, part)) in objects:
            yield from _check_length(name, objects[name], end)


def _check_slice(
    key: str, objects: Mapping[str, bytes], seal: Seal, k: int, found: Slice
) -> Iterator[Finding]:
    name, end = index_part_key(key, found.part), found.offset + found.length
    data = objects.get(name)
    if data is None:
        return  # a finding already
    if end > len(data):
        if found.part or len(data) == seal.index_bytes:
            where = {"start": entry_offset(k), "length": ENTRY_BYTES}
            yield damage(key, f"slice of {k} below {len(data)}", f"up to {end}", **where)
        return
    part = data[found.offset : end]
    try:
        parse_slice(part, found.crc, name=name, subpartition=k, producers=seal.producers)
    except DurableShuffleError as error:
        yield finding_of(error, name, f"slice of {k}", start=found.offset, length=found.length)


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
    data = read_index(storage, path, stated, partitions, findings)
    objects, checked_bytes = len(data), sum(map(len, data.values()))
    if not findings:
        key = path.index_key(compact.index)
        wrong = list(check_index(key, data, stated, partitions=partitions, rebuilt=None))
        if not wrong:
            rebuilt = _rebuilt(path, data, original, seal, compact, partitions)
            wrong = list(check_index(key, data, stated, partitions=partitions, rebuilt=rebuilt))
        findings.extend(wrong)
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
    path: StagePath,
    data: Mapping[str, bytes],
    original: Mapping[str, bytes],
    seal: Seal,
    compact: Compact,
    partitions: int,
) -> dict[str, bytes]:
    """Return the index that the compaction must have if it moved the extents that `data` says."""
    key, producers = path.index_key(compact.index), seal.producers
    stated, _ = _entries(data, key, partitions, producers)
    entries, counts = _entries(original, path.index_key(seal.index), partitions, producers)
    expected = entries.copy()
    if len(stated) == len(expected):
        numbers = stated["segment"] & ~np.uint32(COMPACTED)
        moved = (stated["segment"] & COMPACTED) != 0
        for info in compact.segments:
            rows = np.flatnonzero(moved & (numbers == info.number))
            lengths = expected["length"][rows]
            expected["offset"][rows] = np.cumsum(lengths) - lengths
            expected["segment"][rows] = info.number | COMPACTED
    slices = np.split(expected, np.cumsum(counts)[:-1])
    return index_objects(slices, seal.attempts, partitions=partitions, key=key)


def _entries(
    objects: Mapping[str, bytes], key: str, partitions: int, producers: int
) -> tuple[npt.NDArray[np.void], list[int]]:
    """Return all entries of an intact index, and the number of entries of each subpartition."""
    slices = [np.zeros(0, dtype=INDEX_ENTRY)]
    for k in range(partitions):
        entry = objects[key][entry_offset(k) : entry_offset(k + 1)]
        part, start, length, _, crc = parse_entry(
            entry, k, key=key, partitions=partitions, producers=producers
        )
        data = objects[index_part_key(key, part)][start : start + length]
        slices.append(parse_slice(data, crc, name=key, subpartition=k, producers=producers))
    return np.concatenate(slices), [len(part) for part in slices[1:]]


def check_commit(
    key: str,
    commit: Commit,
    *,
    producer: int,
    producers: int | None,
    subpartitions: npt.NDArray[np.uint32] | None,
) -> Iterator[Finding]:
    """Yield what is wrong with the COMMIT stored at `key`.

    Args:
        producer: the producer in whose log the COMMIT is stored.
        producers: M; None if unknown.
        subpartitions: the ones that this producer must state, ascending; None if unknown.
    """
    yield from _differs(key, "producer", producer, commit.producer)
    if producers is not None:
        yield from _differs(key, "M", producers, commit.producers)
    try:
        extents = commit.extent_array()
    except CorruptDataError as error:
        yield Finding(key, error.kind, "whole extents", str(error))
        return
    yield from _differs(key, "rows in extents", commit.rows, int(extents["rows"].sum()))
    if subpartitions is not None:
        stated = np.unique(extents["subpartition"])
        if not np.array_equal(stated, subpartitions):
            wrong = np.setxor1d(stated, subpartitions)
            yield damage(
                key,
                f"extents of {len(subpartitions)} subpartitions",
                f"extents of {len(stated)}, the first that differs is {int(wrong[0])}",
            )
    yield from _check_ordinals(key, extents)
    yield from _check_segments(key, commit, extents)


def _check_ordinals(key: str, extents: npt.NDArray[np.void]) -> Iterator[Finding]:
    k, rows = extents["subpartition"].astype(np.int64), extents["rows"]
    if np.any(np.diff(k) < 0):
        yield damage(key, "extents ordered by subpartition", "another order")
        return
    before = np.cumsum(rows) - rows
    _, first_of_k, group = np.unique(k, return_index=True, return_inverse=True)
    wrong = np.flatnonzero(extents["first_ordinal"] != before - before[first_of_k][group])
    if len(wrong):
        extent = extents[wrong[0]]
        yield damage(
            key,
            "contiguous ordinals from 0",
            f"first ordinal {int(extent['first_ordinal'])} in subpartition "
            f"{int(extent['subpartition'])}",
        )
    sizes = np.bincount(group, minlength=len(first_of_k))[group] if len(group) else rows
    wrong = np.flatnonzero(((rows == 0) != (extents["length"] == 0)) | ((rows == 0) & (sizes > 1)))
    if len(wrong):
        extent = extents[wrong[0]]
        yield damage(
            key,
            "an empty extent only as the one entry of an empty subpartition",
            f"rows={int(extent['rows'])} length={int(extent['length'])} in subpartition "
            f"{int(extent['subpartition'])}",
        )


def _check_segments(key: str, commit: Commit, extents: npt.NDArray[np.void]) -> Iterator[Finding]:
    numbers = [segment.number for segment in commit.segments]
    yield from _differs(key, "segment numbers", list(range(len(numbers))), numbers)
    held = extents[extents["rows"] > 0]
    unknown = np.setdiff1d(held["segment"], np.array(numbers, dtype=np.uint32))
    if len(unknown):
        yield damage(key, "extents in segments of the COMMIT", f"segment {int(unknown[0])}")
    for segment in commit.segments:
        mine = held[held["segment"] == segment.number]
        mine = mine[np.argsort(mine["offset"], kind="stable")]
        ends = np.append(np.uint64(0), mine["offset"] + mine["length"])
        starts = np.append(mine["offset"], np.uint64(segment.length))
        wrong = np.flatnonzero(ends != starts)
        if len(wrong):
            yield damage(
                key,
                f"extents that cover segment {segment.number}, bytes [0, {segment.length})",
                f"an extent that ends at {int(ends[wrong[0]])} before one that starts at "
                f"{int(starts[wrong[0]])}",
            )


def _differs(key: str, what: str, expected: object, actual: object) -> Iterator[Finding]:
    if expected != actual:
        yield damage(key, f"{what} {expected}", f"{actual}")
