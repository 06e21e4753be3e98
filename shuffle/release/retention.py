"""What may be released, and why. Pure decisions; registry.py and stages.py carry them out.

There are three causes and no other: all of a declared, closed set of consumers have finished; a
producer attempt failed before it committed; the user releases the stage, or overwrites it. The end
of a producer, a view, an executor or a Spark application is none.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.log.layout import check_name
from durable_shuffle.shuffle.log.records import Register
from durable_shuffle.shuffle.read.position import Positions, ProducerPosition, ordinal_of


@dataclass(frozen=True, slots=True)
class ConsumersFinished:
    """Everybody who was declared has read everything."""

    consumers: tuple[str, ...]

    def __str__(self) -> str:
        return f"consumed: {', '.join(self.consumers)} finished in every subpartition"


@dataclass(frozen=True, slots=True)
class ConsumersAcknowledged:
    """Everybody who was declared has acknowledged this part of a stage of log producers."""

    consumers: tuple[str, ...]

    def __str__(self) -> str:
        return f"consumed: {', '.join(self.consumers)} acknowledged it in every subpartition"


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """A producer attempt that never committed; ABORT is its fate."""

    reason: str

    def __str__(self) -> str:
        return f"failed before commit: {self.reason}"


@dataclass(frozen=True, slots=True)
class ReleasedByUser:
    """Somebody asked for it who had claimed the job."""

    generation: int

    def __str__(self) -> str:
        return f"released by generation {self.generation}"


@dataclass(frozen=True, slots=True)
class Overwritten:
    """A write job of the user's put another stage in its place, and was not told to keep it."""

    by: str
    """Folder of the other stage."""

    def __str__(self) -> str:
        return f"overwritten by {self.by}"


Cause = ConsumersFinished | ConsumersAcknowledged | AttemptFailed | ReleasedByUser | Overwritten
"""Why data may go; stands in the record that is won before anything is deleted."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Nothing may go."""

    why: str


# -- who is registered


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a REGISTER record is to say."""

    consumers: tuple[str, ...]
    closed: bool


def declare(
    standing: Register | None, names: Iterable[str], *, closed: bool, stage: str
) -> Declaration | None:
    """Decide what to register; None if it stands already.

    `closed` declares the whole set: it must hold whoever registered before. Without it the names
    are added.

    Raises:
        InvalidInputError: no name or a bad one, a set that leaves a registered consumer out, or
            another set than the closed one that stands.
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


# -- how far they are


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one consumer is in one subpartition; the default is its very start."""

    finished: bool = False
    acked: Positions = field(default_factory=dict)


ProgressOf = Mapping[tuple[str, int], Progress]
"""(consumer, subpartition) -> progress; who is missing has not begun."""


def least(tasks: Sequence[Progress]) -> Progress:
    """Return how far all of the tasks are that read one subpartition for one consumer."""
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
    """Decide whether a whole stage may go because it was consumed.

    Args:
        partitions: how many subpartitions the stage has.
        written: the stage is sealed, or all its log producers ended.
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
    """Where the records of one APPEND end."""

    slot: int
    ends: Mapping[int, int]
    """Subpartition -> ordinal behind its last record; only those that it has records for."""


def consumed_upto(
    appended: Iterable[Appended], register: Register, progress: ProgressOf, producer: int
) -> int:
    """Return the slot, exclusive, below which all registered consumers acknowledged everything.

    Args:
        appended: all of the producer's, ascending by slot.
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
    """Return the slot per producer below which data goes, whatever was asked for.

    Never above what all have consumed, never below what was released before.

    Args:
        asked: producer -> slot, exclusive; a producer that is missing releases nothing more. None
            asks for all that may go.
        consumed: per producer, see `consumed_upto`.
        standing: per producer, what was released before.
    """
    return tuple(
        max(before, min(most if asked is None else asked.get(p, 0), most))
        for p, (most, before) in enumerate(zip(consumed, standing, strict=True))
    )
