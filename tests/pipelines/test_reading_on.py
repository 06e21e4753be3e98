"""What a consumer does between batches: commits inside a slow one, markers, other settings."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from one_consumer import NAME, TASK, OneConsumer, Plain
from pipeline_steps import ROWS, Numbers
from pipelines import copying, prefix_of_all, published, settings, threads, until
from task_links import allowed_link

from durable_shuffle.recovery.calls.batches import AsyncStep
from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.job.phases import JobPhase, TaskPhase, TaskReport
from durable_shuffle.recovery.pipeline.commands.orders import ApplySettings, PassBarrier, StopTasks
from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.plan.settings import PipelineSettings
from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource
from durable_shuffle.recovery.pipeline.task.consumer import ConsumerRun, next_slice
from durable_shuffle.shuffle.consume.log import read_resume_set
from durable_shuffle.shuffle.log.layout import ConsumerPath
from durable_shuffle.shuffle.log.slot_log import SlotLog

WAIT = 300.0


class Seen:
    """A step of this process, shared by all attempts."""

    stateless = True

    def __init__(self) -> None:
        self.checkpoints: list[int] = []

    def __deepcopy__(self, _: Any) -> "Seen":
        return self

    def process(self, batch: Any) -> None: ...

    def on_checkpoint(self, checkpoint: int) -> None:
        self.checkpoints.append(checkpoint)


@pytest.mark.requirement("R-F135-26")
@pytest.mark.parametrize("restarted", [False, True])
def test_checkpoints_go_on_when_a_producer_has_ended(tmp_path: Path, restarted: bool) -> None:
    """The ones of those that live; also for a consumer that begins after that end."""
    over = threading.Event()

    def make(position: Any, producer: int) -> Iterator[Any]:
        n = position or 0
        while not (producer == 1 and over.is_set()):
            n += 1
            yield [{"n": n}], n
            time.sleep(0.002)

    seen = Seen()

    def pipeline() -> Pipeline:
        made = Pipeline("ends", str(tmp_path / "data"), settings=settings(checkpoint_seconds=0.02))
        stream = made.source("numbers", IteratorSource(make), schema=ROWS, producers=2)
        stream.consume("see", seen)
        return made

    running = pipeline().start(launcher=threads)
    until(lambda: len(seen.checkpoints) > 3, "checkpoints of both")
    over.set()
    until(lambda: running.progress()["numbers-p0001"][0] == "finished", "the end of one")
    if restarted:
        running.stop("SUSPEND")
        assert running.wait(WAIT).phase is JobPhase.SUSPENDED
        running = pipeline().start(launcher=threads)
    before = len(seen.checkpoints)
    until(lambda: len(seen.checkpoints) > before + 5, "checkpoints of the other")
    running.stop("DRAIN")
    assert running.wait(WAIT).phase is JobPhase.FINISHED
    assert seen.checkpoints == sorted(set(seen.checkpoints)), "each once, in order"


async def slowly(row: dict[str, Any]) -> dict[str, Any]:
    """A look-up of 2 ms."""
    await asyncio.sleep(0.002)
    return row


def acked(one: OneConsumer) -> int:
    """Rows that the consumer's log acknowledges."""
    path = ConsumerPath(NAME, "use", TASK)
    inputs = read_resume_set(SlotLog(one.storage, path.log_prefix)).inputs.values()
    return sum(at.next_ordinal for cursor in inputs for at in cursor.acked.values())


