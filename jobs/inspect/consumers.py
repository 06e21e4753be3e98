"""What logs say about a job's consumers, as plain values. Lists and reads control records only."""

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from durable_shuffle.jobs.text import table
from durable_shuffle.serialization.errors import DurableShuffleError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.log import read_resume_set
from durable_shuffle.shuffle.consume.resume_set import ResumeSet
from durable_shuffle.shuffle.log.layout import ConsumerPath, consumers_prefix
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.position import Position
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.verify.consumers import listed_consumers


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
    found: dict[tuple[str, str | None], list[ResumeSet | str]] = defaultdict(list)
    for path in _listed(storage, job):
        read = _read(storage, path)
        stages = sorted({stage for stage, _ in read.inputs}) if isinstance(read, ResumeSet) else []
        found[path.consumer, ", ".join(stages) or None].append(read)
    return [_summary(*key, tasks) for key, tasks in found.items()]


def stage_consumers(stage: StageHandle) -> list[dict[str, Any]]:
    """Return who reads a stage: one entry per consumer task and partition, by name.

    `position` is producer -> ordinal of the next record, `records` how many lie before it. A log
    that cannot be read has an entry with `error` alone: nobody knows what it reads.
    """
    paths = _listed(stage.storage, stage.path.job)
    with ThreadPoolExecutor(Settings().control_threads) as pool:
        found = pool.map(lambda path: (path, _read(stage.storage, path)), paths)
        return [entry for path, read in found for entry in _entries(stage, path, read)]


def _entries(
    stage: StageHandle, path: ConsumerPath, read: ResumeSet | str
) -> Iterator[dict[str, Any]]:
    known: dict[str, Any] = {"consumer": path.consumer, "task": path.task, "error": None}
    if isinstance(read, str):
        yield known | {"error": read}
        return
    for (stage_folder, k), one in read.inputs.items():
        if stage_folder == stage.path.folder:
            at = Position(stage_folder, k, one.acked)
            yield known | {
                "partition": k,
                "position": at.ordinals,
                "records": at.records,
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
