"""One element of the async operator: its phases, and which may follow which.

    QUEUED -> CALLING(n) -> DONE -> EMITTED
                  |  ^
                  v  |
               WAITING(n)          after a result or exception to try again

    CALLING, WAITING -> EXPIRED -> DONE     at the deadline, by the timeout handler
    CALLING, EXPIRED -> FAILED              an outcome that ends the operator
    any but the last three -> DROPPED       cancel, suspend, another element's failure

EMITTED, FAILED and DROPPED are the outcomes: every element reaches one of them and leaves none. Any
other step is a mistake of ours and raises at once.
"""

from enum import Enum
from typing import Any, Final

from durable_shuffle.serialization.errors import InvalidInputError


class Phase(Enum):
    """Where an element stands."""

    QUEUED = "queued"
    CALLING = "calling"
    WAITING = "waiting"
    EXPIRED = "expired"
    DONE = "done"
    EMITTED = "emitted"
    FAILED = "failed"
    DROPPED = "dropped"

    following: tuple["Phase", ...]
    """The phases that may come next."""


OUTCOMES: Final = (Phase.EMITTED, Phase.FAILED, Phase.DROPPED)

_END: tuple[Phase, ...] = (Phase.FAILED, Phase.DROPPED)
Phase.QUEUED.following = (Phase.CALLING, Phase.EXPIRED, Phase.DROPPED)
Phase.CALLING.following = (Phase.DONE, Phase.WAITING, Phase.EXPIRED, *_END)
Phase.WAITING.following = (Phase.CALLING, Phase.EXPIRED, Phase.DROPPED)
Phase.EXPIRED.following = (Phase.DONE, *_END)
Phase.DONE.following = (Phase.EMITTED, Phase.DROPPED)
for _outcome in OUTCOMES:
    _outcome.following = ()


class Element:
    """One input on its way to one outcome. Only the machine that owns it changes it."""

    __slots__ = (
        "attempt", "call", "charged_before", "first_wall_seconds", "last", "ordinal", "phase",
        "result", "segment", "started", "value",
    )  # fmt: skip

    def __init__(self, ordinal: int, value: Any, started: float) -> None:
        self.ordinal = ordinal
        self.value = value
        self.phase = Phase.QUEUED
        self.attempt = 0
        """Number of the newest call, from 1; 0 before the first."""
        self.last = False
        """True if the call under way is not to be followed by another."""
        self.started = started
        """Monotonic seconds when it was taken in, in this process."""
        self.charged_before = 0.0
        """Seconds of its time budget that earlier processes used."""
        self.first_wall_seconds: float | None = None
        """Wall time of its first call if that was in an earlier process."""
        self.result: Any = None
        self.segment: Any = None
        """The output queue's own."""
        self.call: Any = None
        """The shell's handle of the call under way."""

    def become(self, phase: Phase) -> None:
        """Take one step.

        Raises:
            InvalidInputError: no such step; the element is unchanged.
        """
        if phase not in self.phase.following:
            raise InvalidInputError(
                f"async element {self.ordinal} cannot go from {self.phase.value} to {phase.value}"
            )
        self.phase = phase

    def __repr__(self) -> str:
        return f"Element({self.ordinal}, {self.phase.value}, attempt={self.attempt})"
