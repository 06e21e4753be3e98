"""The one loop that decodes the frames of an extent: rows delivered are rows committed.

Only where an extent is at hand as a whole. A view takes frames one by one as buffers arrive
(`frame_source`); verify goes on behind a damaged frame (`verify_segment`).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from durable_shuffle.serialization.checksum import Bytes
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.serialization.frame_decoder import NEED_DATA, FrameDecoder
from durable_shuffle.serialization.frames import Frame
from durable_shuffle.shuffle.storage import ByteRange

T = TypeVar("T")

DecodeFrame = Callable[[Frame, int, int], Iterable[T]]
"""Returns what is in a frame. Takes the frame, the byte of the extent at which it begins, and how
many rows of the extent stand before it."""


def read_frames(
    data: Bytes,
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
        data: the bytes of the extent.
        seed: of the frame whose first record has this ordinal.
        rows: how many were committed.
        place: where the extent stands, for messages.

    Raises:
        CorruptDataError: a frame fails its check, or there are other rows than committed.
    """
    decoder = FrameDecoder(seed, first_ordinal=first_ordinal, max_body_bytes=max_body_bytes)
    try:
        decoder.feed(data)
        begin = before = 0
        while (frame := decoder.next_record()) is not NEED_DATA:
            yield from decode(frame, begin, before)
            begin, before = decoder.record_position, before + frame.rows
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


def place_text(where: ByteRange, subpartition: int) -> str:
    """Return how messages name an extent."""
    end = where.start + where.length
    return f"segment={where.key!r} bytes=[{where.start}, {end}) subpartition={subpartition}"
