"""Positions as stored: a layout that a stranger can read, and no bytes that confuse us."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.read.position import (
    Position,
    ProducerPosition,
    changed,
    first_behind,
    pack_positions,
    records_between,
    unpack_positions,
)

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
POSITIONS = st.dictionaries(U32, st.builds(ProducerPosition, U64, U32, U32, U64, U32), max_size=8)


@given(POSITIONS)
def test_entries_are_32_bytes_ascending_by_producer(positions: dict[int, ProducerPosition]) -> None:
    """Read back with struct alone; and our own reader gives what was written."""
    data = pack_positions(positions)
    found = [struct.unpack_from("<IIIIQQ", data, at) for at in range(0, len(data), 32)]
    assert [f[0] for f in found] == sorted(positions)
    for producer, segment, slot, back, ordinal, offset in found:
        assert positions[producer] == ProducerPosition(ordinal, segment, slot, offset, back)
    assert unpack_positions(data, name="x") == positions


@given(POSITIONS)
def test_equal_positions_are_equal_bytes(positions: dict[int, ProducerPosition]) -> None:
    """A record that is built again is the same record."""
    turned = dict(reversed(list(positions.items())))
    assert pack_positions(turned) == pack_positions(positions)


@given(st.binary(max_size=200))
def test_any_bytes_are_positions_or_our_error(data: bytes) -> None:
    sound = len(data) % 32 == 0
    producers = [struct.unpack_from("<I", data, at)[0] for at in range(0, len(data) - 31, 32)]
    if sound and producers == sorted(set(producers)):
        assert pack_positions(unpack_positions(data, name="record 7")) == data
    else:
        with pytest.raises(CorruptDataError, match="record 7"):
            unpack_positions(data, name="record 7")


@pytest.mark.parametrize("producers", [(1, 1), (2, 1), (2**32 - 1, 0)])
def test_a_producer_twice_or_out_of_order_is_corrupt(producers: tuple[int, ...]) -> None:
    """Either entry could be the right one, so neither is."""
    data = b"".join(struct.pack("<IIIIQQ", p, 0, 0, 0, 5, 0) for p in producers)
    with pytest.raises(CorruptDataError, match="twice or out of order"):
        unpack_positions(data, name="x")


def test_positions_are_compared_per_producer() -> None:
    """One producer ahead does not make up for one behind; one that is missing is at its start."""
    before = {0: ProducerPosition(5), 1: ProducerPosition(5)}
    assert first_behind(before, {0: ProducerPosition(9), 1: ProducerPosition(4)}) == 1
    assert first_behind(before, {0: ProducerPosition(9)}) == 1
    assert first_behind(before, {**before, 2: ProducerPosition(1)}) is None
    assert records_between(before, {0: ProducerPosition(9), 1: ProducerPosition(5)}) == 4
    assert changed(before, {**before, 1: ProducerPosition(6)}) == {1: ProducerPosition(6)}
    assert Position("s", 0, before).records == 10
