"""Compaction of a sealed stage: small extents of many producers, rewritten next to each other.

Strategy: tile by tile, a group of producers by a run of subpartitions, the frames of small extents
are copied as they are into a segment that is ordered as readers read; a new index names them, and
COMPACT in the stage log makes it the one to read by, or nothing does. Frames keep bytes, addresses
and checksums; ordinals, content tags and positions do not change. The originals stay until the
stage is released, since whoever began to read by the old index still reads them.

A compaction is an attempt like any other (`index_rewrite`). It must not decode rows, nor change an
order.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.errors import (
    InvalidInputError,
    NotReadyError,
)
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import COMPACTED
from durable_shuffle.shuffle.log.records import Compact, Replace, SegmentInfo
from durable_shuffle.shuffle.log.stage import StageHandle, read_state, stage_released
from durable_shuffle.shuffle.read.extents import indexed_extent
from durable_shuffle.shuffle.read.group_reader import read_slices
from durable_shuffle.shuffle.read.sealed_reader import fetch
from durable_shuffle.shuffle.seal.index import pack_index
from durable_shuffle.shuffle.seal.index_rewrite import commit_rewrite
from durable_shuffle.shuffle.write.segment_writer import give_back

SMALL_BYTES = 1 << 20
"""An extent up to this length is worth moving: fetching it takes about as long as asking for it."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """What `compact_stage` came to."""

    compact: Compact | None
    """The record that counts; None if there was nothing to gain, or a repair came in between."""
    won: bool
    """True if it is this call's."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One compacted segment to write. It can be pickled, and written by any process, also twice:
    the same tile always gives the same bytes."""

    attempt: str
    number: int
    entries: npt.NDArray[np.void]
    """INDEX_ENTRY items of the extents that move here, in the order in which they will stand."""
    subpartitions: npt.NDArray[np.int64]
    """Of each of them."""


WriteTiles = Callable[[Sequence[Tile]], Iterable[SegmentInfo]]
"""Calls `write_tile` for each, anywhere, and returns what it returned, in order."""


def compact_stage(
    stage: StageHandle,
    *,
    ids: IdSource,
    generation: int,
    settings: Settings,
    small_bytes: int = SMALL_BYTES,
    write_tiles: WriteTiles | None = None,
) -> Compaction:
    """Compact a sealed stage once; later calls return what counts.

    Readers may read meanwhile. Takes the index in memory, and where tiles are written
    `writer_memory_bytes` about twice.

    Args:
        generation: of the driver, for people.
        small_bytes: longest extent that is moved, inclusive.
        write_tiles: default, one after the other in this process.

    Raises:
        NotReadyError: the stage is not sealed.
        NotFoundError: it was released, before or meanwhile.
        AbortedError: a cleaner gave this compaction up; nothing of it counts.
        CorruptDataError: an extent or the index is damaged: nothing is compacted.
        OutcomeUnknownError: the storage did not say whether COMPACT took effect.
    """
    if small_bytes < 1:
        raise InvalidInputError(f"small_bytes must be at least 1, found={small_bytes}")
    state = read_state(stage)
    if state.release is not None:
        raise stage_released(stage, state.release)
    if state.seal is None:
        raise NotReadyError(f"the stage is not sealed yet: {stage.path.prefix!r}")
    if state.compact is not None:
        return Compaction(state.compact, won=False)
    slices = list(read_slices(stage, state.seal, 0, stage.describe.partitions))
    counts = [len(one) for one in slices]
    entries = np.concatenate(slices)
    subpartitions = np.repeat(np.arange(len(counts)), counts)
    del slices
    moved = small_extents(entries, subpartitions, small_bytes)
    if not len(moved):
        return Compaction(None, won=False)
    attempt = ids.new_id()
    rewritten, planned = entries.copy(), list[Tile]()
    for inside in tiles(entries[moved], subpartitions[moved], settings.writer_memory_bytes):
        at, number = moved[inside], len(planned)
        planned.append(Tile(attempt, number, entries[at], subpartitions[at]))
        lengths = entries["length"][at]
        rewritten["offset"][at] = np.cumsum(lengths) - lengths
        rewritten["segment"][at] = number | COMPACTED
        rewritten["attempt"][at] = np.frombuffer(bytes.fromhex(attempt), dtype="V16")
    index_key = stage.path.index_key(attempt)
    written = [stage.path.compacted_key(attempt, tile.number) for tile in planned] + [index_key]
    try:
        if write_tiles is None:
            segments = [write_tile(stage, tile, settings) for tile in planned]
        else:
            segments = list(write_tiles(planned))
        index = pack_index(rewritten, counts, producers=state.seal.producers, key=index_key)
        stage.storage.put(index_key, [index])
    except BaseException:
        give_back(stage.storage, written)  # no COMPACT was sent and none will be
        raise
    record = Compact(
        attempt, generation, state.seal_slot, attempt, len(index), tuple(segments), len(moved)
    )
    found = commit_rewrite(stage, state, record, written)
    if isinstance(found, Replace):
        return Compaction(None, won=False)
    return Compaction(found, won=found is record)


def write_tile(stage: StageHandle, tile: Tile, settings: Settings) -> SegmentInfo:
    """Copy the extents of one tile into its segment, every frame checked.

    Raises:
        CorruptDataError: an extent is damaged; names its segment.
    """
    parts = _copied(stage, tile.entries, tile.subpartitions, settings)
    stage.storage.put(stage.path.compacted_key(tile.attempt, tile.number), parts)
    return _info(tile.number, parts)


def small_extents(
    entries: npt.NDArray[np.void], subpartitions: npt.NDArray[np.int64], small_bytes: int
) -> npt.NDArray[np.int64]:
    """Return which extents are worth moving: small ones that do not stand alone. Pure.

    Args:
        entries: INDEX_ENTRY items in reading order.
        subpartitions: of each of them.
    """
    small = (entries["rows"] > 0) & (entries["length"] <= small_bytes)
    per_subpartition = np.bincount(subpartitions[small], minlength=1)
    alone = np.zeros(len(entries), dtype=bool)
    alone[small] = per_subpartition[subpartitions[small]] < 2
    return np.flatnonzero(small & ~alone)


def group_bytes(data_bytes: int, segments: int, partitions: int, memory_bytes: int) -> float:
    """Return how much of the moved data one group of producers should have. Pure.

    A tile is a group of producers by a run of partitions, and fits into memory. Moving it takes a
    request per segment of the group; reading a partition afterwards takes one per group. Wide
    groups make the first dear, narrow ones the second: with groups of G bytes that is
    segments * G / memory + partitions * data / G requests, least at the root of their ratio.
    """
    if data_bytes <= memory_bytes:
        return float(memory_bytes)
    best = math.sqrt(data_bytes * partitions * memory_bytes / segments)
    return min(max(best, float(memory_bytes)), float(data_bytes))


def tiles(
    entries: npt.NDArray[np.void], subpartitions: npt.NDArray[np.int64], memory_bytes: int
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the extents of each compacted segment, in its order. Pure.

    Args:
        entries: INDEX_ENTRY items that move, in reading order.
        subpartitions: of each of them.
        memory_bytes: no tile has more, unless it is one extent.

    Returns:
        positions in `entries`; each in one tile, within a tile by subpartition, then producer.
    """
    lengths = entries["length"].astype(np.int64)
    of_producer = np.bincount(entries["producer"], weights=lengths)
    segments = len(np.unique(entries[["producer", "segment"]]))
    wide = group_bytes(int(lengths.sum()), segments, len(np.unique(subpartitions)), memory_bytes)
    before = np.cumsum(of_producer) - of_producer
    groups = (before // wide).astype(np.int64)[entries["producer"]]
    order = np.argsort(groups, kind="stable")
    start = size = 0
    for n, at in enumerate(order.tolist()):
        cut = size + lengths[at] > memory_bytes or groups[at] != groups[order[start]]
        if n > start and cut:
            yield order[start:n]
            start, size = n, 0
        size += int(lengths[at])
    if len(order):
        yield order[start:]


def _copied(
    stage: StageHandle,
    entries: npt.NDArray[np.void],
    subpartitions: npt.NDArray[np.int64],
    settings: Settings,
) -> list[bytes]:
    """Return the bytes of the extents, in order, every frame checked.

    They are fetched in the order in which they stand: neighbouring subpartitions of one producer
    are neighbours in its segment, and come by one request.
    """
    order = np.lexsort((entries["offset"], entries["segment"], entries["producer"]))
    found = [b""] * len(entries)
    extents = (indexed_extent(stage.path, int(subpartitions[n]), entries[n]) for n in order)
    ranges = (extent.where for extent in extents)
    for n, (_, data) in zip(order.tolist(), fetch(stage, ranges, settings), strict=True):
        found[n] = bytes(data)
        check_frames(stage, int(subpartitions[n]), entries[n], found[n], settings)
    return found


def check_frames(
    stage: StageHandle, subpartition: int, entry: np.void, data: bytes, settings: Settings
) -> None:
    """Refuse the bytes of an extent unless every frame is intact and at its place.

    Args:
        entry: its INDEX_ENTRY.

    Raises:
        CorruptDataError: also if it has other rows than committed.
    """
    extent, limit = indexed_extent(stage.path, subpartition, entry), settings.max_frame_bytes
    for _ in extent.frames(data, stage.path.incarnation, lambda *_: (), max_body_bytes=limit):
        pass


def _info(number: int, parts: list[bytes]) -> SegmentInfo:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return SegmentInfo(number, sum(map(len, parts)), digest.digest())
