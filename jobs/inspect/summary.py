"""What logs say about a job, its stages and its consumers. Reads and lists control records only."""

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from durable_shuffle.jobs.inspect.names import SHORT_ID, short_name
from durable_shuffle.jobs.inspect.producer_logs import ProducerLog, read_producer_logs
from durable_shuffle.jobs.text import assigned, size, table, when
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    DurableShuffleError,
    NotFoundError,
)
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.base.words import (
    StageStatus,
    growing_status,
    growing_text,
    status_of,
)
from durable_shuffle.shuffle.consume.log import read_resume_set
from durable_shuffle.shuffle.consume.resume_set import ResumeSet
from durable_shuffle.shuffle.log.layout import ConsumerPath, StagePath, consumers_prefix
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage, read_state
from durable_shuffle.shuffle.read.position import Position
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.verify.job import JobCopy, listed_consumers


@dataclass(frozen=True, slots=True)
class StageSummary:
    """One stage in one line."""

    name: str
    fingerprint: str
    incarnation: str
    status: str
    """A `StageStatus`, or the kind of the error that its log gave."""
    producers: int | None = None
    """Map tasks; of a stage that grows, producers."""
    producers_ended: int | None = None
    """Of a stage that grows: how many will never append again."""
    partitions: int | None = None
    keys: tuple[str, ...] = ()
    """Names of the columns by which rows are assigned to partitions; none where expressions do."""
    columns: tuple[str, ...] = ()
    """Names of the columns of its rows."""
    rows: int | None = None
    data_bytes: int | None = None
    created_wall_seconds: float | None = None
    message: str | None = None
    """The error, if there was one."""


def summarise(storage: Storage, path: StagePath, *, released: bool) -> StageSummary:
    """Read DESCRIBE and the stage log once, of log producers also their logs.

    An error becomes part of the answer.
    """
    names = path.name, path.fingerprint, path.incarnation
    try:
        stage = open_stage(storage, path)
        state = read_state(stage)
        released = released or state.release is not None
        if stage.describe.writing == "log" and not released:
            return _log_summary(stage, read_producer_logs(stage, state))
    except DurableShuffleError as e:
        if released and isinstance(e, NotFoundError):  # its DESCRIBE was lost before
            return StageSummary(*names, StageStatus.RELEASED)
        return StageSummary(*names, e.kind.value, message=str(e))
    seal, describe = state.seal, stage.describe
    return StageSummary(
        *names,
        status_of(released=released, sealed=seal is not None, damaged=bool(state.damaged)),
        producers=seal.producers if seal else describe.producers,
        partitions=describe.partitions,
        keys=describe.key_names,
        columns=describe.columns,
        rows=seal.rows if seal else None,
        data_bytes=seal.data_bytes if seal else None,
        created_wall_seconds=describe.created_wall_seconds,
    )


def _log_summary(stage: StageHandle, logs: list[ProducerLog]) -> StageSummary:
    ended = sum(log.ended for log in logs)
    return StageSummary(
        stage.path.name,
        stage.path.fingerprint,
        stage.path.incarnation,
        growing_status(ended, stage.describe.producers),
        producers=stage.describe.producers,
        producers_ended=ended,
        partitions=stage.describe.partitions,
        keys=stage.describe.key_names,
        columns=stage.describe.columns,
        rows=sum(int(log.stored.sum()) for log in logs),
        data_bytes=sum(log.data_bytes for log in logs),
        created_wall_seconds=stage.describe.created_wall_seconds,
    )


def summaries(storage: Storage, job: JobCopy) -> list[StageSummary]:
    """Return all stages of a job, oldest first, released ones included."""
    return [summarise(storage, path, released=path in job.released) for path in job.paths]


def stage_table(stages: list[StageSummary]) -> str:
    """Return stages for people, ids shortened, with the errors below."""
    head = ["STAGE", "STATUS", "MAP TASKS", "PARTITIONS", "ROWS", "SIZE", "CREATED", "COPY"]
    rows = [
        [
            short_name(s.name, s.fingerprint),
            _status(s),
            s.producers,
            None if s.partitions is None else assigned(str(s.partitions), s.keys, s.columns),
            s.rows,
            size(s.data_bytes),
            when(s.created_wall_seconds),
            s.incarnation[:SHORT_ID],
        ]
        for s in stages
    ]
    errors = [f"{s.name}: {s.message}" for s in stages if s.message is not None]
    return "\n".join([table(head, rows), *errors]) if rows else "no stages"


