"""What a job's control records and the storage's own times tell about its life.

Records hold no times; an object's time of writing is the storage's. So this is for reports, never
for decisions. When an attempt began is not recorded: it is seen from its first stored segment on.
"""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from durable_shuffle.jobs.cli.names import find_job
from durable_shuffle.serialization.errors import DurableShuffleError
from durable_shuffle.shuffle.consumer_records import CONSUMER_RECORDS, Finished, Open
from durable_shuffle.shuffle.job_log import read_job
from durable_shuffle.shuffle.layout import (
    consumers_prefix,
    job_log_prefix,
    parse_consumer_key,
    parse_segment_key,
)
from durable_shuffle.shuffle.producer_log import counting_commit, read_log
from durable_shuffle.shuffle.records import JOB_RECORDS, Claim, Commit, Seal, StageUse
from durable_shuffle.shuffle.slot_log import SlotLog
from durable_shuffle.shuffle.stage import StageHandle, open_stage, read_state
from durable_shuffle.shuffle.storage import Storage

Fate = Literal["counts", "superseded", "uncommitted"]


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


@dataclass(slots=True)
class StageHistory:
    """One incarnation of a stage."""

    name: str
    producers: int
    """0 where unknown."""
    uses: list[tuple[float, int]] = field(default_factory=list)
    """When which driver generation took it up: the first made it, later ones reuse it."""
    sealed: float | None = None
    rows: int = 0
    data_bytes: int = 0
    attempts: list[StoredAttempt] = field(default_factory=list)
    error: str | None = None


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
    log = SlotLog(storage, job_log_prefix(job))
    for slot, data in log.read_from():
        record = JOB_RECORDS.decode(data, name=log.key(slot))
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
    if stage.describe.writing == "log":
        return  # log producers: `pipeline status` shows them
    if seal is not None:
        history.rows, history.data_bytes = seal.rows, seal.data_bytes
        times = _times(stage.storage, stage.path.log_prefix)
        history.sealed = times.get(stage.log().key(state.seal_slot))
    logs = _times(stage.storage, stage.path.producers_prefix)
    segments: dict[tuple[int, str], list[tuple[float, int]]] = defaultdict(list)
    for info in stage.storage.list(stage.path.segments_prefix):
        producer, attempt, _ = parse_segment_key(info.key)
        segments[producer, attempt].append((info.modified_wall_seconds, info.size_bytes))
    counted = _counting(stage, seal, sorted({p for p, _ in segments} | _producers(logs)))
    for producer, (attempt, slot) in counted.items():
        at = logs.get(stage.producer_log(producer).key(slot), 0.0)
        parts = segments.pop((producer, attempt), [(at, 0)])
        history.attempts.append(_attempt(producer, parts, at, "counts"))
    committed = {a.producer: a.last for a in history.attempts}
    for (producer, _), parts in segments.items():
        last = max(at for at, _ in parts)
        late = last > committed.get(producer, float("inf"))
        fate: Fate = "superseded" if late else "uncommitted"
        history.attempts.append(_attempt(producer, parts, last, fate))
    history.attempts.sort(key=lambda a: (a.first, a.producer))


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
        slots = np.frombuffer(seal.commit_slots, dtype="<u4").tolist()
        return {
            p: (seal.attempts[16 * p : 16 * p + 16].hex(), slot) for p, slot in enumerate(slots)
        }
    found = {}
    for producer in producers:
        records = [r for r in read_log(stage.producer_log(producer)) if isinstance(r, Commit)]
        counting = counting_commit(read_log(stage.producer_log(producer))) if records else None
        if counting is not None:
            found[producer] = counting.commit.record_id, counting.slot
    return found


def _producers(times: dict[str, float]) -> set[int]:
    return {int(key.rpartition("/")[0].rsplit("/p", 1)[1]) for key in times}


def _views(storage: Storage, job: str) -> list[ConsumerView]:
    slots: dict[tuple[str, str], list[tuple[str, float]]] = defaultdict(list)
    for info in storage.list(consumers_prefix(job)):
        path, kind, _ = parse_consumer_key(info.key)
        if kind == "slot":
            slots[path.consumer, path.task].append((info.key, info.modified_wall_seconds))
    found: list[ConsumerView] = []
    for (consumer, task), entries in sorted(slots.items()):
        view: ConsumerView | None = None
        for key, at in sorted(entries):
            record = CONSUMER_RECORDS.decode(storage.read(key), name=key)
            if isinstance(record, Open):
                if view is not None:
                    found.append(view)
                view = ConsumerView(consumer, task, at, at, 0, finished=False)
            if view is not None:
                ended = isinstance(record, Finished)
                view = replace(view, last=at, records=view.records + 1, finished=ended)
        if view is not None:
            found.append(view)
    return found


def _times(storage: Storage, prefix: str) -> dict[str, float]:
    return {info.key: info.modified_wall_seconds for info in storage.list(prefix)}
