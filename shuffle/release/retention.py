"""Decide what may be released, and why; register consumers, and read their progress.

There are three causes and no others. All consumers of a declared, closed set have finished the
stage (or acknowledged a part of it). A producer attempt failed before it committed. The user
releases or overwrites the stage, or runs of the job no longer use it (`unused.py`). The end of a
producer, a view, an executor or a Spark application
is not a cause.

REGISTER and RELEASE share the stage log. Whichever is won first decides, and a REGISTER after a
RELEASE is refused. Listings of consumers only suggest where to look. A consumer that no listing
shows counts as not begun, which can only keep data.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from durable_shuffle.serialization.errors import CorruptDataError, InvalidInputError, NotFoundError
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.consume.log import read_resume_set
from durable_shuffle.shuffle.log.job_log import use_stage
from durable_shuffle.shuffle.log.layout import (
    ConsumerPath,
    check_name,
    consumers_prefix,
    named_here,
    parse_consumer_key,
)
from durable_shuffle.shuffle.log.records import Register
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import (
    StageHandle,
    StageState,
    read_state,
    stage_log,
    stage_released,
)
from durable_shuffle.shuffle.read.position import Positions, ProducerPosition, ordinal_of
from durable_shuffle.shuffle.storage.contract import Storage

# -- causes: the record that is won before a deletion states one of them


def consumers_finished(consumers: Iterable[str]) -> str:
    """Return the cause that all declared consumers have finished every subpartition."""
    return f"consumed: {', '.join(consumers)} finished in every subpartition"


def consumers_acknowledged(consumers: Iterable[str]) -> str:
    """Return the cause that all declared consumers have acknowledged this part of a stage."""
    return f"consumed: {', '.join(consumers)} acknowledged it in every subpartition"


def attempt_failed(reason: str) -> str:
    """Return the cause that an attempt never committed, or that a stage was never finished."""
    return f"failed before commit: {reason}"


def released_by_user(generation: int) -> str:
    """Return the cause that the user asked for it, by the driver of this generation."""
    return f"released by generation {generation}"


def not_used(generation: int, reason: str) -> str:
    """Return the cause that the job's retention released it, by the driver of this generation."""
    return f"released by generation {generation}: {reason}"


def overwritten(by: str) -> str:
    """Return the cause that a write job replaced the stage and was not told to keep it.

    Args:
        by: folder of the new stage.
    """
    return f"overwritten by {by}"


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
    standing: Register | None,
    names: Iterable[str],
    *,
    closed: bool,
    stage: str,
    grows: bool = False,
) -> Declaration | None:
    """Decide what to register; return None if nothing new is to be registered.

    With `closed`, `names` is the whole set and must include every consumer that registered before.
    Without it, the names are added to the set.

    Args:
        standing: the newest REGISTER of the stage, or None.
        stage: the stage's prefix, for messages.
        grows: add the names to the set that stands, even if it is closed; the result is closed.

    Raises:
        InvalidInputError: there is no name or a bad one; a closed set leaves out a registered
            consumer; or the names differ from a set that is closed already.
    """
    wanted = {check_name("consumer", name) for name in names}
    if not wanted:
        raise InvalidInputError(f"at least one consumer must be named: stage={stage!r}")
    known = set(standing.consumers) if standing else set()
    if grows:
        same = standing is not None and standing.closed and wanted <= known
        return None if same else Declaration(tuple(sorted(known | wanted)), closed=True)
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
class ConsumerProgress:
    """One consumer's progress in one subpartition; by default it has not begun."""

    finished: bool = False
    acked: Positions = field(default_factory=dict)


ProgressOf = Mapping[tuple[str, int], ConsumerProgress]
"""(consumer, subpartition) -> progress. A missing entry means that the consumer has not begun."""


def least(tasks: Sequence[ConsumerProgress]) -> ConsumerProgress:
    """Return the progress that all `tasks` have reached.

    Args:
        tasks: the progress of each task that reads one subpartition for one consumer.
    """
    if not tasks:
        return ConsumerProgress()
    acked: dict[int, ProducerPosition] = dict(tasks[0].acked)
    for task in tasks[1:]:
        acked = {
            p: min(position, task.acked[p], key=lambda position: position.next_ordinal)
            for p, position in acked.items()
            if p in task.acked
        }
    return ConsumerProgress(all(task.finished for task in tasks), acked)