@pytest.mark.sampled(1)
@pytest.mark.requirement("R-F46-1")
@pytest.mark.parametrize("stop", ["SUSPEND", "crash", "none"])
def test_commits_come_inside_a_batch_of_slow_calls(tmp_path: Path, stop: str) -> None:
    """A stop need not wait for the whole batch; the next attempt begins inside it."""
    quick = PipelineSettings(commit_rows=200, commit_seconds=0.05)
    one = OneConsumer(tmp_path, settings=quick)
    one.write(5000, end="FINITE")  # one batch, 10 s of calls at 1 a time
    step = AsyncStep(slowly, ROWS, capacity=4)
    reports: list[TaskReport] = []
    link = allowed_link(TASK, 1, reports.append)
    link.deliver(PassBarrier((TASK,), 1))
    attempt = threading.Thread(target=one.attempt, args=(step,), kwargs={"link": link, "epoch": 1})
    attempt.start()
    if stop != "none":
        until(lambda: 0 < acked(one) < 5000, "a commit inside the batch")
        if stop == "crash":
            link.lost()
        else:
            link.deliver(StopTasks((TASK,), 1, StopMode.SUSPEND))
        attempt.join(WAIT)
        assert acked(one) < 5000, "it did not wait for all calls"
        ended = TaskPhase.SUSPENDED if stop == "SUSPEND" else TaskPhase.CANCELED
        assert reports[-1].phase is ended
        assert one.attempt(AsyncStep(slowly, ROWS, capacity=64), epoch=2)[-1].phase == "finished"
    else:
        attempt.join(WAIT)
        assert reports[-1].phase is TaskPhase.FINISHED
    one.check_all_published_once()


def test_slices_follow_how_long_they_take() -> None:
    """A slow step gets few rows at a time, down to one; a fast one whole batches."""
    rows = 64
    for _ in range(20):
        rows = next_slice(rows, 0.001 * rows / 1000)
    assert rows == 16_384
    for _ in range(30):
        rows = next_slice(rows, 10.0 * rows)
    assert rows == 1
    for _ in range(30):
        rows = next_slice(rows, 0.002 * rows)
    assert 0.1 <= 0.002 * rows <= 0.4


def test_a_setting_that_changes_while_a_commit_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not due any more: the task reads on."""
    one = OneConsumer(tmp_path, settings=PipelineSettings(commit_rows=100, commit_seconds=2.0))
    one.write(4)
    reports: list[TaskReport] = []
    link = allowed_link(TASK, 1, reports.append)
    link.deliver(PassBarrier((TASK,), 1))
    changed = threading.Event()
    interrupted = ConsumerRun._interrupted

    def changes(self: ConsumerRun) -> bool:
        found = interrupted(self)
        if found and not changed.is_set():
            link.deliver(ApplySettings({"commit_seconds": 3600.0}))
            changed.set()
        return found

    monkeypatch.setattr(ConsumerRun, "_interrupted", changes)
    log: list[str] = []
    attempt = threading.Thread(
        target=one.attempt, args=(Plain(log),), kwargs={"link": link, "epoch": 1}
    )
    attempt.start()
    until(changed.is_set, "the change")
    link.deliver(ApplySettings({"commit_seconds": 0.05}))
    until(lambda: one.published.total() == 4, "the commit")
    link.deliver(StopTasks((TASK,), 1, StopMode.SUSPEND))
    attempt.join(WAIT)
    assert reports[-1].phase is TaskPhase.SUSPENDED


def test_a_slow_pipeline_suspends_soon(tmp_path: Path) -> None:
    """Through the whole product: an input batch would take minutes."""

    def pipeline(capacity: int) -> Pipeline:
        source = Numbers(1, 20_000, rows=20_000)
        step = AsyncStep(slowly, ROWS, capacity=capacity)
        return copying(tmp_path, source, step, partitions=1, append_rows=20_000)

    running = pipeline(1).start(launcher=threads)
    until(lambda: published(tmp_path), "rows")
    running.stop("SUSPEND")
    assert running.wait(WAIT).phase is JobPhase.SUSPENDED
    assert 0 < published(tmp_path).total() < 20_000
    assert pipeline(1000).start(launcher=threads).wait(WAIT).phase is JobPhase.FINISHED
    assert published(tmp_path).total() == 20_000
    assert prefix_of_all(published(tmp_path), 1)
