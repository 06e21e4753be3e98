"""Extents: what names them, and the loop that decodes one: every row that was committed."""

import numpy as np
import pytest

from durable_shuffle.serialization.checksum import frame_seed
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.serialization.frames import Frame, FrameKind, record_parts
from durable_shuffle.shuffle.log.appender_log import Append, AppenderState
from durable_shuffle.shuffle.log.extent_table import EXTENT, pack_table
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.records import SegmentInfo
from durable_shuffle.shuffle.read.extents import (
    Extent,
    appended_extents,
    indexed_extent,
    read_frames,
)
from durable_shuffle.shuffle.seal.index import INDEX_ENTRY
from durable_shuffle.shuffle.storage.contract import ByteRange

LIMIT = 1 << 20
FIRST = 7


def extent(counts: list[int]) -> bytes:
    """Return frames with so many rows each, whose bodies are their number."""
    ordinal, parts = FIRST, []
    for n, rows in enumerate(counts):
        parts += record_parts(FrameKind.MSGPACK, rows, b"%d" % n, ordinal, max_body_bytes=LIMIT)
        ordinal += rows
    return b"".join(bytes(part) for part in parts)


def read(data: bytes, rows: int, piece: int = 1 << 20) -> list[tuple[bytes, int]]:
    """Return the body of each frame with how many rows stand before it."""

    def decode(frame: Frame, _begin: int, before: int) -> list[tuple[bytes, int]]:
        return [(bytes(frame.body), before)]

    return list(
        read_frames(
            (data[at : at + piece] for at in range(0, len(data), piece)),
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


@pytest.mark.parametrize("piece", [1, 7, 40, 41, 100])
def test_pieces_are_cut_anywhere(piece: int) -> None:
    """An extent read in short pieces gives the same frames, and the same refusals."""
    data = extent([2, 3, 1])
    assert read(data, 6, piece) == read(data, 6)
    with pytest.raises(CorruptDataError, match="here"):
        read(data[:-1], 6, piece)


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
        [extent([1])],
        lambda ordinal: ordinal + FIRST,
        refuse,
        rows=1,
        place="here",
        max_body_bytes=LIMIT,
    )
    with pytest.raises(CorruptDataError, match="no pair at byte 0: here"):
        list(frames)


PATH = StagePath("job", "orders", "f" * 32, "1" * 32)
ATTEMPT = "a" * 32


def appended(entries: list[tuple[int, ...]], length: int = 100) -> list[Extent]:
    """Return the extents of an APPEND with these EXTENT entries, its shifts are 5, 6, …"""
    record = Append(
        record_id=ATTEMPT,
        rows=0,
        memory_bytes=0,
        segments=(SegmentInfo(3, length, b""),),
        extents=pack_table(np.array(entries, dtype=EXTENT)),
        shifts=pack_table(np.arange(5, 5 + len(entries), dtype="<u8")),
        schema=b"schema",
        after=AppenderState(1, 1, ATTEMPT, "", 0, "", b"", b""),
    )
    return list(appended_extents(PATH, 2, 9, record, lambda e: e["subpartition"] < 8, "slot 9"))


def test_extents_of_an_append() -> None:
    """Rows and markers of what is wanted; each with its own shift, all with the record's schema."""
    rows, marker, other = (4, 3, 10, 20, 7, 2), (4, 3, 30, 5, 9, 0), (8, 3, 35, 5, 0, 1)
    key = PATH.segment_key(2, ATTEMPT, 3)
    assert appended([rows, other, marker]) == [
        Extent(2, 4, key, 3, 9, 10, 20, 7, 2, 5, b"schema"),
        Extent(2, 4, key, 3, 9, 30, 5, 9, 0, 7, b"schema"),
    ]


@pytest.mark.parametrize(
    "entry",
    [(4, 3, 10, 0, 7, 2), (4, 3, 10, 91, 7, 2), (4, 1, 10, 20, 7, 2)],
    ids=["empty", "beyond its segment", "in a segment that is not named"],
)
def test_an_extent_outside_of_its_append_is_refused(entry: tuple[int, ...]) -> None:
    """With the record, the segment and the bytes."""
    with pytest.raises(CorruptDataError, match=r"not in the segments of its APPEND: slot 9.*\[10"):
        appended([entry])


def test_an_extent_of_an_index_entry() -> None:
    """Its slot holds the first bytes of the attempt, so that hints of others do not fit."""
    entry = np.zeros(1, dtype=INDEX_ENTRY)[0]
    for name, value in (("producer", 2), ("segment", 3), ("offset", 10), ("length", 20)):
        entry[name] = value
    entry["first_ordinal"], entry["rows"] = 7, 4
    entry["attempt"] = np.frombuffer(bytes.fromhex("01020304" + "0" * 24), dtype="V16")[0]
    extent = indexed_extent(PATH, 6, entry)
    key = PATH.segment_key(2, "01020304" + "0" * 24, 3)
    assert extent == Extent(2, 6, key, 3, 0x04030201, 10, 20, 7, 4)
    assert extent.where == ByteRange(key, 10, 20)
    assert extent.seed("1" * 32, 7) == frame_seed("1" * 32, 2, 6, 7)
