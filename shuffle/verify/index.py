"""Check that COMMITs, the index and a compaction agree with each other and with SEAL and COMPACT.

A COMMIT states where every record of a producer is stored. In each subpartition its extents must
number the records from 0 without a gap. Together they must cover each segment from its first byte
to its last. The COMMITs determine the index byte for byte. They and the set of moved extents
determine a compaction's index: all fields but the location are equal, and moved extents follow each
other in their segments without a gap. COMPACT states the SHA-256 of each segment. So no byte is
left unchecked.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.errors import CorruptDataError, DurableShuffleError
from durable_shuffle.shuffle.log.layout import COMPACTED, StagePath
from durable_shuffle.shuffle.log.records import Commit, Compact, Seal
from durable_shuffle.shuffle.seal.index import (
    ENTRY_BYTES,
    HEADER_BYTES,
    INDEX_ENTRY,
    entry_offset,
    pack_index,
    parse_entry,
    parse_header,
    parse_slice,
)
from durable_shuffle.shuffle.storage.contract import MOST_BYTES, Storage
from durable_shuffle.shuffle.verify.report import Finding, damage, finding_of
from durable_shuffle.shuffle.verify.segment import StoredBytes, check_bytes


def read_index(
    storage: Storage, path: StagePath, seal: Seal, findings: list[Finding]
) -> bytes | None:
    """Return the index object that `seal` names; None, with a finding, if it cannot be read."""
    key = path.index_key(seal.index)
    try:
        return storage.read(key, max(seal.index_bytes, MOST_BYTES))
    except DurableShuffleError as error:
        findings.append(finding_of(error, key, f"an index of {seal.index_bytes} bytes"))
        return None


def check_index(
    key: str, data: bytes, seal: Seal, *, partitions: int | None, rebuilt: bytes | None
) -> Iterator[Finding]:
    """Yield what is wrong with the index object `data`.

    Args:
        partitions: R; None if DESCRIBE could not be read, then the header's R is used.
        rebuilt: the index built from the commits; None if not all of them could be read.
    """
    findings = list(_check_parts(key, data, seal, partitions))
    yield from findings
    if rebuilt is not None and data != rebuilt and not findings:
        shorter, longer = sorted((len(data), len(rebuilt)))
        ours, other = (np.frombuffer(b, dtype=np.uint8, count=shorter) for b in (data, rebuilt))
        differing = np.flatnonzero(ours != other)
        start = int(differing[0]) if len(differing) else shorter
        end = int(differing[-1]) + 1 if shorter == longer else longer
        expected, actual = "the index of the commits that SEAL names", "another index"
        yield damage(key, expected, actual, start, end - start)


def _check_parts(key: str, data: bytes, seal: Seal, partitions: int | None) -> Iterator[Finding]:
    if len(data) != seal.index_bytes:
        start, end = sorted((len(data), seal.index_bytes))
        expected, actual = f"{seal.index_bytes} bytes", f"{len(data)} bytes"
        yield damage(key, expected, actual, start, end - start)
    if len(data) < HEADER_BYTES:
        return
    header = {"start": 0, "length": HEADER_BYTES}
    try:
        found_r, found_m = parse_header(data[:HEADER_BYTES], key=key)
    except DurableShuffleError as error:
        yield finding_of(error, key, "an intact header", **header)
    else:
        partitions = found_r if partitions is None else partitions
        if (found_r, found_m) != (partitions, seal.producers):
            expected, actual = f"R={partitions} M={seal.producers}", f"R={found_r} M={found_m}"
            yield damage(key, expected, actual, **header)
    if partitions is None:
        return
    next_start = entry_offset(partitions)
    for k in range(partitions):
        place = entry_offset(k)
        if place + ENTRY_BYTES > len(data):
            return  # too short, reported above
        try:
            start, length, crc = parse_entry(
                data[place : place + ENTRY_BYTES],
                k,
                key=key,
                partitions=partitions,
                producers=seal.producers,
            )
        except DurableShuffleError as error:
            yield finding_of(error, key, f"entry of {k}", start=place, length=ENTRY_BYTES)
            next_start = -1
            continue
        if next_start not in (start, -1):
            expected, actual = f"slice of {k} at {next_start}", f"at {start}"
            yield damage(key, expected, actual, place, ENTRY_BYTES)
        next_start = start + length
        if next_start > len(data):
            if len(data) == seal.index_bytes:
                expected, actual = f"slice of {k} below {len(data)}", f"up to {next_start}"
                yield damage(key, expected, actual, place, ENTRY_BYTES)
            continue
        try:
            parse_slice(data[start : start + length], crc, name=key, subpartition=k)
        except DurableShuffleError as error:
            yield finding_of(error, key, f"slice of {k}", start=start, length=length)


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
    stated = replace(seal, index=compact.index, index_bytes=compact.index_bytes)
    findings: list[Finding] = []
    data = read_index(storage, path, stated, findings)
    objects, checked_bytes = int(data is not None), len(data or b"")
    if data is not None:
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
            rows = np.flatnonzero(moved & (numbers == info.number))
            lengths = expected["length"][rows]
            expected["offset"][rows] = np.cumsum(lengths) - lengths
            expected["segment"][rows] = info.number | COMPACTED
            expected["attempt"][rows] = np.frombuffer(bytes.fromhex(compact.record_id), dtype="V16")
    return pack_index(expected, counts, producers=producers, key=key)


def _entries(
    data: bytes, key: str, partitions: int, producers: int
) -> tuple[npt.NDArray[np.void], list[int]]:
    """Return all entries of an intact index, and the number of entries of each subpartition."""
    slices = [np.zeros(0, dtype=INDEX_ENTRY)]
    for k in range(partitions):
        place = entry_offset(k)
        entry = data[place : place + ENTRY_BYTES]
        start, length, crc = parse_entry(
            entry, k, key=key, partitions=partitions, producers=producers
        )
        slices.append(parse_slice(data[start : start + length], crc, name=key, subpartition=k))
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
