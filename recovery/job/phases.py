"""What a job and its tasks can be, what is said of them, and what the shell is told to do. Pure.

Tables say which phase may follow which. A phase that a table does not allow raises and changes
nothing. Reports of another epoch are only counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.serialization.errors import ErrorKind, InvalidInputError


class TaskPhase(StrEnum):
    """Where an attempt is."""

    WAITING = "waiting"
    """There is no attempt: the launcher has no slot for one."""
    CREATED = "created"
    STARTING = "starting"
    """The process is up and opens what it needs."""
    AT_BARRIER = "at_barrier"
    STARTED = "started"
    """Past the barrier: from here on it reads."""
    RUNNING = "running"
    """All have started. The job machine says so, no task does."""
    PREPARING = "preparing"
    PREPARED = "prepared"
    COMMITTING = "committing"
    SUSPENDING = "suspending"
    FINISHED = "finished"
    SUSPENDED = "suspended"
    CANCELED = "canceled"
    FAILED = "failed"


TERMINAL = frozenset(
    (TaskPhase.FINISHED, TaskPhase.SUSPENDED, TaskPhase.CANCELED, TaskPhase.FAILED)
)
STARTED_ONCE = frozenset(TaskPhase) - {
    TaskPhase.WAITING,
    TaskPhase.CREATED,
    TaskPhase.STARTING,
    TaskPhase.AT_BARRIER,
    TaskPhase.SUSPENDED,
    TaskPhase.CANCELED,
    TaskPhase.FAILED,
}
"""Phases that an attempt reaches only by starting, or by having finished in an earlier life."""

_BADLY = frozenset((TaskPhase.FAILED, TaskPhase.CANCELED))
_ENDS = _BADLY | {
    TaskPhase.PREPARING,
    TaskPhase.PREPARED,
    TaskPhase.COMMITTING,
    TaskPhase.SUSPENDING,
    TaskPhase.FINISHED,
    TaskPhase.SUSPENDED,
}

TRANSITIONS: Mapping[TaskPhase, frozenset[TaskPhase]] = {
    TaskPhase.CREATED: _BADLY | {TaskPhase.STARTING},
    # FINISHED: its log says that it finished in an earlier life
    TaskPhase.STARTING: _BADLY | {TaskPhase.AT_BARRIER, TaskPhase.FINISHED},
    TaskPhase.AT_BARRIER: _BADLY | {TaskPhase.STARTED},
    TaskPhase.STARTED: _ENDS | {TaskPhase.RUNNING},
    TaskPhase.RUNNING: _ENDS,
    TaskPhase.PREPARING: _BADLY | {TaskPhase.PREPARED},
    TaskPhase.PREPARED: _BADLY | {TaskPhase.COMMITTING},
    TaskPhase.COMMITTING: _BADLY | {TaskPhase.FINISHED},
    TaskPhase.SUSPENDING: _BADLY | {TaskPhase.SUSPENDED},
    **{phase: frozenset[TaskPhase]() for phase in (TaskPhase.WAITING, *TERMINAL)},
}


def check_reached(before: TaskPhase, after: TaskPhase, *, task: str) -> None:
    """Raise InvalidInputError, which names the task, if `after` cannot come behind `before`."""
    if after not in TRANSITIONS[before]:
        raise InvalidInputError(f"task {task!r} cannot say {after} when it is {before}")


class JobPhase(StrEnum):
    """Where a job is."""

    IDLE = "idle"
    SCHEDULING = "scheduling"
    RUNNING = "running"
    """All have started for which there are slots."""
    RECOVERING = "recovering"
    """Some tasks wait for their restart; the others go on."""
    STOPPING = "stopping"
    FAILING = "failing"
    """It cannot go on; what still runs is being closed."""
    FINISHED = "finished"
    SUSPENDED = "suspended"
    CANCELED = "canceled"
    FAILED = "failed"
    EFFECTS_PENDING = "snapshot_ok_effects_pending"
    """A commit is durable and its effects are not: the next run publishes it first."""


ENDS = frozenset(
    (
        JobPhase.FINISHED,
        JobPhase.SUSPENDED,
        JobPhase.CANCELED,
        JobPhase.FAILED,
        JobPhase.EFFECTS_PENDING,
    )
)
_FALLS = frozenset((JobPhase.RECOVERING, JobPhase.FAILING))
JOB_TRANSITIONS: Mapping[JobPhase, frozenset[JobPhase]] = {
    JobPhase.IDLE: frozenset((JobPhase.SCHEDULING, JobPhase.SUSPENDED, JobPhase.CANCELED)),
    JobPhase.SCHEDULING: _FALLS | {JobPhase.RUNNING, JobPhase.STOPPING, JobPhase.FINISHED},
    # from RUNNING and STOPPING back: a slot became free for a task that waits
    JobPhase.RUNNING: _FALLS | {JobPhase.SCHEDULING, JobPhase.STOPPING, JobPhase.FINISHED},
    JobPhase.RECOVERING: _FALLS | {JobPhase.SCHEDULING, JobPhase.STOPPING},
    JobPhase.STOPPING: _FALLS | {JobPhase.SCHEDULING} | ENDS - {JobPhase.FAILED},
    JobPhase.FAILING: frozenset((JobPhase.FAILED, JobPhase.EFFECTS_PENDING)),
    **{phase: frozenset() for phase in ENDS},
}


def check_transition(before: JobPhase, after: JobPhase) -> None:
    """Raise InvalidInputError if a job cannot go from one phase to the other."""
    if before is not after and after not in JOB_TRANSITIONS[before]:
        raise InvalidInputError(f"a job cannot go from {before} to {after}")


_OUTAGE = (str(ErrorKind.UNAVAILABLE), str(ErrorKind.OUTCOME_UNKNOWN))


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt ended."""

    kind: str
    """Kind of a library error, or class name of any other error."""
    text: str
    retry: bool = True
    """Whether trying again can help."""
    secondary: bool = False
    """It is a consequence of another failure, which it never hides."""
    where: str = ""
    """The line of the user's own code, "" if there is none."""

    @property
    def is_outage(self) -> bool:
        """Whether the storage did not answer."""
        return self.kind in _OUTAGE

    @property
    def is_called_off(self) -> bool:
        """Whether the attempt was told that its start is called off, or that it is cancelled."""
        return self.secondary and self.kind == ErrorKind.ABORTED

    def explains(self, first: "Failure | None", *, failing: bool) -> bool:
        """Return whether this is the cause to report, and not the failure before it.

        The first one is, unless it is a consequence of this one, or this one ends the job where the
        first would have been followed by a restart.

        Args:
            failing: whether the first one ends the job.
        """
        if first is None or (first.secondary and not self.secondary):
            return True
        ends = first.retry and not self.retry and not failing
        return ends and not self.secondary and first.kind != self.kind

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" + (f" ({self.where})" if self.where else "")


