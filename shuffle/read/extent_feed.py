"""What a view reads, in order: the extents of one partition, whoever wrote them.

A sealed stage's extents are all known from its index (`sealed_feed`); those of log producers appear
while they write (`log_feed`). A view knows neither: it asks its feed for the next extent.
"""

from dataclasses import dataclass
from typing import Protocol

from durable_shuffle.serialization.markers import EndMode as EndMode
from durable_shuffle.shuffle.read.extents import Extent


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

        An extent that holds the start position comes clipped to the frame with the next record,
        where that is known; the view drops the records before it. One producer's extents join up
        without gaps.

        Raises:
            NotFoundError: the data was released or is missing; names it.
            CorruptDataError: log or index contradict themselves.
        """
