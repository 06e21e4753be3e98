"""Buffers and trimming, against an oracle that knows for every byte whose it is.

The frames are put together by hand; no expectation comes from the code under test.
"""

import struct
import zlib
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_shuffle.serialization.buffers import Buffer, BufferCutter, trim
from durable_shuffle.serialization.errors import CorruptDataError, IncompatibleError
from durable_shuffle.serialization.frame_decoder import TruncatedFrameError

ARROW, MARKER = 1, 3
CONTINUES = 1
FIRST = 40


def frame(body: bytes, *, kind: int = ARROW, flags: int = 0, rows: int = 1) -> bytes:
    """One frame, put together by hand."""
    padded = body + bytes(-len(body) % 8)
    first = b"\x89DSF" + struct.pack(
        "<BBHIII", kind, flags, 0, rows, len(body), zlib.crc32(padded, 0)
    )
    return first + struct.pack("<I", zlib.crc32(first)) + padded


@dataclass
class Stream:
    """Bytes, and for each byte which unit it belongs to: (name, ordinal, rows)."""

    data: bytes = b""
    owners: list[int] = field(default_factory=list)
    units: list[tuple[str, int, int]] = field(default_factory=list)
    ordinal: int = FIRST

    def _put(self, data: bytes, unit: int) -> None:
        self.data += data
        self.owners += [unit] * len(data)

    def record(self, *bodies: bytes, rows: int = 1, between: bytes | None = None) -> "Stream":
        """Add one record in one frame or several; `between` puts a marker behind the first."""
        unit = len(self.units)
        self.units.append(("record", self.ordinal, rows))
        for n, body in enumerate(bodies):
            last = n == len(bodies) - 1
            flags = 0 if last else CONTINUES
            self._put(frame(body, flags=flags, rows=rows if last else 0), unit)
            if not last and n == 0 and between is not None:
                self.marker(between, inside=rows)
        self.ordinal += rows
        return self

    def marker(self, body: bytes = b"m", *, inside: int = 0) -> "Stream":
        self.units.append(("marker", self.ordinal + inside, 0))
        self._put(frame(body, kind=MARKER, rows=0), len(self.units) - 1)
        return self

    def first_byte(self, unit: int) -> int:
        return self.owners.index(unit)

    def end_byte(self, unit: int) -> int:
        return len(self.owners) - self.owners[::-1].index(unit)

    def expected(self, start: int, end: int) -> tuple[int, bool, int, int, int, bool, bool]:
        """(carry_bytes, carry_ends, first, end, whole ordinals, cut, marker) of data[start:end]."""
        name, _, _ = self.units[self.owners[start]]
        if name == "marker":
            at = self.units[self.owners[start]][1]
            inside = self.inside(end)
            whole = at if inside is None else self.units[inside][1]
            return 0, True, at, at, whole, False, True
        carried = self.owners[start] if self.first_byte(self.owners[start]) < start else None
        carry = 0
        while start + carry < end and self.owners[start + carry] == carried:
            carry += 1
        ends = carried is None or self.end_byte(carried) <= end
        starts = [
            (o, rows)
            for u, (n, o, rows) in enumerate(self.units)
            if n == "record" and start <= self.first_byte(u) < end
        ]
        inside = self.inside(end)
        after = self.next_start(end)
        first = starts[0][0] if starts else after
        whole = after if inside is None else self.units[inside][1]
        return carry, ends, first, after, whole, inside is not None, False

    def inside(self, at: int) -> int | None:
        """The record of which bytes lie on both sides of `at`."""
        for unit, (name, _, _) in enumerate(self.units):
            if name == "record" and self.first_byte(unit) < at < self.end_byte(unit):
                return unit
        return None

    def next_start(self, at: int) -> int:
        """Ordinal of the first record that starts at byte `at` or later."""
        for unit, (name, ordinal, _) in enumerate(self.units):
            if name == "record" and self.first_byte(unit) >= at:
                return ordinal
        return self.ordinal


