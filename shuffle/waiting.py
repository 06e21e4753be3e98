"""Waiting for what may come, without a busy loop: how long to pause, and the loop around it.

The decisions are pure; the loop asks its clock and sends nothing by itself.
"""

from collections.abc import Callable
from typing import Protocol

from durable_shuffle.serialization.errors import AbortedError, NotReadyError
from durable_shuffle.shuffle.clock import Clock
from durable_shuffle.shuffle.extent_feed import EndOfInput, Extent

_CANCEL_SECONDS = 0.5
"""A cancellation is seen within this time."""


class Followed(Protocol):
    """A feed whose extents appear while it is read."""

    def poll(self) -> Extent | EndOfInput | None:
        """Return the next extent, the end, or None if there is nothing new yet."""

    def quiet_seconds(self) -> float:
        """Return how long `poll` will give None without asking anybody; 0 if it would ask now."""


def backoff_seconds(misses: int, first_seconds: float, longest_seconds: float) -> float:
    """Return the pause after `misses` answers in a row that brought nothing: it doubles. Pure."""
    if misses < 1:
        return 0.0
    return min(first_seconds * 2.0 ** min(misses - 1, 60), longest_seconds)


def wait_for(
    feed: Followed,
    *,
    clock: Clock,
    timeout_seconds: float,
    cancelled: Callable[[], bool] = lambda: False,
    what: str = "the next records",
) -> Extent | EndOfInput:
    """Return the feed's next extent or its end, however long it takes, within the time given.

    Args:
        timeout_seconds: from now; `math.inf` waits until there is something or `cancelled`.
        cancelled: asked before each pause and at least twice a second.
        what: is waited for, for messages.

    Raises:
        NotReadyError: nothing came in time. The feed is as it was: wait again, or give up.
        AbortedError: `cancelled` said so.
        DurableShuffleError: whatever `feed.poll` raises.
    """
    deadline = clock.monotonic() + timeout_seconds
    while True:  # ends: at the deadline, or when cancelled
        if cancelled():
            raise AbortedError(f"waiting for {what} was cancelled")
        found = feed.poll()
        if found is not None:
            return found
        remaining = deadline - clock.monotonic()
        if remaining <= 0:
            raise NotReadyError(f"nothing came within {timeout_seconds} s: {what}; wait again")
        clock.sleep(min(feed.quiet_seconds(), remaining, _CANCEL_SECONDS))
