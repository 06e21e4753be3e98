"""What is left of an element's time and attempts after a restart. Pure.

Three bargains, after FLIP-232 (its second formula is read as "what is left until the deadline, but
a fair share of it at least": as printed there it would grow with the downtime):

    none        nothing is stored; the element starts anew
    deadline    max(T - elapsed, T / M): downtime counts, and one attempt's share always remains
    remaining   T - charged: only time in which a process worked on the element counts

with T the timeout, M the most attempts, elapsed the wall time since the first call, never below 0.
"""

from dataclasses import dataclass
from typing import Literal

from durable_shuffle.recovery.async_snapshot import SavedElement

KeepRetryState = Literal["none", "deadline", "remaining"]
OnExpired = Literal["last_attempt", "time_out"]


@dataclass(frozen=True, slots=True)
class Budget:
    """What a restored element starts with."""

    seconds: float | None
    """Until its deadline, above 0; None without a timeout."""
    attempts_used: int
    last: bool = False
    """True if the next call is not to be followed by another."""
    expired: bool = False
    """True if it goes to the timeout handler without another call."""


def restored_budget(
    saved: SavedElement,
    *,
    keep: KeepRetryState,
    on_expired: OnExpired,
    timeout_seconds: float | None,
    max_attempts: int,
    wall_now: float,
) -> Budget:
    """Return what `saved` starts with.

    Args:
        saved: without retry fields it starts anew, whatever `keep` says.
        max_attempts: M, calls in all.
        wall_now: seconds since 1970. If the clock was set back, no time has passed.
    """
    if keep == "none" or saved.attempts is None:
        return Budget(timeout_seconds, 0)
    used = saved.attempts
    last = used + 1 >= max_attempts
    if timeout_seconds is None:
        return Budget(None, used, last=last)
    share = timeout_seconds / max_attempts
    if keep == "deadline":
        elapsed = max(0.0, wall_now - saved.first_wall_seconds)
        return Budget(max(timeout_seconds - elapsed, share), used, last=last)
    left = timeout_seconds - max(0.0, saved.charged_seconds)
    if left > 0:
        return Budget(left, used, last=last)
    if on_expired == "time_out":
        return Budget(share, used, expired=True)
    return Budget(share, used, last=True)