def cut_at(stream: Stream, cuts: list[int], **options: int) -> list[Buffer]:
    """Feed the stream in pieces that end at `cuts`."""
    cutter = BufferCutter(FIRST, **options)
    found: list[Buffer] = []
    for start, end in pairwise([0, *sorted(set(cuts)), len(stream.data)]):
        found += cutter.cut(stream.data[start:end])
    cutter.end()
    return found


def check(stream: Stream, found: list[Buffer]) -> None:
    """Every field of every buffer is what the oracle says, and no byte is lost or changed."""
    assert b"".join(bytes(b.data) for b in found) == stream.data
    at = 0
    for b in found:
        end = at + b.data.nbytes
        said = (
            b.carry_bytes,
            b.carry_ends,
            b.first_ordinal,
            b.end_ordinal,
            b.whole_ordinal,
            b.cut,
            b.marker,
        )
        assert said == stream.expected(at, end), f"bytes [{at}, {end})"
        at = end


MIXED = (
    Stream()
    .record(b"a" * 10, rows=3)
    .marker(b"one")
    .record(b"b" * 40)
    .record(b"c" * 16, b"d" * 16, b"e" * 5)
    .record(b"")
    .marker()
    .marker(b"")
    .record(b"f" * 8, b"g" * 20, between=b"inside")
    .record(b"h" * 3, rows=7)
)


@pytest.mark.requirement("R-F135-11")
@pytest.mark.parametrize("size", [1, 7, 23, 24, 25, 32, 33, 64, 100, 1000])
def test_buffers_of_any_size_state_their_carry(size: int) -> None:
    """Fixed sizes from one byte up, over single, multi-row and continuing records and markers."""
    check(MIXED, cut_at(MIXED, list(range(size, len(MIXED.data), size))))


@pytest.mark.requirement("R-F135-10")
@pytest.mark.requirement("R-F135-11")
@given(cuts=st.lists(st.integers(1, len(MIXED.data) - 1), max_size=20))
def test_any_cut_gives_the_same_bytes_and_consistent_fields(cuts: list[int]) -> None:
    """Variable sizes, cuts inside headers, bodies, paddings and markers."""
    check(MIXED, cut_at(MIXED, cuts))


@pytest.mark.requirement("R-F135-11")
def test_a_record_that_ends_exactly_at_a_buffers_end_is_said_to_end() -> None:
    """Whole buffer carried and ended (case f) against whole buffer carried and going on (e)."""
    stream = Stream().record(b"x" * 72).record(b"y" * 8)
    whole = len(frame(b"x" * 72))
    first, second, third = cut_at(stream, [48, whole])
    assert (first.cut, second.carry_bytes, second.carry_ends) == (True, whole - 48, True)
    assert (second.first_ordinal, second.cut, third.carry_bytes) == (FIRST + 1, False, 0)
    _, middle, last, _ = cut_at(stream, [48, 72, whole])
    assert (middle.carry_bytes, middle.carry_ends, middle.cut) == (24, False, True)
    assert (last.carry_bytes, last.carry_ends) == (24, True)


@pytest.mark.requirement("R-F135-11")
@pytest.mark.requirement("R-F135-12")
def test_a_record_over_five_buffers_that_are_not_full_is_trimmed_to_its_very_end() -> None:
    """A short buffer in the middle of a record looks finished; only what it says counts."""
    stream = Stream().record(b"x" * 200).record(b"y" * 8)
    end = len(frame(b"x" * 200))
    found = cut_at(stream, [60, 120, 130, 200, end])
    left = [trim(b) for b in found[1:]]
    assert [bytes(t.data) for t in left] == [b"", b"", b"", b"", frame(b"y" * 8)]
    assert [t.done for t in left] == [False, False, False, True, True]


def buffer(data: bytes, carry: int, *, ends: bool, marker: bool = False) -> Buffer:
    return Buffer(memoryview(data), carry, ends, 1, 1, 1, cut=False, marker=marker)


