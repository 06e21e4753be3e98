"""Compact a sealed stage: rewrite small extents of many producers next to each other.

Strategy: work in tiles. A tile is a group of producers by a run of subpartitions. The frames of its
small extents are copied unchanged into one segment, in the order in which readers read. A new index
names the copies. Only COMPACT in the stage log makes readers use that index; without COMPACT
nothing changes. Frames keep their bytes, ordinals and checksums; content tags and positions do not
change. The originals stay until the stage is released, because a reader that began with the old
index still reads them.

A compaction is an attempt like any other (`seal/rewrite.py`). It must not decode rows or change
their order.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.checksum import Bytes
from durable_shuffle.serialization.errors import InvalidInputError, NotReadyError
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import COMPACTED
from durable_shuffle.shuffle.log.records import PASSTHROUGH, Compact, Replace, Seal, SegmentInfo
from durable_shuffle.shuffle.log.stage import StageHandle, live_state
from durable_shuffle.shuffle.read.extents import indexed_extent
from durable_shuffle.shuffle.read.sealed_reader import fetch, read_slices
from durable_shuffle.shuffle.seal.index import IndexWriter
from durable_shuffle.shuffle.seal.rewrite import commit_rewrite
from durable_shuffle.shuffle.storage.contract import backend_of
from durable_shuffle.shuffle.storage.fsspec_backend import FsspecStorage
from durable_shuffle.shuffle.storage.obstore_backend import ObstoreStorage
from durable_shuffle.shuffle.write.segments import give_back

SMALL_BYTES = 1 << 20
"""The longest extent that is worth moving: transferring it takes about as long as its request."""

AT_SEAL_BYTES = 128 << 10
AT_SEAL_MEAN_BYTES = 64 << 10
AT_SEAL_PRODUCERS = 32
"""A stage is compacted when it is sealed, unless told otherwise, if its extents are this short on
average and a partition has so many. One read of the whole stage then pays for it on an object
store, as measured (docs/benchmarks.md)."""

RUN_EXTENTS = 1 << 20
"""Extents whose tiles are planned at a time: about 250 bytes of memory for each."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of `compact_stage`."""

    compact: Compact | None
    """The record that counts; None if there was nothing to gain, or a repair came first."""
    won: bool
    """Whether this call wrote that record."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One compacted segment to write.

    It can be pickled, and any process may write it, also more than once: the same tile always gives
    the same bytes.
    """

    attempt: str
    number: int
    entries: npt.NDArray[np.void]
    """INDEX_ENTRY items of the extents to copy, in the order of the new segment."""
    subpartitions: npt.NDArray[np.int64]
    """The subpartition of each entry."""


WriteTiles = Callable[[Sequence[Tile]], Iterable[SegmentInfo]]
"""Calls `write_tile` for each tile, in any process, and returns the results in order."""


def compact_stage(
    stage: StageHandle,
    *,
    ids: IdSource,
    generation: int,
    settings: Settings,
    small_bytes: int = SMALL_BYTES,
    write_tiles: WriteTiles | None = None,
) -> Compaction:
    """Compact a sealed stage once; later calls return the record that counts.

    Readers may read meanwhile. Needs memory for RUN_EXTENTS extents and, in each process that
    writes tiles, for about twice `writer_memory_bytes`.

    Args:
        generation: the driver's, for people only.
        small_bytes: the longest extent that is moved, inclusive.
        write_tiles: called once per RUN_EXTENTS extents. By default, the tiles are written one
            after the other in this process.

    Raises:
        InvalidInputError: `small_bytes` is below 1.
        NotReadyError: the stage is not sealed.
        NotFoundError: the stage was released, before or meanwhile.
        AbortedError: a cleaner aborted this compaction; nothing of it counts.
        CorruptDataError: an extent or the index is damaged; nothing is compacted.
        OutcomeUnknownError: the storage did not say whether COMPACT took effect.
    """
    if small_bytes < 1:
        raise InvalidInputError(f"small_bytes must be at least 1, found={small_bytes}")
    state = live_state(stage)
    if state.seal is None:
        raise NotReadyError(f"the stage is not sealed yet: {stage.path.prefix!r}")
    if state.compact is not None:
        return Compaction(state.compact, won=False)
    attempt, path = ids.new_id(), stage.path
    writer = IndexWriter(
        stage.storage.put,
        path.index_key(attempt),
        partitions=stage.describe.partitions,
        producers=state.seal.producers,
    )
    segments, written, extents = list[SegmentInfo](), list[str](), 0
    try:
        for first, run in _runs(read_slices(stage, state.seal, 0, stage.describe.partitions)):
            planned, rewritten = _plan(first, run, attempt, len(segments), small_bytes, settings)
            written += [path.compacted_key(attempt, tile.number) for tile in planned]
            extents += sum(len(tile.entries) for tile in planned)
            if write_tiles is None:
                segments += [write_tile(stage, tile, settings) for tile in planned]
            elif planned:
                segments += write_tiles(planned)
            for entries in rewritten:
                writer.add(entries)
        if not segments:
            give_back(stage.storage, writer.written)
            return Compaction(None, won=False)
        index_bytes = writer.finish(state.seal.attempts)
    except BaseException:
        give_back(stage.storage, [*written, *writer.written])  # COMPACT will not be sent
        raise
    record = Compact(
        attempt, generation, state.seal_slot, attempt, index_bytes, tuple(segments), extents
    )
    written += writer.written
    counted = commit_rewrite(stage, state, record, written)
    if isinstance(counted, Replace):
        return Compaction(None, won=False)
    return Compaction(counted, won=counted is record)


