"""One flush of a producer: gathered batches to one segment.

Strategy: stable counting sort by partition id, one `take`, slices per subpartition, each slice cut
into frames of about `frame_bytes`; a row over the limit of a frame continues in the next ones. The
whole segment is built in memory and written as one object,
so a segment is either complete or absent. Bounds: a segment holds what `writer_memory_bytes` of
Arrow data encodes to.
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.serialization.arrow_checks import MAX_INFLATED_BYTES, full_bytes
from durable_shuffle.serialization.arrow_codec import arrow_of, iter_slices
from durable_shuffle.serialization.checksum import frame_seed
from durable_shuffle.serialization.frames import MAX_FRAME_BODY_BYTES, FrameKind, record_parts
from durable_shuffle.serialization.markers import Marker, marker_frame
from durable_shuffle.shuffle.log.records import EXTENT, SegmentInfo
from durable_shuffle.shuffle.rows.partitioner import counting_sort
from durable_shuffle.shuffle.storage.contract import Bytes


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment ready to be written: its bytes in parts and where each subpartition stands."""

    info: SegmentInfo
    parts: tuple[Bytes, ...]
    extents: npt.NDArray[np.void]
    """EXTENT entries of the subpartitions that have rows or markers here, ordered by subpartition;
    markers have an entry of their own, with rows 0, behind that of the rows."""


def build_segment(
    batch: pa.RecordBatch,
    ids: npt.NDArray[np.unsignedinteger],
    *,
    partitions: int,
    number: int,
    stage_id: str,
    producer: int,
    next_ordinals: npt.NDArray[np.uint64],
    compression: str,
    frame_bytes: int,
    max_frame_bytes: int = MAX_FRAME_BODY_BYTES,
    markers: Sequence[Marker] = (),
    marked: Iterable[int] = (),
) -> Segment:
    """Sort `batch` by partition id, if it is not, and encode it; advances `next_ordinals` in place.

    Args:
        ids: one partition id per row, in [0, partitions).
        next_ordinals: per subpartition, the ordinal of its next record.
        markers: stand behind all rows, in this order, in each subpartition of `marked`.
    """
    order, counts = counting_sort(ids, partitions)
    present = np.flatnonzero(counts)
    if len(present) > 1 and (ids[1:] < ids[:-1]).any():
        batch = batch.take(arrow_of(order))
    ends = np.cumsum(counts[present]).tolist()
    slices = list(zip([0, *ends], ends, strict=False))
    cuts = list(_cut(batch, slices, wanted_bytes(frame_bytes, max_frame_bytes)))
    frames_of = dict(zip(present.tolist(), map(len, cuts), strict=True))
    bounds = list(itertools.chain.from_iterable(cuts))
    bodies = zip(iter_slices(batch, bounds, compression), bounds, strict=True)

    parts: list[Bytes] = []
    extents: list[tuple[int, int, int, int, int, int]] = []
    digest = hashlib.sha256()
    offset = 0

    def put(frame: tuple[Bytes, ...]) -> None:
        nonlocal offset
        for part in frame:
            parts.append(part)
            digest.update(part)
            offset += memoryview(part).nbytes

    ordinal: int
    for k in sorted({*frames_of, *marked}) if markers else frames_of:
        begin = offset
        ordinal = first_ordinal = int(next_ordinals[k])
        for body, (_, rows) in itertools.islice(bodies, frames_of.get(k, 0)):
            seed = frame_seed(stage_id, producer, k, ordinal)
            put(record_parts(FrameKind.ARROW, rows, body, seed, max_body_bytes=max_frame_bytes))
            ordinal += rows
        if offset > begin:
            length = offset - begin
            extents.append((k, number, begin, length, first_ordinal, ordinal - first_ordinal))
        next_ordinals[k] = ordinal
        if markers:
            begin = offset
            for marker in markers:
                put(marker_frame(marker, frame_seed(stage_id, producer, k, ordinal)))
            extents.append((k, number, begin, offset - begin, ordinal, 0))
    info = SegmentInfo(number, offset, digest.digest())
    return Segment(info, tuple(parts), np.array(extents, dtype=EXTENT))


def wanted_bytes(frame_bytes: int, max_frame_bytes: int) -> int:
    """Return near which size frames are cut, so that only a single row is over a limit."""
    return min(frame_bytes, max_frame_bytes // 4, MAX_INFLATED_BYTES // 4)


def _cut(
    batch: pa.RecordBatch, slices: list[tuple[int, int]], wanted: int
) -> Iterator[list[tuple[int, int]]]:
    """Yield the frames of each slice. Neighbours that are small together are measured together."""
    start, end = slices[0][0] if slices else 0, slices[-1][1] if slices else 0
    if full_bytes(batch.slice(start, end - start)) <= wanted:
        yield from ([(low, high - low)] for low, high in slices)
    elif len(slices) == 1:
        yield list(frame_bounds(batch, start, end, wanted))
    else:
        middle = len(slices) // 2
        yield from _cut(batch, slices[:middle], wanted)
        yield from _cut(batch, slices[middle:], wanted)


def frame_bounds(
    batch: pa.RecordBatch, start: int, end: int, wanted: int
) -> Iterator[tuple[int, int]]:
    """Yield (first row, number of rows) of the frames of rows [start, end).

    A frame has at most twice the wanted bytes, unless it is one row; where the rows that follow
    are of about the same size, at least half of them. Starts with the mean row, then follows the
    size of the rows at hand.
    """
    rows = end - start
    size = full_bytes(batch.slice(start, rows))
    if size > wanted:
        rows = max(1, int(wanted * rows / size))
    while start < end:
        rows = min(rows, end - start)
        size = full_bytes(batch.slice(start, rows))
        while size > 2 * wanted and rows > 1:
            rows = rows // 2
            size = full_bytes(batch.slice(start, rows))
        while size < wanted // 2 and rows < end - start:
            more = min(2 * rows, end - start)
            size = full_bytes(batch.slice(start, more))
            if size > 2 * wanted:
                break
            rows = more
        yield start, rows
        start += rows


def complete_extents(
    found: list[npt.NDArray[np.void]], expected: npt.NDArray[np.uint32]
) -> npt.NDArray[np.void]:
    """Join the extents of all segments; subpartitions without rows get an explicit empty entry.

    Args:
        expected: the subpartitions that this producer must state, ascending.

    Returns:
        EXTENT entries ordered by (subpartition, first ordinal).
    """
    joined = np.concatenate([*found, np.zeros(0, dtype=EXTENT)])
    missing = np.setdiff1d(expected, joined["subpartition"])
    empty = np.zeros(len(missing), dtype=EXTENT)
    empty["subpartition"] = missing
    everything = np.concatenate([joined, empty])
    return everything[np.lexsort((everything["first_ordinal"], everything["subpartition"]))]
