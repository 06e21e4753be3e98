"""What a Python worker of Spark runs: one attempt at one task of a pipeline.

If Spark starts the task again by itself, that try ends at once; the supervisor starts an attempt
under a new epoch instead. If two attempts begin, the log of reports lets only one of them through.
The input is not read, on purpose: Spark then does not use the Python worker again, so no thread and
no state of an attempt gets into the next one.
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
from durable_shuffle.recovery.pipeline.plan.folder import FolderSource
from durable_shuffle.recovery.pipeline.plan.plan import PipelinePlan
from durable_shuffle.recovery.pipeline.plan.sinks import FileSink
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
    """The first slot of the command log that the attempt reads."""
    line: str
    """Id of the connection to the supervisor."""
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
    """Return the plan with the absolute paths of its local folders: tasks run in another folder."""
    stages = {
        name: replace(s, elsewhere=replace(s.elsewhere, url=_absolute(s.elsewhere.url)))
        for name, s in plan.stages.items()
        if s.elsewhere is not None and s.elsewhere.url
    }
    sources = {
        name: replace(s, source=replace(s.source, folder=_absolute(s.source.folder)))
        for name, s in plan.sources.items()
        if isinstance(s.source, FolderSource)
    }
    consumers = {
        name: replace(c, sink=replace(c.sink, url=_absolute(c.sink.url)))
        for name, c in plan.consumers.items()
        if isinstance(c.sink, FileSink)
    }
    return replace(
        plan,
        url=_absolute(plan.url),
        stages={**plan.stages, **stages},
        sources={**plan.sources, **sources},
        consumers={**plan.consumers, **consumers},
    )


def _absolute(url: str) -> str:
    if "://" in url:
        return url
    check_path(url)
    return str(Path(url.removeprefix("file:")).absolute())
