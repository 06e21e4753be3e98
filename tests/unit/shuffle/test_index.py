"""The index object: two range reads per subpartition, every byte under a checksum."""

import hashlib
import struct
import zlib

import numpy as np
import pytest

from durable_shuffle.serialization.errors import CorruptDataError, IncompatibleError
from durable_shuffle.shuffle.log.records import EXTENT, Commit, SegmentInfo
from durable_shuffle.shuffle.seal.index import (
    ENTRY_BYTES,
    HEADER_BYTES,
    build_index,
    content_tag,
    entry_offset,
    parse_entry,
    parse_header,
    parse_slice,
)

A, B = "a" * 32, "b" * 32
KEY = "job/stage/index/1"
EXTENTS_A = [(0, 0, 0, 16, 0, 2), (1, 0, 16, 8, 0, 1), (1, 1, 0, 8, 1, 1), (2, 0, 0, 0, 0, 0)]
EXTENTS_B = [(0, 0, 0, 0, 0, 0), (1, 0, 0, 24, 0, 3), (2, 0, 24, 8, 0, 1)]


def commit(attempt: str, producer: int, extents: list[tuple[int, ...]]) -> Commit:
    """A COMMIT with these (subpartition, segment, offset, length, first ordinal, rows)."""
    packed = b"".join(struct.pack("<IIQQQQ", *e) for e in extents)
    assert len(packed) == len(extents) * EXTENT.itemsize
    segments = (SegmentInfo(0, 24, b"s" * 32),)
    return Commit(attempt, producer, 2, 0, 0, segments, packed)


@pytest.fixture
def index() -> bytes:
    """The index of two producers and three subpartitions."""
    return build_index([commit(A, 0, EXTENTS_A), commit(B, 1, EXTENTS_B)], 3, key=KEY)


def entry_of(data: bytes, k: int, *, key: str = KEY) -> tuple[int, int, int]:
    """Parse the entry of one subpartition of that index."""
    return parse_entry(data, k, key=key, partitions=3, producers=2)


def read_by_hand(index: bytes, k: int) -> list[tuple[object, ...]]:
    """Entries of subpartition k as the documented layout says, without the library."""
    offset, length, crc, own = struct.unpack_from("<QQII", index, 24 + 24 * k)
    partitions, producers = struct.unpack_from("<QI", index, 8)
    address = f"{KEY} {partitions} {producers} {k}".encode()
    assert own == zlib.crc32(index[24 + 24 * k :][:20], zlib.crc32(address))
    part = index[offset : offset + length]
    assert crc == zlib.crc32(part)
    return [struct.unpack("<IIQQQQ16s", part[i : i + 56]) for i in range(0, length, 56)]


def test_layout_is_as_documented(index: bytes) -> None:
    """Header, table, slices by subpartition, producers in order, ordinals in order."""
    assert index[:4] == b"SDIX"
    _, version, partitions, producers, crc = struct.unpack("<IIQII", index[:24])
    own = zlib.crc32(index[:20], zlib.crc32(KEY.encode()))
    assert (version, partitions, producers, crc) == (2, 3, 2, own)
    a, b = bytes.fromhex(A), bytes.fromhex(B)
    assert read_by_hand(index, 0) == [(0, 0, 0, 16, 0, 2, a), (1, 0, 0, 0, 0, 0, b)]
    assert read_by_hand(index, 1) == [
        (0, 0, 16, 8, 0, 1, a),
        (0, 1, 0, 8, 1, 1, a),
        (1, 0, 0, 24, 0, 3, b),
    ]
    assert read_by_hand(index, 2) == [(0, 0, 0, 0, 0, 0, a), (1, 0, 24, 8, 0, 1, b)]
    assert len(index) == 24 + 3 * 24 + 7 * 56


def test_parsers_agree_with_the_layout(index: bytes) -> None:
    """Header, entry and slice come back through the public functions."""
    assert parse_header(index[:HEADER_BYTES], key=KEY) == (3, 2)
    for k in range(3):
        at = entry_offset(k)
        offset, length, crc = entry_of(index[at : at + ENTRY_BYTES], k)
        entries = parse_slice(index[offset : offset + length], crc, name="i", subpartition=k)
        assert [tuple(e)[:6] for e in entries.tolist()] == [e[:6] for e in read_by_hand(index, k)]
        assert [bytes(e) for e in entries["attempt"]] == [e[6] for e in read_by_hand(index, k)]


