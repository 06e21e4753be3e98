"""Incremental decoding of frames: takes bytes in pieces of any size, returns frames.

Strategy: `feed` only keeps its argument. `next_frame` takes the header, then the body, each with
`_take`. If the bytes are in one fed chunk, `_take` returns a slice of it; otherwise it joins them
in a buffer that grows with the bytes received, never with a length that a header claims. Each byte
is copied at most once, so the time is linear in the input. Exception: for a record of several
frames, `next_record` copies the bodies once more.

"Need more" is a return value, corruption is an exception, the end of the input is a call.

This file must not fetch bytes and must not know where a committed length ends: the caller feeds
committed bytes only.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Literal, TypeAlias

from durable_shuffle.serialization.checksum import Bytes, crc32
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    DurableShuffleError,
    InvalidInputError,
)
from durable_shuffle.serialization.frames import (
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    MAX_FRAME_BODY_BYTES,
    MAX_RECORD_BYTES,
    Frame,
    FrameHeader,
    FrameKind,
    decode_frame_header,
    frame_size,
    padded_length,
)

_MAGIC_BYTES = FRAME_MAGIC.to_bytes(4, "little")


class _Sentinel(Enum):
    NEED_DATA = "need data"

    def __repr__(self) -> str:
        return self.name


NeedData: TypeAlias = Literal[_Sentinel.NEED_DATA]
NEED_DATA: NeedData = _Sentinel.NEED_DATA
"""`next_frame` needs more bytes, or the end of the input."""


class TruncatedFrameError(CorruptDataError):
    """The input ended inside a frame or record; the bytes may be the start of a valid one."""

    def __init__(self, message: str, received_bytes: int = 0, expected_bytes: int = 0) -> None:
        super().__init__(message)
        self.received_bytes = received_bytes
        """How many bytes of the unfinished frame or record were received."""
        self.expected_bytes = expected_bytes
        """How many bytes it needs at least; the exact size of a frame whose header was received."""


class FrameDecoder:
    """Turns the bytes of one subpartition's extent into frames.

    Args:
        seed_of: gives the body CRC's seed for the ordinal of a frame's first record; None where
            frames are not seeded.
        first_ordinal: ordinal of the first record that will be fed.
        max_body_bytes: longest body to accept, padding excluded.
        max_record_bytes: longest joined body of continuing frames to accept.

    Use either `next_record` or `next_frame`, not both. After an error every further call raises the
    same error. Not safe for concurrent use.
    """

    def __init__(
        self,
        seed_of: Callable[[int], int] | None,
        *,
        first_ordinal: int = 0,
        max_body_bytes: int = MAX_FRAME_BODY_BYTES,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        self._seed_of = seed_of
        self._max_body_bytes = max_body_bytes
        self._max_record_bytes = max_record_bytes
        self._ordinal = first_ordinal
        self._position = 0
        self._chunks: deque[memoryview] = deque()
        self._partial = bytearray()
        self._header: FrameHeader | None = None
        self._kind: FrameKind | None = None
        """Kind of the record that continues in the next frame; None if there is none."""
        self._joined = bytearray()
        """The bodies of its frames so far."""
        self._record_position = 0
        self._failure: DurableShuffleError | None = None
        self._ended = False

    @property
    def position(self) -> int:
        """Total bytes of the frames returned, which is the position of the next frame."""
        return self._position

    @property
    def next_ordinal(self) -> int:
        """Ordinal of the first record of the next frame, or of the record that continues in it."""
        return self._ordinal

    @property
    def record_position(self) -> int:
        """Position of the first frame of the record that `next_record` will return next."""
        return self._record_position

    def feed(self, data: Bytes) -> None:
        """Add bytes. They are kept, not copied: do not change them while frames of them live.

        Raises:
            InvalidInputError: called after `end`.
        """
        self._check_usable()
        if self._ended:
            raise InvalidInputError("frame decoder: fed after its end")
        view = memoryview(data).toreadonly().cast("B")
        if view.nbytes:
            self._chunks.append(view)

    def next_frame(self) -> Frame | NeedData:
        """Return the next whole frame, or NEED_DATA.

        Raises:
            CorruptDataError: magic, header CRC, length limit or body CRC are wrong.
            IncompatibleError: a valid header with a kind, flag or reserved bit unknown here.
        """
        self._check_usable()
        try:
            return self._next_frame()
        except DurableShuffleError as error:
            self._failure = error
            raise

    def next_record(self) -> Frame | NeedData:
        """Return the next frame, or several joined that hold one record; or NEED_DATA.

        Raises:
            CorruptDataError: as `next_frame`; or joined frames differ in kind, or are too long.
            IncompatibleError: as `next_frame`.
        """
        while (frame := self.next_frame()) is not NEED_DATA:
            try:
                whole = self._join(frame)
            except DurableShuffleError as error:
                self._failure = error
                raise
            if whole is not None:
                self._record_position = self._position
                return whole
        return NEED_DATA

    def _join(self, frame: Frame) -> Frame | None:
        """Return a frame with the whole body, or None if the record continues."""
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
        body, self._joined, self._kind = self._joined, bytearray(), None
        return Frame(frame.kind, 0, frame.rows, memoryview(body).toreadonly())

    def end(self) -> None:
        """Declare the end of the input. Call it after a NEED_DATA.

        Raises:
            TruncatedFrameError: the bytes end with the start of a frame, or of a joined record.
            CorruptDataError: the bytes left over do not start like a frame.
            InvalidInputError: there are frames left to take; nothing has changed then.
        """
        self._check_usable()
        received = len(self._partial) + sum(chunk.nbytes for chunk in self._chunks)
        needed = padded_length(self._header.body_length) if self._header else FRAME_HEADER_BYTES
        if self._header is None and not received:
            if self._kind is not None:
                received = len(self._joined)
                msg = f"continued record: the input ended after {received} bytes, expected more"
                self._failure = TruncatedFrameError(msg, received, received + 1)
                raise self._failure
            self._ended = True
            return
        if received >= needed:
            raise InvalidInputError("frame decoder: ended before all frames were taken")
        self._failure = self._leftover_error(received)
        raise self._failure

    def _leftover_error(self, received: int) -> CorruptDataError:
        rest = (bytes(self._partial[:4]) + b"".join(bytes(c[:4]) for c in self._chunks))[:4]
        where = f"frame at byte {self._position}"
        if self._header is not None:
            received += FRAME_HEADER_BYTES
            expected = frame_size(self._header.body_length)
        elif rest == _MAGIC_BYTES[: len(rest)]:
            expected = FRAME_HEADER_BYTES
        else:
            msg = f"{where}: magic: expected {_MAGIC_BYTES.hex()}, found {rest.hex()}"
            return CorruptDataError(msg)
        msg = f"{where}: the input ended: expected {expected} bytes, received {received}"
        return TruncatedFrameError(msg, received, expected)

    def _next_frame(self) -> Frame | NeedData:
        if self._header is None:
            raw = self._take(FRAME_HEADER_BYTES)
            if raw is None:
                return NEED_DATA
            self._header = decode_frame_header(raw, self._position, self._max_body_bytes)
        header = self._header
        body = self._take(padded_length(header.body_length))
        if body is None:
            return NEED_DATA
        seed = 0 if self._seed_of is None else self._seed_of(self._ordinal)
        found = crc32(body, seed)
        if found != header.body_crc:
            msg = (
                f"frame at byte {self._position} with first ordinal {self._ordinal}: "
                f"body CRC: expected {header.body_crc:#010x}, found {found:#010x}"
            )
            raise CorruptDataError(msg)
        frame = Frame(header.kind, header.flags, header.rows, body[: header.body_length])
        self._header = None
        self._position += frame_size(header.body_length)
        if not frame.continues:
            self._ordinal += frame.rows
        return frame

    def _take(self, size: int) -> memoryview | None:
        """Consume exactly `size` bytes, or keep all there is for later and return None."""
        if not self._partial and self._chunks and self._chunks[0].nbytes >= size:
            return self._cut(size)
        while self._chunks and len(self._partial) < size:
            wanted = size - len(self._partial)
            self._partial += self._cut(min(wanted, self._chunks[0].nbytes))
        if len(self._partial) < size:
            return None
        joined, self._partial = self._partial, bytearray()
        return memoryview(joined).toreadonly()

    def _cut(self, size: int) -> memoryview:
        chunk = self._chunks[0]
        if size == chunk.nbytes:
            return self._chunks.popleft()
        self._chunks[0] = chunk[size:]
        return chunk[:size]

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure
