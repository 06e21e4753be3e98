"""When to try again: pure functions of an attempt's number and its outcome.

Storage calls (`storage/retrying.py`) and the elements of the async operator use the same policy. A
policy has no memory and reads no clock, so any number of elements can share one. The caller that
waits supplies the clock and the jitter.

Attempts count from 1, the first call. `max_retries` counts retries, so an element is called at most
`max_retries + 1` times. Delays grow exponentially up to a cap. Jitter only shortens a delay, so no
delay exceeds the cap.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.settings import check_count, check_number

Jitter = Callable[[], float]
"""Returns a new random fraction in [0, 1) at each call."""

ResultPredicate = Callable[[Any], bool]
ExceptionPredicate = Callable[[BaseException], bool]


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often to try again, and how long to wait before each retry.

    Raises:
        InvalidInputError: a value is out of its range; the message names it.
    """

    max_retries: int = 0
    """Number of retries, without the first call; 0 means no retry."""
    first_delay_seconds: float = 0.0
    """Delay before the first retry."""
    multiplier: float = 1.0
    """Factor from one delay to the next, at least 1; 1 keeps the delay fixed."""
    cap_seconds: float = 60.0
    """Longest delay."""
    jitter: float = 0.0
    """Random share of a delay, 0 to 1: a delay d becomes a random value in (d - jitter * d, d]."""

    def __post_init__(self) -> None:
        check_count("max_retries", self.max_retries, at_least=0)
        check_number("first_delay_seconds", self.first_delay_seconds, at_least=0)
        check_number("multiplier", self.multiplier, at_least=1)
        check_number("cap_seconds", self.cap_seconds, at_least=self.first_delay_seconds)
        check_number("jitter", self.jitter, at_least=0, at_most=1)

    @classmethod
    def fixed(cls, max_retries: int, delay_seconds: float) -> "Backoff":
        """Return a policy with the same delay before each retry."""
        check_number("delay_seconds", delay_seconds, at_least=0)
        return cls(max_retries, delay_seconds, cap_seconds=delay_seconds)

    @property
    def max_attempts(self) -> int:
        """Most calls, including the first one."""
        return self.max_retries + 1

    def delay_seconds(self, attempt: int, jitter: Jitter) -> float | None:
        """Return the delay after a failed attempt, or None if it was the last one.

        Args:
            attempt: number of the failed attempt, from 1.
            jitter: called once if a share of the delay is random.
        """
        if attempt < 1:
            raise InvalidInputError(f"attempts count from 1, found={attempt}")
        if attempt > self.max_retries:
            return None
        delay = self._plain_delay(attempt - 1)
        return delay * (1 - self.jitter * jitter()) if self.jitter else delay

    def _plain_delay(self, steps: int) -> float:
        if self.multiplier == 1 or self.first_delay_seconds == 0:
            return self.first_delay_seconds
        # by logarithms first: the power itself overflows after some hundreds of attempts
        reaches_cap = math.log(self.cap_seconds / self.first_delay_seconds) / math.log(
            self.multiplier
        )
        if steps >= reaches_cap:
            return self.cap_seconds
        return min(self.first_delay_seconds * self.multiplier**steps, self.cap_seconds)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Which outcomes are retried, and when. Without a predicate nothing is retried."""

    backoff: Backoff = field(default_factory=Backoff)
    """How often and after which delays; by default never."""
    on_result: ResultPredicate | None = None
    """Returns whether a call with this result is retried."""
    on_exception: ExceptionPredicate | None = None
    """Returns whether a call that raised this exception is retried; see `raised`."""

    @property
    def active(self) -> bool:
        """Whether anything can be retried at all."""
        return self.backoff.max_retries > 0 and not (
            self.on_result is None and self.on_exception is None
        )

    def wants_retry_of_result(self, result: Any) -> bool:
        """Return whether a call with this result is to be retried."""
        return self.on_result is not None and bool(self.on_result(result))

    def wants_retry_of_exception(self, error: BaseException) -> bool:
        """Return whether a call that raised this error is to be retried."""
        return self.on_exception is not None and bool(self.on_exception(error))


NO_RETRY = RetryPolicy()


def raised(*types: type[BaseException]) -> ExceptionPredicate:
    """Return a predicate that is True for exceptions of these types and their subclasses.

    It can be pickled. Without types it is always False.
    """
    return _Raised(types)


@dataclass(frozen=True, slots=True)
class _Raised:
    types: tuple[type[BaseException], ...]

    def __call__(self, error: BaseException) -> bool:
        return isinstance(error, self.types)


def backoff_seconds(misses: int, first_seconds: float, longest_seconds: float) -> float:
    """Return the pause after `misses` answers in a row that brought nothing: it doubles."""
    if misses < 1:
        return 0.0
    return min(first_seconds * 2.0 ** min(misses - 1, 60), longest_seconds)
