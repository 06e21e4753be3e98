"""Incremental decoding: any cut, any damage, any tail."""

import struct
import time
import tracemalloc
import zlib
from itertools import pairwise
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.serialization.frame_decoder import (
    NEED_DATA,
    FrameDecoder,
    TruncatedFrameError,
)

# kind, flags, rows, body
Plain: TypeAlias = tuple[int, int, int, bytes]
FRAMES: list[Plain] = [
    (2, 0, 3, b"hello"),
    (1, 0, 10, bytes(range(64))),
    (3, 0, 0, b""),
    (2, 1, 1, b"part one"),  # rows of a frame that continues do not count
    (2, 1, 0, b"part two, "),
    (2, 0, 1, b"the end"),
    (2, 0, 2, b"x"),
]
FIRST_ORDINAL = 100
ORDINALS = [100, 103, 113, 113, 113, 113, 114]  # of each frame's first record
relaxed = settings(deadline=None)


def seed_of(ordinal: int) -> int:
    """A seed of the test's own."""
    return (ordinal * 2654435761) % 2**32


def frame_bytes(frame: Plain, seed: int) -> bytes:
    """One frame, put together by hand."""
    kind, flags, rows, body = frame
    padded = body + bytes(-len(body) % 8)
    first = b"\x89DSF" + struct.pack(
        "<BBHIII", kind, flags, 0, rows, len(body), zlib.crc32(padded, seed)
    )
    return first + struct.pack("<I", zlib.crc32(first)) + padded


def stream_bytes(frames: list[Plain]) -> bytes:
    """Frames one after the other, seeded by ordinal."""
    out, ordinal = b"", FIRST_ORDINAL
    for frame in frames:
        out += frame_bytes(frame, seed_of(ordinal))
        ordinal += 0 if frame[1] else frame[2]
    return out


def new_decoder(**options: int) -> FrameDecoder:
    return FrameDecoder(seed_of, first_ordinal=FIRST_ORDINAL, **options)


def take_all(decoder: FrameDecoder) -> list[Plain]:
    out = []
    while (frame := decoder.next_frame()) is not NEED_DATA:
        out.append((int(frame.kind), frame.flags, frame.rows, bytes(frame.body)))
    return out


STREAM = stream_bytes(FRAMES)


def test_whole_input() -> None:
    """All frames from one chunk, their ordinals and places on the way."""
    decoder = new_decoder()
    decoder.feed(STREAM)
    position = 0
    for frame, ordinal in zip(FRAMES, ORDINALS, strict=True):
        assert (decoder.position, decoder.next_ordinal) == (position, ordinal)
        assert decoder.next_frame() is not NEED_DATA
        position += 24 + (len(frame[3]) + 7) // 8 * 8
    assert decoder.next_frame() is NEED_DATA
    assert decoder.position == len(STREAM)
    assert decoder.next_ordinal == 116
    decoder.end()


@pytest.mark.requirement("R-F135-10")
def test_one_byte_at_a_time() -> None:
    """A frame comes out exactly with its last byte, never sooner."""
    decoder = new_decoder()
    found: list[tuple[int, Plain]] = []
    for i in range(len(STREAM)):
        decoder.feed(STREAM[i : i + 1])
        found += [(i + 1, frame) for frame in take_all(decoder)]
    decoder.end()
    ends, end = [], 0
    for frame in FRAMES:
        end += 24 + (len(frame[3]) + 7) // 8 * 8
        ends.append(end)
    assert found == list(zip(ends, FRAMES, strict=True))


def test_trailing_bytes_wait_for_more() -> None:
    """What follows the last frame neither disturbs it nor is lost."""
    decoder = new_decoder()
    decoder.feed(STREAM + b"\x89DS")
    assert take_all(decoder) == FRAMES
    assert decoder.position == len(STREAM)
    with pytest.raises(TruncatedFrameError, match="expected 24 bytes, received 3"):
        decoder.end()


@pytest.mark.requirement("R-F135-10")
@relaxed
@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12), eager=st.booleans())
def test_output_does_not_depend_on_the_cuts(cuts: list[int], eager: bool) -> None:
    """Any cuts, also inside headers, and asking after every chunk or once at the end."""
    decoder, found = new_decoder(), []
    edges = [0, *sorted(cuts), len(STREAM)]
    for start, end in pairwise(edges):
        decoder.feed(STREAM[start:end])
        if eager:
            found += take_all(decoder)
    found += take_all(decoder)
    decoder.end()
    assert found == FRAMES


