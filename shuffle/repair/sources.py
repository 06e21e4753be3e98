"""Find the bytes of damaged segments among all copies that a stage's logs name.

It reads and checks; it must not write, and trusts no copy whose frames or digest do not fit.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from durable_shuffle.serialization.errors import CorruptDataError, NotFoundError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import COMPACTED
from durable_shuffle.shuffle.log.records import Commit, Compact, Seal, SegmentInfo
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.extents import indexed_extent
from durable_shuffle.shuffle.read.sealed_reader import fetch, read_slices
from durable_shuffle.shuffle.repair.compaction import check_frames
from durable_shuffle.shuffle.seal.index import INDEX_ENTRY
from durable_shuffle.shuffle.storage.contract import MAX_WHOLE_BYTES, ByteRange
from durable_shuffle.shuffle.storage.range_plan import PIECE_BYTES, read_pieces
from durable_shuffle.shuffle.verify.segment import StoredBytes


class RepairSources:
    """Finds the bytes of damaged segments among all copies that the logs name.

    A segment is restored byte for byte or not at all. First it is tried whole, from the segment
    itself or from one with the same SHA-256 in another COMMIT of the producer. Otherwise it is
    built from intact extents of the segment and of compactions, whose frames are copies. Every
    frame is checked piece by piece, and in the end the SHA-256 that the COMMIT states.

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
        self._moved: dict[tuple[int, int, int], list[np.void]] = defaultdict(list)
        """(producer, subpartition, first ordinal) -> INDEX_ENTRY items of compacted copies."""
        wanted = sorted(producers)
        for compact in compactions:
            by = replace(seal, index=compact.index, index_bytes=compact.index_bytes)
            with suppress(CorruptDataError, NotFoundError):  # a damaged index names no copies
                for k, entries in enumerate(read_slices(stage, by, 0, stage.describe.partitions)):
                    ours = np.isin(entries["producer"], wanted)
                    for entry in entries[ours & ((entries["segment"] & COMPACTED) != 0)]:
                        place = int(entry["producer"]), k, int(entry["first_ordinal"])
                        self._moved[place].append(entry)

    def segment(self, commit: Commit, info: SegmentInfo, others: Sequence[Commit]) -> bytes | None:
        """Return the bytes of one segment of a COMMIT; None if they cannot be restored.

        Args:
            others: other COMMITs of the same producer.
        """
        if info.length > MAX_WHOLE_BYTES:
            return None  # too long to be held; its producer runs again
        holders = [commit, *(other for other in others if info in other.segments)]
        for holder in holders:
            if self._digest(key := self._key(holder, info), info.length) == info.sha256:
                return self._bytes([ByteRange(key, 0, info.length)], info)
        intact = list[ByteRange]()
        for where in self._intact_places(commit, info):
            if where is None:
                return None
            intact.append(where)
        return self._bytes(intact, info)

    def intact(self, commit: Commit) -> bool:
        """Return whether every segment of a COMMIT has the bytes that it states."""
        return all(
            self._digest(self._key(commit, info), info.length, whole=True) == info.sha256
            for info in commit.segments
        )

    def _intact_places(self, commit: Commit, info: SegmentInfo) -> Iterator[ByteRange | None]:
        """Yield where each extent is intact, in the segment's order; None if no copy of it is."""
        key = self._key(commit, info)
        own: StoredBytes | None = None
        with suppress(CorruptDataError, NotFoundError):
            own = StoredBytes(self._stage.storage, key, info.length)
        extents = commit.extent_array()
        extents = extents[(extents["segment"] == info.number) & (extents["length"] > 0)]
        for extent in extents[np.argsort(extents["offset"], kind="stable")]:
            entry = np.zeros(1, INDEX_ENTRY)[0]
            for name in ("segment", "offset", "length", "first_ordinal", "rows"):
                entry[name] = extent[name]
            entry["producer"] = commit.producer
            start, length = int(extent["offset"]), int(extent["length"])
            k = int(extent["subpartition"])
            if own is not None and self._good(k, entry, own.pieces(start, start + length)):
                yield ByteRange(key, start, length)
            else:
                yield self._copy(k, entry)

    def _copy(self, k: int, entry: np.void) -> ByteRange | None:
        place = int(entry["producer"]), k, int(entry["first_ordinal"])
        for moved in self._moved.get(place, ()):
            where = indexed_extent(self._stage.path, k, moved).where
            pieces = read_pieces(self._stage.storage, where, PIECE_BYTES)
            if where.length == int(entry["length"]) and self._good(k, entry, pieces):
                return where
        return None

    def _good(self, k: int, entry: np.void, pieces: Iterable[memoryview]) -> bool:
        try:
            check_frames(self._stage, k, entry, pieces, self._settings)
        except (CorruptDataError, NotFoundError):
            return False
        return True

    def _digest(self, key: str, length: int, *, whole: bool = False) -> bytes | None:
        """Return the SHA-256 of the first `length` bytes of an object; None if they are not there.

        Args:
            whole: None, too, if the object is longer.
        """
        try:
            data = StoredBytes(self._stage.storage, key, length)
            if len(data) != length or (whole and data.goes_on()):
                return None
            return data.digest()
        except (CorruptDataError, NotFoundError):
            return None

    def _bytes(self, places: list[ByteRange], info: SegmentInfo) -> bytes | None:
        """Return the bytes of the ranges joined; None if they are not the segment's."""
        try:
            fetched = fetch(self._stage, places, self._settings)
            data = b"".join(piece for _, pieces in fetched for piece in pieces)
        except (CorruptDataError, NotFoundError):
            return None
        return data if hashlib.sha256(data).digest() == info.sha256 else None

    def _key(self, commit: Commit, info: SegmentInfo) -> str:
        return self._stage.path.segment_key(commit.producer, commit.record_id, info.number)
