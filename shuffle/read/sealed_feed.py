"""The extents of one partition of a sealed stage, from a position on.

Strategy: two range reads of the index give all of them; what lies before the position is skipped by
arithmetic, never by reading. Producers come in ascending order.
"""

from collections.abc import Iterator

import numpy as np

from durable_shuffle.serialization.errors import CorruptDataError, IncompatibleError
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.extent_feed import EndMode, EndOfInput
from durable_shuffle.shuffle.read.extents import Extent, clip, indexed_extent
from durable_shuffle.shuffle.read.position import Positions, ordinal_of
from durable_shuffle.shuffle.read.sealed_reader import read_extents


class SealedFeed:
    """Implements `ExtentFeed` for a sealed stage.

    Raises:
        CorruptDataError: the index is damaged or misses a producer.
        NotFoundError: the index is gone; says so if the stage was released.
        IncompatibleError: a position lies beyond what its producer committed.
    """

    def __init__(
        self, stage: StageHandle, seal: Seal, subpartition: int, positions: Positions
    ) -> None:
        self._stage, self._subpartition = stage, subpartition
        self._producers = seal.producers
        entries = read_extents(stage, seal, subpartition)
        ends = entries["first_ordinal"] + entries["rows"]
        starts = np.zeros(seal.producers, dtype=np.uint64)
        for producer, at in positions.items():
            last = ends[entries["producer"] == producer].max(initial=0)
            if at.next_ordinal > last:
                raise IncompatibleError(
                    f"a position lies beyond the end: stage={stage.path.prefix!r} "
                    f"subpartition={subpartition} producer={producer} "
                    f"next_ordinal={at.next_ordinal} records={int(last)}"
                )
            starts[producer] = at.next_ordinal
        ahead = (entries["rows"] > 0) & (ends > starts[entries["producer"]])
        self.records = int(entries["rows"].sum())
        """Committed records of this partition, over all producers, from ordinal 0."""
        self._extents = self._iterate(entries[ahead], positions)

    @property
    def producers(self) -> int:
        return self._producers

    def poll(self) -> Extent | EndOfInput | None:
        found = next(self._extents, None)
        if found is None:
            finite: EndMode = "FINITE"
            return EndOfInput((finite,) * self._producers, self.records)
        return found

    def _iterate(self, entries: np.ndarray, positions: Positions) -> Iterator[Extent]:
        for entry in entries:
            extent = indexed_extent(self._stage.path, self._subpartition, entry)
            at = ordinal_of(positions, extent.producer)
            yield clip(extent, positions[extent.producer]) if at > extent.first_ordinal else extent


def check_tags(positions: Positions, before: list[bytes], now: list[bytes], *, name: str) -> None:
    """Refuse to go on inside records that were replaced since the position was acknowledged.

    Args:
        before: content tag per producer by which the position was read.
        now: content tag per producer of today.

    Raises:
        IncompatibleError: a producer with an acknowledged record has other content now.
    """
    if len(before) != len(now):
        raise CorruptDataError(f"{name}: number of producers was {len(before)}, is {len(now)}")
    for producer, at in positions.items():
        if at.next_ordinal and before[producer] != now[producer]:
            raise IncompatibleError(
                f"{name}: the records of producer {producer} were replaced after "
                f"{at.next_ordinal} of them were acknowledged; only a fresh stage helps"
            )
