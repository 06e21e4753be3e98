"""What a job remembers of its tasks and of the starts under way; its time limits. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from durable_shuffle.recovery.barrier import StartBarrier
from durable_shuffle.recovery.job_phase import JobPhase
from durable_shuffle.recovery.stop_order import StopMode
from durable_shuffle.recovery.task_phase import STARTED_ONCE, TERMINAL, TaskPhase


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


ENDED_WELL = frozenset((TaskPhase.SUSPENDED, TaskPhase.CANCELED))
ENDING = frozenset(
    (TaskPhase.PREPARING, TaskPhase.PREPARED, TaskPhase.COMMITTING, TaskPhase.SUSPENDING)
)


def late_members(members: Mapping[str, TaskState], epoch: int) -> list[str]:
    """Return whom a start of `epoch` waits for: who has not arrived, else who has not gone on."""
    missing = [
        task
        for task, state in sorted(members.items())
        if state.epoch == epoch and state.phase not in STARTED_ONCE | TERMINAL
    ]
    return [t for t in missing if members[t].phase is not TaskPhase.AT_BARRIER] or missing


def end_of(phase: JobPhase, mode: StopMode | None, tasks: Collection[TaskState]) -> JobPhase | None:
    """Return what a job has come to of which nothing runs and nothing will; None if it goes on."""
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
