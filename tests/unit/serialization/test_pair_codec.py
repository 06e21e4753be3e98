"""Pairs as msgpack bodies, against a list of the same pairs and msgpack's own reading."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_shuffle.serialization.errors import CorruptDataError, InvalidInputError
from durable_shuffle.serialization.msgpack_codec import pack_pairs, pairs_body, unpack_pairs

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(SCALARS, inner),
    max_leaves=5,
)


@given(st.lists(st.lists(st.tuples(VALUES, VALUES), max_size=20), max_size=4))
def test_pairs_come_back_with_their_types(slices: list[list[tuple[object, object]]]) -> None:
    """Any values, packed in any number of parts, are the pairs that went in."""
    pairs = [pair for part in slices for pair in part]
    body = pairs_body([pack_pairs(part) for part in slices], len(pairs))
    found = list(unpack_pairs(body, len(pairs)))
    assert found == pairs
    assert repr(found) == repr(pairs)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 15, 16, 32_767, 32_768, 40_000])
def test_body_is_one_msgpack_array(count: int) -> None:
    """Around every size at which msgpack changes the array's head, plain msgpack reads it."""
    pairs = [(i, str(i)) for i in range(count)]
    body = pairs_body([pack_pairs(pairs[: count // 2]), pack_pairs(pairs[count // 2 :])], count)
    assert msgpack.unpackb(body) == [item for pair in pairs for item in pair]


def test_other_counts_and_types_are_refused() -> None:
    """A body of other length is damage; an object without a stored form is named."""
    body = pairs_body([pack_pairs([(1, 2)])], 1)
    with pytest.raises(CorruptDataError, match="expected 4 items, found 2"):
        unpack_pairs(body, 2)
    with pytest.raises(InvalidInputError, match=r"builtins\.range"):
        pack_pairs([(1, range(3))])