def _status(stage: StageSummary) -> str:
    if stage.producers_ended is None:
        return stage.status
    return growing_text(stage.producers_ended, stage.producers or 0)


@dataclass(frozen=True, slots=True)
class ConsumerSummary:
    """One consumer of one stage in one line."""

    consumer: str
    stage: str | None
    """The stage's folder; None if no log could be read."""
    tasks: int
    """Tasks that ever opened a view."""
    finished: int
    epoch: int
    """The highest of its tasks."""
    records: int
    """Acknowledged."""
    outputs: int
    output_rows: int
    errors: tuple[str, ...]
    """Of logs that could not be read; they count as tasks and as nothing else."""


def consumer_summaries(storage: Storage, job: str) -> list[ConsumerSummary]:
    """Return all consumers of a job, by name."""
    tasks: dict[tuple[str, str | None], list[ResumeSet | str]] = defaultdict(list)
    for path in _listed(storage, job):
        read = _read(storage, path)
        stages = sorted({stage for stage, _ in read.inputs}) if isinstance(read, ResumeSet) else []
        tasks[path.consumer, ", ".join(stages) or None].append(read)
    return [_summary(*key, of_stage) for key, of_stage in tasks.items()]


def stage_consumers(stage: StageHandle) -> list[dict[str, Any]]:
    """Return one entry per consumer task and partition of a stage, by name.

    `position` is producer -> ordinal of the next record, `records` how many lie before it. A log
    that cannot be read has an entry with `error` alone.
    """
    paths = _listed(stage.storage, stage.path.job)
    with ThreadPoolExecutor(Settings().control_threads) as pool:
        logs = pool.map(lambda path: _read(stage.storage, path), paths)
        pairs = zip(paths, logs, strict=True)
        return [entry for path, read in pairs for entry in _entries(stage, path, read)]


def _entries(
    stage: StageHandle, path: ConsumerPath, read: ResumeSet | str
) -> Iterator[dict[str, Any]]:
    known: dict[str, Any] = {"consumer": path.consumer, "task": path.task, "error": None}
    if isinstance(read, str):
        yield known | {"error": read}
        return
    for (stage_folder, k), consumed in read.inputs.items():
        if stage_folder != stage.path.folder:
            continue
        if k >= stage.describe.partitions:
            error = CorruptDataError(
                f"a cursor in partition {k} of {stage.describe.partitions}: {path.log_prefix!r}"
            )
            yield known | {"error": _told(error)}
        else:
            position = Position(stage_folder, k, consumed.acked)
            yield known | {
                "partition": k,
                "position": position.ordinals,
                "records": position.records,
                "epoch": read.epoch,
                "finished": read.finished,
            }


def consumer_table(consumers: list[ConsumerSummary]) -> str:
    """Return consumers for people, with the errors below."""
    head = ["CONSUMER", "TASKS", "FINISHED", "EPOCH", "RECORDS", "OUTPUTS", "OUTPUT ROWS", "STAGE"]
    rows = [
        [c.consumer, c.tasks, c.finished, c.epoch, c.records, c.outputs, c.output_rows, c.stage]
        for c in consumers
    ]
    errors = [f"{c.consumer}: {message}" for c in consumers for message in c.errors]
    return "\n".join([table(head, rows), *errors])


def _listed(storage: Storage, job: str) -> list[ConsumerPath]:
    return listed_consumers(info.key for info in storage.list(consumers_prefix(job)))


def _read(storage: Storage, path: ConsumerPath) -> ResumeSet | str:
    try:
        return read_resume_set(SlotLog(storage, path.log_prefix))
    except DurableShuffleError as error:
        return _told(error)


def _told(error: DurableShuffleError) -> str:
    return f"{error.kind.value}: {error}"


def _summary(consumer: str, stage: str | None, tasks: list[ResumeSet | str]) -> ConsumerSummary:
    read = [task for task in tasks if isinstance(task, ResumeSet)]
    positions = [at for task in read for one in task.inputs.values() for at in one.acked.values()]
    outputs = [output for task in read for output in task.outputs]
    return ConsumerSummary(
        consumer,
        stage,
        tasks=len(tasks),
        finished=sum(task.finished for task in read),
        epoch=max((task.epoch for task in read), default=0),
        records=sum(at.next_ordinal for at in positions),
        outputs=len(outputs),
        output_rows=sum(output.rows for output in outputs),
        errors=tuple(task for task in tasks if isinstance(task, str)),
    )
