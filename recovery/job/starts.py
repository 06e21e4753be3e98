"""What a job remembers of its tasks; the start barrier; time limits. Pure.

The start barrier lets all tasks of one scheduling attempt run, or none. Anything that makes the
start pointless (a failure, a stop, a timeout, a lost peer, a lost supervisor) calls it off instead,
once: the first cause stays. A member that ended before it arrived, because its work was done in an
earlier life, holds up nobody.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.job.phases import (
    STARTED_ONCE,
    TERMINAL,
    CallOff,
    Failure,
    JobPhase,
    PassBarrier,
    TaskPhase,
)
from durable_shuffle.serialization.errors import InvalidInputError


class BarrierState(StrEnum):
    """The state of a start barrier."""

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
        self.members = frozenset(self._missing)
        """All tasks of the attempt."""
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
    def missing(self) -> tuple[str, ...]:
        """Members that have neither arrived nor ended, sorted by name."""
        return tuple(sorted(self._missing))

    def arrive(self, member: str) -> tuple[str, ...]:
        """Take an arrival in. Return the members that may go now: all, after the last arrival.

        An arrival at a barrier that was called off changes nothing; the caller tells the member.

        Raises:
            InvalidInputError: a stranger, or one that arrived before. Nothing changed.
        """
        if member not in self.members or member in self._arrived:
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


@dataclass(frozen=True, slots=True)
class JobTimeouts:
    """Bounds of what a job waits for, in seconds."""

    start_seconds: float = 120.0
    """From a launch until all tasks of the scheduling attempt have started."""
    start_tries: int = 3
    """Starts in a row that may take too long."""
    stop_seconds: float = 120.0
    """For each step of a task's end (being told, prepare, publish, shutdown); a tenth of it for a
    CANCEL."""


@dataclass(slots=True)
class TaskState:
    """The newest attempt at a task."""

    epoch: int = 0
    phase: TaskPhase = TaskPhase.CREATED
    told: StopMode | None = None
    """The stop that it was sent."""
    commit: int = 0
    """A commit that is durable and whose effects may be missing."""
    records: int = 0
    end_by: float | None = None
    """When the step of its end that it takes must be over."""


@dataclass(slots=True)
class Starting:
    """One scheduling attempt under way."""

    epoch: int
    barrier: StartBarrier
    start_by: float
    """When all members must have started."""

    def arrived(self, task: str, tasks: Mapping[str, TaskState]) -> list[PassBarrier | CallOff]:
        """A member is at the barrier."""
        if self.barrier.state is BarrierState.ABORTED:
            return [CallOff((task,), self.epoch, self.barrier.cause)]
        return [*self._let_go(self.barrier.arrive(task), tasks)]

    def ended(self, task: str, tasks: Mapping[str, TaskState]) -> list[PassBarrier]:
        """A member will never arrive and needs nobody."""
        return self._let_go(self.barrier.ended(task), tasks)

    def _let_go(self, members: Iterable[str], tasks: Mapping[str, TaskState]) -> list[PassBarrier]:
        waiting = tuple(
            task
            for task in members
            if tasks[task].epoch == self.epoch
            and tasks[task].phase in (TaskPhase.AT_BARRIER, TaskPhase.STARTED)
        )
        return [PassBarrier(waiting, self.epoch)] if waiting else []

    def call_off(
        self, cause: str, live: Collection[str], tasks: Mapping[str, TaskState], end_by: float
    ) -> list[CallOff]:
        """Call the start off for all live members that have not passed the barrier."""
        if not self.barrier.abort(cause):
            return []
        self.start_by = math.inf
        told = tuple(
            task
            for task in sorted(self.barrier.members.intersection(live))
            if tasks[task].epoch == self.epoch
        )
        for task in told:
            tasks[task].end_by = end_by
        return [CallOff(told, self.epoch, cause)] if told else []


ENDED_WELL = frozenset((TaskPhase.SUSPENDED, TaskPhase.CANCELED))
PUBLISHED = frozenset((TaskPhase.AT_BARRIER, TaskPhase.FINISHED, TaskPhase.SUSPENDED))
"""An attempt that has reached one of these has published what earlier attempts had committed."""
ENDING = frozenset(
    (TaskPhase.PREPARING, TaskPhase.PREPARED, TaskPhase.COMMITTING, TaskPhase.SUSPENDING)
)


def late_members(members: Mapping[str, TaskState], epoch: int) -> list[str]:
    """Return the members that a start waits for: to arrive, else to go on behind the barrier."""
    missing = [
        task
        for task, state in sorted(members.items())
        if state.epoch == epoch and state.phase not in STARTED_ONCE | TERMINAL
    ]
    return [t for t in missing if members[t].phase is not TaskPhase.AT_BARRIER] or missing


def start_timeout(late: Collection[str], tries: int, timeouts: JobTimeouts) -> Failure:
    """Return the failure of a start that these members did not reach in time."""
    text = (
        f"not started within {timeouts.start_seconds:g} s, try {tries} of {timeouts.start_tries}: "
        f"{', '.join(late)}"
    )
    return Failure("start_timeout", text, retry=tries < timeouts.start_tries)


def end_of(phase: JobPhase, mode: StopMode | None, tasks: Collection[TaskState]) -> JobPhase | None:
    """Return the end of a job of which nothing runs and nothing will; None if it goes on."""
    pending = any(state.commit for state in tasks)
    if phase is JobPhase.FAILING:
        return JobPhase.EFFECTS_PENDING if pending else JobPhase.FAILED
    if all(state.phase is TaskPhase.FINISHED for state in tasks):
        return JobPhase.FINISHED
    if mode is StopMode.CANCEL:
        return JobPhase.CANCELED
    if mode is StopMode.SUSPEND:
        return JobPhase.EFFECTS_PENDING if pending else JobPhase.SUSPENDED
    return None
