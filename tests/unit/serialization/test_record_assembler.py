"""Records over several frames."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_shuffle.serialization.errors import CorruptDataError, InvalidInputError
from durable_shuffle.serialization.frame_decoder import (
    NEED_DATA,
    FrameDecoder,
    TruncatedFrameError,
)
from durable_shuffle.serialization.frames import Frame, FrameKind
from durable_shuffle.serialization.record_assembler import RecordAssembler, record_parts


def frame(body: bytes, *, more: bool, kind: FrameKind = FrameKind.MSGPACK) -> Frame:
    return Frame(kind, 1 if more else 0, 0 if more else 1, memoryview(body))


def test_whole_frames_pass_through() -> None:
    """The same object comes back, uncopied."""
    whole = frame(b"abc", more=False)
    assert RecordAssembler().add(whole) is whole


@pytest.mark.requirement("R-F135-30")
def test_continued_frames_are_joined_as_they_come() -> None:
    """Nothing until the last part, then one frame with the rows of the last."""
    assembler = RecordAssembler()
    assert assembler.add(frame(b"abc", more=True)) is None
    assert assembler.add(frame(b"", more=True)) is None
    assert (assembler.pending, assembler.pending_bytes) == (True, 3)
    joined = assembler.add(frame(b"de", more=False))
    assert joined is not None
    assert (joined.kind, joined.flags, joined.rows, bytes(joined.body)) == (2, 0, 1, b"abcde")
    assert (assembler.pending, assembler.pending_bytes) == (False, 0)
    assembler.end()


@pytest.mark.requirement("R-F135-30")
def test_record_over_the_limit_is_corruption() -> None:
    """The limit holds over the parts, and it is inclusive."""
    assembler = RecordAssembler(max_record_bytes=5)
    assembler.add(frame(b"abc", more=True))
    assert assembler.add(frame(b"de", more=False)) is not None
    assembler.add(frame(b"abc", more=True))
    with pytest.raises(CorruptDataError, match="at most 5 bytes, found 6"):
        assembler.add(frame(b"def", more=True))


def test_parts_of_different_kinds_are_corruption() -> None:
    """A record does not change its kind on the way."""
    assembler = RecordAssembler()
    assembler.add(frame(b"abc", more=True))
    with pytest.raises(CorruptDataError, match="expected kind MSGPACK, found MARKER"):
        assembler.add(frame(b"", more=False, kind=FrameKind.MARKER))


def test_missing_last_part_is_a_torn_tail() -> None:
    """Also when the part that is there is empty; a discarded record is forgotten."""
    for body in (b"abc", b""):
        assembler = RecordAssembler()
        assembler.add(frame(body, more=True))
        with pytest.raises(TruncatedFrameError) as caught:
            assembler.end()
        assert caught.value.received_bytes == len(body)
        assembler.discard()
        assembler.end()


@settings(deadline=None)
@given(body=st.binary(max_size=100), limit=st.integers(8, 40))
def test_cut_record_comes_back_whole(body: bytes, limit: int) -> None:
    """Written in parts within the limit, decoded and joined, then a further record after it."""
    stream = b"".join(
        (
            *record_parts(FrameKind.MSGPACK, 4, body, 7, max_body_bytes=limit),
            *record_parts(FrameKind.MSGPACK, 1, b"next", 11, max_body_bytes=limit),
        )
    )
    decoder = FrameDecoder(lambda ordinal: ordinal, first_ordinal=7, max_body_bytes=limit)
    decoder.feed(stream)
    assembler, found = RecordAssembler(), []
    while (part := decoder.next_frame()) is not NEED_DATA:
        assert part.body.nbytes <= limit
        if (record := assembler.add(part)) is not None:
            found.append((record.rows, bytes(record.body)))
    decoder.end()
    assert found == [(4, body), (1, b"next")]


def test_limit_too_small_to_cut_is_refused() -> None:
    """Parts are multiples of 8 bytes."""
    with pytest.raises(InvalidInputError, match="at least 8, found 7"):
        record_parts(FrameKind.MSGPACK, 1, b"x", 0, max_body_bytes=7)