def judge_consumed(
    register: Register | None, progress: ProgressOf, *, partitions: int, written: bool
) -> str | Keep:
    """Decide whether a whole stage may be released because it was consumed; return the cause.

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
    return unfinished(register, progress, partitions) or consumers_finished(register.consumers)


def unfinished(register: Register, progress: ProgressOf, partitions: int) -> Keep | None:
    """Return which registered consumer still needs the stage; None if all have finished.

    Args:
        partitions: the number of subpartitions of the stage.
    """
    for consumer in register.consumers:
        for k in range(partitions):
            if not progress.get((consumer, k), ConsumerProgress()).finished:
                return Keep(f"consumer {consumer} has not finished subpartition {k}")
    return None


# -- parts of a stage of log producers


@dataclass(frozen=True, slots=True)
class AppendEnds:
    """The end of one APPEND's records in each subpartition."""

    slot: int
    ends: Mapping[int, int]
    """Subpartition -> ordinal after its last record there; only subpartitions with records."""


def consumed_upto(
    appended: Iterable[AppendEnds], register: Register, progress: ProgressOf, producer: int
) -> int:
    """Return the slot, exclusive, below which all registered consumers acknowledged everything.

    Args:
        appended: the producer's APPENDs, ascending by slot.
    """
    upto = 0
    for append in appended:
        for k, end in append.ends.items():
            for consumer in register.consumers:
                task = progress.get((consumer, k), ConsumerProgress())
                if not task.finished and ordinal_of(task.acked, producer) < end:
                    return upto
        upto = append.slot + 1
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


def register_consumers(
    stage: StageHandle,
    names: Iterable[str],
    *,
    ids: IdSource,
    generation: int,
    closed: bool = True,
    grows: bool = False,
    now: float = 0.0,
) -> tuple[str, ...]:
    """Declare the consumers of a stage. From here on it keeps its data until they have read it.

    REGISTER comes first, then a use in the job log, which refuses a stage whose release is decided
    and stops whoever has found it unused: `tests/protocol_model/protocol/register_model.py`.

    Idempotent for the same names. Without `closed`, others may register later, and no data is
    released as consumed until the set is closed.

    Args:
        grows: add the names to a set that is closed, too. Only for a caller that alone releases
            parts of this stage, and has every new consumer begin behind what was released.
        now: since 1970, for retention by age; by default the time of the last use stands.

    Returns:
        All registered consumers, ascending.

    Raises:
        InvalidInputError: a name is bad, the set leaves out a registered consumer, or another set
            was declared and closed.
        NotFoundError: the stage was released, or part of it was released before a new consumer
            registered.
    """
    names, record_id = tuple(names), ids.new_id()

    def unless_registered(state: StageState) -> Register | None:
        if state.release is not None:
            raise stage_released(stage, state.release)
        wanted = declare(state.register, names, closed=closed, stage=stage.path.prefix, grows=grows)
        if wanted is None:
            return None
        known = state.register.consumers if state.register else ()
        new = sorted(set(wanted.consumers).difference(known))
        if new and state.upto is not None and not grows:
            raise NotFoundError(
                f"the stage's first records were released before consumer {new[0]} registered: "
                f"{stage.path.prefix!r} cause={state.upto.cause}"
            )
        return Register(record_id, generation, wanted.consumers, wanted.closed)

    state, won = stage_log(stage).decide(read_state(stage), unless_registered)
    if won is not None:
        use_stage(stage.storage, stage.path, record_id=record_id, now=now)
    return state.register.consumers if state.register else ()


def consumer_tasks(storage: Storage, job: str, consumer: str) -> list[ConsumerPath]:
    """Return the tasks of a consumer that a listing shows. The listing may be incomplete."""
    listed = named_here(storage.list(f"{consumers_prefix(job)}{consumer}/"), parse_consumer_key)
    return sorted({path for _, (path, _, _) in listed}, key=lambda path: path.task)


def progress_in(stage: StageHandle, consumers: Iterable[str]) -> ProgressOf:
    """Return the consumers' progress in each subpartition of a stage that they have begun.

    Raises:
        CorruptDataError, IncompatibleError: a consumer's log cannot be read; nothing is guessed.
    """
    folder = stage.path.folder
    tasks: dict[tuple[str, int], list[ConsumerProgress]] = defaultdict(list)
    for consumer in consumers:
        for path in consumer_tasks(stage.storage, stage.path.job, consumer):
            state = read_resume_set(SlotLog(stage.storage, path.log_prefix))
            for (read, k), cursor in state.inputs.items():
                if read == folder:
                    tasks[consumer, k].append(ConsumerProgress(state.finished, cursor.acked))
    stray = [key for key in tasks if not 0 <= key[1] < stage.describe.partitions]
    if stray:
        raise CorruptDataError(
            f"a consumer reads a subpartition that the stage does not have: consumer={stray[0][0]} "
            f"subpartition={stray[0][1]} stage={stage.path.prefix!r}"
        )
    return {key: least(progresses) for key, progresses in tasks.items()}