@pytest.mark.requirement("R-F135-12")
@pytest.mark.parametrize(
    ("case", "carry", "ends", "read", "left", "done"),
    [
        ("a: nothing carried", 0, True, 0, b"01234567", True),
        ("b: read before, to a record's end", 4, True, 6, b"67", True),
        ("b: read before, to the carried record's end", 4, True, 4, b"4567", True),
        ("b: all read, the record goes on", 8, False, 8, b"", False),
        ("d: part of the buffer", 3, True, 0, b"34567", True),
        ("e: all of it, the record goes on", 8, False, 0, b"", False),
        ("f: all of it, the record ends here", 8, True, 0, b"", True),
    ],
)
def test_trimming_follows_the_table(
    case: str, carry: int, ends: bool, read: int, left: bytes, done: bool
) -> None:
    """Cases a to f; g, a negative length, cannot be: a buffer counts what it carries."""
    found = trim(buffer(b"01234567", carry, ends=ends), read)
    assert (bytes(found.data), found.done) == (left, done), case


@pytest.mark.requirement("R-F135-13")
def test_a_marker_neither_satisfies_nor_clears_a_trim() -> None:
    """Case c: it is handed on whole and the search for a whole record goes on."""
    found = trim(buffer(b"marker", 0, ends=True, marker=True))
    assert (bytes(found.data), found.done) == (b"marker", False)


@pytest.mark.requirement("R-F135-13")
def test_behind_a_marker_inside_a_record_the_rest_is_still_trimmed() -> None:
    """First part of a record, a marker, the rest: what is left is the marker and whole records."""
    stream = Stream().record(b"1" * 16, b"2" * 16, between=b"checkpoint").record(b"whole")
    found = cut_at(stream, [len(frame(b"1" * 16))])
    needed, left = True, []
    for b in found[1:]:
        cleaned = trim(b) if needed else None
        left.append(bytes(b.data if cleaned is None else cleaned.data))
        needed = needed and cleaned is not None and not cleaned.done
    marker = frame(b"checkpoint", kind=MARKER, rows=0)
    assert left == [marker, frame(b"whole")]


# -- the four cases of Flink's buffers: four numbers each, records of numbers, length first


def numbers(*values: int) -> bytes:
    return b"".join(v.to_bytes(8, "little") for v in values)


@pytest.mark.requirement("R-F135-12")
def test_the_rest_of_a_record_is_cut_off_and_nothing_is_left() -> None:
    """A record that ends in its second buffer, with nothing behind: empty, and done."""
    stream = Stream().record(numbers(0, 1, 2, 3, 42))
    _, second = cut_at(stream, [24 + 32])
    assert (bytes(trim(second).data), trim(second).done) == (b"", True)


@pytest.mark.requirement("R-F135-12")
def test_a_middle_buffer_of_a_long_record_is_all_cut_off_and_the_search_goes_on() -> None:
    """A record over three buffers: the middle one goes, of the third only what follows stays."""
    stream = Stream().record(numbers(*range(9))).record(numbers(8, 9))
    _, middle, third = cut_at(stream, [24 + 32, 24 + 64])
    assert (bytes(trim(middle).data), trim(middle).done) == (b"", False)
    assert (bytes(trim(third).data), trim(third).done) == (frame(numbers(8, 9)), True)


@pytest.mark.requirement("R-F135-12")
def test_a_long_record_that_ends_on_the_edge_of_its_buffer_is_done_there() -> None:
    """Told by the buffer, so the next one need not be looked at for a carry."""
    stream = Stream().record(numbers(*range(8))).record(numbers(8, 9))
    _, middle, third = cut_at(stream, [24 + 32, 24 + 64])
    assert (bytes(trim(middle).data), trim(middle).done) == (b"", True)
    assert bytes(trim(third).data) == frame(numbers(8, 9))


