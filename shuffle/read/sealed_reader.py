"""Reading a sealed stage without a consumer identity: many readers, no cursor, no fence.

Strategy: two range reads of the index give the extents of subpartition k, then one range read per
extent, or per run of extents that stand close together. What SEAL names is what is read; no
listing. Rows delivered are reconciled with rows committed, per producer. Missing is an error, never
empty.

Slices of the index stand one after the other, and so do neighbouring subpartitions within a
segment. So `read_group` reads several subpartitions with two range reads of the index and one per
segment, where reading them one by one takes as many for each.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.serialization.arrow_checks import MAX_INFLATED_BYTES
from durable_shuffle.serialization.arrow_codec import decode_frame
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    DurableShuffleError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.serialization.frames import Frame, FrameKind
from durable_shuffle.serialization.msgpack_codec import Pair, unpack_pairs
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.base.side_by_side import ahead
from durable_shuffle.shuffle.log.layout import index_part_key
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.asked_again import data_of
from durable_shuffle.shuffle.read.extents import Extent, indexed_extent
from durable_shuffle.shuffle.seal.index import (
    ENTRY_BYTES,
    MAX_SLICE_BYTES,
    WHOLE_INDEX_BYTES,
    Slice,
    entry_offset,
    name_attempts,
    parse_entry,
    parse_slice,
    slice_follows,
)
from durable_shuffle.shuffle.storage.contract import ByteRange
from durable_shuffle.shuffle.storage.local import is_far
from durable_shuffle.shuffle.storage.range_plan import (
    GROUP_BYTES,
    GROUPS_AT_ONCE,
    PIECE_BYTES,
    JoinedRange,
    grouped,
    join_near,
    read_pieces,
)

Pieces: TypeAlias = Iterable[memoryview]
"""The bytes of a range, in order; to be read before the next range is asked for."""

ReadIndex: TypeAlias = Callable[[ByteRange], memoryview]


def read_extents(stage: StageHandle, seal: Seal, subpartition: int) -> npt.NDArray[np.void]:
    """Return the INDEX_ENTRY items of a subpartition, one or more per producer.

    Raises:
        CorruptDataError: the index is damaged, or a producer has no entry.
        NotFoundError: the index is gone; says so if the stage was released.
    """
    return next(read_slices(stage, seal, subpartition, subpartition + 1))


def read_slices(
    stage: StageHandle, seal: Seal, first: int, end: int
) -> Iterator[npt.NDArray[np.void]]:
    """Yield the checked index entries of each subpartition in [first, end).

    Raises:
        CorruptDataError: the index is damaged, or a producer has no entry.
        NotFoundError: the index is gone; says so if the stage was released.
    """
    name = stage.path.index_key(seal.index)
    read = _index_reader(stage, seal)
    table = read_table(stage, seal, first, end, read)
    places = [ByteRange(index_part_key(name, s.part), s.offset, s.length) for s in table]
    runs = join_near(places, near_bytes=0, run_bytes=MAX_SLICE_BYTES)
    parts = (part for run in runs for _, part in run.parts(read(run.where)))
    for k, part, where in zip(range(first, end), parts, table, strict=True):
        entries = parse_slice(part, where.crc, name=name, subpartition=k, producers=seal.producers)
        expected = stage.producers_of(k, seal.producers)
        if not np.array_equal(np.unique(entries["producer"]), np.asarray(expected)):
            raise CorruptDataError(
                f"the index misses producers: key={name!r} subpartition={k} "
                f"expected={len(expected)} entries={len(entries)}"
            )
        name_attempts(entries, seal)
        yield entries


def read_table(
    stage: StageHandle, seal: Seal, first: int, end: int, read: ReadIndex | None = None
) -> list[Slice]:
    """Return where the slices of subpartitions [first, end) stand: one range read.

    Args:
        read: reads the index, where more of it is read than the table.

    Raises:
        CorruptDataError: the table is damaged.
        NotFoundError: the index is gone; says so if the stage was released.
    """
    partitions = stage.describe.partitions
    if not 0 <= first < end <= partitions:
        raise InvalidInputError(
            f"no such subpartitions: found=[{first}, {end}) partitions={partitions} "
            f"stage={stage.path.prefix!r}"
        )
    name = stage.path.index_key(seal.index)
    where = ByteRange(name, entry_offset(first), ENTRY_BYTES * (end - first))
    data = _read_index(stage, where) if read is None else read(where)
    found: list[Slice] = []
    for n, k in enumerate(range(first, end)):
        entry = parse_entry(
            data[n * ENTRY_BYTES : (n + 1) * ENTRY_BYTES],
            k,
            key=name,
            partitions=partitions,
            producers=seal.producers,
        )
        follows = not found or slice_follows(found[-1], entry)
        if not follows or (not entry.part and entry.offset + entry.length > seal.index_bytes):
            raise CorruptDataError(
                f"an index slice is out of order or ends beyond the index: key={name!r} "
                f"subpartition={k}"
            )
        found.append(entry)
    return found


def read_subpartition(
    stage: StageHandle, seal: Seal, subpartition: int, settings: Settings
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of partition k, all producers in order, each producer's rows in order.

    Raises:
        CorruptDataError: a frame fails its check or rows do not add up; names the segment.
        NotFoundError: a segment is gone; says so if the stage was released.
    """
    extents = group_extents(stage, seal, subpartition, subpartition + 1, settings)
    yield from decoded(stage, extents, settings)


