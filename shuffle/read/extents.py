"""An extent: whole frames of one subpartition in a segment, and the one loop that decodes them.

An extent is made of an index entry of a sealed stage, or of an APPEND. `Extent.frames` reads it
from pieces of any length and holds one piece and one frame, whatever length is stated for the
extent. It checks that rows delivered are rows committed. A view takes frames one by one as buffers
arrive (`batch_source.py`); verify goes on behind a damaged frame (`verify/segment.py`).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.checksum import Bytes, frame_seed
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.serialization.frame_decoder import NEED_DATA, FrameDecoder
from durable_shuffle.serialization.frames import Frame
from durable_shuffle.shuffle.log.appender_log import Append
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.read.position import ProducerPosition
from durable_shuffle.shuffle.storage.contract import ByteRange

T = TypeVar("T")

DecodeFrame = Callable[[Frame, int, int], Iterable[T]]
"""Returns what is in a frame. Takes the frame, the byte of the extent at which it begins, and how
many rows of the extent stand before it."""


def shifted(ordinal: int, shift: int) -> int:
    """Return the ordinal in the count of the frame's writer."""
    return (ordinal + shift) % 2**64


@dataclass(frozen=True, slots=True)
class Extent:
    """Whole frames of one subpartition: bytes [offset, offset + length) of a committed segment."""

    producer: int
    subpartition: int
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

    def seed(self, incarnation: str, ordinal: int) -> int:
        """Return the seed of the checksum of the frame whose first record is `ordinal`."""
        seeded = shifted(ordinal, self.shift)
        return frame_seed(incarnation, self.producer, self.subpartition, seeded)

    @property
    def where(self) -> ByteRange:
        return ByteRange(self.key, self.offset, self.length)

    @property
    def place(self) -> str:
        """How messages name it."""
        return (
            f"segment={self.key!r} bytes=[{self.offset}, {self.offset + self.length}) "
            f"producer={self.producer} subpartition={self.subpartition}"
        )

    def frames(
        self,
        pieces: Iterable[Bytes],
        incarnation: str,
        decode: DecodeFrame[T],
        *,
        max_body_bytes: int,
    ) -> Iterator[T]:
        """Yield what `decode` makes of each frame; see `read_frames`."""
        return read_frames(
            pieces,
            lambda ordinal: self.seed(incarnation, ordinal),
            decode,
            rows=self.rows,
            place=self.place,
            max_body_bytes=max_body_bytes,
            first_ordinal=self.first_ordinal,
        )


def indexed_extent(path: StagePath, subpartition: int, entry: np.void) -> Extent:
    """Return the extent that an index entry of a sealed stage names."""
    producer, segment = int(entry["producer"]), int(entry["segment"])
    attempt = bytes(entry["attempt"])
    return Extent(
        producer,
        subpartition,
        path.extent_key(producer, attempt.hex(), segment),
        segment,
        int.from_bytes(attempt[:4], "little"),
        int(entry["offset"]),
        int(entry["length"]),
        int(entry["first_ordinal"]),
        int(entry["rows"]),
    )


def appended_extents(
    path: StagePath,
    producer: int,
    slot: int,
    record: Append,
    wanted: Callable[[npt.NDArray[np.void]], npt.NDArray[np.bool_]],
    name: str,
) -> Iterator[Extent]:
    """Yield the extents that an APPEND names, those with markers too.

    Args:
        slot: of the record.
        wanted: which of its EXTENT entries are.
        name: of the record, for messages.

    Raises:
        CorruptDataError: an extent is empty, or is not in the segments that the record names.
    """
    entries = record.extent_array(name)
    shifts = record.shift_array(len(entries), name)
    lengths = {segment.number: segment.length for segment in record.segments}
    mine = wanted(entries)
    for (k, number, offset, length, first, rows), shift in zip(
        entries[mine].tolist(), shifts[mine].tolist(), strict=True
    ):
        if length == 0 or offset + length > lengths.get(number, -1):
            raise CorruptDataError(
                f"an extent is empty or not in the segments of its APPEND: {name} subpartition={k} "
                f"segment={number} bytes=[{offset}, {offset + length})"
            )
        key = path.segment_key(producer, record.record_id, number)
        yield Extent(
            producer, k, key, number, slot, offset, length, first, rows, shift, record.schema
        )


def read_frames(
    pieces: Iterable[Bytes],
    seed: Callable[[int], int],
    decode: DecodeFrame[T],
    *,
    rows: int,
    place: str,
    max_body_bytes: int,
    first_ordinal: int = 0,
) -> Iterator[T]:
    """Yield what `decode` makes of each frame of an extent, in order, every checksum checked.

    Args:
        pieces: the bytes of the extent, in order. Each is let go before the next is asked for.
        seed: of the frame whose first record has this ordinal.
        rows: how many were committed.
        place: where the extent stands, for messages.

    Raises:
        CorruptDataError: a frame fails its check, or there are other rows than committed.
    """
    decoder = FrameDecoder(seed, first_ordinal=first_ordinal, max_body_bytes=max_body_bytes)
    try:
        begin = before = 0
        for piece in pieces:
            decoder.feed(piece)
            del piece
            while (frame := decoder.next_record()) is not NEED_DATA:
                yield from decode(frame, begin, before)
                begin, before = decoder.record_position, before + frame.rows
                del frame
        decoder.end()
        refuse_other_rows(before, committed=rows)
    except CorruptDataError as error:
        raise CorruptDataError(f"{error}: {place}") from error


def refuse_other_rows(delivered: int, *, committed: int) -> None:
    """Refuse an extent whose frames hold fewer or more rows than were committed."""
    if delivered != committed:
        raise CorruptDataError(
            f"rows delivered are not rows committed: expected={committed} found={delivered}"
        )


def clip(extent: Extent, at: ProducerPosition) -> Extent:
    """Return the part of `extent` from the frame with the next record on.

    The whole extent if the hint of `at` does not fit it: that is right, too.
    """
    frame_ordinal = at.frame_ordinal
    skipped = at.frame_offset - extent.offset
    if (
        at.next_ordinal <= extent.first_ordinal
        or at.segment != extent.segment
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