@pytest.mark.requirement("R-F135-12")
def test_a_buffer_that_was_read_before_is_not_cut_again() -> None:
    """Read up to the end of a record, then trimmed: the records behind it all stay."""
    stream = Stream().record(numbers(0, 1, 2, 3, 42)).record(numbers(8, 9))
    _, second = cut_at(stream, [24 + 32])
    assert bytes(trim(second, read_bytes=8).data) == frame(numbers(8, 9))


# -- starting behind records


@given(
    cuts=st.lists(st.integers(1, len(MIXED.data) - 1), max_size=10),
    start=st.integers(FIRST, FIRST + 15),
)
def test_frames_before_the_start_are_left_out_whole(cuts: list[int], start: int) -> None:
    """What comes is the stream from the first frame that holds a record of the start or later."""
    found = cut_at(MIXED, cuts, start_ordinal=start)
    place = len(MIXED.data)
    for unit, (name, ordinal, rows) in enumerate(MIXED.units):
        if name == "marker" and MIXED.inside(MIXED.first_byte(unit)) is not None:
            continue  # goes with its record
        if ordinal >= start if name == "marker" else ordinal + rows > start:
            place = min(place, MIXED.first_byte(unit))
    assert b"".join(bytes(b.data) for b in found) == MIXED.data[place:]
    if found:
        assert found[0].carry_bytes == 0


# -- damage


@pytest.mark.requirement("R-F135-30")
@given(data=st.binary(max_size=200), cuts=st.lists(st.integers(0, 200), max_size=5))
def test_any_bytes_give_buffers_or_our_errors(data: bytes, cuts: list[int]) -> None:
    """Garbage is refused, never waited for and never allocated."""
    cutter = BufferCutter(0, max_body_bytes=1 << 20)
    try:
        for start, end in pairwise([0, *sorted(min(c, len(data)) for c in cuts), len(data)]):
            list(cutter.cut(data[start:end]))
        cutter.end()
    except (CorruptDataError, IncompatibleError):
        return
    assert data == b""  # 24 bytes with two right checksums do not come about by chance


@given(at=st.integers(0, len(MIXED.data) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_in_a_header_is_an_error_and_one_in_a_body_is_left_to_the_decoder(
    at: int, bit: int
) -> None:
    damaged = bytearray(MIXED.data)
    damaged[at] ^= 1 << bit
    headers = set()
    place = 0
    while place < len(MIXED.data):
        headers.update(range(place, place + 24))
        (length,) = struct.unpack_from("<I", MIXED.data, place + 12)
        place += 24 + (length + 7) // 8 * 8
    cutter = BufferCutter(FIRST)
    if at in headers:
        with pytest.raises((CorruptDataError, IncompatibleError)):
            list(cutter.cut(bytes(damaged)))
    else:
        assert b"".join(bytes(b.data) for b in cutter.cut(bytes(damaged))) == bytes(damaged)


@pytest.mark.requirement("R-F135-30")
def test_a_length_over_the_limit_is_corruption_at_once() -> None:
    """Nothing is held for a body that must not be."""
    cutter = BufferCutter(0, max_body_bytes=64)
    with pytest.raises(CorruptDataError, match="body length"):
        list(cutter.cut(frame(b"x" * 65)[:24]))


def test_an_extent_that_ends_inside_a_frame_is_an_error() -> None:
    """At every length but those at a record's or a marker's end."""
    ends, place = set(), 0
    while place < len(MIXED.data):
        (length,) = struct.unpack_from("<I", MIXED.data, place + 12)
        flags = MIXED.data[place + 5]
        place += 24 + (length + 7) // 8 * 8
        if not flags & CONTINUES and MIXED.inside(place) is None:
            ends.add(place)
    for end in range(1, len(MIXED.data)):
        cutter = BufferCutter(FIRST)
        list(cutter.cut(MIXED.data[:end]))
        if end in ends:
            cutter.end()
        else:
            with pytest.raises(TruncatedFrameError):
                cutter.end()
