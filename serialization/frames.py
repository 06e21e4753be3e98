"""Layout of a frame, the unit on storage: a 24-byte header, then a body padded to 8 bytes.

Strategy: the header has its own CRC, so a reader can trust the length before the body arrives, and
can distinguish a truncated end from corruption. The body's CRC covers body and padding and is
seeded with the frame's address (`checksum.frame_seed`). Encoding returns parts to write one after
the other; the body is never copied.

This file must not know what a body means, nor where frames come from.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from durable_shuffle.serialization.checksum import Bytes, crc32
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
)

FRAME_HEADER_BYTES = 24
FRAME_ALIGNMENT = 8
FRAME_MAGIC = 0x46534489  # on storage: 89 44 53 46, "\x89DSF"
"""The first byte is not ASCII, so a text file is never taken for a frame."""

FLAG_CONTINUES = 1
"""The record continues in the next frame."""

# A frame is held in memory whole, several times over in a reader with read-ahead, so its limit
# bounds what one flipped length can cost. 256 MiB leaves room for a writer's largest slice and
# stays far below the u32 of the header. Others: Flink spills records over 5 MiB to disk, gRPC
# refuses messages over 4 MiB by default, Kafka batches over 1 MiB, Thrift's default is 100 MiB,
# Spark's rpc.message.maxSize is 128 MiB and protobuf stops at 2 GiB.
MAX_FRAME_BODY_BYTES = 256 * 1024 * 1024

# Arrow and Python can hold more, but a record is handed out whole, in one piece of memory. 2 GiB
# is where protobuf, Spark's rows and Java's arrays end.
MAX_RECORD_BYTES = 2 * 1024 * 1024 * 1024

_UINT32_MAX = 0xFFFF_FFFF
_KNOWN_FLAGS = FLAG_CONTINUES
_ZEROS = bytes(FRAME_ALIGNMENT)
# magic, kind, flags, reserved, rows, body length, body CRC; the header CRC follows
_CHECKED = struct.Struct("<IBBHIII")
_CRC = struct.Struct("<I")


class FrameKind(IntEnum):
    """What the body holds."""

    ARROW = 1
    """One encapsulated Arrow IPC record batch message."""
    MSGPACK = 2
    """One msgpack array of records."""
    MARKER = 3
    """A marker: checkpoint, end of data."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One decoded frame."""

    kind: FrameKind
    flags: int
    rows: int
    """Records that end in this frame."""
    body: memoryview
    """Read-only, without padding. May be a slice of a fed chunk, which it then keeps in memory."""

    @property
    def continues(self) -> bool:
        """Whether the record continues in the next frame."""
        return bool(self.flags & FLAG_CONTINUES)


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """A header with a valid header CRC. The body is not checked yet."""

    kind: FrameKind
    flags: int
    rows: int
    body_length: int
    """Bytes, padding excluded."""
    body_crc: int


def padded_length(body_length: int) -> int:
    """Return `body_length` rounded up to a multiple of 8."""
    return body_length + -body_length % FRAME_ALIGNMENT


def frame_size(body_length: int) -> int:
    """Return the bytes that a frame takes on storage: header, body and padding."""
    return FRAME_HEADER_BYTES + padded_length(body_length)


def encode_frame_header(
    kind: FrameKind, flags: int, rows: int, body: Bytes, body_length: int, seed: int
) -> bytes:
    """Return the 24 header bytes for `body`.

    Args:
        kind: what the body holds.
        flags: 0 or FLAG_CONTINUES.
        rows: records that end in this frame; 0 in a frame that continues.
        body: the body, either exactly `body_length` bytes or already padded with zeros to 8.
        body_length: bytes without padding.
        seed: initial value of the body CRC, see `checksum.frame_seed`.

    Raises:
        InvalidInputError: a value does not fit its field, or `body` has another length.
    """
    found = memoryview(body).nbytes
    padded = padded_length(body_length)
    if found not in (body_length, padded):
        msg = f"frame body: expected {body_length} or {padded} bytes, found {found}"
        raise InvalidInputError(msg)
    if flags & ~_KNOWN_FLAGS or not 0 <= rows <= _UINT32_MAX or padded > _UINT32_MAX:
        msg = f"frame field out of range: {flags=:#x} {rows=} {body_length=}"
        raise InvalidInputError(msg)
    body_crc = crc32(_ZEROS[: padded - found], crc32(body, seed))
    checked = _CHECKED.pack(FRAME_MAGIC, FrameKind(kind), flags, 0, rows, body_length, body_crc)
    return checked + _CRC.pack(crc32(checked))