def test_body_within_one_chunk_is_a_slice_of_it() -> None:
    """No copy: a change of the fed buffer shows in the body, which itself is read-only."""
    chunk = bytearray(frame_bytes((2, 0, 1, b"abcdefgh"), seed_of(0)))
    decoder = FrameDecoder(seed_of)
    decoder.feed(chunk)
    frame = decoder.next_frame()
    assert frame is not NEED_DATA
    chunk[24] = ord("X")
    assert bytes(frame.body) == b"Xbcdefgh"
    assert frame.body.readonly


def test_every_torn_tail_is_told_from_corruption() -> None:
    """At every cut: the whole frames before it, then a torn tail or a clean end."""
    frames = FRAMES[:4]
    stream = stream_bytes(frames)
    edges = {0: 0}
    for count in range(1, 5):
        edges[len(stream_bytes(frames[:count]))] = count
    for cut in range(len(stream) + 1):
        decoder = new_decoder()
        decoder.feed(stream[:cut])
        start = max(edge for edge in edges if edge <= cut)
        assert take_all(decoder) == frames[: edges[start]]
        if cut == start:
            decoder.end()
            continue
        with pytest.raises(TruncatedFrameError) as caught:
            decoder.end()
        assert caught.value.received_bytes == cut - start
        whole = min(edge for edge in edges if edge > cut) - start
        assert caught.value.expected_bytes == (24 if cut - start < 24 else whole)


@pytest.mark.parametrize("rest", [b"\0", b"\x89DSX", b"\x89DSC" + bytes(12)])
def test_leftover_that_is_no_frame_is_corruption(rest: bytes) -> None:
    """Too short for a header, yet not the start of one."""
    decoder = new_decoder()
    decoder.feed(STREAM)
    take_all(decoder)
    decoder.feed(rest)
    assert decoder.next_frame() is NEED_DATA
    with pytest.raises(CorruptDataError, match=f"byte {len(STREAM)}: magic") as caught:
        decoder.end()
    assert not isinstance(caught.value, TruncatedFrameError)


