"""A consumer task of a pipeline, attempt by attempt, in the test's own thread."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from task_links import allowed_link

from durable_shuffle.recovery.job.ends import EndStep, StopMode
from durable_shuffle.recovery.job.phases import TaskReport
from durable_shuffle.recovery.pipeline.commands.orders import PassBarrier, StopTasks
from durable_shuffle.recovery.pipeline.plan.plan import StagePlan, own_stage
from durable_shuffle.recovery.pipeline.plan.rows import partition_ids
from durable_shuffle.recovery.pipeline.plan.settings import PipelineSettings
from durable_shuffle.recovery.pipeline.plan.sinks import FileSink, Sink
from durable_shuffle.recovery.pipeline.task.consumer import ConsumerRun
from durable_shuffle.recovery.pipeline.task.link import TaskLink
from durable_shuffle.serialization.markers import EndMode, Marker
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.stage import open_stage
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.write.log_producer import LogProducer

ROWS = pa.schema([("n", pa.int64())])
NAME = "pipe"
TASK = "use-k0000"


class Crash(BaseException):
    """What the test has happen in the middle of an attempt."""


class CrashingRun(ConsumerRun):
    """Fails behind one step of its end."""

    crash_after: EndStep | None = None

    def _end_step(self, step: EndStep, mode: StopMode) -> None:
        super()._end_step(step, mode)
        if step is self.crash_after:
            raise Crash(f"behind {step}")


class Plain:
    """Passes rows on, and writes down what is called."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def process(self, batch: pa.RecordBatch) -> Any:
        return batch

    def snapshot(self) -> bytes:
        self.log.append("snapshot")
        return b"state"

    def restore(self, state: bytes) -> None:
        assert state == b"state"

    def close(self) -> None:
        self.log.append("close")


class Hooked(Plain):
    """With every optional call."""

    def __init__(self, log: list[str], tokens: list[tuple[str, str]]) -> None:
        super().__init__(log)
        self.tokens = tokens

    def max_watermark(self) -> None:
        self.log.append("max_watermark")

    def prepare_to_shutdown(self, token: str) -> None:
        self.log.append("prepare_to_shutdown")
        self.tokens.append(("prepare", token))

    def notify(self, commit: int) -> None:
        assert commit >= 1
        self.log.append("notify")

    def shutdown(self, token: str) -> None:
        self.log.append("shutdown")
        self.tokens.append(("shutdown", token))


@dataclass
class OneConsumer:
    """A stage with one log producer and one partition, and the consumer that reads it."""

    folder: Path
    settings: PipelineSettings = field(
        default_factory=lambda: PipelineSettings(commit_rows=4, commit_seconds=3600)
    )
    epoch: int = 0
    rows: int = 0

    def __post_init__(self) -> None:
        self.ids, self.clock = RandomIds(), SystemClock()
        self.storage = LocalStorage(self.folder / "data")
        log = JobLog.claim(self.storage, NAME, self.ids.new_id())
        plan = StagePlan("in", ROWS, (), 1, 1)
        path = own_stage(
            self.storage, log, plan, settings=Settings(), ids=self.ids, clock=self.clock
        )
        self.stage = open_stage(self.storage, path)

    def write(
        self,
        *appends: int,
        end: EndMode | None = None,
        markers: Sequence[Marker] = (),
    ) -> None:
        """Append so many rows each, then END."""
        with LogProducer.open(
            self.stage, 0, record_id=self.ids.new_id(), generation=1, settings=Settings()
        ) as log:
            for count in appends:
                numbers = list(range(self.rows, self.rows + count))
                batch = pa.RecordBatch.from_pydict({"n": numbers}, schema=ROWS)
                placed = [(batch, partition_ids(self.stage, batch, 0))] if count else []
                self.rows += count
                log.append(placed, str(self.rows).encode(), markers=markers)
            if end is not None:
                log.end(end)

    @property
    def sink(self) -> FileSink:
        """Part files of JSON lines."""
        return FileSink(str(self.folder / "out"), "json")

    def attempt(
        self,
        step: Any,
        *,
        sink: Sink | None = None,
        crash_after: EndStep | None = None,
        orders: Iterable[StopMode] = (),
        epoch: int = 0,
        link: TaskLink | None = None,
    ) -> list[TaskReport]:
        """Run one attempt to its end; return what it reported."""
        self.epoch = epoch or self.epoch + 1
        reports: list[TaskReport] = []
        if link is None:
            link = allowed_link(TASK, self.epoch, reports.append)
            link.deliver(PassBarrier((TASK,), self.epoch))
        for mode in orders:
            link.deliver(StopTasks((TASK,), self.epoch, mode))
        run = CrashingRun(
            pipeline=NAME,
            name="use",
            stage=self.stage,
            subpartition=0,
            step=step,
            schema=ROWS,
            sink=self.sink if sink is None else sink,
            is_root=False,
            link=link,
            settings=self.settings,
            clock=self.clock,
            ids=self.ids,
        )
        run.crash_after = crash_after
        run.run()
        return reports

    @property
    def published(self) -> Counter[int]:
        """Rows in the part files, read without any of our code."""
        files = sorted((self.folder / "out").glob("part-*.json"))
        return Counter(json.loads(x)["n"] for f in files for x in f.read_text().splitlines())

    def check_all_published_once(self) -> None:
        """Every row that was written, once; and no empty file."""
        assert self.published == Counter(range(self.rows))
        assert all(path.stat().st_size for path in (self.folder / "out").glob("part-*"))
