"""The life of a job, from its control records and the times at which the storage wrote objects.

Records hold no times. The storage's times are for reports, never for decisions. When an attempt
began is not recorded; reports show it from its first stored segment on.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from durable_shuffle.jobs.inspect.details import listed_segments
from durable_shuffle.jobs.inspect.names import find_job
from durable_shuffle.jobs.inspect.producer_logs import read_producer_logs
from durable_shuffle.jobs.text import assigned
from durable_shuffle.serialization.errors import DurableShuffleError, NotFoundError
from durable_shuffle.shuffle.base.words import growing_text, status_of
from durable_shuffle.shuffle.consume.log import resume_log
from durable_shuffle.shuffle.log.consumer_records import Finished, Open, ViewReleased
from durable_shuffle.shuffle.log.job_floor import newest_floor
from durable_shuffle.shuffle.log.job_log import job_records, read_job
from durable_shuffle.shuffle.log.layout import (
    ConsumerPath,
    consumers_prefix,
    job_log_prefix,
    named_here,
    parse_consumer_key,
    parse_segment_key,
)
from durable_shuffle.shuffle.log.producer_log import read_producer
from durable_shuffle.shuffle.log.records import (
    Claim,
    Compact,
    Replace,
    Seal,
    StageUse,
)
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import (
    StageHandle,
    StageState,
    numbers,
    open_stage,
    read_state,
    stage_log,
)
from durable_shuffle.shuffle.read.feed import EndMode
from durable_shuffle.shuffle.storage.contract import Storage

_KEPT = 100
"""Times that are kept of one attempt or view, of which there may be millions."""


Fate = Literal["counts", "superseded", "uncommitted"]
StageChange = Literal["compact", "replace"]


@dataclass(frozen=True, slots=True)
class StoredAttempt:
    """One attempt of a batch producer, as far as it left something."""

    producer: int
    first: float
    """Wall seconds of its first object; `last` of its COMMIT, else of its last segment."""
    last: float
    stored_bytes: int
    fate: Fate


@dataclass(frozen=True, slots=True)
class AppendingAttempt:
    """What one OPEN of a log producer began."""

    producer: int
    first: float
    """Wall seconds of its first APPEND, of its OPEN if it appended nothing; `last` of its last."""
    last: float
    appends: int
    rows: int
    """Appended, released ones included."""
    stored_bytes: int
    end: EndMode | None
    """None: it wrote no END."""
    newest: bool
    """No other attempt took the producer over."""
    times: tuple[float, ...]
    """Wall seconds of APPENDs, evenly thinned."""


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """One view of a consumer task, from its OPEN to its last record."""

    consumer: str
    task: str
    first: float
    last: float
    records: int
    """Slots that it won, OPEN included."""
    finished: bool
    released: bool = False
    """It gave the rest back by itself, for a later view to go on."""
    newest: bool = True
    """No later view took the task over."""
    times: tuple[float, ...] = ()
    """Wall seconds of its records, evenly thinned."""


@dataclass(slots=True)
class StageHistory:
    """One incarnation of a stage."""

    name: str
    producers: int
    """0 where unknown."""
    uses: list[tuple[float, int]] = field(default_factory=list)
    """When which driver generation took it up: the first made it, later ones reuse it."""
    rows_by: str = ""
    """How rows are assigned to partitions, for people."""
    created: float | None = None
    """When it was described."""
    sealed: float | None = None
    damaged: bool = False
    """Data of some map tasks is lost."""
    rows: int = 0
    """Rows of a stage of log producers exclude released ones; so do `data_bytes`."""
    data_bytes: int = 0
    attempts: list[StoredAttempt] = field(default_factory=list)
    ended: int | None = None
    """How many log producers will never append again; None: of batch producers."""
    appending: list[AppendingAttempt] = field(default_factory=list)
    """Attempts of log producers."""
    left_bytes: int = 0
    """Stored by attempts that do not count."""
    changes: list[tuple[float, StageChange, int]] = field(default_factory=list)
    """COMPACTs and REPLACEs that count, with the number of producers that were replaced."""
    error: str | None = None

    @property
    def appends(self) -> int:
        """APPENDs of log producers."""
        return sum(attempt.appends for attempt in self.appending)

    def count(self, fate: Fate) -> int:
        """Return how many attempts of batch producers ended so."""
        return sum(attempt.fate == fate for attempt in self.attempts)

    @property
    def status(self) -> str:
        """For people: how far its life is."""
        if self.error is not None:
            return "could not be read"
        if self.ended is None:
            return status_of(released=False, sealed=self.sealed is not None, damaged=self.damaged)
        return growing_text(self.ended, self.producers or 0)


@dataclass(frozen=True, slots=True)
class JobHistory:
    """All that is known of a job."""

    job: str
    drivers: tuple[tuple[float, int], ...]
    """When each driver generation claimed the job."""
    stages: tuple[StageHistory, ...]
    views: tuple[ConsumerView, ...]


def read_history(storage: Storage, job: str) -> JobHistory:
    """Read a job's logs and list its objects; nothing is written.

    Raises:
        InvalidInputError: there is no such job.
        CorruptDataError: the job's log is damaged.
    """
    copy = find_job(storage, job)
    state = read_job(storage, job)
    times = _times(storage, job_log_prefix(job))
    drivers: list[tuple[float, int]] = []
    uses: dict[str, list[tuple[float, int]]] = defaultdict(list)
    log = job_records(storage, job)
    floor = newest_floor(storage, job)
    for slot, record in log.records(floor.next_slot if floor else 0):
        wall = times.get(log.key(slot), 0.0)
        if isinstance(record, Claim):
            drivers.append((wall, record.generation))
        elif isinstance(record, StageUse):
            uses[record.incarnation].append((wall, record.generation))
    stages = []
    for path in copy.paths:
        if path in state.released:
            continue
        history = StageHistory(path.name, 0, uses[path.incarnation])
        try:
            _fill(history, open_stage(storage, path))
        except DurableShuffleError as error:
            history.error = f"{error.kind.value}: {error}"
        stages.append(history)
    return JobHistory(job, tuple(drivers), tuple(stages), tuple(_views(storage, job)))


def _fill(history: StageHistory, stage: StageHandle) -> None:
    state = read_state(stage)
    seal = state.seal
    described = stage.describe
    history.producers = (seal.producers if seal else described.producers) or 0
    history.rows_by = assigned(described.partitioner, described.key_names, described.columns)
    times = _times(stage.storage, stage.path.log_prefix)
    history.created = times.get(stage.log().key(0))
    logs = _times(stage.storage, stage.path.producers_prefix)
    if stage.describe.writing == "log":
        _fill_log(history, stage, state, logs)
        return
    history.damaged = bool(state.damaged)
    if seal is not None:
        history.rows, history.data_bytes = seal.rows, seal.data_bytes
        history.sealed = times.get(stage.log().key(state.seal_slot))
        history.changes = _changes(stage, set(state.counted), times)
    segments: dict[tuple[int, str], list[tuple[float, int]]] = defaultdict(list)
    listed = named_here(stage.storage.list(stage.path.segments_prefix), parse_segment_key)
    for info, (producer, attempt, _) in listed:
        segments[producer, attempt].append((info.modified_wall_seconds, info.size_bytes))
    committed: dict[int, float] = {}
    ours = (stage.path.producer_of(key) for key in logs if stage.path.names_slot(key))
    known = {producer for producer, _ in segments} | {p for p in ours if p is not None}
    for producer, attempt, slot in _counting(stage, seal, sorted(known)):
        parts = segments.pop((producer, attempt), [])
        last = logs.get(stage.producer_log(producer).key(slot))
        if last is None:
            last = max((wall for wall, _ in parts), default=0.0)
        committed[producer] = last
        history.attempts.append(_attempt(producer, parts or [(last, 0)], last, "counts"))
    for (producer, _), parts in segments.items():
        last = max(wall for wall, _ in parts)
        late = last > committed.get(producer, float("inf"))
        fate: Fate = "superseded" if late else "uncommitted"
        history.attempts.append(_attempt(producer, parts, last, fate))
    history.left_bytes = sum(a.stored_bytes for a in history.attempts if a.fate != "counts")
    history.attempts.sort(key=lambda a: (a.first, a.producer))


def _fill_log(
    history: StageHistory, stage: StageHandle, state: StageState, times: Mapping[str, float]
) -> None:
    """Fill in what the logs of log producers hold.

    Args:
        times: key of a slot -> wall seconds at which the storage says that it was written.
    """
    logs = read_producer_logs(stage, state)
    history.ended = sum(log.ended for log in logs)
    history.rows = sum(int(log.stored.sum()) for log in logs)
    history.data_bytes = sum(log.data_bytes for log in logs)
    named = {(log.producer, *segment) for log in logs for segment in log.segments}
    at_work = {(log.producer, log.owner) for log in logs if log.end is None}
    history.left_bytes = sum(
        length
        for producer, attempt, number, length in listed_segments(stage)
        if (producer, attempt, number) not in named and (producer, attempt) not in at_work
    )
    for log in logs:
        slots = stage.producer_log(log.producer)
        for a in log.attempts:
            keys = [slots.key(slot) for slot in log.appends.get(a.attempt, ())]
            walls = sorted(times[key] for key in keys if key in times)
            walls = walls or [times[key] for key in [slots.key(a.slot)] if key in times]
            if walls:
                newest = a.attempt == log.owner or a.job
                history.appending.append(
                    AppendingAttempt(
                        log.producer, walls[0], walls[-1], a.appends, a.rows, a.data_bytes, a.end,
                        newest, _thinned(walls),
                    )
                )  # fmt: skip
    history.appending.sort(key=lambda a: (a.first, a.producer))


def _changes(
    stage: StageHandle, counted: set[str], times: Mapping[str, float]
) -> list[tuple[float, StageChange, int]]:
    log, changes = stage_log(stage), list[tuple[float, StageChange, int]]()
    for slot, record in log.records():
        wall = times.get(log.key(slot))
        if wall is None or not isinstance(record, Compact | Replace):
            continue
        if record.record_id not in counted:
            continue
        if isinstance(record, Compact):
            changes.append((wall, "compact", 0))
        else:
            changes.append((wall, "replace", len(numbers(record.producers))))
    return changes


def _attempt(
    producer: int, parts: list[tuple[float, int]], last: float, fate: Fate
) -> StoredAttempt:
    first, stored = min(wall for wall, _ in parts), sum(length for _, length in parts)
    return StoredAttempt(producer, first, last, stored, fate)


def _counting(
    stage: StageHandle, seal: Seal | None, producers: list[int]
) -> Iterator[tuple[int, str, int]]:
    """Yield producer, the attempt that counts, and the slot of its COMMIT."""
    if seal is not None:
        for producer, slot in enumerate(numbers(seal.commit_slots)):
            yield producer, seal.attempts[16 * producer : 16 * producer + 16].hex(), slot
        return
    for producer in producers:
        counting = read_producer(stage.producer_log(producer)).counting()
        if counting is not None:
            yield producer, counting.commit.record_id, counting.slot


def _views(storage: Storage, job: str) -> Iterator[ConsumerView]:
    slots: dict[ConsumerPath, list[tuple[int, float]]] = defaultdict(list)
    listed = named_here(storage.list(consumers_prefix(job)), parse_consumer_key)
    for info, (path, kind, slot) in listed:
        if kind == "slot":
            slots[path].append((int(slot), info.modified_wall_seconds))
    for path, written in sorted(slots.items(), key=lambda item: item[0].prefix):
        log = resume_log(SlotLog(storage, path.log_prefix))
        views: list[list[tuple[float, object]]] = []
        for number, wall in sorted(written):
            if (record := log.record(number)) is None:
                raise NotFoundError(
                    f"a consumer's record went while it was read: {log.key(number)}"
                )
            if isinstance(record, Open):
                views.append([])
            if views:
                views[-1].append((wall, record))
        for view in views:
            walls, last = sorted(wall for wall, _ in view), view[-1][1]
            yield ConsumerView(
                path.consumer,
                path.task,
                walls[0],
                walls[-1],
                len(view),
                finished=isinstance(last, Finished),
                released=isinstance(last, ViewReleased),
                newest=view is views[-1],
                times=_thinned(walls),
            )


def _times(storage: Storage, prefix: str) -> dict[str, float]:
    return {info.key: info.modified_wall_seconds for info in storage.list(prefix)}


def _thinned(times: Sequence[float]) -> tuple[float, ...]:
    """Return at most about a hundred of the times, the last included."""
    step = len(times) // _KEPT + 1
    return (*times[::step], *times[-1:])
