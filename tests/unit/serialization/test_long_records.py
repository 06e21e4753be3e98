"""Records over several frames: cut by `record_parts`, joined by the decoder."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_shuffle.serialization.errors import CorruptDataError, InvalidInputError
from durable_shuffle.serialization.frame_decoder import (
    NEED_DATA,
    FrameDecoder,
    TruncatedFrameError,
)
from durable_shuffle.serialization.frames import (
    FLAG_CONTINUES,
    Frame,
    FrameKind,
    frame_parts,
    record_parts,
)


def frame(body: bytes, *, more: bool, kind: FrameKind = FrameKind.MSGPACK) -> bytes:
    """One frame, unseeded."""
    flags = FLAG_CONTINUES if more else 0
    return b"".join(frame_parts(kind, 0 if more else 1, body, 0, flags=flags))


def taken(decoder: FrameDecoder) -> Frame | None:
    found = decoder.next_record()
    return None if found is NEED_DATA else found


@pytest.mark.requirement("R-F135-30")
def test_continued_frames_are_joined_as_they_come() -> None:
    """Nothing until the last part, then one frame with the rows of the last; its place is that of
    the first."""
    decoder, parts = FrameDecoder(None), (b"abc", b"", b"de")
    for body in parts[:2]:
        decoder.feed(frame(body, more=True))
        assert taken(decoder) is None
    assert (decoder.record_position, decoder.next_ordinal) == (0, 0)
    decoder.feed(frame(parts[2], more=False))
    joined = taken(decoder)
    assert joined is not None
    assert (joined.kind, joined.flags, joined.rows, bytes(joined.body)) == (2, 0, 1, b"abcde")
    assert decoder.record_position == decoder.position == 88
    assert decoder.next_ordinal == 1
    decoder.end()


def test_a_whole_frame_is_not_copied() -> None:
    """A change of the fed buffer shows in the body."""
    chunk = bytearray(frame(b"abcdefgh", more=False))
    decoder = FrameDecoder(None)
    decoder.feed(chunk)
    found = taken(decoder)
    chunk[24] = ord("X")
    assert found is not None
    assert bytes(found.body) == b"Xbcdefgh"


@pytest.mark.requirement("R-F135-30")
def test_record_over_the_limit_is_corruption() -> None:
    """The limit holds over the parts, and it is inclusive; the decoder stays failed."""
    decoder = FrameDecoder(None, max_record_bytes=5)
    decoder.feed(frame(b"abc", more=True) + frame(b"de", more=False))
    assert taken(decoder) is not None
    decoder.feed(frame(b"abc", more=True) + frame(b"def", more=True))
    for _ in range(2):
        with pytest.raises(CorruptDataError, match="at most 5 bytes, found 6"):
            decoder.next_record()


def test_parts_of_different_kinds_are_corruption() -> None:
    """A record does not change its kind on the way."""
    decoder = FrameDecoder(None)
    decoder.feed(frame(b"abc", more=True) + frame(b"", more=False, kind=FrameKind.MARKER))
    with pytest.raises(CorruptDataError, match="expected kind MSGPACK, found MARKER"):
        decoder.next_record()


@pytest.mark.parametrize("body", [b"abc", b""])
def test_missing_last_part_is_a_torn_tail(body: bytes) -> None:
    """Also when the part that is there is empty."""
    decoder = FrameDecoder(None)
    decoder.feed(frame(body, more=True))
    assert taken(decoder) is None
    with pytest.raises(TruncatedFrameError) as caught:
        decoder.end()
    assert caught.value.received_bytes == len(body)


@settings(deadline=None)
@given(body=st.binary(max_size=100), limit=st.integers(8, 40), step=st.integers(1, 50))
def test_cut_record_comes_back_whole(body: bytes, limit: int, step: int) -> None:
    """Written in parts within the limit, fed in pieces of any size, then a further record."""
    first = b"".join(record_parts(FrameKind.MSGPACK, 4, body, 7, max_body_bytes=limit))
    stream = first + b"".join(record_parts(FrameKind.MSGPACK, 1, b"n", 11, max_body_bytes=limit))
    decoder = FrameDecoder(lambda ordinal: ordinal, first_ordinal=7, max_body_bytes=limit)
    found = []
    for at in range(0, len(stream), step):
        decoder.feed(stream[at : at + step])
        while (record := taken(decoder)) is not None:
            found.append((record.rows, bytes(record.body), decoder.record_position))
    decoder.end()
    assert found == [(4, body, len(first)), (1, b"n", len(stream))]


def test_limit_too_small_to_cut_is_refused() -> None:
    """Parts are multiples of 8 bytes."""
    with pytest.raises(InvalidInputError, match="at least 8, found 7"):
        record_parts(FrameKind.MSGPACK, 1, b"x", 0, max_body_bytes=7)
