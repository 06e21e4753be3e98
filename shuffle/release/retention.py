"""Decide what may be released, and why. Pure; `registry.py` and `stages.py` carry it out.

There are three causes and no others. All consumers of a declared, closed set have finished the
stage (or acknowledged a part of it). A producer attempt failed before it committed. The user
releases or overwrites the stage. The end of a producer, a view, an executor or a Spark application
is not a cause.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.log.layout import check_name
from durable_shuffle.shuffle.log.records import Register
from durable_shuffle.shuffle.read.position import Positions, ProducerPosition, ordinal_of


@dataclass(frozen=True, slots=True)
class ConsumersFinished:
    """All declared consumers have finished every subpartition."""

    consumers: tuple[str, ...]

    def __str__(self) -> str:
        return f"consumed: {', '.join(self.consumers)} finished in every subpartition"


@dataclass(frozen=True, slots=True)
class ConsumersAcknowledged:
    """All declared consumers have acknowledged this part of a stage of log producers."""

    consumers: tuple[str, ...]

    def __str__(self) -> str:
        return f"consumed: {', '.join(self.consumers)} acknowledged it in every subpartition"


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """A producer attempt never committed and was aborted, or a stage was never finished."""

    reason: str

    def __str__(self) -> str:
        return f"failed before commit: {self.reason}"


@dataclass(frozen=True, slots=True)
class ReleasedByUser:
    """The user asked for the release; `generation` is that of the driver that claimed the job."""

    generation: int

    def __str__(self) -> str:
        return f"released by generation {self.generation}"


@dataclass(frozen=True, slots=True)
class Overwritten:
    """A write job of the user replaced the stage and was not told to keep the old one."""

    by: str
    """Folder of the new stage."""

    def __str__(self) -> str:
        return f"overwritten by {self.by}"


Cause = ConsumersFinished | ConsumersAcknowledged | AttemptFailed | ReleasedByUser | Overwritten
"""Why data may be deleted. The record that is won before the deletion states it."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Nothing may be released; `why` is the reason."""

    why: str


# -- registering consumers


@dataclass(frozen=True, slots=True)
class Declaration:
    """The content of a new REGISTER record."""

    consumers: tuple[str, ...]
    closed: bool


def declare(
    standing: Register | None, names: Iterable[str], *, closed: bool, stage: str
) -> Declaration | None:
    """Decide what to register; return None if nothing new is to be registered.

    With `closed`, `names` is the whole set and must include every consumer that registered before.
    Without it, the names are added to the set.

    Args:
        standing: the newest REGISTER of the stage, or None.
        stage: the stage's prefix, for messages.

    Raises:
        InvalidInputError: there is no name or a bad one; a closed set leaves out a registered
            consumer; or the names differ from a set that is closed already.
    """
    wanted = {check_name("consumer", name) for name in names}
    if not wanted:
        raise InvalidInputError(f"at least one consumer must be named: stage={stage!r}")
    known = set(standing.consumers) if standing else set()
    if standing is not None and standing.closed:
        if wanted == known or (not closed and wanted < known):
            return None
        raise InvalidInputError(
            f"the stage's consumers were declared and closed: stage={stage!r} declared="
            f"{', '.join(sorted(known))} found={', '.join(sorted(wanted))}"
        )
    if closed and not known <= wanted:
        raise InvalidInputError(
            f"a closed set must name all who are registered: stage={stage!r} missing="
            f"{', '.join(sorted(known - wanted))}"
        )
    if not closed and wanted <= known:
        return None
    return Declaration(tuple(sorted(known | wanted)), closed)


# -- progress


@dataclass(frozen=True, slots=True)
class Progress:
    """One consumer's progress in one subpartition; by default it has not begun."""

    finished: bool = False
    acked: Positions = field(default_factory=dict)


ProgressOf = Mapping[tuple[str, int], Progress]
"""(consumer, subpartition) -> progress. A missing entry means that the consumer has not begun."""


def least(tasks: Sequence[Progress]) -> Progress:
    """Return the progress that all `tasks` have reached.

    Args:
        tasks: the progress of each task that reads one subpartition for one consumer.
    """
    if not tasks:
        return Progress()
    acked: dict[int, ProducerPosition] = dict(tasks[0].acked)
    for task in tasks[1:]:
        acked = {
            p: min(at, task.acked[p], key=lambda found: found.next_ordinal)
            for p, at in acked.items()
            if p in task.acked
        }
    return Progress(all(task.finished for task in tasks), acked)


def judge_consumed(
    register: Register | None, progress: ProgressOf, *, partitions: int, written: bool
) -> ConsumersFinished | Keep:
    """Decide whether a whole stage may be released because it was consumed.

    Args:
        partitions: the number of subpartitions of the stage.
        written: whether the stage is sealed, or all its log producers have ended.
    """
    if register is None:
        return Keep("no consumers are registered")
    if not register.closed:
        return Keep("the set of consumers is not closed")
    if not written:
        return Keep("its producers are not done")
    for consumer in register.consumers:
        for k in range(partitions):
            if not progress.get((consumer, k), Progress()).finished:
                return Keep(f"consumer {consumer} has not finished subpartition {k}")
    return ConsumersFinished(register.consumers)


# -- parts of a stage of log producers


@dataclass(frozen=True, slots=True)
class Appended:
    """The end of one APPEND's records in each subpartition."""

    slot: int
    ends: Mapping[int, int]
    """Subpartition -> ordinal after its last record there; only subpartitions with records."""


def consumed_upto(
    appended: Iterable[Appended], register: Register, progress: ProgressOf, producer: int
) -> int:
    """Return the slot, exclusive, below which all registered consumers acknowledged everything.

    Args:
        appended: the producer's APPENDs, ascending by slot.
    """
    upto = 0
    for one in appended:
        for k, end in one.ends.items():
            for consumer in register.consumers:
                at = progress.get((consumer, k), Progress()).acked
                if ordinal_of(at, producer) < end:
                    return upto
        upto = one.slot + 1
    return upto


def clamp(
    asked: Mapping[int, int] | None, consumed: Sequence[int], standing: Sequence[int]
) -> tuple[int, ...]:
    """Return, per producer, the slot below which data is released.

    A slot is never above what all consumers have consumed, and never below an earlier release.

    Args:
        asked: producer -> slot, exclusive; a missing producer releases nothing more. None asks for
            everything that may be released.
        consumed: per producer, the slot from `consumed_upto`.
        standing: per producer, the slot of the last release.
    """
    return tuple(
        max(before, min(most if asked is None else asked.get(p, 0), most))
        for p, (most, before) in enumerate(zip(consumed, standing, strict=True))
    )
