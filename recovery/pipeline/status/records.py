"""What a coordinator says of its pipeline, as records of the status log, and what they add up to.

Pure. A record holds what is new; every so often one holds everything. It is for people: nothing is
decided by it. docs/format.md lists the fields.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from durable_shuffle.serialization.control import RecordCodec

WHOLE_EVERY = 64
"""A whole record is at most so many slots behind the one before."""
RESTARTS_KEPT = 20
"""So many of the newest are shown."""


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """Where a task is."""

    task: str
    phase: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a source or consumer is: records behind it, and whether that is all."""

    part: str
    records: int
    final: bool


@dataclass(frozen=True, slots=True)
class Behind:
    """How far a consumer is behind what it reads."""

    part: str
    records: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Restarted:
    """A task fell and was, or will be, started again."""

    task: str
    epoch: int
    """Of the attempt that fell."""
    cause: str
    wall_seconds: float
    """Since 1970."""


@dataclass(frozen=True, slots=True)
class Status:
    """One record of the status log."""

    KIND: ClassVar[str] = "STATUS"
    record_id: str
    generation: int
    whole: bool
    """Whether it says everything, not only what is new."""
    phase: str
    version: str
    """Of the description that runs."""
    wall_seconds: float
    """When it was written, since 1970; for people."""
    tasks: tuple[TaskStatus, ...] = ()
    """All of them, or none if nothing has changed."""
    reached: tuple[Reached, ...] = ()
    dropped: tuple[str, ...] = ()
    """Parts; of a whole record all since somebody new listens."""
    behind: tuple[Behind, ...] = ()
    restarts: tuple[Restarted, ...] = ()
    """New ones; of a whole record the newest of this coordinator."""


STATUSES: RecordCodec[Status] = RecordCodec((Status,))


@dataclass(slots=True)
class PipelineStatus:
    """What the status log adds up to."""

    generation: int = 0
    phase: str = ""
    version: str = ""
    wall_seconds: float = 0.0
    tasks: tuple[TaskStatus, ...] = ()
    reached: dict[str, Reached] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    behind: dict[str, Behind] = field(default_factory=dict)
    restarts: list[Restarted] = field(default_factory=list)


def added_up(records: Iterable[Status]) -> PipelineStatus:
    """Return what records say, the first of which is whole or the first of the log."""
    found = PipelineStatus()
    for record in records:
        if record.whole:
            found = PipelineStatus()
        found.generation, found.phase = record.generation, record.phase
        found.version, found.wall_seconds = record.version, record.wall_seconds
        found.tasks = record.tasks or found.tasks
        found.reached |= {one.part: one for one in record.reached}
        for part in record.dropped:
            found.reached.pop(part, None)
            found.behind.pop(part, None)
            found.dropped.append(part)
        found.behind |= {one.part: one for one in record.behind}
        found.restarts = [*found.restarts, *record.restarts][-RESTARTS_KEPT:]
    return found