def decoded(
    stage: StageHandle, extents: Iterable[tuple[Extent, Pieces]], settings: Settings
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of extents, checked and counted."""
    for extent, pieces in extents:
        yield from decode_extent(stage, extent, pieces, settings)


def sealed_extents(stage: StageHandle, seal: Seal, first: int, end: int) -> list[Extent]:
    """Return the extents with rows of subpartitions [first, end), by subpartition and producer.

    Raises:
        CorruptDataError, NotFoundError: see `read_slices`.
    """
    return [
        indexed_extent(stage.path, k, entry)
        for k, entries in enumerate(read_slices(stage, seal, first, end), start=first)
        for entry in entries[entries["rows"] > 0]
    ]


def fetch_extents(
    stage: StageHandle, extents: Sequence[Extent], settings: Settings
) -> Iterator[tuple[Extent, Pieces]]:
    """Yield the extents, each with its bytes; see `fetch`."""
    ranges = fetch(stage, [extent.where for extent in extents], settings)
    for extent, (_, pieces) in zip(extents, ranges, strict=True):
        yield extent, pieces


def fetch(
    stage: StageHandle, ranges: Iterable[ByteRange], settings: Settings
) -> Iterator[tuple[ByteRange, Pieces]]:
    """Yield each range with its bytes, in order; hold about `writer_memory_bytes` at a time.

    A longer range comes in several pieces, each fetched when it is asked for. Where requests take
    long, the next ranges are on their way while the caller uses these.

    Raises:
        NotFoundError: a segment is gone; says so if the stage was released.
    """
    storage, far = data_of(stage), is_far(stage.storage)
    most = settings.writer_memory_bytes
    longest = max(most, PIECE_BYTES)
    groups = grouped(join_near(ranges), most_bytes=min(most, GROUP_BYTES) if far else most)

    def fetched(group: Sequence[JoinedRange]) -> tuple[Sequence[JoinedRange], list[memoryview]]:
        alone = group[0].where.length > longest  # such a range is alone in its group
        return group, [] if alone else storage.read_ranges([run.where for run in group])

    calls = ((sum(run.where.length for run in g), partial(fetched, g)) for g in groups)
    found = ahead(calls, most_bytes=most, at_once=GROUPS_AT_ONCE)
    for group, buffers in found if far else (call() for _, call in calls):
        where = group[0].where
        if not buffers:
            yield where, read_pieces(storage, where, longest)
            continue
        for n, run in enumerate(group):
            data, buffers[n] = buffers[n], memoryview(b"")  # nothing read is kept
            for inside, part in run.parts(data):
                yield inside, (part,)
                del part
            del data


def _index_reader(stage: StageHandle, seal: Seal) -> ReadIndex:
    """Return what reads ranges of the index: a small one is fetched whole, in one round trip."""
    name = stage.path.index_key(seal.index)
    if seal.index_bytes > WHOLE_INDEX_BYTES:
        return lambda where: _read_index(stage, where)
    whole = _small_index(stage, seal)

    def read(where: ByteRange) -> memoryview:
        end = where.start + where.length
        if where.key == name and end <= len(whole):
            return whole[where.start : end]
        return _read_index(stage, where)

    return read


def small_index(
    stage: StageHandle, seal: Seal | None, written: tuple[str, bytes] = ("", b"")
) -> tuple[str, bytes] | None:
    """Return what `StageHandle.index` holds, so that tasks need not read the index.

    None if the index is large, cannot be read (the tasks meet the damage and note it), or stands in
    a folder, where the read costs nothing.

    Args:
        written: id and content of an index that the caller has just written.
    """
    if seal is None or not is_far(stage.storage) or seal.index_bytes > WHOLE_INDEX_BYTES:
        return None
    if written[1] and written[0] == seal.index:
        return stage.path.index_key(seal.index), written[1]
    try:
        return stage.path.index_key(seal.index), bytes(_small_index(stage, seal))
    except DurableShuffleError:
        return None


def _small_index(stage: StageHandle, seal: Seal) -> memoryview:
    return _read_index(stage, ByteRange(stage.path.index_key(seal.index), 0, seal.index_bytes))


def _read_index(stage: StageHandle, where: ByteRange) -> memoryview:
    name, held = stage.index or ("", b"")
    end = where.start + where.length
    if where.key == name and end <= len(held):
        return memoryview(held)[where.start : end]
    return data_of(stage).read_range(where.key, where.start, where.length)


def decode_extent(
    stage: StageHandle, extent: Extent, pieces: Pieces, settings: Settings
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one extent, checked and counted."""

    def batch_of(frame: Frame, begin: int, _before: int) -> tuple[pa.RecordBatch]:
        check = settings.check_offsets
        return (decode_frame(frame, stage.schema, position=begin, check_offsets=check),)

    limit = settings.max_frame_bytes
    return extent.frames(pieces, stage.path.incarnation, batch_of, max_body_bytes=limit)


def join_small(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Join neighbouring batches until they hold at least `rows` rows; order and rows unchanged.

    Fewer if they are large: at most MAX_INFLATED_BYTES and one batch are held.
    """
    held: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        size += batch.nbytes
        if count >= rows or size >= MAX_INFLATED_BYTES:
            yield held[0] if len(held) == 1 else pa.concat_batches(held)
            held, count, size = [], 0, 0
    if held:
        yield held[0] if len(held) == 1 else pa.concat_batches(held)


def read_pairs(
    stage: StageHandle, seal: Seal, subpartition: int, settings: Settings
) -> Iterator[Pair]:
    """Yield the pairs of partition k, all producers in order, each producer's pairs in order.

    Holds about `writer_memory_bytes` at a time.

    Raises:
        CorruptDataError: a frame fails its check or pairs do not add up; names the segment.
        NotFoundError: a segment is gone; says so if the stage was released.
    """
    incarnation, limit = stage.path.incarnation, settings.max_frame_bytes
    extents = sealed_extents(stage, seal, subpartition, subpartition + 1)
    for extent, pieces in fetch_extents(stage, extents, settings):
        yield from extent.frames(pieces, incarnation, _pairs, max_body_bytes=limit)


def _pairs(frame: Frame, _begin: int, _before: int) -> Iterable[Pair]:
    if frame.kind is not FrameKind.MSGPACK:
        raise IncompatibleError(f"frame of kind {frame.kind.name} in an object stage")
    return unpack_pairs(frame.body, frame.rows)


def subpartition_bytes(stage: StageHandle, seal: Seal) -> npt.NDArray[np.int64]:
    """Return the encoded bytes of every subpartition, over all producers: their true sizes."""
    table = read_table(stage, seal, 0, stage.describe.partitions)
    return np.array([entry.data_bytes for entry in table], dtype=np.int64)


def read_group(
    stage: StageHandle, seal: Seal, first: int, end: int, settings: Settings
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of subpartitions [first, end): by producer, then by subpartition, in order.

    The order is the same before and after a compaction. Holds about `writer_memory_bytes`.

    Raises:
        CorruptDataError: a frame fails its check or rows do not add up; names the segment.
        NotFoundError: a segment is gone; says so if the stage was released.
    """
    yield from decoded(stage, group_extents(stage, seal, first, end, settings), settings)


def group_extents(
    stage: StageHandle,
    seal: Seal,
    first: int,
    end: int,
    settings: Settings,
    part: slice | None = None,
) -> Iterator[tuple[Extent, Pieces]]:
    """Yield the extents of subpartitions [first, end) with their bytes, in `read_group`'s order.

    Args:
        part: only this run of the extents.

    Raises:
        CorruptDataError, NotFoundError: see `read_slices`.
    """
    extents = ordered_extents(stage, seal, first, end)[part or slice(None)]
    ranges = [extent.where for extent in extents]
    for extent, (_, pieces) in zip(extents, _in_order(stage, ranges, settings), strict=True):
        yield extent, pieces


def ordered_extents(stage: StageHandle, seal: Seal, first: int, end: int) -> list[Extent]:
    """Return the extents of subpartitions [first, end) in `read_group`'s order.

    Raises:
        CorruptDataError, NotFoundError: see `read_slices`.
    """
    extents = sealed_extents(stage, seal, first, end)
    extents.sort(key=lambda e: (e.producer, e.subpartition, e.first_ordinal))
    return extents


def _in_order(
    stage: StageHandle, ranges: list[ByteRange], settings: Settings
) -> Iterator[tuple[ByteRange, Pieces]]:
    """Yield each range with its bytes, in the given order.

    Ranges are fetched in the order in which they are stored if that takes fewer requests and all of
    them fit into `writer_memory_bytes`.
    """
    standing = sorted(ranges, key=lambda where: (where.key, where.start))
    fits = sum(where.length for where in ranges) <= settings.writer_memory_bytes
    if not fits or len(list(join_near(standing))) == len(list(join_near(ranges))):
        yield from fetch(stage, ranges, settings)
        return
    if twice := [a for a, b in pairwise(standing) if a == b]:
        raise CorruptDataError(f"an index names the same bytes twice: {twice[0]}; run verify")
    found = dict(fetch(stage, standing, settings))
    for where in ranges:
        yield where, found.pop(where)
