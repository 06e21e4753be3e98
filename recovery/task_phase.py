"""The life of one attempt at a task, as its supervisor sees it: a table. Pure.

A phase that the table does not allow raises and changes nothing. The job machine does not look up
reports of another epoch: it counts them and goes on.
"""

from collections.abc import Mapping
from enum import StrEnum

from durable_shuffle.serialization.errors import InvalidInputError


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
