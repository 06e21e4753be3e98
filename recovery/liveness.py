"""Who has been silent for too long, and one terminal message for everybody. Pure.

Strategy: every attempt is watched from its first message until its terminal one. One that its
launcher found gone, or that said nothing for too long, gets a message in its place; whatever comes
later from it is a repeat and dropped.
"""

import math
from collections.abc import Iterator

AttemptKey = tuple[str, int]
"""Task and epoch."""


class Liveness:
    """The attempts of one job. Times are of one monotonic clock, in seconds.

    Args:
        silence_seconds: after which an attempt counts as lost.
    """

    def __init__(self, silence_seconds: float) -> None:
        self.silence_seconds = silence_seconds
        self._heard: dict[AttemptKey, float] = {}

    def launched(self, attempt: AttemptKey) -> None:
        """Watch an attempt from its first message on: until then the start timeout does."""
        self._heard[attempt] = math.inf

    def heard(self, attempt: AttemptKey, now: float, *, terminal: bool) -> bool:
        """Take a message in; return whether it counts, False if the attempt had ended."""
        if attempt not in self._heard:
            return False
        if terminal:
            del self._heard[attempt]
        else:
            self._heard[attempt] = now
        return True

    def forget(self, attempt: AttemptKey) -> None:
        """Watch an attempt no longer: it was killed."""
        self._heard.pop(attempt, None)

    def silent(self, now: float) -> Iterator[AttemptKey]:
        """Yield the attempts that are lost; each one is yielded once and has ended by that."""
        for attempt, heard in list(self._heard.items()):
            if now - heard >= self.silence_seconds:
                del self._heard[attempt]
                yield attempt

    def next_when(self) -> float | None:
        """Return when `silent` may have something to say, None if never."""
        when = min(self._heard.values(), default=math.inf) + self.silence_seconds
        return None if when == math.inf else when
