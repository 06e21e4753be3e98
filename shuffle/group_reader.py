"""Reading neighbouring subpartitions of a sealed stage together, with few requests.

Slices of the index stand one after the other, and so do neighbouring subpartitions within a
segment: a run of k costs two range reads of the index and one per segment, where reading them
one by one costs as many per k. All checks are those of `sealed_reader`.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.serialization.errors import CorruptDataError, InvalidInputError, NotFoundError
from durable_shuffle.shuffle.index import ENTRY_BYTES, entry_offset, parse_entry, parse_slice
from durable_shuffle.shuffle.records import Seal
from durable_shuffle.shuffle.sealed_reader import check_entries, decode_extent, fetch, place_of
from durable_shuffle.shuffle.settings import Settings
from durable_shuffle.shuffle.stage import StageHandle, require_seal

Place = tuple[int, np.void]
"""A subpartition and one of its index entries."""


def subpartition_bytes(stage: StageHandle, seal: Seal) -> npt.NDArray[np.int64]:
    """Return the encoded bytes of every subpartition, over all producers: their true sizes."""
    slices = _slices(stage, seal, 0, stage.describe.partitions)
    return np.array([int(s["length"].sum()) for s in slices], dtype=np.int64)


def read_group(
    stage: StageHandle, seal: Seal, first: int, end: int, settings: Settings
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of subpartitions [first, end): by producer, then by subpartition.

    The order is the same at every read. About `writer_memory_bytes` are held in memory.

    Raises:
        CorruptDataError: a frame fails its check or rows do not add up; names the segment.
        NotFoundError: a segment is gone; says so if the stage was released.
    """
    places: list[Place] = []
    for k, entries in enumerate(_slices(stage, seal, first, end), start=first):
        places += [(k, entry) for entry in entries if entry["rows"] > 0]
    places.sort(key=lambda p: (int(p[1]["producer"]), int(p[1]["segment"]), int(p[1]["offset"])))
    ranges = [place_of(stage, entry) for _, entry in places]
    for (k, entry), (where, data) in zip(places, fetch(stage, ranges, settings), strict=True):
        yield from decode_extent(stage, k, where, entry, data, settings)


def _slices(stage: StageHandle, seal: Seal, first: int, end: int) -> Iterator[npt.NDArray[np.void]]:
    """Yield the checked index entries of each subpartition in [first, end)."""
    if not 0 <= first < end <= stage.describe.partitions:
        raise InvalidInputError(
            f"no such subpartitions: found=[{first}, {end}) "
            f"partitions={stage.describe.partitions} stage={stage.path.prefix!r}"
        )
    name = stage.path.index_key(seal.index)
    try:
        table = stage.storage.read_range(name, entry_offset(first), ENTRY_BYTES * (end - first))
        entries = [
            parse_entry(table[at * ENTRY_BYTES : (at + 1) * ENTRY_BYTES], first + at, name=name)
            for at in range(end - first)
        ]
        low = entries[0][0]
        high = entries[-1][0] + entries[-1][1]
        if any(not low <= e[0] <= e[0] + e[1] <= high <= seal.index_bytes for e in entries):
            raise CorruptDataError(f"index slices are out of order: key={name!r}")
        data = stage.storage.read_range(name, low, high - low)
    except NotFoundError:
        require_seal(stage)
        raise
    for k, (offset, length, crc) in enumerate(entries, start=first):
        one = data[offset - low : offset - low + length]
        found = parse_slice(one, crc, name=name, subpartition=k)
        check_entries(stage, seal, found, name=name, subpartition=k)
        yield found
