"""How far a consumer is behind what it reads, in records and seconds. Pure.

Strategy: how much was there when is remembered in samples; a consumer that has got to n is as late
as the oldest sample that has more than n. Thinned out with age: exact enough for people.
"""

from collections import deque

_SAMPLES = 512


class Produced:
    """What one stage held at which time. Times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, records: int, now: float) -> None:
        """Take note of how many records there are."""
        if self._samples and records <= self._samples[-1][1]:
            return
        if len(self._samples) >= _SAMPLES:  # forget every other one, the oldest stays
            self._samples = deque(list(self._samples)[::2])
        self._samples.append((now, records))

    def lag(self, consumed: int, now: float) -> tuple[int, float]:
        """Return how many records a consumer is behind, and since when, in seconds."""
        if not self._samples or self._samples[-1][1] <= consumed:
            return 0, 0.0
        since = next(when for when, records in self._samples if records > consumed)
        return self._samples[-1][1] - consumed, max(0.0, now - since)
