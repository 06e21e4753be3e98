"""What a Python worker of Spark runs: one attempt at one task of a pipeline.

Strategy: a try that Spark makes on its own is none of ours: it ends at once, and the supervisor
starts an attempt under a new epoch. Should two ever begin, the log of reports lets one of them
through. The input is left unread on purpose: Spark then does not use
the Python worker again, so that nothing of an attempt, no thread and no state, gets into the next.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark import TaskContext

from durable_shuffle.jobs.engine.tasks import check_code
from durable_shuffle.recovery.pipeline.lines.storage_line import (
    LineSettings,
    ReportWriter,
    StorageLine,
)
from durable_shuffle.recovery.pipeline.plan.plan import PipelinePlan
from durable_shuffle.recovery.pipeline.plan.sinks import FileSink
from durable_shuffle.recovery.pipeline.plan.sources import FolderSource
from durable_shuffle.recovery.pipeline.task.link import TaskLink
from durable_shuffle.recovery.pipeline.task.run_task import RunTask
from durable_shuffle.serialization.errors import IncompatibleError, InvalidInputError
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.storage.open import check_path, open_storage


@dataclass(frozen=True, slots=True)
class SparkAttempt:
    """The function of a one-task Spark job."""

    run_task: RunTask
    task: str
    epoch: int
    slot: int
    """Of the command log, from which on it is read."""
    line: str
    """Id of the line to the supervisor."""
    settings: LineSettings
    code: str
    """`running_code()` of the driver."""

    def __call__(self, _: Iterator[object]) -> Iterator[object]:
        context = TaskContext.get()
        if context is None:
            raise InvalidInputError("an attempt on Spark runs inside a Spark task only")
        if context.attemptNumber() == 0:
            self._run()
        return iter(())

    def _run(self) -> None:
        plan = self.run_task.plan
        patience = plan.settings.shuffle.storage_call_seconds
        storage = open_storage(plan.url, plan.storage_options, call_seconds=patience)
        nonce = RandomIds().new_id()
        writer = ReportWriter(storage, plan.name, self.line, nonce, self.settings)
        line = StorageLine(self.task, self.epoch, self.slot, writer, self.settings, SystemClock())
        line.run(self._checked)

    def _checked(self, link: TaskLink) -> None:
        try:
            check_code(self.code)
        except IncompatibleError as error:
            link.failed(error, 0)
            return
        self.run_task(link)


def with_absolute_paths(plan: PipelinePlan) -> PipelinePlan:
    """Return the plan with the local paths that it names as they are in this process. Pure but for
    the current folder."""
    stages = {
        name: replace(s, elsewhere=replace(s.elsewhere, url=_absolute(s.elsewhere.url)))
        if s.elsewhere is not None and s.elsewhere.url
        else s
        for name, s in plan.stages.items()
    }
    sources = {
        name: replace(s, source=replace(s.source, folder=_absolute(s.source.folder)))
        if isinstance(s.source, FolderSource)
        else s
        for name, s in plan.sources.items()
    }
    consumers = {
        name: replace(c, sink=replace(c.sink, url=_absolute(c.sink.url)))
        if isinstance(c.sink, FileSink)
        else c
        for name, c in plan.consumers.items()
    }
    return replace(
        plan, url=_absolute(plan.url), stages=stages, sources=sources, consumers=consumers
    )


def _absolute(url: str) -> str:
    if "://" in url:
        return url
    check_path(url)
    return str(Path(url.removeprefix("file:")).absolute())
