"""How an async operator treats its elements, and what it counts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from durable_shuffle.recovery.calls.snapshot import KeepRetryState, OnExpired, Snapshot
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import Clock
from durable_shuffle.shuffle.base.limits import check_count, check_number
from durable_shuffle.shuffle.base.retry import NO_RETRY, Jitter, RetryPolicy

Mode = Literal["ordered", "unordered"]


class AsyncOptions(TypedDict, total=False):
    """Arguments that `AsyncOperator`, `async_map` and `AsyncStep` share; for type checkers."""

    mode: Mode
    retry: RetryPolicy
    timeout_seconds: float | None
    on_timeout: Callable[[Any], Any] | None
    threads: int
    keep_retry_state: KeepRetryState
    on_expired: OnExpired
    clock: Clock | None
    jitter: Jitter | None


class OperatorOptions(AsyncOptions, total=False):
    """Arguments of `AsyncOperator` besides the function and its capacity."""

    snapshot: Snapshot | None


@dataclass(frozen=True, slots=True)
class AsyncSettings:
    """How the operator treats its elements.

    Raises:
        InvalidInputError: a value is out of its range; the message names it.
    """

    capacity: int
    """Most elements and markers inside at a time, waiting and finished ones included; from 1."""
    mode: Mode = "ordered"
    retry: RetryPolicy = NO_RETRY
    timeout_seconds: float | None = None
    """From taking an element in until its outcome, over all attempts; None waits for ever."""
    keep_retry_state: KeepRetryState = "none"
    on_expired: OnExpired = "last_attempt"

    def __post_init__(self) -> None:
        check_count("capacity", self.capacity, at_least=1)
        if self.timeout_seconds is not None:
            check_number("timeout_seconds", self.timeout_seconds, at_least=0, above=True)
        for name, allowed in (
            ("mode", ("ordered", "unordered")),
            ("keep_retry_state", ("none", "deadline", "remaining")),
            ("on_expired", ("last_attempt", "time_out")),
        ):
            if getattr(self, name) not in allowed:
                raise InvalidInputError(
                    f"{name} must be one of {', '.join(allowed)}, found={getattr(self, name)!r}"
                )


@dataclass(frozen=True, slots=True)
class AsyncCounts:
    """What happened so far, and how many elements wait now."""

    attempts: int = 0
    """Calls of fn."""
    retries: int = 0
    """Calls that were not an element's first."""
    give_ups: int = 0
    """Elements that still asked for a retry when none was left."""
    timeouts: int = 0
    """Elements that met their deadline."""
    late: int = 0
    """Completions that came when nobody waited for them any more."""
    emitted: int = 0
    waiting: int = 0
    """Elements that wait for a retry now."""
