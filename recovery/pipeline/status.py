"""The status of a pipeline: records of its status log, and a view read from the storage alone.

A record holds only the changes; every so often a record holds everything. The status is for people:
no decision depends on it. docs/internals/format.md lists the fields."""

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.errors import FencedError, NotFoundError
from durable_shuffle.shuffle.consume.log import read_resume_set
from durable_shuffle.shuffle.log.appender_reads import producer_status
from durable_shuffle.shuffle.log.field_checks import check_seconds
from durable_shuffle.shuffle.log.job_log import read_job
from durable_shuffle.shuffle.log.layout import ConsumerPath, status_log_prefix
from durable_shuffle.shuffle.log.records import Closed
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage
from durable_shuffle.shuffle.log.typed_log import Tail, TypedLog
from durable_shuffle.shuffle.storage.contract import Storage

WHOLE_EVERY = 64
"""At most so many slots lie between two complete records."""
RESTARTS_KEPT = 20
"""How many of the newest restarts are shown."""


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """Where a task is."""

    task: str
    phase: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a source or consumer is: how many records are behind it, and whether that is all."""

    part: str
    records: int
    final: bool


@dataclass(frozen=True, slots=True)
class Behind:
    """How far a consumer lags behind its input."""

    part: str
    records: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Restarted:
    """A task failed and was, or will be, started again."""

    task: str
    epoch: int
    """Epoch of the attempt that failed."""
    cause: str
    wall_seconds: float
    """Since 1970."""

    def __post_init__(self) -> None:
        check_seconds("the time of a restart", self.wall_seconds)


@dataclass(frozen=True, slots=True)
class Status:
    """One record of the status log."""

    KIND: ClassVar[str] = "STATUS"
    record_id: str
    generation: int
    whole: bool
    """Whether the record holds everything, not only the changes."""
    phase: str
    version: str
    """Version of the running description."""
    wall_seconds: float
    """Time of writing, since 1970; for people."""
    tasks: tuple[TaskStatus, ...] = ()
    """All tasks, or none if no task has changed."""
    reached: tuple[Reached, ...] = ()
    dropped: tuple[str, ...] = ()
    """Dropped parts. A complete record lists all parts dropped since a new listener came."""
    behind: tuple[Behind, ...] = ()
    restarts: tuple[Restarted, ...] = ()
    """New restarts. A complete record holds the newest restarts of this coordinator."""

    def __post_init__(self) -> None:
        check_seconds("the time of a STATUS", self.wall_seconds)


STATUSES: RecordCodec[Status] = RecordCodec((Status,))


def append_status(slots: SlotLog, tail: Tail[Status] | None, status: Status) -> Tail[Status]:
    """Append a status; return the end of the log behind it.

    Args:
        tail: the end of the log as it was known before; None: look for it.

    Raises:
        FencedError: a newer coordinator has written one.
    """

    def propose(tail: Tail[Status]) -> Status:
        if tail.last is not None and tail.last.generation > status.generation:
            raise FencedError(f"another coordinator leads, generation {tail.last.generation}")
        return status

    log = TypedLog(slots, STATUSES, Tail[Status].followed_by)
    return log.decide(Tail(slots.find_end(), None) if tail is None else tail, propose)[0]


def added_up(records: Iterable[Status]) -> Status:
    """Return the sum of records; the first one is complete, or is the first of the log."""
    first, *others = records
    total = first
    for record in others:
        if record.whole:
            total = record
            continue
        total = replace(
            record,
            tasks=record.tasks or total.tasks,
            reached=_newest(total.reached, record.reached, record.dropped),
            dropped=(*total.dropped, *record.dropped),
            behind=_newest(total.behind, record.behind, record.dropped),
            restarts=(*total.restarts, *record.restarts)[-RESTARTS_KEPT:],
        )
    return total


P = TypeVar("P", Reached, Behind)


def _newest(before: Iterable[P], news: Iterable[P], dropped: Collection[str]) -> tuple[P, ...]:
    """Return the newest value of each part, in the order in which parts were first named."""
    values = {value.part: value for value in before if value.part not in dropped}
    return tuple((values | {value.part: value for value in news}).values())


_THREADS = 16
A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class PartView:
    """One source or consumer."""

    part: str
    tasks: tuple[TaskStatus, ...]
    records: int | None
    """Records read or made so far, as the coordinator reported; None if it never did."""
    durable: int
    """Records in the logs: appended by a source, acknowledged by a consumer."""
    final: bool
    lag_records: int | None
    """Records in the input that are not acknowledged; None for a source."""
    lag_seconds: float | None
    """How long the oldest unread record has been there, as the coordinator reported; None if
    unknown."""


@dataclass(frozen=True, slots=True)
class StatusView:
    """The status of a whole pipeline."""

    name: str
    phase: str
    generation: int
    version: str
    age_seconds: float
    """Seconds since the coordinator last reported something new."""
    parts: tuple[PartView, ...]
    dropped: tuple[str, ...]
    restarts: tuple[Restarted, ...]
    """The newest restarts, oldest first."""


def read_status(storage: Storage, name: str, now_wall: float) -> StatusView:
    """Read the status of a pipeline.

    Raises:
        NotFoundError: its coordinator has never written a status.
    """
    said = _said(storage, name)
    produced = {
        path.name: (path.folder, _appended(open_stage(storage, path)))
        for path in read_job(storage, name).order
    }
    by_folder = dict(produced.values())
    parts: dict[str, list[TaskStatus]] = {}
    for task in said.tasks:
        parts.setdefault(task.task.rpartition("-")[0], []).append(task)
    views = []
    for part, tasks in parts.items():
        reached = next((value for value in said.reached if value.part == part), None)
        behind = next((value for value in said.behind if value.part == part), None)
        source = any(task.task.rpartition("-")[2].startswith("p") for task in tasks)
        durable, total = (
            (produced[part][1] if part in produced else reached.records if reached else 0, None)
            if source
            else _acknowledged(storage, name, part, tasks, by_folder)
        )
        views.append(
            PartView(
                part,
                tuple(tasks),
                None if reached is None else reached.records,
                durable,
                reached is not None and reached.final,
                None if total is None else max(0, total - durable),
                None if behind is None else behind.seconds,
            )
        )
    return StatusView(
        name,
        said.phase,
        said.generation,
        said.version,
        max(0.0, now_wall - said.wall_seconds),
        tuple(views),
        said.dropped,
        said.restarts,
    )


def last_phase(storage: Storage, name: str) -> str:
    """Return the phase that a coordinator of the pipeline wrote last, "" if none ever did."""
    try:
        return _said(storage, name).phase
    except NotFoundError:
        return ""


def _said(storage: Storage, name: str) -> Status:
    log = SlotLog(storage, status_log_prefix(name))
    records: list[Status] = []
    for slot, data in log.read_back(log.find_end()):
        records.append(STATUSES.decode(data, name=log.key(slot)))
        if records[-1].whole:
            break
    if not records:
        raise NotFoundError(f"pipeline {name!r} never said how it is on {storage.description}")
    return added_up(reversed(records))


def _appended(stage: StageHandle) -> int:
    """Return how many records the producers of a stage have appended."""
    if stage.describe.writing != "log":
        return 0
    records = 0
    for producer, last in enumerate(
        _each(lambda p: producer_status(stage, p), range(stage.describe.producers))
    ):
        if last is not None and not isinstance(last, Closed):
            count = len(stage.subpartitions_of(producer))
            records += int(last.after.ordinals(count, f"producer {producer}").sum())
    return records


def _acknowledged(
    storage: Storage, job: str, part: str, tasks: list[TaskStatus], produced: dict[str, int]
) -> tuple[int, int | None]:
    """Return how many records the tasks of a consumer have acknowledged, and of how many."""

    def state(task: TaskStatus) -> tuple[int, set[str]]:
        path = ConsumerPath(job, part, task.task)
        resume = read_resume_set(SlotLog(storage, path.log_prefix))
        acked = sum(
            position.next_ordinal for s in resume.inputs.values() for position in s.acked.values()
        )
        return acked, {folder for folder, _ in resume.inputs}

    states = _each(state, tasks)
    folders = {folder for _, read in states for folder in read}
    total = sum(produced[folder] for folder in folders) if folders <= set(produced) else None
    return sum(acked for acked, _ in states), total if folders else None


def _each(call: Callable[[A], B], items: Iterable[A]) -> list[B]:
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(call, items))
