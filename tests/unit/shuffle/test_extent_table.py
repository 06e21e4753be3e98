"""Blocks of extents: what goes in comes out, and what no writer makes is refused."""

import random
import struct

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_shuffle.serialization.errors import CorruptDataError, InvalidInputError
from durable_shuffle.shuffle.log import extent_table
from durable_shuffle.shuffle.log.extent_table import (
    EXTENT,
    MAX_EXTENTS,
    pack_block,
    pack_table,
    unpack_block,
    unpack_table,
)
from durable_shuffle.shuffle.log.layout import COMPACTED

NUMBERS = st.one_of(st.integers(1, 300), st.integers(1, (1 << 48) - 1))
PLACES = st.tuples(
    st.one_of(st.integers(0, 5), st.integers(0, (1 << 32) - 1)), st.just(0) | NUMBERS, NUMBERS
)
GROUPS = st.dictionaries(st.integers(0, 999), st.lists(st.tuples(PLACES, NUMBERS), max_size=4))


def entries_of(groups: dict[int, list[tuple[tuple[int, int, int], int]]]) -> npt.NDArray[np.void]:
    """EXTENT entries of groups with these ((segment, offset, length), rows)."""
    found: list[tuple[int, ...]] = []
    for group in sorted(groups):
        ordinal = 0
        for (segment, offset, length), rows in groups[group]:
            found.append((group, segment, offset, length, ordinal, rows))
            ordinal += rows
        if not groups[group]:
            found.append((group, 0, 0, 0, 0, 0))
    return np.array(found, dtype=EXTENT)


def unpacked(data: bytes, groups: int = 1000) -> npt.NDArray[np.void]:
    return unpack_block(data, "subpartition", EXTENT, "here", groups=groups)


@given(GROUPS)
def test_a_block_gives_back_what_was_packed(
    groups: dict[int, list[tuple[tuple[int, int, int], int]]],
) -> None:
    """Groups with gaps between them, empty ones, and numbers of all lengths."""
    entries = entries_of(groups)
    assert unpacked(pack_block(entries, "subpartition")).tolist() == entries.tolist()


@given(GROUPS, st.sampled_from(["as they are", "backwards", "bytes without rows"]))
def test_few_extents_are_packed_as_many_are(
    groups: dict[int, list[tuple[tuple[int, int, int], int]]], harm: str
) -> None:
    """As numbers or as arrays: the same bytes, and the same refusals."""
    entries = entries_of(groups)
    if harm == "backwards":
        entries = entries[::-1]
    if harm == "bytes without rows":
        entries["rows"][:1] = 0
    outcomes = list[bytes | str]()
    for most in (-1, len(entries)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(extent_table, "_FEW", most)
            try:
                outcomes.append(pack_block(entries, "subpartition"))
            except InvalidInputError as error:
                outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def test_a_list_of_ten_thousand_partitions_is_at_most_100_kib(seed: int) -> None:
    """The extents of a COMMIT with one segment of 64 MiB, and of a skewed one of 1 GiB."""
    rng = np.random.default_rng(seed)
    for lengths in (rng.integers(4_000, 9_000, 10_000), rng.pareto(1.5, 10_000) * 50_000 + 64):
        entries = np.zeros(10_000, dtype=EXTENT)
        entries["subpartition"] = np.arange(10_000)
        entries["length"] = np.minimum(lengths, 8 << 20).astype(np.int64) // 8 * 8
        entries["offset"] = np.cumsum(entries["length"]) - entries["length"]
        entries["rows"] = entries["length"] // 80 + 1
        assert len(pack_block(entries, "subpartition")) <= 100 << 10


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "0 bytes"),
        (struct.pack("<II", 1001, 0), "1001 of 1000"),
        (struct.pack("<II", 1, MAX_EXTENTS + 1), "extents"),
        (struct.pack("<II", 0, 0) + bytes(5), "a column at byte 13 of 13"),
        (struct.pack("<II", 0, 0) + bytes(7), "1 bytes too many"),
        (struct.pack("<II", 0, 0) + b"\x07" + bytes(12), "a column at byte 8"),
        (struct.pack("<II", 1, 0) + b"\x70" + bytes(12), "a column at byte 8"),
        (struct.pack("<II", 1, 0) + b"\x02\xe8\x03" + bytes(5), "not there"),
        (struct.pack("<II", 2, 0) + b"\x02\xe7\x03" + bytes(5), "subpartition .* of 1000"),
        (struct.pack("<II", 1, 1) + b"\0\x01\x02" + bytes(4), "more extents"),
        (struct.pack("<II", 2, 1) + b"\0\x01\x01" + bytes(4), "2 extents"),
        (struct.pack("<II", 1, 1) + b"\0\x01\x01" + bytes(4), "without rows"),
        (struct.pack("<II", 1, 1) + b"\0\x01\x01\0\0\x01\x08\0", "without rows"),
        (
            struct.pack("<II", 1, 1) + b"\0\x01\x01\x05" + bytes(4) + b"\x01\0\x01\x08\x01\x01",
            "segment",
        ),
    ],
)
def test_a_block_that_no_writer_makes_is_corrupt(data: bytes, found: str) -> None:
    """Each length and number is checked before it is used, and the message names the object."""
    with pytest.raises(CorruptDataError, match=f"here found=.*{found}"):
        unpacked(data)


