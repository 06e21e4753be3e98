"""Reading neighbouring subpartitions of a sealed stage together, with few requests.

Slices of the index stand one after the other, and so do neighbouring subpartitions within a
segment: a run of k costs two range reads of the index and one per segment, where reading them
one by one costs as many per k. All checks are those of `sealed_reader`.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.extents import indexed_extent
from durable_shuffle.shuffle.read.sealed_reader import Pieces, decode_extent, fetch, read_slices
from durable_shuffle.shuffle.storage.contract import ByteRange
from durable_shuffle.shuffle.storage.range_plan import join_near


def subpartition_bytes(stage: StageHandle, seal: Seal) -> npt.NDArray[np.int64]:
    """Return the encoded bytes of every subpartition, over all producers: their true sizes."""
    slices = read_slices(stage, seal, 0, stage.describe.partitions)
    return np.array([int(s["length"].sum()) for s in slices], dtype=np.int64)


def read_group(
    stage: StageHandle, seal: Seal, first: int, end: int, settings: Settings
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of subpartitions [first, end): by producer, then by subpartition, in order.

    That is so before and after a compaction. About `writer_memory_bytes` are held in memory.

    Raises:
        CorruptDataError: a frame fails its check or rows do not add up; names the segment.
        NotFoundError: a segment is gone; says so if the stage was released.
    """
    extents = [
        indexed_extent(stage.path, k, entry)
        for k, entries in enumerate(read_slices(stage, seal, first, end), start=first)
        for entry in entries[entries["rows"] > 0]
    ]
    extents.sort(key=lambda e: (e.producer, e.subpartition, e.first_ordinal))
    ranges = [extent.where for extent in extents]
    for extent, (_, pieces) in zip(extents, _in_order(stage, ranges, settings), strict=True):
        yield from decode_extent(stage, extent, pieces, settings)


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
    found = dict(fetch(stage, standing, settings))
    for where in ranges:
        yield where, found.pop(where)
