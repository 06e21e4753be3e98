"""Buffers: the units in which a view fetches bytes, and how they are trimmed. Pure.

A buffer is a piece of an extent. It may begin or end inside a record. Each buffer states how many
of its first bytes belong to a record that began in an earlier buffer, and whether that record ends
here. Nothing is inferred from the length of a buffer. A marker has its own buffer.

A reader that lost the beginning of a record must not see the rest of that record. The rule (`trim`)
comes from Flink's FLIP-135, with two corrections: the end of a carried record is stated, not
inferred, and a marker does not end the search for a whole record.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from durable_shuffle.serialization.checksum import Bytes
from durable_shuffle.serialization.frame_decoder import TruncatedFrameError
from durable_shuffle.serialization.frames import (
    FLAG_CONTINUES,
    FRAME_HEADER_BYTES,
    MAX_FRAME_BODY_BYTES,
    FrameKind,
    decode_frame_header,
    frame_size,
    padded_length,
)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Consecutive bytes of one subpartition."""

    data: memoryview
    carry_bytes: int
    """How many bytes at the start belong to a record that began in an earlier buffer."""
    carry_ends: bool
    """Whether that record ends in this buffer; True if nothing is carried."""
    first_ordinal: int
    """Ordinal of the first record that starts in this buffer or, if there is none, after it."""
    end_ordinal: int
    """Ordinal of the first record that starts at or after the end of this buffer."""
    whole_ordinal: int
    """Ordinal of the first record that does not end in this buffer or before: smaller than
    `end_ordinal` if the buffer is cut."""
    cut: bool = False
    """Whether the last record continues in the next buffer."""
    marker: bool = False
    """Whether the buffer is exactly one marker frame."""


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The part of a buffer for a reader that must begin with a whole record."""

    data: memoryview
    """May be empty."""
    done: bool
    """False if the next buffer must be trimmed too."""


def trim(buffer: Buffer, read_bytes: int = 0) -> Trimmed:
    """Remove the carried bytes, and bytes that were read before.

    Args:
        read_bytes: how many bytes of the buffer were read; they end with a record.
    """
    if buffer.marker:
        return Trimmed(buffer.data[read_bytes:], done=False)
    if read_bytes and read_bytes >= buffer.carry_bytes:
        done = buffer.carry_ends or read_bytes > buffer.carry_bytes
        return Trimmed(buffer.data[read_bytes:], done=done)
    return Trimmed(buffer.data[buffer.carry_bytes :], done=buffer.carry_ends)


class BufferCutter:
    """Turns the bytes of one extent, fetched in pieces of any size, into buffers.

    Strategy: read only frame headers; the decoder checks bodies. If the fetched bytes end inside a
    header or a marker, that part is held back until the rest arrives. So each buffer begins at a
    frame or inside a body. Not safe for concurrent use.

    Args:
        first_ordinal: ordinal of the extent's first record.
        max_body_bytes: longest frame body to accept, padding excluded.
        start_ordinal: frames with only records below this are left out.
    """

    def __init__(
        self,
        first_ordinal: int,
        max_body_bytes: int = MAX_FRAME_BODY_BYTES,
        *,
        start_ordinal: int = 0,
    ) -> None:
        self._ordinal = first_ordinal
        """Ordinal of the record in progress, or of the next one."""
        self._max_body_bytes = max_body_bytes
        self._start_ordinal = start_ordinal
        self._skipping = first_ordinal < start_ordinal
        """Whether all records so far lie before `start_ordinal`."""
        self._position = 0
        self._held = b""
        self._in_record = False
        self._continues = False
        self._body_left = 0
        self._rows = 0

    @property
    def held_bytes(self) -> int:
        """Bytes fed and held back for the next buffer."""
        return len(self._held)

    def cut(self, data: Bytes) -> Iterator[Buffer]:
        """Yield the buffers of the next bytes: none, one, or more if there are markers.

        Raises:
            CorruptDataError, IncompatibleError: a frame header is wrong; see `frames`.
        """
        view = memoryview(self._held + bytes(data) if self._held else data).toreadonly().cast("B")
        size, start, offset = view.nbytes, 0, 0
        carrying, carry, first = self._in_record, 0, self._next_start()
        while offset < size:
            if self._body_left:
                step = min(self._body_left, size - offset)
                offset += step
                self._body_left -= step
            else:
                if size - offset < FRAME_HEADER_BYTES:
                    break
                place = self._position + offset - len(self._held)
                head = view[offset : offset + FRAME_HEADER_BYTES]
                header = decode_frame_header(head, place, self._max_body_bytes)
                if header.kind is FrameKind.MARKER:  # also between the frames of one record
                    end = offset + frame_size(header.body_length)
                    if end > size:
                        break
                    self._skipping = self._skipping and self._ordinal < self._start_ordinal
                    if offset > start and not self._skipping:
                        yield self._buffer(view[start:offset], carry, first, carrying=carrying)
                    if not self._skipping:
                        yield self._buffer(view[offset:end], 0, self._next_start(), marker=True)
                    start = offset = end
                    carrying, carry, first = self._in_record, 0, self._next_start()
                    continue
                self._in_record = True
                self._continues = bool(header.flags & FLAG_CONTINUES)
                self._body_left = padded_length(header.body_length)
                self._rows = header.rows
                if self._skipping and self._next_start() > self._start_ordinal:
                    self._skipping, start, first = False, offset, self._ordinal
                offset += FRAME_HEADER_BYTES
            if self._in_record and not self._body_left and not self._continues:
                self._ordinal += self._rows
                self._in_record = False
                if self._skipping:
                    start, carrying, first = offset, False, self._ordinal
                elif carrying:
                    carrying, carry, first = False, offset - start, self._ordinal
        self._position += size - len(self._held)
        self._held = bytes(view[offset:])
        if offset > start and not self._skipping:
            yield self._buffer(view[start:offset], carry, first, carrying=carrying)

    def end(self) -> None:
        """Declare the end of the extent.

        Raises:
            TruncatedFrameError: it ends inside a record, a header or a marker.
        """
        if self._in_record or self._held:
            received = len(self._held)
            raise TruncatedFrameError(
                f"the extent ends inside a frame, at byte {self._position}",
                received,
                received + max(1, self._body_left),
            )

    def _buffer(
        self,
        data: memoryview,
        carry: int,
        first: int,
        *,
        carrying: bool = False,
        marker: bool = False,
    ) -> Buffer:
        return Buffer(
            data,
            data.nbytes if carrying else carry,
            carry_ends=not carrying,
            first_ordinal=first,
            end_ordinal=self._next_start(),
            whole_ordinal=self._ordinal,
            cut=self._in_record and not marker,
            marker=marker,
        )

    def _next_start(self) -> int:
        """Ordinal of the first record that starts from here on."""
        if not self._in_record:
            return self._ordinal
        # a record that continues in other frames is one record
        return self._ordinal + (1 if self._continues else self._rows)