def test_any_harm_is_an_error_or_other_extents(seed: int) -> None:
    """Bytes without a checksum: whatever they say, nothing but CorruptDataError comes of it."""
    rng = random.Random(seed)
    entries = entries_of({k: [((k % 3, 40 * k, 40), 3)] * (k % 4) for k in range(60)})
    good = pack_block(entries, "subpartition")
    refused = 0
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(rng.choice((1, 1, 3))):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 255, rng.randrange(256)))
        data = data[: rng.choice((len(data), rng.randrange(len(data))))]
        try:
            unpacked(bytes(data))
        except CorruptDataError:
            refused += 1
    assert 500 < refused < 2000


@pytest.mark.parametrize(
    "entries",
    [
        [(1, 0, 0, 8, 0, 1), (0, 0, 8, 8, 0, 1)],
        [(0, 0, 0, 8, 0, 0)],
        [(0, 0, 1 << 48, 8, 0, 1)],
        [(0, 0, 0, 8, 0, 1), (1, 0, (1 << 48) + 1, 8, 0, 1)],
    ],
    ids=["out of order", "bytes without rows", "far", "far from the first"],
)
def test_what_a_block_cannot_hold_is_refused(entries: list[tuple[int, ...]]) -> None:
    """Rather than packed into something else."""
    with pytest.raises(InvalidInputError):
        pack_block(np.array(entries, dtype=EXTENT), "subpartition")


def test_whose_a_segment_is_takes_no_bytes() -> None:
    """Compacted segments and a producer's in one slice: one byte each, as numbers are small."""
    entries = entries_of({k: [((k % 2 * COMPACTED | k % 4, 0, 8), 1)] for k in range(100)})
    data = pack_block(entries, "subpartition")
    assert len(data) < 8 + 6 + 100 + 10
    assert unpacked(data).tolist() == entries.tolist()


@given(st.lists(st.integers(0, (1 << 64) - 1), min_size=1))
def test_a_table_gives_back_what_was_packed(numbers: list[int]) -> None:
    """Numbers of eight bytes, and EXTENT entries made of them."""
    eight = np.array(numbers, dtype="<u8")
    assert unpack_table(pack_table(eight), eight.dtype, "here").tolist() == numbers
    entries = np.zeros(len(numbers), dtype=EXTENT)
    entries["first_ordinal"], entries["segment"] = eight, eight & np.uint64(0xFFFFFFFF)
    assert unpack_table(pack_table(entries), EXTENT, "here").tobytes() == entries.tobytes()


def test_a_table_of_a_large_batch_is_small() -> None:
    """2,000 tasks that write 1,000 partitions each, with random numbers of their segments."""
    rng = np.random.default_rng(7)
    entries = np.zeros((1000, 2000), dtype=EXTENT)
    entries["subpartition"] = np.arange(1000)[:, None]
    entries["segment"] = rng.integers(0, 1 << 31, 2000)
    entries["rows"] = rng.integers(30, 45, (1000, 2000))
    entries["length"] = entries["rows"].astype(np.uint64) * np.uint64(107)
    entries["offset"] = np.cumsum(entries["length"], axis=0) - entries["length"]
    assert len(pack_table(entries.reshape(-1))) < 32 << 20
    with pytest.raises(InvalidInputError, match="fewer tasks"):
        pack_table(np.zeros(MAX_EXTENTS + 1, dtype="<u8"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1\0\0\0",
        pack_table(np.arange(3, dtype="<u8"))[:-1],
        struct.pack("<I", 0) + b"x",
        struct.pack("<I", MAX_EXTENTS + 1) + b"x",
        struct.pack("<I", 4) + pack_table(np.arange(3, dtype="<u8"))[4:],
        struct.pack("<I", 2) + pack_table(np.arange(3, dtype="<u8"))[4:],
        struct.pack("<I", 1 << 21) + pack_table(np.arange(3, dtype="<u8"))[4:],
    ],
)
def test_no_table_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptDataError, match="here"):
        unpack_table(data, np.dtype("<u8"), "here")