Slices = list[npt.NDArray[np.void]]


def _runs(slices: Iterable[npt.NDArray[np.void]]) -> Iterator[tuple[int, Slices]]:
    """Yield (first subpartition, slices) of neighbours with about RUN_EXTENTS entries in all."""
    first, run, size = 0, Slices(), 0
    for entries in slices:
        run.append(entries)
        size += len(entries)
        if size >= RUN_EXTENTS:
            yield first, run
            first, run, size = first + len(run), [], 0
    if run:
        yield first, run


def _plan(
    first: int, run: Slices, attempt: str, number: int, small_bytes: int, settings: Settings
) -> tuple[list[Tile], Slices]:
    """Return the tiles of a run of subpartitions, numbered from `number`, and the new slices."""
    counts = [len(entries) for entries in run]
    entries = np.concatenate(run)
    subpartitions = np.repeat(np.arange(first, first + len(run)), counts)
    moved = small_extents(entries, subpartitions, small_bytes)
    rewritten, planned = entries.copy(), list[Tile]()
    for inside in tiles(entries[moved], subpartitions[moved], settings.writer_memory_bytes):
        positions, tile = moved[inside], number + len(planned)
        planned.append(Tile(attempt, tile, entries[positions], subpartitions[positions]))
        lengths = entries["length"][positions]
        rewritten["offset"][positions] = np.cumsum(lengths) - lengths
        rewritten["segment"][positions] = tile | COMPACTED
    return planned, np.split(rewritten, np.cumsum(counts)[:-1])


def bytes_to_compact_at_seal(stage: StageHandle, seal: Seal, settings: Settings) -> int:
    """Return the longest extent to rewrite now that the stage is sealed; 0 for none. Pure."""
    if settings.compact_small_bytes is not None:
        return settings.compact_small_bytes
    extents = seal.producers * stage.describe.partitions
    pays = (
        isinstance(backend_of(stage.storage), FsspecStorage | ObstoreStorage)
        and stage.describe.partitioner != PASSTHROUGH
        and seal.producers >= AT_SEAL_PRODUCERS
        and 0 < seal.data_bytes <= AT_SEAL_MEAN_BYTES * extents
    )
    return AT_SEAL_BYTES if pays else 0


def write_tile(stage: StageHandle, tile: Tile, settings: Settings) -> SegmentInfo:
    """Copy the extents of one tile into its segment and check every frame.

    Raises:
        CorruptDataError: an extent is damaged; the message names its segment.
    """
    parts = _copied(stage, tile.entries, tile.subpartitions, settings)
    stage.storage.put(stage.path.compacted_key(tile.attempt, tile.number), parts)
    return _info(tile.number, parts)


def small_extents(
    entries: npt.NDArray[np.void], subpartitions: npt.NDArray[np.int64], small_bytes: int
) -> npt.NDArray[np.int64]:
    """Return the positions of the extents that are worth moving. Pure.

    Those are small extents in subpartitions that have at least two of them.

    Args:
        entries: INDEX_ENTRY items in reading order.
        subpartitions: the subpartition of each entry.
        small_bytes: the longest small extent, inclusive.
    """
    small = (entries["rows"] > 0) & (entries["length"] <= small_bytes)
    per_subpartition = np.bincount(subpartitions[small], minlength=1)
    alone = np.zeros(len(entries), dtype=bool)
    alone[small] = per_subpartition[subpartitions[small]] < 2
    return np.flatnonzero(small & ~alone)


def group_bytes(data_bytes: int, segments: int, partitions: int, memory_bytes: int) -> float:
    """Return how many of the moved bytes one group of producers should have. Pure.

    A tile is a group of producers by a run of partitions, and it fits into memory. Writing a tile
    takes one request per segment of the group. Reading a partition later takes one request per
    group. With groups of G bytes these are `segments * G / memory + partitions * data / G` requests
    in all. The sum is smallest at `G = sqrt(data * partitions * memory / segments)`.
    """
    if data_bytes <= memory_bytes:
        return float(memory_bytes)
    best = math.sqrt(data_bytes * partitions * memory_bytes / segments)
    return min(max(best, float(memory_bytes)), float(data_bytes))


def tiles(
    entries: npt.NDArray[np.void], subpartitions: npt.NDArray[np.int64], memory_bytes: int
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield, for each tile, the positions of its extents in `entries`. Pure.

    Each extent is in exactly one tile. Within a tile they are ordered by subpartition, then by
    producer.

    Args:
        entries: INDEX_ENTRY items that move, in reading order.
        subpartitions: the subpartition of each entry.
        memory_bytes: most bytes of a tile, unless the tile is a single extent.
    """
    lengths = entries["length"].astype(np.int64)
    of_producer = np.bincount(entries["producer"], weights=lengths)
    segments = len(np.unique(entries[["producer", "segment"]]))
    wide = group_bytes(int(lengths.sum()), segments, len(np.unique(subpartitions)), memory_bytes)
    before = np.cumsum(of_producer) - of_producer
    groups = (before // wide).astype(np.int64)[entries["producer"]]
    order = np.argsort(groups, kind="stable")
    start = size = 0
    for n, position in enumerate(order.tolist()):
        cut = size + lengths[position] > memory_bytes or groups[position] != groups[order[start]]
        if n > start and cut:
            yield order[start:n]
            start, size = n, 0
        size += int(lengths[position])
    if len(order):
        yield order[start:]


def _copied(
    stage: StageHandle,
    entries: npt.NDArray[np.void],
    subpartitions: npt.NDArray[np.int64],
    settings: Settings,
) -> list[bytes]:
    """Return the bytes of the extents, in order, after checking every frame.

    They are fetched in the order in which they are stored: adjacent subpartitions of one producer
    are adjacent in its segment, so that one request fetches several of them.
    """
    order = np.lexsort((entries["offset"], entries["segment"], entries["producer"]))
    parts = [b""] * len(entries)
    extents = (indexed_extent(stage.path, int(subpartitions[n]), entries[n]) for n in order)
    ranges = (extent.where for extent in extents)
    for n, (_, pieces) in zip(order.tolist(), fetch(stage, ranges, settings), strict=True):
        parts[n] = b"".join(pieces)
        check_frames(stage, int(subpartitions[n]), entries[n], [parts[n]], settings)
    return parts


def check_frames(
    stage: StageHandle,
    subpartition: int,
    entry: np.void,
    pieces: Iterable[Bytes],
    settings: Settings,
) -> None:
    """Check that every frame of an extent is intact and in its place.

    Args:
        entry: the extent's INDEX_ENTRY.
        pieces: the extent's bytes.

    Raises:
        CorruptDataError: a frame is damaged, or the number of rows is not the committed one.
    """
    extent, limit = indexed_extent(stage.path, subpartition, entry), settings.max_frame_bytes
    for _ in extent.frames(pieces, stage.path.incarnation, lambda *_: (), max_body_bytes=limit):
        pass


def _info(number: int, parts: list[bytes]) -> SegmentInfo:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return SegmentInfo(number, sum(map(len, parts)), digest.digest())
