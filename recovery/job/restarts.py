"""How often tasks restart, and which are silent for too long. Pure.

Budget: one count of restarts per task, and one of starts that did not succeed, each taken back
after a healthy interval. Tasks restart alone, so a hundred tasks that each fail once an hour are as
healthy as one. The delay doubles from one restart to the next up to a cap; half of it is random, so
that jobs that failed together do not start together. After Arroyo, whose power of two overflowed
before it was capped.

Liveness: every attempt is watched from its first message to its last. If its launcher finds it
gone, or it says nothing for too long, a message takes the place of its last one.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.retry import Backoff, Jitter
from durable_shuffle.shuffle.base.settings import check_count, check_number

UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """How often to start again.

    Raises:
        InvalidInputError: a value is out of its range; the message names it.
    """

    max_restarts: int = 20
    """Of one task in a row, or of starts that did not succeed, without `healthy_seconds` between
    them; -1: no limit."""
    first_delay_seconds: float = 0.25
    """Before the first restart; doubles from one to the next."""
    cap_seconds: float = 60.0
    """No delay is longer, inclusive."""
    jitter: float = 0.5
    """Share of a delay that is random, 0 to 1."""
    healthy_seconds: float = 120.0
    """After running for so long the count begins anew."""
    outage_seconds: float = 3600.0
    """Restarts because the storage does not answer do not count, for so long."""

    def __post_init__(self) -> None:
        check_count("max_restarts", self.max_restarts, at_least=UNLIMITED)
        check_number("healthy_seconds", self.healthy_seconds, at_least=0)
        check_number("outage_seconds", self.outage_seconds, at_least=0)
        _ = self.backoff

    def said(self, number: int, seconds: float) -> str:
        """Return what people are told of a restart.

        Args:
            seconds: until it; below 0 if it should have been by now.
        """
        limit = f"at most {self.max_restarts} in a row"
        limit = "as often as needed" if self.max_restarts == UNLIMITED else limit
        return f"restart {number} in {max(0.0, seconds):.1f} s ({limit})"

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


START = ""
"""Key of the count of starts that did not succeed, whichever task failed."""


class RestartBudget:
    """The restarts of one job so far. Times are of one monotonic clock, in seconds."""

    def __init__(self, settings: RestartSettings, jitter: Jitter) -> None:
        self._settings, self._jitter = settings, jitter
        self._running_since: dict[str, float] = {}
        self._used: dict[str, int] = {}
        self._outage_since: float | None = None
        self._outages = 0
        """Restarts in the present outage."""
        self.used = 0
        """Restarts since the last healthy interval of what failed last."""
        self.total = 0
        """Restarts in all."""

    def running(self, now: float, key: str = START) -> None:
        """Take note that a task runs, or, without a key, that all tasks do."""
        self._running_since.setdefault(key, now)

    def failed(self, now: float, key: str = START, *, outage: bool = False) -> float | None:
        """Count a failure; return the delay before the restart, None if the budget is spent.

        Args:
            key: the task that ran and failed. Without it a start did not succeed.
            outage: the storage did not answer. That is waited out, for a bounded time.
        """
        if outage:
            return self._waits(now)
        since = self._running_since.pop(key, None)
        if since is not None:
            if now < since:
                raise InvalidInputError(f"time goes forward: running since {since}, now {now}")
            if now - since >= self._settings.healthy_seconds:
                self._used.pop(key, None)
        self.used = self._used.get(key, 0)
        delay = self._settings.backoff.delay_seconds(self.used + 1, self._jitter)
        if delay is not None:
            self.used += 1
            self._used[key] = self.used
            self.total += 1
        return delay

    def _waits(self, now: float) -> float | None:
        ran = self._running_since.pop(START, None)
        if ran is not None and now - ran >= self._settings.healthy_seconds:
            self._outage_since = None  # that outage is over
            self._used.pop(START, None)
        if self._outage_since is None:
            self._outage_since, self._outages = now, 0
        if now - self._outage_since >= self._settings.outage_seconds:
            return None
        self._outages += 1
        self.used, self.total = self._outages, self.total + 1
        endless = replace(self._settings, max_restarts=UNLIMITED).backoff
        return endless.delay_seconds(self._outages, self._jitter)


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
        self.repeats = 0
        """Messages of attempts that had ended: 0 if every launcher reports each end once."""

    def launched(self, attempt: AttemptKey) -> None:
        """Watch an attempt from its first message on: until then the start timeout does."""
        self._heard[attempt] = math.inf

    def heard(self, attempt: AttemptKey, now: float, *, terminal: bool) -> bool:
        """Take a message in; return whether it counts, False if the attempt had ended."""
        if attempt not in self._heard:
            self.repeats += 1
            return False
        if terminal:
            del self._heard[attempt]
        else:
            self._heard[attempt] = now
        return True

    def paused(self, seconds: float) -> None:
        """Take in that nobody listened for so long: no attempt was silent meanwhile."""
        self._heard = {attempt: heard + seconds for attempt, heard in self._heard.items()}

    def forget(self, attempt: AttemptKey) -> None:
        """Watch an attempt no longer: it was killed."""
        self._heard.pop(attempt, None)

    def silent(self, now: float) -> Iterator[AttemptKey]:
        """Yield the attempts that are lost; each one is yielded once and has ended by that."""
        for attempt, heard in list(self._heard.items()):
            if now >= heard + self.silence_seconds:  # as `next_when`
                del self._heard[attempt]
                yield attempt

    def next_when(self) -> float | None:
        """Return when `silent` may have something to say, None if never."""
        when = min(self._heard.values(), default=math.inf) + self.silence_seconds
        return None if when == math.inf else when
