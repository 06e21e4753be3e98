"""Frame layout, against bytes put together by hand."""

import struct
import zlib

import pytest

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.serialization.frames import (
    FLAG_CONTINUES,
    FrameKind,
    decode_frame_header,
    encode_frame_header,
    frame_parts,
    frame_size,
)


def header_by_hand(
    *, magic: bytes = b"\x89DSF", kind: int = 2, flags: int = 0, reserved: int = 0
) -> bytes:
    """A header with a right CRC over whatever it holds."""
    first = magic + struct.pack("<BBHIII", kind, flags, reserved, 3, 5, 0)
    return first + struct.pack("<I", zlib.crc32(first))


def test_frame_is_these_bytes() -> None:
    """Every field at its place, the body's CRC seeded and over the padding too."""
    body_crc = zlib.crc32(b"hello\0\0\0", 77)
    first = b"\x89DSF" + bytes([2, 1, 0, 0]) + struct.pack("<III", 3, 5, body_crc)
    expected = first + struct.pack("<I", zlib.crc32(first)) + b"hello\0\0\0"
    parts = frame_parts(FrameKind.MSGPACK, 3, b"hello", 77, flags=FLAG_CONTINUES)
    assert b"".join(parts) == expected


@pytest.mark.parametrize("length", range(18))
def test_frames_are_aligned(length: int) -> None:
    """A frame takes a multiple of 8 bytes, and as many as announced."""
    frame = b"".join(frame_parts(FrameKind.ARROW, 1, b"x" * length, 0))
    assert len(frame) == frame_size(length)
    assert len(frame) % 8 == 0
    assert 0 <= len(frame) - 24 - length < 8


def test_body_is_not_copied() -> None:
    """The very object that was given is among the parts."""
    body = bytearray(b"12345")
    assert frame_parts(FrameKind.ARROW, 1, body, 0)[1] is body


def test_header_of_padded_and_unpadded_body_is_the_same() -> None:
    """Whoever has padded already gets the same header."""
    plain = encode_frame_header(FrameKind.ARROW, 0, 1, b"abc", 3, 9)
    padded = encode_frame_header(FrameKind.ARROW, 0, 1, b"abc\0\0\0\0\0", 3, 9)
    assert plain == padded
    with pytest.raises(InvalidInputError, match="expected 3 or 8 bytes, found 4"):
        encode_frame_header(FrameKind.ARROW, 0, 1, b"abc\0", 3, 9)


@pytest.mark.parametrize(("flags", "rows"), [(2, 0), (0, -1), (0, 2**32)])
def test_values_that_do_not_fit_are_refused(flags: int, rows: int) -> None:
    """A field is never cut to size."""
    with pytest.raises(InvalidInputError, match="out of range"):
        frame_parts(FrameKind.ARROW, rows, b"", 0, flags=flags)


def test_body_over_the_limit_is_refused() -> None:
    """The limit is inclusive."""
    assert frame_parts(FrameKind.ARROW, 1, b"12345678", 0, max_body_bytes=8)
    with pytest.raises(InvalidInputError, match="9 bytes is over the limit of 8"):
        frame_parts(FrameKind.ARROW, 1, b"123456789", 0, max_body_bytes=8)


def test_header_by_hand_is_read() -> None:
    """The oracle's header decodes, so its variants below fail for their own reason."""
    header = decode_frame_header(header_by_hand(), 0, 5)
    assert (header.kind, header.flags, header.rows, header.body_length) == (2, 0, 3, 5)


@pytest.mark.parametrize(
    ("header", "error", "message"),
    [
        (header_by_hand(magic=b"RIFF"), CorruptDataError, "byte 40: magic"),
        (header_by_hand()[:-1] + b"\0", CorruptDataError, "byte 40: header CRC: expected 0x"),
        (header_by_hand(kind=9), IncompatibleError, "kind 9 is unknown"),
        (header_by_hand(kind=0), IncompatibleError, "kind 0 is unknown"),
        (header_by_hand(flags=0x82), IncompatibleError, "found flags 0x82"),
        (header_by_hand(reserved=7), IncompatibleError, "reserved 0x0007"),
    ],
)
def test_bad_headers_are_told_apart(header: bytes, error: type[Exception], message: str) -> None:
    """Damage is corruption; an intact header from elsewhere is incompatible."""
    with pytest.raises(error, match=message):
        decode_frame_header(header, 40, 5)


@pytest.mark.requirement("R-F135-30")
def test_length_over_the_limit_is_corruption() -> None:
    """The limit is checked as soon as the header is there."""
    with pytest.raises(CorruptDataError, match="expected at most 4, found 5"):
        decode_frame_header(header_by_hand(), 0, 4)
