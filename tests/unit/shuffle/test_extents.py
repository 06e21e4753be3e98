"""The loop that decodes an extent: every row that was committed, and no other."""

import pytest

from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.serialization.frames import Frame, FrameKind, record_parts
from durable_shuffle.shuffle.read.extents import read_frames

LIMIT = 1 << 20
FIRST = 7


def extent(counts: list[int]) -> bytes:
    """Return frames with so many rows each, whose bodies are their number."""
    ordinal, parts = FIRST, []
    for n, rows in enumerate(counts):
        parts += record_parts(FrameKind.MSGPACK, rows, b"%d" % n, ordinal, max_body_bytes=LIMIT)
        ordinal += rows
    return b"".join(bytes(part) for part in parts)


def read(data: bytes, rows: int) -> list[tuple[bytes, int]]:
    """Return the body of each frame with how many rows stand before it."""

    def decode(frame: Frame, _begin: int, before: int) -> list[tuple[bytes, int]]:
        return [(bytes(frame.body), before)]

    return list(
        read_frames(
            data,
            lambda ordinal: ordinal,
            decode,
            rows=rows,
            place="here",
            max_body_bytes=LIMIT,
            first_ordinal=FIRST,
        )
    )


def test_frames_come_in_order_with_the_rows_before_them() -> None:
    """Three frames of 2, 3 and 1 rows; an extent without frames has no rows."""
    assert read(extent([2, 3, 1]), 6) == [(b"0", 0), (b"1", 2), (b"2", 5)]
    assert read(b"", 0) == []


@pytest.mark.parametrize("committed", [0, 5, 7])
def test_rows_delivered_are_rows_committed(committed: int) -> None:
    """Fewer and more are refused, with both numbers and the place."""
    expected = f"not rows committed: expected={committed} found=6: here"
    with pytest.raises(CorruptDataError, match=expected):
        read(extent([2, 3, 1]), committed)


@pytest.mark.parametrize("cut", [1, 20])
def test_a_cut_extent_is_refused(cut: int) -> None:
    """Bytes that are missing at the end are damage, whatever was delivered before."""
    with pytest.raises(CorruptDataError, match="here"):
        read(extent([2, 3, 1])[:-cut], 6)


def test_what_the_decoder_refuses_names_the_place() -> None:
    """An error of the caller's own decoding too."""

    def refuse(_frame: Frame, begin: int, _before: int) -> list[int]:
        raise CorruptDataError(f"no pair at byte {begin}")

    frames = read_frames(
        extent([1]),
        lambda ordinal: ordinal + FIRST,
        refuse,
        rows=1,
        place="here",
        max_body_bytes=LIMIT,
    )
    with pytest.raises(CorruptDataError, match="no pair at byte 0: here"):
        list(frames)
