"""A source task, attempt by attempt, in the test's own thread; and files in a folder."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from one_consumer import OneConsumer
from task_links import allowed_link

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.job.phases import TaskReport
from durable_shuffle.recovery.pipeline.commands.orders import PassBarrier, StopTasks
from durable_shuffle.recovery.pipeline.plan.settings import PipelineSettings
from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource, Source
from durable_shuffle.recovery.pipeline.task.source import SourceRun
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.log.appender_log import End
from durable_shuffle.shuffle.log.appender_reads import producer_status

TASK = "in-p0000"
SETTINGS = PipelineSettings(append_rows=3, append_seconds=3600)


def numbers(upto: int, step: int = 2) -> IteratorSource:
    """Rows 0 to `upto`, some at a time; the position is the next one."""

    def make(position: Any, producer: int) -> Iterator[Any]:
        n = position or 0
        while n < upto:
            rows = list(range(n, min(n + step, upto)))
            n = rows[-1] + 1
            yield [{"n": row} for row in rows], n

    return IteratorSource(make)


def attempt(
    one: OneConsumer, source: Source, *, stop: StopMode | None = None, epoch: int = 1
) -> list[TaskReport]:
    """Run one to its end."""
    reports: list[TaskReport] = []
    link = allowed_link(TASK, epoch, reports.append)
    link.deliver(PassBarrier((TASK,), epoch))
    if stop:
        link.deliver(StopTasks((TASK,), epoch, stop))
    SourceRun("in", one.stage, 0, source, link, SETTINGS, one.clock, one.ids).run()
    return reports


def stored(one: OneConsumer, name: str) -> list[int]:
    """What a reader sees of a source that has ended."""
    with open_view(one.stage, 0, consumer=name) as view:
        return [n for batch in view for n in batch.column("n").to_pylist()]


def ended(one: OneConsumer) -> str:
    last = producer_status(one.stage, 0)
    assert isinstance(last, End)
    return last.mode


def in_folder(folder: Path, name: str, rows: list[int]) -> None:
    """A file that appears complete."""
    (folder / f".{name}").write_text("".join(json.dumps({"n": n}) + "\n" for n in rows))
    (folder / f".{name}").rename(folder / name)
