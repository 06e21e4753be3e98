"""Waiting for a feed: pauses, deadline and cancellation, on a clock that only sleeping moves."""

import math

import pytest
from small_log import wait_for
from small_stage import ManualClock

from durable_shuffle.serialization.errors import AbortedError, NotReadyError
from durable_shuffle.shuffle.base.retry import backoff_seconds
from durable_shuffle.shuffle.read.feed import EndOfInput
from durable_shuffle.shuffle.read.log_feed import FeedWait

END = EndOfInput(("FINITE",))


class Quiet:
    """A feed that has the end from a moment on, and counts what it was asked."""

    def __init__(self, clock: ManualClock, ready_at: float, pause: float) -> None:
        self.clock, self.ready_at, self.pause, self.polls = clock, ready_at, pause, 0
        self.given = 0

    def poll(self) -> EndOfInput | None:
        self.polls += 1
        return END if self.clock.now >= self.ready_at else None

    def quiet_seconds(self) -> float:
        return self.pause


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0, [])


@pytest.mark.parametrize(
    ("misses", "expected"),
    [(0, 0.0), (1, 0.01), (2, 0.02), (3, 0.04), (6, 0.32), (7, 0.5), (10**9, 0.5)],
)
def test_pause_doubles_up_to_its_bound(misses: int, expected: float) -> None:
    """The first miss costs the shortest pause, a billion misses the longest."""
    assert backoff_seconds(misses, 0.01, 0.5) == pytest.approx(expected)


def test_what_is_there_is_returned_without_a_pause(clock: ManualClock) -> None:
    """Even with no time left: there is nothing to wait for."""
    assert wait_for(Quiet(clock, 0, 1), clock=clock, timeout_seconds=0) == END
    assert clock.pauses == []


def test_wait_pauses_as_long_as_the_feed_is_quiet(clock: ManualClock) -> None:
    """No busy loop: one poll per pause, the pauses are the feed's."""
    feed = Quiet(clock, 101.0, 0.25)
    assert wait_for(feed, clock=clock, timeout_seconds=math.inf) == END
    assert clock.pauses == [0.25] * 4
    assert feed.polls == 5


@pytest.mark.requirement("R-F135-23")
def test_wait_ends_at_its_deadline_with_a_last_look(clock: ManualClock) -> None:
    """The last pause is cut to the time left; the error names what was waited for."""
    feed = Quiet(clock, 200.0, 0.3)
    with pytest.raises(NotReadyError, match="subpartition 3"):
        wait_for(feed, clock=clock, timeout_seconds=1.0, what="subpartition 3")
    assert clock.now == pytest.approx(101.0)
    assert feed.polls == 5
    assert wait_for(feed, clock=clock, timeout_seconds=math.inf) == END


def test_wait_sees_a_cancellation_within_half_a_second(clock: ManualClock) -> None:
    """A feed that is quiet for an hour does not keep a task that was told to stop."""
    feed = Quiet(clock, 9999.0, 3600.0)
    with pytest.raises(AbortedError, match="cancelled"):
        wait_for(feed, clock=clock, timeout_seconds=math.inf, cancelled=lambda: clock.now >= 101.7)
    assert clock.now == pytest.approx(102.0)


def test_time_counts_from_the_last_that_came(clock: ManualClock) -> None:
    """A feed that gives something now and then is never given up; a silent one is."""
    feed = Quiet(clock, 9999.0, 0.4)
    wait = FeedWait(feed, clock=clock, timeout_seconds=1.0)
    for _ in range(20):
        wait()
        wait()
        feed.given += 1
    before = clock.now
    for _ in range(3):
        wait()
    with pytest.raises(NotReadyError):
        wait()
    assert clock.now == pytest.approx(before + 1.0)
    wait()  # whoever goes on after that waits anew
