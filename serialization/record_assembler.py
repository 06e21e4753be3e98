"""Records longer than one frame: cut into continuing frames, and put together again.

Strategy: every frame but a record's last carries FLAG_CONTINUES and counts no rows; the last one
counts the record's rows. All of them are seeded with the ordinal of that record, the decoder's
ordinal stands still until the last. Assembly appends as frames arrive, within a limit.

This file must not look into bodies.
"""

from durable_shuffle.serialization.checksum import Bytes
from durable_shuffle.serialization.errors import CorruptDataError, InvalidInputError
from durable_shuffle.serialization.frame_decoder import TruncatedFrameError
from durable_shuffle.serialization.frames import (
    FLAG_CONTINUES,
    FRAME_ALIGNMENT,
    MAX_FRAME_BODY_BYTES,
    Frame,
    FrameKind,
    frame_parts,
)

# Arrow and Python can hold more, but a record is handed out whole, in one piece of memory. 2 GiB
# is where protobuf, Spark's rows and Java's arrays end.
MAX_RECORD_BYTES = 2 * 1024 * 1024 * 1024


def record_parts(
    kind: FrameKind,
    rows: int,
    body: Bytes,
    seed: int,
    *,
    max_body_bytes: int = MAX_FRAME_BODY_BYTES,
) -> tuple[Bytes, ...]:
    """Return the parts of one frame, or of as many continuing frames as the limit asks for.

    The parts are to be written one after the other; `body` is not copied.

    Raises:
        InvalidInputError: the limit is below 8 bytes, or a value does not fit its field.
    """
    step = max_body_bytes - max_body_bytes % FRAME_ALIGNMENT
    if step <= 0:
        msg = f"max_body_bytes: expected at least {FRAME_ALIGNMENT}, found {max_body_bytes}"
        raise InvalidInputError(msg)
    view = memoryview(body).cast("B")
    parts: list[Bytes] = []
    start = 0
    while view.nbytes - start > max_body_bytes:
        piece = view[start : start + step]
        parts += frame_parts(kind, 0, piece, seed, flags=FLAG_CONTINUES, max_body_bytes=step)
        start += step
    parts += frame_parts(kind, rows, view[start:], seed, max_body_bytes=max_body_bytes)
    return tuple(parts)


class RecordAssembler:
    """Joins continuing frames. Frames that hold whole records pass through uncopied.

    Args:
        max_record_bytes: longest joined body to accept.
    """

    def __init__(self, max_record_bytes: int = MAX_RECORD_BYTES) -> None:
        self._max_record_bytes = max_record_bytes
        self._kind: FrameKind | None = None
        self._joined = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of the unfinished record."""
        return len(self._joined)

    @property
    def pending(self) -> bool:
        """Whether a record has begun and not ended."""
        return self._kind is not None

    def add(self, frame: Frame) -> Frame | None:
        """Return a frame with the whole body, or None while the record goes on.

        Raises:
            CorruptDataError: the record is over the limit, or its frames differ in kind.
        """
        if self._kind is None and not frame.continues:
            return frame
        if self._kind is not None and frame.kind is not self._kind:
            msg = f"continued record: expected kind {self._kind.name}, found {frame.kind.name}"
            raise CorruptDataError(msg)
        size = len(self._joined) + frame.body.nbytes
        if size > self._max_record_bytes:
            msg = f"continued record: expected at most {self._max_record_bytes} bytes, found {size}"
            raise CorruptDataError(msg)
        self._kind = frame.kind
        self._joined += frame.body
        if frame.continues:
            return None
        body = memoryview(self._joined).toreadonly()
        self.discard()
        return Frame(frame.kind, 0, frame.rows, body)

    def discard(self) -> None:
        """Forget the unfinished record, for a reader that starts again elsewhere."""
        self._kind, self._joined = None, bytearray()

    def end(self) -> None:
        """Say that no more frames will come.

        Raises:
            TruncatedFrameError: a record has begun and its last frame is missing.
        """
        if self._kind is not None:
            received = len(self._joined)
            msg = f"continued record: the input ended after {received} bytes, expected more"
            raise TruncatedFrameError(msg, received, received + 1)
