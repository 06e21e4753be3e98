"""What a job's control records and the storage's own times tell about its life.

Records hold no times; an object's time of writing is the storage's. So this is for reports, never
for decisions. When an attempt began is not recorded: it is seen from its first stored segment on.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

from durable_shuffle.jobs.inspect.names import find_job
from durable_shuffle.jobs.inspect.producer_logs import read_producer_logs
from durable_shuffle.jobs.reports.log_history import (
    AppendingAttempt,
    appending_attempts,
    left_bytes,
    thinned,
)
from durable_shuffle.serialization.errors import DurableShuffleError, NotFoundError
from durable_shuffle.shuffle.consume.log import resume_log
from durable_shuffle.shuffle.log.consumer_records import Finished, Open, Released
from durable_shuffle.shuffle.log.job_log import job_records, read_job
from durable_shuffle.shuffle.log.layout import (
    ConsumerPath,
    consumers_prefix,
    job_log_prefix,
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
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage, read_state, stage_log
from durable_shuffle.shuffle.log.stage_fold import numbers
from durable_shuffle.shuffle.storage.contract import Storage

Fate = Literal["counts", "superseded", "uncommitted"]
Change = Literal["compact", "replace"]


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
    created: float | None = None
    """When it was described."""
    sealed: float | None = None
    rows: int = 0
    """Of a stage of log producers: those that were not released; so are `data_bytes`."""
    data_bytes: int = 0
    attempts: list[StoredAttempt] = field(default_factory=list)
    ended: int | None = None
    """How many log producers will never append again; None: of batch producers."""
    appending: list[AppendingAttempt] = field(default_factory=list)
    """Attempts of log producers."""
    left_bytes: int = 0
    """Stored by attempts that do not count."""
    changes: list[tuple[float, Change]] = field(default_factory=list)
    """COMPACTs and REPLACEs that count."""
    error: str | None = None

    @property
    def appends(self) -> int:
        """APPENDs of log producers."""
        return sum(attempt.appends for attempt in self.appending)

    @property
    def status(self) -> str:
        """For people: how far its life is."""
        if self.error is not None:
            return "could not be read"
        if self.ended is None:
            return "sealed" if self.sealed is not None else "not sealed"
        word = "ended" if self.ended == self.producers else "open"
        return f"{word}, {self.ended} of {self.producers} producers ended"


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
    for slot, record in log.records():
        at = times.get(log.key(slot), 0.0)
        if isinstance(record, Claim):
            drivers.append((at, record.generation))
        elif isinstance(record, StageUse):
            uses[record.incarnation].append((at, record.generation))
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
    history.producers = (seal.producers if seal else stage.describe.producers) or 0
    times = _times(stage.storage, stage.path.log_prefix)
    history.created = times.get(stage.log().key(0))
    logs = _times(stage.storage, stage.path.producers_prefix)
    if stage.describe.writing == "log":
        producers = read_producer_logs(stage, state)
        history.ended = sum(log.ended for log in producers)
        history.rows = sum(int(log.stored.sum()) for log in producers)
        history.data_bytes = sum(log.data_bytes for log in producers)
        history.left_bytes = left_bytes(stage, producers)
        history.appending = appending_attempts(stage, producers, logs)
        return
    if seal is not None:
        history.rows, history.data_bytes = seal.rows, seal.data_bytes
        history.sealed = times.get(stage.log().key(state.seal_slot))
        history.changes = _changes(stage, set(state.counted), times)
    segments: dict[tuple[int, str], list[tuple[float, int]]] = defaultdict(list)
    for info in stage.storage.list(stage.path.segments_prefix):
        producer, attempt, _ = parse_segment_key(info.key)
        segments[producer, attempt].append((info.modified_wall_seconds, info.size_bytes))
    counted = _counting(stage, seal, sorted({p for p, _ in segments} | _producers(logs)))
    for producer, (attempt, slot) in counted.items():
        parts = segments.pop((producer, attempt), [])
        known = logs.get(stage.producer_log(producer).key(slot))
        at = known if known is not None else max((t for t, _ in parts), default=0.0)
        parts = parts or [(at, 0)]
        history.attempts.append(_attempt(producer, parts, at, "counts"))
    committed = {a.producer: a.last for a in history.attempts}
    for (producer, _), parts in segments.items():
        last = max(at for at, _ in parts)
        late = last > committed.get(producer, float("inf"))
        fate: Fate = "superseded" if late else "uncommitted"
        history.attempts.append(_attempt(producer, parts, last, fate))
    history.left_bytes = sum(a.stored_bytes for a in history.attempts if a.fate != "counts")
    history.attempts.sort(key=lambda a: (a.first, a.producer))


def _changes(
    stage: StageHandle, counted: set[str], times: dict[str, float]
) -> list[tuple[float, Change]]:
    log, found = stage_log(stage), list[tuple[float, Change]]()
    for slot, record in log.records():
        at = times.get(log.key(slot))
        if at is not None and isinstance(record, Compact | Replace) and record.record_id in counted:
            found.append((at, "compact" if isinstance(record, Compact) else "replace"))
    return found


def _attempt(
    producer: int, parts: list[tuple[float, int]], last: float, fate: Fate
) -> StoredAttempt:
    return StoredAttempt(
        producer, min(at for at, _ in parts), last, sum(size for _, size in parts), fate
    )


def _counting(
    stage: StageHandle, seal: Seal | None, producers: list[int]
) -> dict[int, tuple[str, int]]:
    """Return producer -> attempt that counts and the slot of its COMMIT."""
    if seal is not None:
        slots = numbers(seal.commit_slots)
        return {
            p: (seal.attempts[16 * p : 16 * p + 16].hex(), slot) for p, slot in enumerate(slots)
        }
    found = {}
    for producer in producers:
        counting = read_producer(stage.producer_log(producer)).counting()
        if counting is not None:
            found[producer] = counting.commit.record_id, counting.slot
    return found


def _producers(times: dict[str, float]) -> set[int]:
    return {int(key.rpartition("/")[0].rsplit("/p", 1)[1]) for key in times}


def _views(storage: Storage, job: str) -> list[ConsumerView]:
    slots: dict[ConsumerPath, list[tuple[int, float]]] = defaultdict(list)
    for info in storage.list(consumers_prefix(job)):
        path, kind, slot = parse_consumer_key(info.key)
        if kind == "slot":
            slots[path].append((int(slot), info.modified_wall_seconds))
    found: list[ConsumerView] = []
    for path, written in sorted(slots.items(), key=lambda item: item[0].prefix):
        log = resume_log(SlotLog(storage, path.log_prefix))
        views: list[list[tuple[float, object]]] = []
        for number, at in sorted(written):
            if (record := log.record(number)) is None:
                raise NotFoundError(
                    f"a consumer's record went while it was read: {log.key(number)}"
                )
            if isinstance(record, Open):
                views.append([])
            if views:
                views[-1].append((at, record))
        for view in views:
            times, last = sorted(at for at, _ in view), view[-1][1]
            found.append(
                ConsumerView(
                    path.consumer,
                    path.task,
                    times[0],
                    times[-1],
                    len(view),
                    finished=isinstance(last, Finished),
                    released=isinstance(last, Released),
                    newest=view is views[-1],
                    times=thinned(times),
                )
            )
    return found


def _times(storage: Storage, prefix: str) -> dict[str, float]:
    return {info.key: info.modified_wall_seconds for info in storage.list(prefix)}
