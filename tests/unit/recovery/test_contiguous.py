"""Acknowledging over a contiguous prefix when work completes out of order."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_shuffle.recovery.contiguous import ContiguousPrefix
from durable_shuffle.serialization.errors import InvalidInputError


def test_five_done_before_three_waits_for_three() -> None:
    """The highest number that is done is no position: the hole below it would be lost."""
    prefix: ContiguousPrefix[str] = ContiguousPrefix()
    assert [prefix.start() for _ in range(6)] == [0, 1, 2, 3, 4, 5]
    assert prefix.done(0, "0") == "0"
    assert prefix.done(1, "1") == "1"
    assert prefix.done(2, "2") == "2"
    assert prefix.done(5, "5") is None
    assert prefix.done(4, "4") is None
    assert prefix.outstanding == 3
    assert prefix.done(3, "3") == "5"
    assert prefix.outstanding == 0


@given(count=st.integers(1, 30), seed=st.integers())
def test_any_order_acknowledges_the_longest_prefix(count: int, seed: int) -> None:
    """Against a set of what is done."""
    prefix: ContiguousPrefix[int] = ContiguousPrefix()
    order = [prefix.start() for _ in range(count)]
    random.Random(seed).shuffle(order)
    done: set[int] = set()
    acknowledged = -1
    for number in order:
        done.add(number)
        found = prefix.done(number, number)
        longest = next(n for n in range(count + 1) if n not in done) - 1
        assert found == (longest if longest > acknowledged else None)
        acknowledged = longest
    assert acknowledged == count - 1


@pytest.mark.parametrize("number", [-1, 0, 2, 3])
def test_what_was_never_started_or_is_done_is_refused(number: int) -> None:
    """Nothing changes."""
    prefix: ContiguousPrefix[str] = ContiguousPrefix()
    for _ in range(3):
        prefix.start()
    prefix.done(0, "a")
    prefix.done(2, "c")
    with pytest.raises(InvalidInputError, match=f"number={number}"):
        prefix.done(number, "again")
    assert prefix.done(1, "b") == "c"
