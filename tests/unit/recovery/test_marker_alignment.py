"""Checkpoints that all producers have passed."""

import random

import pytest

from durable_shuffle.recovery.pipeline.task.markers import MarkerAlignment
from durable_shuffle.serialization.errors import InvalidInputError


@pytest.mark.requirement("R-F135-25")
def test_a_restarted_consumer_never_waits_for_a_marker_below_its_floor() -> None:
    """One input had passed 7 before the crash: nobody waits for 7 of the other; 8 aligns."""
    before = MarkerAlignment((0, 1), floor=6)
    assert before.passed(0, 7) is None
    after = MarkerAlignment((0, 1), floor=7)
    assert after.passed(1, 7) is None
    assert after.passed(0, 8) is None
    assert after.passed(1, 8) == 8
    assert after.floor == 8


@pytest.mark.requirement("R-F135-26")
def test_nobody_waits_for_a_producer_that_has_ended() -> None:
    """Its end counts as having passed everything."""
    alignment = MarkerAlignment((0, 1, 2))
    assert alignment.passed(0, 5) is None
    assert alignment.passed(1, 3) is None
    assert alignment.ended(2) == 3
    assert alignment.ended(1) == 5
    assert alignment.ended(0) is None


def test_markers_may_be_missed_and_repeated(seed: int) -> None:
    """Against the definition: the highest that all have reached, reported when it rises."""
    source = random.Random(seed)
    for _ in range(200):
        reached = dict.fromkeys(range(source.randrange(1, 4)), 0)
        alignment, floor = MarkerAlignment(reached), 0
        for _ in range(30):
            producer, marker = source.randrange(len(reached)), source.randrange(12)
            reached[producer] = max(reached[producer], marker)
            complete = min(reached.values())
            assert alignment.passed(producer, marker) == (complete if complete > floor else None)
            floor = max(floor, complete)


def test_a_stranger_is_refused() -> None:
    """A producer that the view does not read."""
    with pytest.raises(InvalidInputError, match="no such producer: 4"):
        MarkerAlignment((0, 1)).passed(4, 1)
    with pytest.raises(InvalidInputError, match="no such producer: 4"):
        MarkerAlignment((0, 1)).ended(4)
