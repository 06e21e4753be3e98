"""The life of one attempt at a task, as its supervisor sees it: a table. Pure.

A report that the table does not hold raises and changes nothing. A report of another epoch is not
even looked up: whoever keeps the table counts it and goes on.
"""

from collections.abc import Mapping
from enum import StrEnum

from durable_shuffle.serialization.errors import InvalidInputError


class TaskPhase(StrEnum):
    """Where an attempt is."""

    CREATED = "created"
    STARTING = "starting"
    AT_BARRIER = "at_barrier"
    STARTED = "started"
    RUNNING = "running"
    PREPARING = "preparing"
    PREPARED = "prepared"
    COMMITTING = "committing"
    SUSPENDING = "suspending"
    FINISHED = "finished"
    SUSPENDED = "suspended"
    CANCELED = "canceled"
    FAILED = "failed"


class Report(StrEnum):
    """What a task, its launcher or its supervisor says of an attempt."""

    STARTING = "starting"
    """The process is up and opens what it needs."""
    AT_BARRIER = "at_barrier"
    STARTED = "started"
    """Past the barrier: from here on it reads."""
    RUNNING = "running"
    """Said by the supervisor, once all have started."""
    PREPARING = "preparing"
    PREPARED = "prepared"
    COMMITTING = "committing"
    SUSPENDING = "suspending"
    FINISHED = "finished"
    SUSPENDED = "suspended"
    CANCELED = "canceled"
    FAILED = "failed"
    ALIVE = "alive"
    """Changes nothing."""
    COMPLAINS = "complains"
    """Asks that all tasks of its part start anew. Not for the table."""


TERMINAL = frozenset(
    (TaskPhase.FINISHED, TaskPhase.SUSPENDED, TaskPhase.CANCELED, TaskPhase.FAILED)
)
STARTED_ONCE = frozenset(TaskPhase) - {
    TaskPhase.CREATED,
    TaskPhase.STARTING,
    TaskPhase.AT_BARRIER,
    TaskPhase.SUSPENDED,
    TaskPhase.CANCELED,
    TaskPhase.FAILED,
}
"""Phases that an attempt reaches only by starting, or by having finished in an earlier life."""

_ENDS = {
    Report.FAILED: TaskPhase.FAILED,
    Report.CANCELED: TaskPhase.CANCELED,
}
_ENDS_WELL = {
    Report.PREPARING: TaskPhase.PREPARING,
    Report.PREPARED: TaskPhase.PREPARED,
    Report.COMMITTING: TaskPhase.COMMITTING,
    Report.SUSPENDING: TaskPhase.SUSPENDING,
    Report.FINISHED: TaskPhase.FINISHED,
    Report.SUSPENDED: TaskPhase.SUSPENDED,
}

TRANSITIONS: Mapping[TaskPhase, Mapping[Report, TaskPhase]] = {
    TaskPhase.CREATED: {Report.STARTING: TaskPhase.STARTING, **_ENDS},
    TaskPhase.STARTING: {
        Report.AT_BARRIER: TaskPhase.AT_BARRIER,
        # its log says that it finished in an earlier life
        Report.FINISHED: TaskPhase.FINISHED,
        **_ENDS,
    },
    TaskPhase.AT_BARRIER: {Report.STARTED: TaskPhase.STARTED, **_ENDS},
    TaskPhase.STARTED: {Report.RUNNING: TaskPhase.RUNNING, **_ENDS_WELL, **_ENDS},
    TaskPhase.RUNNING: {**_ENDS_WELL, **_ENDS},
    TaskPhase.PREPARING: {Report.PREPARED: TaskPhase.PREPARED, **_ENDS},
    TaskPhase.PREPARED: {Report.COMMITTING: TaskPhase.COMMITTING, **_ENDS},
    TaskPhase.COMMITTING: {Report.FINISHED: TaskPhase.FINISHED, **_ENDS},
    TaskPhase.SUSPENDING: {Report.SUSPENDED: TaskPhase.SUSPENDED, **_ENDS},
    **{phase: {} for phase in TERMINAL},
}


def next_phase(phase: TaskPhase, report: Report, *, task: str) -> TaskPhase:
    """Return the phase after `report`.

    Raises:
        InvalidInputError: not in this phase; names the task.
    """
    if report is Report.ALIVE and phase not in TERMINAL:
        return phase
    found = TRANSITIONS[phase].get(report)
    if found is None:
        raise InvalidInputError(f"task {task!r} cannot say {report} when it is {phase}")
    return found
