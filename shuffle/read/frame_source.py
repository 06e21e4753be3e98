"""From buffers to checked frames, each with its place: the decoding half of a view.

Strategy: one decoder per extent, since a frame's checksum is seeded with its address. At the end of
an extent the rows of its frames are reconciled with the rows that were committed.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.serialization.frame_decoder import NEED_DATA, FrameDecoder
from durable_shuffle.serialization.frames import Frame
from durable_shuffle.shuffle.read.buffer_queue import BufferQueue, Piece
from durable_shuffle.shuffle.read.extent_feed import EndOfInput
from durable_shuffle.shuffle.read.extents import Extent, refuse_other_rows
from durable_shuffle.shuffle.read.position import ProducerPosition


class _Sentinel(Enum):
    NOTHING_YET = "nothing yet"


NothingYet = Literal[_Sentinel.NOTHING_YET]
NOTHING_YET: NothingYet = _Sentinel.NOTHING_YET
"""The producers still write and have committed nothing new."""


@dataclass(frozen=True, slots=True)
class PlacedFrame:
    """A frame whose checksum was right, and where it stands."""

    extent: Extent
    frame: Frame
    first_ordinal: int
    offset: int
    """Of the frame in its segment, in bytes."""
    next_offset: int
    """Of the frame behind it."""

    def after(self, rows: int) -> ProducerPosition:
        """Return the position behind the first `rows` records of this frame."""
        segment, slot = self.extent.segment, self.extent.slot
        ordinal = self.first_ordinal + rows
        if rows == self.frame.rows:
            return ProducerPosition(ordinal, segment, slot, self.next_offset)
        return ProducerPosition(ordinal, segment, slot, self.offset, rows)


class FrameSource:
    """Frames of one partition, in order, for one view of a queue. Not thread-safe.

    Args:
        incarnation: of the stage, part of every frame's address.
        owner: id of the view; see `BufferQueue.attach`.
    """

    def __init__(
        self,
        queue: BufferQueue,
        *,
        owner: str,
        incarnation: str,
        max_body_bytes: int,
    ) -> None:
        self._queue, self._owner = queue, owner
        self._incarnation = incarnation
        self._max_body_bytes = max_body_bytes
        self._piece: Piece | None = None
        self._decoder: FrameDecoder | None = None
        self._start = 0
        self._rows = 0

    def next(self) -> PlacedFrame | EndOfInput | NothingYet:
        """Return the next frame, records or marker.

        Raises:
            CorruptDataError: a frame fails its check, or rows delivered are not rows committed.
        """
        while True:
            if self._decoder is None or self._piece is None:
                found = self._queue.poll(self._owner)
                if found is None:
                    return NOTHING_YET
                if isinstance(found, EndOfInput):
                    return found
                self._begin(found)
                continue
            extent, decoder = self._piece.extent, self._decoder
            try:
                first, offset = decoder.next_ordinal, self._start + decoder.record_position
                frame = decoder.next_record()
                if frame is not NEED_DATA:
                    self._rows += frame.rows
                    end = self._start + decoder.record_position
                    return PlacedFrame(extent, frame, first, offset, end)
                if self._piece.last:
                    self._end(extent, decoder)
                    continue
            except CorruptDataError as e:
                raise CorruptDataError(f"{e}: {extent.place}") from e
            following = self._queue.poll(self._owner)
            if not isinstance(following, Piece) or following.extent is not extent:
                raise CorruptDataError(f"an extent breaks off: {extent.place}")
            decoder.feed(following.buffer.data)
            self._piece = following

    def _begin(self, piece: Piece) -> None:
        extent, first = piece.extent, piece.buffer.first_ordinal
        incarnation = self._incarnation

        def seed(ordinal: int) -> int:
            return extent.seed(incarnation, ordinal)

        self._decoder = FrameDecoder(seed, first_ordinal=first, max_body_bytes=self._max_body_bytes)
        self._decoder.feed(piece.buffer.data)
        self._piece = piece
        self._rows = first - extent.first_ordinal
        self._start = piece.offset

    def _end(self, extent: Extent, decoder: FrameDecoder) -> None:
        decoder.end()
        refuse_other_rows(self._rows, committed=extent.rows)
        self._decoder = self._piece = None