def frame_parts(
    kind: FrameKind,
    rows: int,
    body: Bytes,
    seed: int,
    *,
    flags: int = 0,
    max_body_bytes: int = MAX_FRAME_BODY_BYTES,
) -> tuple[Bytes, ...]:
    """Return (header, body, padding), to be written one after the other; `body` is not copied.

    Raises:
        InvalidInputError: the body is longer than `max_body_bytes` (split the record, see
            `record_parts`), or a value does not fit its field.
    """
    body_length = memoryview(body).nbytes
    if body_length > max_body_bytes:
        msg = f"frame body of {body_length} bytes is over the limit of {max_body_bytes}"
        raise InvalidInputError(msg)
    header = encode_frame_header(kind, flags, rows, body, body_length, seed)
    return header, body, _ZEROS[: padded_length(body_length) - body_length]


def record_parts(
    kind: FrameKind,
    rows: int,
    body: Bytes,
    seed: int,
    *,
    max_body_bytes: int = MAX_FRAME_BODY_BYTES,
) -> tuple[Bytes, ...]:
    """Return the parts of one frame, or of several continuing frames if the body is over the limit.

    Write the parts one after the other; `body` is not copied. Every frame but the last one has
    FLAG_CONTINUES and 0 rows. All frames have the same seed, made with the ordinal of the first
    record; `FrameDecoder.next_record` joins them.

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


def decode_frame_header(data: Bytes, offset: int, max_body_bytes: int) -> FrameHeader:
    """Return the header in the 24 bytes of `data`; `offset` only names the place in messages.

    Raises:
        CorruptDataError: bad magic, bad header CRC, or a length over `max_body_bytes`.
        IncompatibleError: the CRC is right, but kind, flags or reserved bits are unknown here.
    """
    magic, kind, flags, reserved, rows, body_length, body_crc = _CHECKED.unpack_from(data)
    (expected,) = _CRC.unpack_from(data, _CHECKED.size)
    if magic != FRAME_MAGIC:
        msg = f"frame at byte {offset}: magic: expected {FRAME_MAGIC:#010x}, found {magic:#010x}"
        raise CorruptDataError(msg)
    found = crc32(memoryview(data)[: _CHECKED.size])
    if found != expected:
        msg = f"frame at byte {offset}: header CRC: expected {expected:#010x}, found {found:#010x}"
        raise CorruptDataError(msg)
    if kind not in FrameKind.__members__.values():
        known = ", ".join(f"{member.value} {member.name}" for member in FrameKind)
        msg = f"frame at byte {offset}: kind {kind} is unknown, this version knows {known}"
        raise IncompatibleError(msg)
    if flags & ~_KNOWN_FLAGS or reserved:
        msg = (
            f"frame at byte {offset}: expected flags within {_KNOWN_FLAGS:#04x} and reserved 0, "
            f"found flags {flags:#04x} and reserved {reserved:#06x}"
        )
        raise IncompatibleError(msg)
    if body_length > max_body_bytes:
        msg = (
            f"frame at byte {offset}: body length: expected at most {max_body_bytes}, "
            f"found {body_length}"
        )
        raise CorruptDataError(msg)
    return FrameHeader(FrameKind(kind), flags, rows, body_length, body_crc)
