"""Whether and when a job starts its tasks again. Pure: time and chance come in as arguments.

Strategy: one count of restarts, taken back after a healthy interval. The delay doubles from one
restart to the next up to a cap; half of it is left to chance, so that jobs that fell together do
not rise together. After Arroyo, whose power of two overflowed before it was capped.
"""

from dataclasses import dataclass

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.limits import check_count, check_number
from durable_shuffle.shuffle.retry import Backoff, Jitter

UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """How often to start again.

    Raises:
        InvalidInputError: a value is out of its range; the message names it.
    """

    max_restarts: int = 20
    """In a row, without `healthy_seconds` between them; -1: no limit."""
    first_delay_seconds: float = 0.25
    """Before the first restart; doubles from one to the next."""
    cap_seconds: float = 60.0
    """No delay is longer, inclusive."""
    jitter: float = 0.5
    """Share of a delay that is left to chance, 0 to 1."""
    healthy_seconds: float = 120.0
    """After running for so long the count begins anew."""

    def __post_init__(self) -> None:
        check_count("max_restarts", self.max_restarts, at_least=UNLIMITED)
        check_number("healthy_seconds", self.healthy_seconds, at_least=0)
        _ = self.backoff

    @property
    def backoff(self) -> Backoff:
        """The delays, of as many restarts as anybody can count."""
        return Backoff(
            max_retries=1 << 62 if self.max_restarts == UNLIMITED else self.max_restarts,
            first_delay_seconds=self.first_delay_seconds,
            multiplier=2.0,
            cap_seconds=self.cap_seconds,
            jitter=self.jitter,
        )


class RestartBudget:
    """The restarts of one job so far. Times are of one monotonic clock, in seconds."""

    def __init__(self, settings: RestartSettings, jitter: Jitter) -> None:
        self._settings, self._jitter = settings, jitter
        self._running_since: float | None = None
        self.used = 0
        """Restarts since the last healthy interval."""
        self.total = 0
        """Restarts in all."""

    def running(self, now: float) -> None:
        """Take note that all tasks run."""
        if self._running_since is None:
            self._running_since = now

    def failed(self, now: float) -> float | None:
        """Count a failure; return the delay before the restart, None if the budget is spent."""
        since, self._running_since = self._running_since, None
        if since is not None:
            if now < since:
                raise InvalidInputError(f"time goes forward: running since {since}, now {now}")
            if now - since >= self._settings.healthy_seconds:
                self.used = 0
        delay = self._settings.backoff.delay_seconds(self.used + 1, self._jitter)
        if delay is not None:
            self.used += 1
            self.total += 1
        return delay
