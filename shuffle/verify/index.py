"""Check that COMMITs and the index agree with each other and with SEAL.

A COMMIT states where every record of a producer is stored. In each subpartition its extents must
number the records from 0 without a gap. Together they must cover each segment from its first byte
to its last. The COMMITs determine the index byte for byte. So no byte is left unchecked.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.errors import CorruptDataError, DurableShuffleError
from durable_shuffle.shuffle.log.layout import StagePath, index_part_key
from durable_shuffle.shuffle.log.records import Commit, Seal
from durable_shuffle.shuffle.seal.index import (
    ENTRY_BYTES,
    HEADER_BYTES,
    MAX_SLICE_BYTES,
    PART_BYTES,
    IndexWriter,
    Slice,
    entry_offset,
    parse_entry,
    parse_header,
    parse_slice,
    slice_follows,
)
from durable_shuffle.shuffle.storage.contract import MOST_BYTES, Storage
from durable_shuffle.shuffle.verify.report import Finding, damage, finding_of


class StoredIndex(Mapping[str, bytes]):
    """The objects of the index that `seal` names, by key: the index object, then its parts.

    Parts are read when they are asked for, and only the last one is held. What cannot be read is
    left out, with one finding.

    Args:
        partitions: R; None if DESCRIBE could not be read, then the header's R is used.
        findings: receives what cannot be read.
    """

    def __init__(
        self,
        storage: Storage,
        path: StagePath,
        seal: Seal,
        partitions: int | None,
        findings: list[Finding],
    ) -> None:
        self._storage, self._findings = storage, findings
        self.key = path.index_key(seal.index)
        self.sizes: dict[str, int] = {}
        """Bytes of each object that was read."""
        self._failed: set[str] = set()
        self._held = "", b""
        most, expected = max(seal.index_bytes, MOST_BYTES), f"an index of {seal.index_bytes} bytes"
        self._head = self._read(self.key, most, expected)
        table = _table(self.key, self._head, seal, _partitions(self.key, self._head, partitions))
        parts = sorted({s.part for _, s in table if isinstance(s, Slice)} - {0})
        self._parts = dict.fromkeys(index_part_key(self.key, part) for part in parts)

    def _read(self, key: str, most_bytes: int, expected: str) -> bytes:
        try:
            data = self._storage.read(key, most_bytes)
        except DurableShuffleError as error:
            self._failed.add(key)
            self._findings.append(finding_of(error, key, expected))
            return b""
        self.sizes[key] = len(data)
        return data

    def __getitem__(self, key: str) -> bytes:
        if key not in self._failed and key == self.key:
            return self._head
        if key in self._parts and key not in self._failed and key != self._held[0]:
            self._held = "", b""  # let go before the next one comes
            most = PART_BYTES + MAX_SLICE_BYTES
            self._held = key, self._read(key, most, "a part of the index")
        if key in self._failed or key != self._held[0]:
            raise KeyError(key)
        return self._held[1]

    def __iter__(self) -> Iterator[str]:
        return (key for key in (self.key, *self._parts) if key not in self._failed)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def check_index(
    key: str, objects: Mapping[str, bytes], seal: Seal, *, partitions: int | None
) -> Iterator[Finding]:
    """Yield what is wrong with the objects of the index `key`, of those that can be read.

    Args:
        partitions: R; None if DESCRIBE could not be read, then the header's R is used.
    """
    partitions = _partitions(key, objects[key], partitions)
    yield from _check_header(key, objects[key], seal, partitions)
    yield from _check_slices(key, objects, seal, partitions)


def compare_index(
    key: str,
    objects: Mapping[str, bytes],
    slices: Iterable[npt.NDArray[np.void]],
    attempts: bytes,
    *,
    partitions: int,
) -> list[Finding]:
    """Return where an index is not the one of these slices, byte for byte. Holds two parts of it.

    Args:
        slices: the INDEX_ENTRY items of each subpartition.
        attempts: 16 bytes per producer, as in SEAL.
        partitions: R.
    """
    findings, same = list[Finding](), "the index of the commits that SEAL names"

    def put(name: str, parts: list[bytes]) -> None:
        ours, other = objects.get(name), b"".join(parts)
        if ours is None:
            findings.append(damage(name, same, "no such object"))
        elif ours != other:
            findings.append(damage(name, same, "another index", *_difference(ours, other)))

    writer = IndexWriter(put, key, partitions=partitions, producers=len(attempts) // 16)
    for entries in slices:
        writer.add(entries)
    writer.finish(attempts)
    extra = [name for name in objects if name not in writer.written]
    return findings + [damage(name, same, "another index") for name in extra]


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
    part = end = 0
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
        if found.part < part:
            continue  # out of order, a finding already: no part is read twice for it
        if found.part > part:
            yield from _check_end(key, objects, part, end)
        part, end = found.part, found.offset + found.length
        yield from _check_slice(key, objects, seal, k, found)
    yield from _check_end(key, objects, part, end)


def _check_end(key: str, objects: Mapping[str, bytes], part: int, end: int) -> Iterator[Finding]:
    """Check that a part ends where its last slice does."""
    name = index_part_key(key, part)
    if part and (data := objects.get(name)) is not None:
        yield from _check_length(name, data, end)


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
