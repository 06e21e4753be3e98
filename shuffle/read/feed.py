"""What a view reads, in order: the extents of one partition.

The extents of a sealed stage are all known from its index (`SealedFeed`: two range reads; what lies
before the position is skipped by arithmetic). Those of log producers appear while they write
(`log_feed.py`). A view asks its feed for the next extent and knows neither.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from durable_shuffle.serialization.errors import CorruptDataError, IncompatibleError
from durable_shuffle.serialization.markers import EndMode as EndMode
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.extents import Extent, clip, indexed_extent
from durable_shuffle.shuffle.read.position import AT_START, Positions, refuse_unknown
from durable_shuffle.shuffle.read.sealed_reader import read_extents


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """Every producer's records have been given; there will be no more."""

    modes: tuple[EndMode, ...]
    """How each producer ended, by number."""
    records: int | None = None
    """Committed records of the partition, from ordinal 0 on, over all producers; None if the feed
    does not know."""


class ExtentFeed(Protocol):
    """Gives extents from a start position on. Not thread-safe; belongs to one view."""

    @property
    def producers(self) -> int:
        """How many producers write for this partition."""

    def poll(self) -> Extent | EndOfInput | None:
        """Return the next extent, the end, or None if there is nothing new yet.

        The extent with the start position begins at the frame with the next record, if that is
        known; the view drops the records before it. One producer's extents have no gaps.

        Raises:
            NotFoundError: the data was released or is missing; names it.
            CorruptDataError: log or index contradict themselves.
        """


class SealedFeed:
    """Implements `ExtentFeed` for a sealed stage.

    Raises:
        CorruptDataError: the index is damaged or misses a producer, or a position is of a producer
            that there is not.
        NotFoundError: the index is gone; says so if the stage was released.
        IncompatibleError: a position lies beyond what its producer committed.
    """

    def __init__(
        self, stage: StageHandle, seal: Seal, subpartition: int, positions: Positions
    ) -> None:
        self.producers = seal.producers
        refuse_unknown(positions, seal.producers, name=stage.path.prefix)
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
        self._extents = (
            clip(extent, positions.get(extent.producer, AT_START))
            for extent in (indexed_extent(stage.path, subpartition, e) for e in entries[ahead])
        )

    def poll(self) -> Extent | EndOfInput | None:
        finite: EndMode = "FINITE"
        end = EndOfInput((finite,) * self.producers, self.records)
        return next(self._extents, end)


def check_tags(positions: Positions, before: list[bytes], now: list[bytes], *, name: str) -> None:
    """Refuse to continue in records that were replaced since the position was acknowledged.

    Args:
        before: content tag per producer when the position was acknowledged.
        now: content tag per producer now.

    Raises:
        IncompatibleError: a producer with an acknowledged record has other content now.
    """
    if len(before) != len(now):
        raise CorruptDataError(f"{name}: number of producers was {len(before)}, is {len(now)}")
    refuse_unknown(positions, len(now), name=name)
    for producer, at in positions.items():
        if at.next_ordinal and before[producer] != now[producer]:
            raise IncompatibleError(
                f"{name}: the records of producer {producer} were replaced after "
                f"{at.next_ordinal} of them were acknowledged; only a fresh stage helps"
            )
