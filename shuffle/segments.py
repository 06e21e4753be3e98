"""One flush of a producer: gathered batches to one segment.

Strategy: stable counting sort by partition id, one `take`, slices per subpartition, each slice cut
into frames of about `frame_bytes`. The whole segment is built in memory and written as one object,
so a segment is either complete or absent. Bounds: a segment holds what `writer_memory_bytes` of
Arrow data encodes to.
"""

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.serialization.arrow_codec import iter_slices
from durable_shuffle.serialization.checksum import frame_seed
from durable_shuffle.serialization.frames import FrameKind, frame_parts, frame_size
from durable_shuffle.serialization.markers import Marker, marker_frame
from durable_shuffle.serialization.plain_arrays import arrow_of
from durable_shuffle.shuffle.partitioner import counting_sort
from durable_shuffle.shuffle.records import EXTENT, SegmentInfo
from durable_shuffle.shuffle.storage import Bytes


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
    rows_per_frame = max(1, int(frame_bytes * batch.num_rows / max(1, batch.nbytes)))
    bounds: list[tuple[int, int]] = []
    frames_of: dict[int, int] = {}
    start = 0
    for k in present.tolist():
        end = start + int(counts[k])
        first = len(bounds)
        bounds.extend(
            (at, min(rows_per_frame, end - at)) for at in range(start, end, rows_per_frame)
        )
        frames_of[k] = len(bounds) - first
        start = end
    bodies = zip(iter_slices(batch, bounds, compression), bounds, strict=True)

    parts: list[Bytes] = []
    extents: list[tuple[int, int, int, int, int, int]] = []
    digest = hashlib.sha256()
    offset = 0

    def put(frame: tuple[Bytes, ...], size: int) -> None:
        nonlocal offset
        for part in frame:
            parts.append(part)
            digest.update(part)
        offset += size

    ordinal: int
    for k in sorted({*frames_of, *marked}) if markers else frames_of:
        begin = offset
        ordinal = first_ordinal = int(next_ordinals[k])
        for body, (_, rows) in itertools.islice(bodies, frames_of.get(k, 0)):
            seed = frame_seed(stage_id, producer, k, ordinal)
            put(frame_parts(FrameKind.ARROW, rows, body, seed), frame_size(len(body)))
            ordinal += rows
        if offset > begin:
            length = offset - begin
            extents.append((k, number, begin, length, first_ordinal, ordinal - first_ordinal))
        next_ordinals[k] = ordinal
        if markers:
            begin = offset
            for marker in markers:
                frame = marker_frame(marker, frame_seed(stage_id, producer, k, ordinal))
                put(frame, sum(memoryview(part).nbytes for part in frame))
            extents.append((k, number, begin, offset - begin, ordinal, 0))
    info = SegmentInfo(number, offset, digest.digest())
    return Segment(info, tuple(parts), np.array(extents, dtype=EXTENT))


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