def test_every_single_bit_flip_is_found() -> None:
    """Header, body and padding: no flip gives a frame."""
    good = frame_bytes((2, 0, 3, b"hello"), seed_of(FIRST_ORDINAL))
    assert len(good) == 32
    for bit in range(len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        decoder = new_decoder()
        decoder.feed(bytes(bad))
        with pytest.raises(CorruptDataError):
            decoder.next_frame()


def test_misdirected_read_fails() -> None:
    """Good bytes at the wrong address: another seed, or another ordinal; also with no body."""
    for body in (b"hello", b""):
        good = frame_bytes((2, 0, 3, body), seed_of(FIRST_ORDINAL))
        elsewhere = FrameDecoder(lambda ordinal: ordinal, first_ordinal=FIRST_ORDINAL)
        later = FrameDecoder(seed_of, first_ordinal=FIRST_ORDINAL + 1)
        unseeded = FrameDecoder(None, first_ordinal=FIRST_ORDINAL)
        for decoder in (elsewhere, later, unseeded):
            decoder.feed(good)
            with pytest.raises(CorruptDataError, match="body CRC: expected 0x"):
                decoder.next_frame()


def test_unseeded_frames() -> None:
    """Without a seed function the CRC is the plain one."""
    decoder = FrameDecoder(None)
    decoder.feed(frame_bytes((2, 0, 3, b"hello"), 0))
    assert take_all(decoder) == [(2, 0, 3, b"hello")]


def test_failed_decoder_stays_failed() -> None:
    """The same error again from every call, although good bytes would follow."""
    decoder = new_decoder()
    decoder.feed(b"garbage that is long enough for a header" + STREAM)
    with pytest.raises(CorruptDataError) as caught:
        decoder.next_frame()
    for call in (decoder.next_frame, decoder.end, lambda: decoder.feed(STREAM)):
        with pytest.raises(CorruptDataError) as again:
            call()
        assert again.value is caught.value


def test_order_of_calls_is_checked() -> None:
    """Ending early changes nothing; feeding after the end is refused."""
    decoder = new_decoder()
    decoder.feed(STREAM)
    with pytest.raises(InvalidInputError, match="before all frames were taken"):
        decoder.end()
    assert take_all(decoder) == FRAMES
    decoder.end()
    with pytest.raises(InvalidInputError, match="after its end"):
        decoder.feed(b"x")


@pytest.mark.requirement("R-F135-30")
def test_flipped_length_is_corruption_and_costs_no_memory() -> None:
    """A length of up to 4 GiB is never believed: by its CRC, and by the limit if that is right."""
    good = frame_bytes((2, 0, 3, b"hello"), seed_of(FIRST_ORDINAL))
    forged = good[:12] + b"\xff\xff\xff\xff" + good[16:20]
    forged += struct.pack("<I", zlib.crc32(forged))
    flipped = good[:15] + b"\xff" + good[16:]
    tracemalloc.start()
    try:
        for bad, message in ((flipped, "header CRC"), (forged, "body length: expected at most")):
            decoder = new_decoder()
            decoder.feed(bad)
            with pytest.raises(CorruptDataError, match=message):
                decoder.next_frame()
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.requirement("R-F135-30")
def test_memory_follows_what_arrived_not_what_was_promised() -> None:
    """A valid header that promises 200 MB allocates nothing before the bytes come."""
    first = b"\x89DSF" + struct.pack("<BBHIII", 2, 0, 0, 1, 200_000_000, 0)
    tracemalloc.start()
    try:
        decoder = new_decoder()
        decoder.feed(first + struct.pack("<I", zlib.crc32(first)) + bytes(1000))
        assert decoder.next_frame() is NEED_DATA
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    with pytest.raises(TruncatedFrameError) as caught:
        decoder.end()
    assert (caught.value.received_bytes, caught.value.expected_bytes) == (1024, 200_000_024)


@pytest.mark.requirement("R-F135-30")
def test_limit_is_inclusive() -> None:
    """A body of exactly the limit passes, one byte more does not."""
    stream = frame_bytes((2, 0, 1, b"12345"), seed_of(FIRST_ORDINAL))
    decoder = new_decoder(max_body_bytes=5)
    decoder.feed(stream)
    assert len(take_all(decoder)) == 1
    decoder = new_decoder(max_body_bytes=4)
    decoder.feed(stream)
    with pytest.raises(CorruptDataError, match="at most 4, found 5"):
        decoder.next_frame()


def test_small_pieces_are_joined_in_linear_work() -> None:
    """4 MB in pieces of 64 bytes: joining anew at each piece would copy 130 GB."""
    size, step = 4_000_000, 64
    stream = frame_bytes((2, 0, 1, bytes(size)), seed_of(FIRST_ORDINAL))
    decoder, found = new_decoder(), []
    started = time.process_time()
    for start in range(0, len(stream), step):
        decoder.feed(stream[start : start + step])
        found += take_all(decoder)
    assert time.process_time() - started < 5
    assert found == [(2, 0, 1, bytes(size))]


valid_or_not = st.one_of(
    st.binary(max_size=200),
    st.builds(
        lambda kind, flags, rows, body, cut, tail: (
            frame_bytes((kind, flags, rows, body), seed_of(FIRST_ORDINAL))[:cut] + tail
        ),
        st.integers(0, 5),
        st.integers(0, 3),
        st.integers(0, 2**32 - 1),
        st.binary(max_size=40),
        st.integers(0, 80),
        st.binary(max_size=40),
    ),
)


@pytest.mark.requirement("R-F135-30")
@relaxed
@given(data=valid_or_not, cut=st.integers(0, 100))
def test_any_bytes_give_frames_or_our_errors(data: bytes, cut: int) -> None:
    """No matter what bytes come: frames, or one of two errors of ours, and no other."""
    decoder = new_decoder(max_body_bytes=1000)
    try:
        for piece in (data[:cut], data[cut:]):
            decoder.feed(piece)
            take_all(decoder)
        decoder.end()
    except (CorruptDataError, IncompatibleError):
        return
    assert decoder.position == len(data)
