"""Find intact copies of a damaged segment's bytes among all copies that the logs name.

Strategy: restore a segment byte for byte or not at all. First try it whole, from the segment itself
or from a segment with the same SHA-256 in another COMMIT of the producer. Otherwise build it extent
by extent, from the intact extents of the segment and from compactions, whose frames are copies.
Every frame is checked, and in the end the SHA-256 that the COMMIT states. It must not trust a
listing or change a byte.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from durable_shuffle.serialization.errors import CorruptDataError, NotFoundError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import COMPACTED
from durable_shuffle.shuffle.log.records import Commit, Compact, Seal, SegmentInfo
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.extents import indexed_extent
from durable_shuffle.shuffle.read.group_reader import read_slices
from durable_shuffle.shuffle.repair.compaction import check_frames
from durable_shuffle.shuffle.seal.index import INDEX_ENTRY

Moved = dict[tuple[int, int, int], list[np.void]]
"""(producer, subpartition, first ordinal) -> INDEX_ENTRY items of its compacted copies."""


class RepairSources:
    """Finds the bytes of damaged segments.

    Args:
        seal: the SEAL that counts, for M.
        compactions: all COMPACT records that count or counted before.
        producers: the producers whose segments will be asked for.
    """

    def __init__(
        self,
        stage: StageHandle,
        seal: Seal,
        compactions: Iterable[Compact],
        producers: frozenset[int],
        settings: Settings,
    ) -> None:
        self._stage, self._settings = stage, settings
        self._moved: Moved = {}
        for compact in compactions:
            by = replace(seal, index=compact.index, index_bytes=compact.index_bytes)
            self._take_in(by, producers)

    def segment(self, commit: Commit, info: SegmentInfo, others: Sequence[Commit]) -> bytes | None:
        """Return the bytes of one segment of a COMMIT; None if they cannot be restored.

        Args:
            others: other COMMITs of the same producer.
        """
        own = self._read(commit, info)
        if own is not None and _is(own[: info.length], info):
            return own[: info.length]
        for other in others:
            for same in other.segments:
                if same == info and (data := self._read(other, info)) and _is(data, info):
                    return data
        parts = list(self._extents(commit, info, own or b""))
        if None in parts:
            return None
        whole = b"".join(part for part in parts if part is not None)
        return whole if _is(whole, info) else None

    def intact(self, commit: Commit) -> bool:
        """Return whether every segment of a COMMIT has the bytes that it states."""
        return all((data := self._read(commit, s)) and _is(data, s) for s in commit.segments)

    def _take_in(self, seal: Seal, producers: frozenset[int]) -> None:
        try:
            slices = read_slices(self._stage, seal, 0, self._stage.describe.partitions)
            for k, entries in enumerate(slices):
                for entry in entries[(entries["segment"] & COMPACTED) != 0]:
                    producer = int(entry["producer"])
                    if producer in producers:
                        place = producer, k, int(entry["first_ordinal"])
                        self._moved.setdefault(place, []).append(entry)
        except (CorruptDataError, NotFoundError):
            return  # this compaction is damaged; entries taken so far are checked when used

    def _extents(self, commit: Commit, info: SegmentInfo, own: bytes) -> Iterator[bytes | None]:
        """Yield the bytes of each extent, in the segment's order; None if no copy is intact."""
        extents = commit.extent_array()
        extents = extents[(extents["segment"] == info.number) & (extents["length"] > 0)]
        for extent in extents[np.argsort(extents["offset"], kind="stable")]:
            entry = np.zeros(1, INDEX_ENTRY)[0]
            for name in ("segment", "offset", "length", "first_ordinal", "rows"):
                entry[name] = extent[name]
            entry["producer"] = commit.producer
            start, k = int(extent["offset"]), int(extent["subpartition"])
            data: bytes | None = own[start : start + int(extent["length"])]
            if not self._good(k, entry, data):
                data = self._copy(k, entry)
            yield data

    def _copy(self, k: int, entry: np.void) -> bytes | None:
        place = int(entry["producer"]), k, int(entry["first_ordinal"])
        for moved in self._moved.get(place, ()):
            where = indexed_extent(self._stage.path, k, moved).where
            try:
                found = self._stage.storage.read_range(where.key, where.start, where.length)
            except (CorruptDataError, NotFoundError):
                continue
            if self._good(k, entry, bytes(found)):
                return bytes(found)
        return None

    def _good(self, k: int, entry: np.void, data: bytes | None) -> bool:
        if data is None or len(data) != int(entry["length"]):
            return False
        try:
            check_frames(self._stage, k, entry, data, self._settings)
        except CorruptDataError:
            return False
        return True

    def _read(self, commit: Commit, info: SegmentInfo) -> bytes | None:
        key = self._stage.path.segment_key(commit.producer, commit.record_id, info.number)
        try:
            return self._stage.storage.read(key, info.length)
        except (CorruptDataError, NotFoundError):
            return None


def _is(data: bytes, info: SegmentInfo) -> bool:
    return len(data) == info.length and hashlib.sha256(data).digest() == info.sha256