def test_an_entry_of_another_subpartition_fails(index: bytes) -> None:
    """A read that is misdirected by one entry is noticed, although that entry is intact."""
    at = entry_offset(1)
    with pytest.raises(CorruptDataError, match="subpartition=2"):
        entry_of(index[at : at + ENTRY_BYTES], 2)


def test_every_single_bit_flip_is_noticed(index: bytes) -> None:
    """In the header, the table and the slices: each bit of the object."""

    def parse_all(data: bytes) -> None:
        assert parse_header(data[:HEADER_BYTES], key=KEY) == (3, 2)
        for k in range(3):
            at = entry_offset(k)
            offset, length, crc = entry_of(data[at : at + ENTRY_BYTES], k)
            parse_slice(data[offset : offset + length], crc, name="i", subpartition=k)

    parse_all(index)
    for bit in range(len(index) * 8):
        damaged = bytearray(index)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptDataError, IncompatibleError)):
            parse_all(bytes(damaged))


def test_a_newer_version_is_incompatible(index: bytes) -> None:
    """Intact, but of version 3: the message names both."""
    head = index[:4] + struct.pack("<I", 3) + index[8:20]
    own = zlib.crc32(head, zlib.crc32(KEY.encode()))
    with pytest.raises(IncompatibleError, match=r"version 3.*reads 2"):
        parse_header(head + struct.pack("<I", own), key=KEY)


def test_an_index_under_another_key_fails(index: bytes) -> None:
    """Header and entries: an intact index that stands in another's place is none."""
    other = KEY[:-1] + "2"
    with pytest.raises(CorruptDataError, match=f"another object: key='{other}'"):
        parse_header(index[:HEADER_BYTES], key=other)
    for k in range(3):
        at = entry_offset(k)
        with pytest.raises(CorruptDataError, match=f"another index: key='{other}'"):
            entry_of(index[at : at + ENTRY_BYTES], k, key=other)


@pytest.mark.parametrize(("partitions", "producers"), [(2, 2), (4, 2), (3, 1), (3, 3)])
def test_an_entry_of_another_plan_fails(index: bytes, partitions: int, producers: int) -> None:
    """Readers never read the header: its R and M are in the seed of each entry."""
    entry = index[HEADER_BYTES:][:ENTRY_BYTES]
    with pytest.raises(CorruptDataError, match=f"of {partitions} producers={producers}"):
        parse_entry(entry, 0, key=KEY, partitions=partitions, producers=producers)


def test_an_entry_that_is_no_multiple_of_an_item_is_corrupt() -> None:
    """Even with a right checksum."""
    entry = struct.pack("<QQI", 0, 57, 0)
    entry += struct.pack("<I", zlib.crc32(entry, zlib.crc32(f"{KEY} 3 2 0".encode())))
    with pytest.raises(CorruptDataError):
        entry_of(entry, 0)


def test_a_commit_of_too_many_subpartitions_is_corrupt() -> None:
    """An extent beyond R is refused when the index is built."""
    with pytest.raises(CorruptDataError, match="subpartition 2 of 2"):
        build_index([commit(A, 0, EXTENTS_A)], 2, key=KEY)


def test_no_producers_give_an_index_of_empty_slices() -> None:
    """An empty stage has an index, too."""
    index = build_index([], 2, key=KEY)
    assert parse_header(index[:24], key=KEY) == (2, 0)
    assert read_by_hand(index, 0) == read_by_hand(index, 1) == []
    assert len(index) == 24 + 2 * 24


def test_content_tag_is_the_digest_of_extents_and_checksums() -> None:
    """Equal data give equal tags whoever wrote them; any other extent or checksum another."""
    mine = commit(A, 0, EXTENTS_A)
    by_hand = hashlib.sha256(mine.extents + struct.pack("<QQ", 0, 24) + b"s" * 32).digest()
    assert content_tag(mine) == by_hand == content_tag(commit(B, 0, EXTENTS_A))
    others = [
        Commit(A, 0, 2, 0, 0, (SegmentInfo(0, 24, b"t" * 32),), mine.extents),
        Commit(A, 0, 2, 0, 0, (SegmentInfo(1, 24, b"s" * 32),), mine.extents),
        Commit(A, 0, 2, 0, 0, (), mine.extents),
        commit(A, 0, EXTENTS_B),
    ]
    assert len({content_tag(c) for c in [mine, *others]}) == 5
    assert np.dtype(EXTENT).itemsize == 40
