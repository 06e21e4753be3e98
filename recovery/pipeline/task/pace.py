"""How often a task writes: rarely while little comes, so that a quiet stream makes few objects.

Every append and every commit makes objects, however few rows it has. The time from one write to the
next doubles while writes are small, up to a limit, and halves when they are not. Rows that come
after a longer quiet time are written after the shortest time. Pure; times are of one monotonic
clock, in seconds.
"""

import math

SMALL_ROWS = 4096
"""A write of fewer rows is small."""


class Pace:
    """The writes of one attempt."""

    def __init__(self) -> None:
        self._last = -math.inf
        self._interval = 0.0

    def due(self, since: float, shortest: float) -> float:
        """Return when to write rows, of which the first came at `since`, unless there are many."""
        return max(since + shortest, self._last + self._interval)

    def wrote(self, rows: int, now: float, shortest: float, longest: float) -> None:
        """Take in a write.

        Args:
            shortest: the time from one write to the next while much comes.
            longest: that time while little comes; below `shortest` it counts as `shortest`.
        """
        usual = self._interval * 2 if rows < SMALL_ROWS else self._interval / 2
        self._interval = max(shortest, min(usual, longest))
        self._last = now


_SLICE_SECONDS = 0.2
_MOST_SLICE_ROWS = 16_384


def next_slice(rows: int, seconds: float) -> int:
    """Return how many rows to take next, where `rows` took so long: about `_SLICE_SECONDS`."""
    if seconds > 2 * _SLICE_SECONDS:
        return max(1, rows // 2)
    return min(_MOST_SLICE_ROWS, 2 * rows) if seconds < _SLICE_SECONDS / 2 else rows
