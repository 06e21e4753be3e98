"""Waiting for what may come, without a busy loop: how long to pause, and the loop around it.

The decision is pure; what waits asks its clock and sends nothing by itself.
"""

from collections.abc import Callable
from typing import Protocol

from durable_shuffle.serialization.errors import AbortedError, NotReadyError
from durable_shuffle.shuffle.base.clock import Clock
from durable_shuffle.shuffle.read.extent_feed import EndOfInput
from durable_shuffle.shuffle.read.extents import Extent

_CANCEL_SECONDS = 0.5
"""A cancellation is seen within this time."""


class Followed(Protocol):
    """A feed whose extents appear while it is read."""

    @property
    def given(self) -> int:
        """How many extents it has handed out."""

    def poll(self) -> Extent | EndOfInput | None:
        """Return the next extent, the end, or None if there is nothing new yet."""

    def quiet_seconds(self) -> float:
        """Return how long `poll` will give None without asking anybody; 0 if it would ask now."""


def backoff_seconds(misses: int, first_seconds: float, longest_seconds: float) -> float:
    """Return the pause after `misses` answers in a row that brought nothing: it doubles. Pure."""
    if misses < 1:
        return 0.0
    return min(first_seconds * 2.0 ** min(misses - 1, 60), longest_seconds)


class FeedWait:
    """What to call each time a feed had nothing: pauses once, until asking again makes sense.

    Args:
        timeout_seconds: without a new extent; `math.inf` waits until there is one or `cancelled`.
        cancelled: asked before each pause, and no pause is longer than half a second.
        what: is waited for, for messages.
    """

    def __init__(
        self,
        feed: Followed,
        *,
        clock: Clock,
        timeout_seconds: float,
        cancelled: Callable[[], bool] = lambda: False,
        what: str = "the next records",
    ) -> None:
        self._feed, self._clock, self._cancelled = feed, clock, cancelled
        self._timeout_seconds, self._what = timeout_seconds, what
        self._given = -1
        self._deadline = 0.0

    def __call__(self) -> None:
        """Pause.

        Raises:
            NotReadyError: nothing came in time. The feed is as it was: wait again, or give up.
            AbortedError: `cancelled` said so.
        """
        now = self._clock.monotonic()
        if self._given != self._feed.given:  # the first pause since something came
            self._given, self._deadline = self._feed.given, now + self._timeout_seconds
        if self._cancelled():
            raise AbortedError(f"waiting for {self._what} was cancelled")
        remaining = self._deadline - now
        if remaining <= 0:
            self._given = -1
            raise NotReadyError(
                f"nothing came within {self._timeout_seconds} s: {self._what}; wait again"
            )
        self._clock.sleep(min(self._feed.quiet_seconds(), remaining, _CANCEL_SECONDS))


def wait_for(
    feed: Followed,
    *,
    clock: Clock,
    timeout_seconds: float,
    cancelled: Callable[[], bool] = lambda: False,
    what: str = "the next records",
) -> Extent | EndOfInput:
    """Return the feed's next extent or its end, within the time given. Arguments as `FeedWait`.

    Raises:
        NotReadyError, AbortedError: as `FeedWait`.
        DurableShuffleError: whatever `feed.poll` raises.
    """
    wait = FeedWait(
        feed, clock=clock, timeout_seconds=timeout_seconds, cancelled=cancelled, what=what
    )
    while (found := feed.poll()) is None:
        wait()
    return found