SETTLED = -1
"""As the commit of a FAILED attempt: it knows that none is pending, where 0 says nothing."""


@dataclass(frozen=True, slots=True)
class TaskReport:
    """One message about one attempt at a task."""

    KIND: ClassVar[str] = "REPORT"
    task: str
    epoch: int
    phase: TaskPhase | None
    """The phase that it has reached; None: it lives, and nothing is new."""
    failure: Failure | None = None
    commit: int = 0
    """PREPARED and FAILED: a commit that is durable and whose effects may be missing; else 0. With
    FAILED it may be `SETTLED`."""
    records: int = 0
    """Records behind it so far, for people."""
    complaint: str = ""
    """Why all tasks of its part should start anew; "" if it asks for nothing."""

    @property
    def is_heartbeat(self) -> bool:
        """Whether it says nothing but that the attempt lives."""
        return self.phase is None and not self.complaint

    @property
    def is_last(self) -> bool:
        """Whether the attempt has ended by this."""
        return self.phase in TERMINAL


# -- what the shell is told to do


@dataclass(frozen=True, slots=True)
class WinGeneration:
    """Make a new generation durable, then say which."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Make sure that an attempt runs no more. May fail: fencing is what counts."""

    task: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Launch:
    """Start an attempt."""

    task: str
    epoch: int


@dataclass(frozen=True, slots=True)
class PassBarrier:
    """Attempts pass the start barrier. Told to the tasks, as the next two."""

    KIND: ClassVar[str] = "GO"
    tasks: tuple[str, ...]
    epoch: int


@dataclass(frozen=True, slots=True)
class CallOff:
    """The start of these attempts is called off."""

    KIND: ClassVar[str] = "CALL_OFF"
    tasks: tuple[str, ...]
    epoch: int
    cause: str


@dataclass(frozen=True, slots=True)
class StopTasks:
    """Attempts end in this way."""

    KIND: ClassVar[str] = "STOP_TASKS"
    tasks: tuple[str, ...]
    epoch: int
    mode: StopMode


Told = PassBarrier | CallOff | StopTasks
"""What attempts are told; it stands in the command log before they hear of it."""
JobAction = WinGeneration | Kill | Launch | Told


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a job came to."""

    phase: JobPhase
    cause: Failure | None = None
    """The first failure since all tasks ran: what led to the end; None if there was none."""
    cause_task: str = ""
    pending: tuple[tuple[str, int], ...] = ()
    """(task, commit) of what is durable and not published; only of EFFECTS_PENDING."""
    restarts: int = 0
    ignored: int = 0
    """Messages of other epochs."""
