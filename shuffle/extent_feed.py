"""What a view reads, in order: the extents of one partition, whoever wrote them.

A sealed stage's extents are all known from its index (`sealed_feed`); those of log producers appear
while they write (`log_feed`). A view knows neither: it asks its feed for the next extent.
"""

from dataclasses import dataclass, replace
from typing import Protocol

from durable_shuffle.serialization.checksum import frame_seed
from durable_shuffle.serialization.markers import EndMode as EndMode
from durable_shuffle.shuffle.position import ProducerPosition


def shifted(ordinal: int, shift: int) -> int:
    """Return the ordinal in the count of the frame's writer."""
    return (ordinal + shift) % 2**64


@dataclass(frozen=True, slots=True)
class Extent:
    """Whole frames of one subpartition: bytes [offset, offset + length) of a committed segment."""

    producer: int
    key: str
    """Of the segment."""
    segment: int
    """Number of the segment within its attempt."""
    slot: int
    """Of a log producer: the slot of its log that made it count. In a sealed stage: the first four
    bytes of the id of the attempt or compaction that wrote the segment."""
    offset: int
    length: int
    first_ordinal: int
    """Of the first record, from 0."""
    rows: int
    """Records; 0 if the frames are markers only."""
    shift: int = 0
    """Added to an ordinal, modulo 2**64, for the seed of a frame."""
    schema: bytes = b""
    """Arrow IPC schema message of the rows; b"" if it is the stage's."""

    def seed(self, incarnation: str, subpartition: int, ordinal: int) -> int:
        """Return what the checksum of the frame is seeded with whose first record is `ordinal`."""
        return frame_seed(incarnation, self.producer, subpartition, shifted(ordinal, self.shift))


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


def clip(extent: Extent, at: ProducerPosition) -> Extent:
    """Return the part of `extent` that starts with the frame of the next record, if `at` tells.

    A hint that does not fit the extent is ignored: the whole extent is right, too.
    """
    frame_ordinal = at.frame_ordinal
    skipped = at.frame_offset - extent.offset
    if (
        at.segment != extent.segment
        or at.slot != extent.slot
        or not 0 < skipped < extent.length
        or not extent.first_ordinal <= frame_ordinal < extent.first_ordinal + extent.rows
    ):
        return extent
    return replace(
        extent,
        offset=at.frame_offset,
        length=extent.length - skipped,
        first_ordinal=frame_ordinal,
        rows=extent.rows - (frame_ordinal - extent.first_ordinal),
    )
