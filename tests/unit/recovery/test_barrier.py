"""The start barrier, alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_shuffle.recovery.job.starts import BarrierState, StartBarrier
from durable_shuffle.serialization.errors import InvalidInputError

MEMBERS = ["a", "b", "c"]


def test_the_last_arrival_lets_all_go() -> None:
    """Nobody before, everybody then."""
    barrier = StartBarrier(MEMBERS)
    assert barrier.arrive("b") == ()
    assert barrier.missing == ("a", "c")
    assert barrier.arrive("a") == ()
    assert barrier.arrive("c") == ("a", "b", "c")
    assert barrier.state is BarrierState.OPEN


def test_who_ended_before_holds_up_nobody() -> None:
    """A member that finished in an earlier life counts as arrived, and is not let go."""
    barrier = StartBarrier(MEMBERS)
    barrier.arrive("a")
    assert barrier.ended("b") == ()
    assert barrier.arrive("c") == ("a", "c")
    assert barrier.ended("b") == ()


@pytest.mark.requirement("R-ARR-4")
def test_the_first_cause_calls_it_off_for_good() -> None:
    """Later causes and arrivals change nothing; an open barrier cannot be called off."""
    barrier = StartBarrier(MEMBERS)
    barrier.arrive("a")
    assert barrier.abort("first")
    assert not barrier.abort("second")
    assert barrier.cause == "first"
    assert barrier.arrive("b") == ()
    assert barrier.arrive("c") == ()
    assert barrier.state is BarrierState.ABORTED
    opened = StartBarrier(())
    assert not opened.abort("late")
    assert opened.state is BarrierState.OPEN


@pytest.mark.parametrize("member", ["stranger", "a"])
def test_strangers_and_repeats_are_refused(member: str) -> None:
    """An arrival that is not expected raises and changes nothing."""
    barrier = StartBarrier(MEMBERS)
    barrier.arrive("a")
    with pytest.raises(InvalidInputError, match=member):
        barrier.arrive(member)
    assert barrier.missing == ("b", "c")


@given(st.permutations([*MEMBERS, "abort"]), st.booleans())
def test_all_or_nobody(order: list[str], one_ends: bool) -> None:
    """In any order either all that arrived go, once, or nobody ever does."""
    barrier = StartBarrier(MEMBERS)
    went: list[str] = []
    for event in order:
        if event == "abort":
            barrier.abort("called off")
        elif event == "b" and one_ends:
            went += barrier.ended("b")
        else:
            went += barrier.arrive(event)
    everybody = ["a", "c"] if one_ends else MEMBERS
    assert went == (everybody if order[-1] == "abort" else [])
