"""The index: two range reads per subpartition, every byte under a checksum, parts that fit."""

import hashlib
import struct
import zlib

import numpy as np
import pytest
from whole_index import index_of_commits

from durable_shuffle.serialization.errors import CorruptDataError, IncompatibleError
from durable_shuffle.shuffle.log.extent_table import EXTENT, pack_block
from durable_shuffle.shuffle.log.records import Commit, SegmentInfo
from durable_shuffle.shuffle.seal import index as index_module
from durable_shuffle.shuffle.seal import transpose
from durable_shuffle.shuffle.seal.index import (
    ENTRY_BYTES,
    HEADER_BYTES,
    Slice,
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
    packed = pack_block(np.array(extents, dtype=EXTENT), "subpartition")
    segments = (SegmentInfo(0, 24, b"s" * 32),)
    return Commit(attempt, producer, 2, 0, 0, segments, packed)


def build_index(commits: list[Commit], partitions: int) -> bytes:
    """The one object of a small index."""
    return index_of_commits(commits, partitions, key=KEY)[KEY]


@pytest.fixture
def index() -> bytes:
    """The index of two producers and three subpartitions."""
    return build_index([commit(A, 0, EXTENTS_A), commit(B, 1, EXTENTS_B)], 3)


def entry_of(data: bytes, k: int, *, key: str = KEY) -> Slice:
    """Parse the entry of one subpartition of that index."""
    return parse_entry(data, k, key=key, partitions=3, producers=2)


def block_by_hand(data: bytes) -> list[tuple[int, ...]]:
    """(producer, segment, offset, length, rows) of a block, as documented, number by number."""
    groups, extents = struct.unpack_from("<II", data)
    at, columns = 8, []
    for count in (groups, groups, extents, extents, extents, extents):
        small, width = data[at] & 15, data[at] >> 4
        least = int.from_bytes(data[at + 1 : at + 1 + small], "little")
        at += 1 + small
        numbers = [data[at + n * width : at + (n + 1) * width] for n in range(count)]
        columns.append([least + int.from_bytes(n, "little") for n in numbers])
        at += count * width
    assert at == len(data)
    found, producer, n = [], -1, 0
    for gap, count in zip(columns[0], columns[1], strict=True):
        producer += gap + 1
        for _ in range(count):
            assert columns[2][n] % 2 == 0  # of a producer's attempt
            found.append((producer, columns[2][n] // 2, *(c[n] for c in columns[3:])))
            n += 1
        found += [] if count else [(producer, 0, 0, 0, 0)]
    return found


def read_by_hand(index: bytes, k: int) -> list[tuple[int, ...]]:
    """Entries of subpartition k as the documented layout says, without the library."""
    entry = index[40 + 36 * k : 40 + 36 * (k + 1)]
    part, offset, length, data_bytes, crc, own = struct.unpack("<IQQQII", entry)
    partitions, producers = struct.unpack_from("<QI", index, 8)
    address = f"{KEY} {partitions} {producers} {k}".encode()
    assert own == zlib.crc32(entry[:32], zlib.crc32(address))
    data = index[offset : offset + length]
    assert (part, crc) == (0, zlib.crc32(data))
    found = block_by_hand(data)
    assert data_bytes == sum(extent[3] for extent in found)
    return found


def test_layout_is_as_documented(index: bytes) -> None:
    """Header, table, slices by subpartition, producers in order, ordinals in order."""
    assert index[:4] == b"SDIX"
    _, version, partitions, producers, attempts, crc = struct.unpack("<IIQI16sI", index[:40])
    own = zlib.crc32(index[:36], zlib.crc32(KEY.encode()))
    assert (version, partitions, producers, crc) == (3, 3, 2, own)
    assert attempts == hashlib.sha256(bytes.fromhex(A + B)).digest()[:16]
    assert read_by_hand(index, 0) == [(0, 0, 0, 16, 2), (1, 0, 0, 0, 0)]
    assert read_by_hand(index, 1) == [(0, 0, 16, 8, 1), (0, 1, 0, 8, 1), (1, 0, 0, 24, 3)]
    assert read_by_hand(index, 2) == [(0, 0, 0, 0, 0), (1, 0, 24, 8, 1)]


def test_parsers_agree_with_the_layout(index: bytes) -> None:
    """Header, entry and slice come back through the public functions."""
    assert parse_header(index[:HEADER_BYTES], key=KEY) == (3, 2)
    for k in range(3):
        at = entry_offset(k)
        _, start, length, _, crc = entry_of(index[at : at + ENTRY_BYTES], k)
        data = index[start : start + length]
        entries = parse_slice(data, crc, name="i", subpartition=k, producers=2)
        columns = ["producer", "segment", "offset", "length", "rows"]
        assert entries[columns].tolist() == read_by_hand(index, k)
    assert entries["first_ordinal"].tolist() == [0, 0]


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
            _, start, length, _, crc = entry_of(data[at : at + ENTRY_BYTES], k)
            data_of_k = data[start : start + length]
            parse_slice(data_of_k, crc, name="i", subpartition=k, producers=2)

    parse_all(index)
    for bit in range(len(index) * 8):
        damaged = bytearray(index)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptDataError, IncompatibleError)):
            parse_all(bytes(damaged))


def test_a_newer_version_is_incompatible(index: bytes) -> None:
    """Intact, but of version 4: the message names both."""
    head = index[:4] + struct.pack("<I", 4) + index[8:36]
    own = zlib.crc32(head, zlib.crc32(KEY.encode()))
    with pytest.raises(IncompatibleError, match=r"version 4.*reads 3"):
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


@pytest.mark.parametrize(
    "fields",
    [(0, 0, 64 << 20 | 1, 0), (0, 1 << 30, 1, 0), (0, 1 << 63, 1, 0), (0, 0, 1, 1 << 63)],
    ids=["long", "far", "negative", "data bytes"],
)
def test_an_entry_that_no_writer_makes_is_corrupt(fields: tuple[int, ...]) -> None:
    """Even with a right checksum."""
    entry = struct.pack("<IQQQI", *fields, 0)
    entry += struct.pack("<I", zlib.crc32(entry, zlib.crc32(f"{KEY} 3 2 0".encode())))
    with pytest.raises(CorruptDataError):
        entry_of(entry, 0)


def test_a_commit_of_too_many_subpartitions_is_corrupt() -> None:
    """An extent beyond R is refused when the index is built."""
    with pytest.raises(CorruptDataError, match="3 of 2 subpartitions"):
        build_index([commit(A, 0, EXTENTS_A)], 2)


def test_no_producers_give_an_index_of_empty_slices() -> None:
    """An empty stage has an index, too."""
    index = build_index([], 2)
    assert parse_header(index[:40], key=KEY) == (2, 0)
    assert read_by_hand(index, 0) == read_by_hand(index, 1) == []


@pytest.mark.parametrize("held", [0, 1 << 20], ids=["on disk", "in memory"])
def test_runs_and_parts_change_nothing_but_the_place(
    monkeypatch: pytest.MonkeyPatch, seed: int, held: int
) -> None:
    """Sorted run by run and stored part by part, each slice has the same bytes."""
    rng = np.random.default_rng(seed)
    commits, partitions = [], 23
    for producer in range(17):
        rows = rng.integers(0, 3, (partitions, 2)) * rng.integers(1, 90_000, (partitions, 2))
        found = []
        for k, pair in enumerate(rows.tolist()):
            held_rows = [n for n in pair if n] or [0]
            for segment, n in enumerate(held_rows):
                offset = int(rng.integers(1 << 26)) if n else 0
                found.append((k, segment, offset, 8 * n, sum(held_rows[:segment]), n))
        commits.append(commit(f"{producer:032x}", producer, found))
    whole = build_index(commits, partitions)
    monkeypatch.setattr(transpose, "RUN_EXTENTS", 60)
    monkeypatch.setattr(transpose, "HELD_BYTES", held)
    monkeypatch.setattr(index_module, "PART_BYTES", 700)
    objects = index_of_commits(commits, partitions, key=KEY)
    parts = [objects[f"{KEY}-{n}"] for n in range(1, len(objects))]
    assert len(parts) > 3
    assert all(len(part) <= 700 for part in parts)
    assert list(objects)[-1] == KEY
    assert b"".join(parts) == whole[entry_offset(partitions) :]
    places = []
    for k in range(partitions):
        entry = objects[KEY][entry_offset(k) : entry_offset(k + 1)]
        found_k = parse_entry(entry, k, key=KEY, partitions=partitions, producers=17)
        places.append(found_k)
        data = parts[found_k.part - 1][found_k.offset :][: found_k.length]
        assert block_by_hand(data) == read_by_hand(whole, k)
    assert len(objects[KEY]) == entry_offset(partitions)


def test_an_extent_of_many_is_at_most_ten_bytes(seed: int) -> None:
    """M = R = 1,000, segments of about 64 MiB, rows of 100 bytes: bytes per extent as measured."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1_000, 128_000, 1_000) // 8 * 8
    entries = np.zeros(1_000, dtype=EXTENT)
    entries["subpartition"], entries["length"] = np.arange(1_000), lengths
    entries["offset"], entries["rows"] = np.cumsum(lengths) - lengths, lengths // 100 + 1
    assert len(pack_block(entries, "subpartition")) <= 10 * len(entries)
    entries["offset"] = rng.integers(0, 64 << 20, 1_000)
    assert len(pack_block(entries, "subpartition")) <= 10 * len(entries)


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
