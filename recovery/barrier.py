"""The start barrier: everybody goes on to run, or nobody does. Pure.

Strategy: the members of one scheduling attempt arrive; the last arrival lets all go. Anything that
makes the start pointless (a failure, a stop, a timeout, a lost peer, a lost supervisor) calls it
off instead, once: the first cause stays. A member that ended before it arrived, because its work
was done in an earlier life, holds up nobody.
"""

from collections.abc import Iterable
from enum import StrEnum

from durable_shuffle.serialization.errors import InvalidInputError


class BarrierState(StrEnum):
    """What a barrier has come to."""

    WAITING = "waiting"
    OPEN = "open"
    ABORTED = "aborted"


class StartBarrier:
    """The barrier of one scheduling attempt.

    Args:
        members: the tasks of this attempt; with none it is open.
    """

    def __init__(self, members: Iterable[str]) -> None:
        self._missing = set(members)
        self._members = frozenset(self._missing)
        self._arrived: set[str] = set()
        self.cause = ""
        """Why it was called off."""

    @property
    def state(self) -> BarrierState:
        """Open and aborted are final."""
        if self.cause:
            return BarrierState.ABORTED
        return BarrierState.WAITING if self._missing else BarrierState.OPEN

    @property
    def members(self) -> frozenset[str]:
        """All tasks of the attempt."""
        return self._members

    @property
    def missing(self) -> tuple[str, ...]:
        """Who has neither arrived nor ended, by name."""
        return tuple(sorted(self._missing))

    def arrive(self, member: str) -> tuple[str, ...]:
        """Take an arrival in; return who may go now: all that arrived if it was the last, or none.

        An arrival at a barrier that was called off changes nothing; the caller tells the member.

        Raises:
            InvalidInputError: a stranger, or one that arrived before. Nothing changed.
        """
        if member not in self._members or member in self._arrived:
            raise InvalidInputError(f"not expected at the start barrier: {member!r}")
        self._arrived.add(member)
        return self._less(member)

    def ended(self, member: str) -> tuple[str, ...]:
        """Take in that a member will never arrive and needs nobody; return as `arrive`."""
        if member not in self._missing:
            return ()
        return self._less(member)

    def abort(self, cause: str) -> bool:
        """Call the start off; return False, and change nothing, if it was decided before."""
        if self.state is not BarrierState.WAITING:
            return False
        self.cause = cause
        return True

    def _less(self, member: str) -> tuple[str, ...]:
        self._missing.discard(member)
        return tuple(sorted(self._arrived)) if self.state is BarrierState.OPEN else ()
