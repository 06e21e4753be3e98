"""One attempt at a consumer task: opening, starting, committing, failing, closing."""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from one_consumer import ROWS, TASK, Hooked, OneConsumer, Plain
from task_links import allowed_link

from durable_shuffle.recovery.calls.batches import AsyncStep
from durable_shuffle.recovery.job.ends import EndStep, StopMode
from durable_shuffle.recovery.job.phases import TaskPhase, TaskReport
from durable_shuffle.recovery.pipeline.commands.orders import CallOff, PassBarrier, StopTasks
from durable_shuffle.recovery.pipeline.plan.sinks import FileSink
from durable_shuffle.recovery.pipeline.task.link import TaskLink
from durable_shuffle.serialization.markers import Checkpoint
from durable_shuffle.shuffle.base.retry import Backoff, RetryPolicy, raised


class Held:
    """A link whose task waits at the barrier in a thread of its own."""

    def __init__(self, one: OneConsumer, step: Any, epoch: int = 1) -> None:
        self.reports: list[TaskReport] = []
        self.at_barrier = threading.Event()
        self.link = allowed_link(TASK, epoch, self._send)
        self.thread = threading.Thread(
            target=one.attempt, args=(step,), kwargs={"link": self.link, "epoch": epoch}
        )
        self.thread.start()
        assert self.at_barrier.wait(30)

    def _send(self, report: TaskReport) -> None:
        self.reports.append(report)
        if report.phase is TaskPhase.AT_BARRIER:
            self.at_barrier.set()

    def end(self) -> list[TaskPhase]:
        self.thread.join(30)
        assert not self.thread.is_alive()
        return [report.phase for report in self.reports]


@pytest.mark.requirement("R-ARR-1")
def test_started_is_said_behind_the_barrier_only(one: OneConsumer) -> None:
    """While the task waits it has said nothing of the kind and read nothing."""
    one.write(3, end="FINITE")
    log: list[str] = []

    class Reading(Plain):
        def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            self.log.append("row")
            return batch

    held = Held(one, Reading(log))
    assert [r.phase for r in held.reports] == [TaskPhase.AT_BARRIER]
    assert log == []
    held.link.deliver(PassBarrier((TASK,), 1))
    assert held.end()[:2] == [TaskPhase.AT_BARRIER, TaskPhase.STARTED]
    assert log[0] == "row"


@pytest.mark.requirement("R-ARR-4")
@pytest.mark.requirement("R-ARR-5")
@pytest.mark.parametrize("trigger", ["abort", "suspend", "cancel", "supervisor gone"])
def test_the_barrier_opens_with_an_error(one: OneConsumer, trigger: str) -> None:
    """Whatever calls the start off: close is called, no record is read, nothing else happens."""
    one.write(3, end="FINITE")
    log: list[str] = []
    held = Held(one, Hooked(log, []))
    held.link.deliver(StopTasks((TASK,), 0, StopMode.CANCEL))  # of another epoch: not for this one
    if trigger == "abort":
        held.link.deliver(CallOff((TASK,), 1, "a neighbour failed"))
    elif trigger == "supervisor gone":
        held.link.lost()
    else:
        held.link.deliver(StopTasks((TASK,), 1, StopMode(trigger.upper())))
    ended = held.end()
    assert ended[1:] == ([TaskPhase.FAILED] if trigger == "abort" else [TaskPhase.CANCELED])
    if trigger == "abort":
        failure = held.reports[-1].failure
        assert failure is not None
        assert failure.secondary
        assert "a neighbour failed" in failure.text
    assert log == ["close"]
    assert one.published.total() == 0


@pytest.mark.requirement("R-ARR-18")
def test_a_commit_that_was_begun_is_published_before_the_start(one: OneConsumer) -> None:
    """A crash between ACK and publishing: the successor publishes, then waits at the barrier."""
    one.write(4)

    class Away(FileSink):
        def publish(self, parked: Any) -> None:
            raise OSError("killed here")

    failed = one.attempt(Plain([]), sink=Away(str(one.folder / "out"), "json"))[-1]
    assert (failed.phase, failed.commit) == (TaskPhase.FAILED, 1)
    held = Held(one, Plain([]), epoch=2)
    assert one.published.total() == 4
    assert [r.phase for r in held.reports] == [TaskPhase.AT_BARRIER]
    held.link.deliver(StopTasks((TASK,), 2, StopMode.CANCEL))
    held.end()


@pytest.mark.requirement("R-ARR-21")
def test_a_parked_file_that_no_record_names_is_not_published(one: OneConsumer) -> None:
    """Neither a left-over of a crash nor anything that only looks like one counts."""
    one.write(3, end="FINITE")
    one.attempt(Plain([]), crash_after=EndStep.SNAPSHOT)
    parked = one.folder / "out" / "_parked" / TASK
    parked.mkdir(parents=True, exist_ok=True)
    (parked / ("f" * 32)).write_text('{"n": 77}\n')
    assert one.attempt(Plain([]))[-1].phase is TaskPhase.FINISHED
    one.check_all_published_once()
    assert list(parked.iterdir()) == []


@pytest.mark.requirement("R-ARR-15")
def test_an_attempt_that_could_not_be_stopped_cannot_commit(one: OneConsumer) -> None:
    """The old one goes on reading; its acknowledgement is refused, its rows are not published."""
    one.write(4)
    seen = threading.Event()
    released = threading.Event()

    class Slow(Plain):
        def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            seen.set()
            assert released.wait(30)
            return batch

    reports: list[TaskReport] = []
    link = allowed_link(TASK, 1, reports.append)
    link.deliver(PassBarrier((TASK,), 1))
    zombie = threading.Thread(
        target=one.attempt, args=(Slow([]),), kwargs={"link": link, "epoch": 1}
    )
    zombie.start()
    assert seen.wait(30)
    one.write(0, end="FINITE")
    assert one.attempt(Plain([]), epoch=2)[-1].phase is TaskPhase.FINISHED
    released.set()
    zombie.join(30)
    assert reports[-1].phase is TaskPhase.FAILED
    assert reports[-1].failure is not None
    assert reports[-1].failure.kind == "fenced"
    one.check_all_published_once()


@pytest.mark.requirement("R-ARR-16")
@pytest.mark.parametrize("error", [ValueError("bad row"), SystemExit(3), KeyboardInterrupt()])
def test_one_terminal_report_however_it_ends(one: OneConsumer, error: BaseException) -> None:
    """An error of any kind, also one that is none of ours to catch, is said once."""
    one.write(3, end="FINITE")

    class Failing(Plain):
        def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            raise error

    reports = one.attempt(Failing([]))
    assert [r.phase for r in reports] == [TaskPhase.AT_BARRIER, TaskPhase.STARTED, TaskPhase.FAILED]
    assert reports[-1].failure is not None
    assert reports[-1].failure.kind == type(error).__name__


@pytest.mark.requirement("R-ARR-12")
@pytest.mark.parametrize(("said", "retry"), [(None, True), (True, True), (False, False)])
def test_an_error_of_the_user_says_whether_to_try_again(
    one: OneConsumer, said: bool | None, retry: bool
) -> None:
    """By an attribute; without one it is tried again, within the budget."""
    one.write(3, end="FINITE")
    error = ValueError("bad row")
    if said is not None:
        error.retry = said  # type: ignore[attr-defined]

    class Failing(Plain):
        def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            raise error

    failure = one.attempt(Failing([]))[-1].failure
    assert failure is not None
    assert failure.retry is retry


@pytest.mark.parametrize("first", ["function", "object"])
def test_a_step_that_gained_or_lost_its_state(one: OneConsumer, first: str) -> None:
    """Nothing is guessed: going on would leave rows out of the state, or the state out."""
    steps = [lambda batch: batch, Plain([])]
    if first == "object":
        steps.reverse()
    one.write(3)
    assert one.attempt(steps[0], orders=[StopMode.CANCEL])[-1].phase is TaskPhase.CANCELED
    assert one.attempt(steps[0], orders=[StopMode.SUSPEND])[-1].phase is TaskPhase.SUSPENDED
    failure = one.attempt(steps[1])[-1].failure
    assert failure is not None
    assert failure.kind == "incompatible"
    one.write(2, end="FINITE")
    assert one.attempt(steps[0])[-1].phase is TaskPhase.FINISHED
    one.check_all_published_once()


class Part:
    """Counts its opens and closes, and fails where it is told to."""

    def __init__(self, name: str, log: list[str], fails: str) -> None:
        self.name, self.log, self.fails = name, log, fails

    def did(self, what: str) -> None:
        self.log.append(f"{what} {self.name}")
        if self.fails == f"{what} {self.name}":
            raise ValueError(self.fails)


class HeadStep(Part):
    def open(self) -> None:
        self.did("open")

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.did("run")
        return batch

    def close(self) -> None:
        self.did("close")


class TailSink(FileSink):
    part: Part

    def open(self, *arguments: Any) -> None:
        super().open(*arguments)
        self.part.did("open")

    def close(self) -> None:
        self.part.did("close")


@pytest.mark.requirement("R-F46-4")
@pytest.mark.requirement("R-F46-24")
@pytest.mark.parametrize(
    ("fails", "calls"),
    [
        ("", ["open tail", "open head", "run head", "close head", "close tail"]),
        ("open tail", ["open tail", "close tail"]),
        ("open head", ["open tail", "open head", "close head", "close tail"]),
        ("run head", ["open tail", "open head", "run head", "close head", "close tail"]),
        ("close head", ["open tail", "open head", "run head", "close head", "close tail"]),
        ("close tail", ["open tail", "open head", "run head", "close head", "close tail"]),
    ],
)
@pytest.mark.parametrize("stopped", [None, "SUSPEND", "CANCEL"])
def test_close_is_called_once_for_all_that_began_to_open(
    one: OneConsumer, fails: str, calls: list[str], stopped: str | None
) -> None:
    """From the tail to the head and back, in every mode; the first error is the one reported."""
    one.write(3, end="FINITE")
    log: list[str] = []
    sink = TailSink(str(one.folder / "out"), "json")
    sink.part = Part("tail", log, fails)
    orders = [StopMode(stopped)] if stopped else []
    last = one.attempt(HeadStep("head", log, fails), sink=sink, orders=orders)[-1]
    assert [c for c in log if not c.startswith("run")] == [c for c in calls if "run" not in c]
    if fails and not (stopped and fails == "run head"):
        assert last.phase is TaskPhase.FAILED or stopped == "CANCEL"
        if last.failure is not None:
            assert last.failure.text == fails


@pytest.mark.requirement("R-F46-4")
def test_an_error_of_close_is_secondary(one: OneConsumer) -> None:
    """What failed first is reported; the error of close is a note on it."""
    one.write(3, end="FINITE")
    log: list[str] = []

    class Twice(HeadStep):
        def close(self) -> None:
            super().close()
            raise OSError("close failed, too")

    failure = one.attempt(Twice("head", log, "run head"))[-1].failure
    assert failure is not None
    assert failure.text.startswith("run head; closing failed, too")


async def double(row: dict[str, Any]) -> dict[str, Any]:
    """A look-up of the kind that takes a moment."""
    await asyncio.sleep(0)
    return {"n": row["n"]}


@pytest.mark.requirement("R-F46-20")
def test_prepare_waits_until_asynchronous_work_is_done(one: OneConsumer) -> None:
    """When it is called every call has ended, and its result is among the rows."""
    one.write(9, end="DRAIN")
    ended: list[int] = []
    seen: list[int] = []

    async def slow(row: dict[str, Any]) -> dict[str, Any]:
        for _ in range(row["n"] % 4):
            await asyncio.sleep(0.001)
        ended.append(row["n"])
        return row

    class Step_(AsyncStep):
        def prepare_to_shutdown(self, token: str) -> None:
            seen.append(len(ended))

    assert one.attempt(Step_(slow, ROWS, capacity=3))[-1].phase is TaskPhase.FINISHED
    assert seen == [9]
    one.check_all_published_once()


def test_unfinished_calls_survive_a_suspend(one: OneConsumer) -> None:
    """Rows inside the operator are part of the state: a successor calls them, once in the end."""
    one.write(6)
    gate = threading.Event()

    async def stuck(row: dict[str, Any]) -> dict[str, Any]:
        while row["n"] % 2 and not gate.is_set():
            await asyncio.sleep(0.001)
        return row

    class Suspending(AsyncStep):
        def process(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
            link.deliver(StopTasks((TASK,), 1, StopMode.SUSPEND))
            return super().process(batch)

    reports: list[TaskReport] = []
    link = allowed_link(TASK, 1, reports.append)
    link.deliver(PassBarrier((TASK,), 1))
    one.attempt(Suspending(stuck, ROWS, capacity=10, mode="unordered"), link=link, epoch=1)
    assert reports[-1].phase is TaskPhase.SUSPENDED
    assert set(one.published) <= {0, 2, 4}
    gate.set()
    one.write(2, end="FINITE")
    again = AsyncStep(stuck, ROWS, capacity=10, mode="unordered")
    assert one.attempt(again)[-1].phase is TaskPhase.FINISHED
    one.check_all_published_once()


@pytest.mark.requirement("R-F135-25")
def test_a_checkpoint_is_shown_once_over_restarts(one: OneConsumer) -> None:
    """A marker that was passed before a commit is not shown to the successor."""
    seen: list[int] = []

    class Marked(Plain):
        def on_checkpoint(self, checkpoint: int) -> None:
            seen.append(checkpoint)

    one.write(4, markers=[Checkpoint(1)])
    one.write(2, markers=[Checkpoint(2)])
    one.write(0, end="SUSPEND")

    class Stops(Marked):
        def on_checkpoint(self, checkpoint: int) -> None:
            super().on_checkpoint(checkpoint)
            if checkpoint == 2:
                link.deliver(StopTasks((TASK,), 1, StopMode.SUSPEND))

    link = allowed_link(TASK, 1, lambda _: None)
    link.deliver(PassBarrier((TASK,), 1))
    one.attempt(Stops([]), link=link, epoch=1)
    one.write(3, markers=[Checkpoint(3)], end="FINITE")
    one.attempt(Marked([]))
    assert seen == [1, 2, 3]


@pytest.mark.requirement("R-MZ-19")
def test_an_attempt_that_may_not_write_writes_nothing(one: OneConsumer) -> None:
    """START alone is not enough: no OPEN, no file, and it says why."""
    one.write(3, end="FINITE")
    reports: list[TaskReport] = []
    link = TaskLink(TASK, 1, reports.append)
    link.deliver(PassBarrier((TASK,), 1))
    before = {info.key for info in one.storage.list("")}
    one.attempt(Plain([]), link=link, epoch=1)
    assert reports[-1].failure is not None
    assert reports[-1].failure.kind == "fenced"
    assert "read-only" in reports[-1].failure.text
    assert {info.key for info in one.storage.list("")} == before
    assert not one.published


@pytest.mark.requirement("R-F232-17")
@pytest.mark.requirement("R-F46-20")
def test_a_drain_waits_for_no_retry_and_a_natural_end_does(one: OneConsumer) -> None:
    """Drained, a row whose retry is an hour away is called a last time, at once, and comes out."""
    one.write(3, end="DRAIN")
    calls: list[int] = []

    async def busy(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(row["n"])
        if calls.count(1) == 1 and row["n"] == 1:
            raise OSError("busy")
        return row

    retry = RetryPolicy(Backoff(5, 3600.0, 1.0, 3600.0), on_exception=raised(OSError))
    step = AsyncStep(busy, ROWS, capacity=3, retry=retry, drain_seconds=0)
    assert one.attempt(step)[-1].phase is TaskPhase.FINISHED
    assert sorted(calls) == [0, 1, 1, 2]
    one.check_all_published_once()


def test_a_drain_over_a_service_that_fails_at_times_ends(one: OneConsumer) -> None:
    """The calls that run when the drain begins all fail; they are retried, and every row counts."""
    one.write(3, 3, end="DRAIN")
    calls: list[int] = []
    drained = threading.Event()

    async def busy(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(row["n"])
        if calls.count(row["n"]) == 1:
            await asyncio.to_thread(drained.wait)
            raise OSError("busy")
        return row

    class Drained(AsyncStep):
        def drain(self) -> None:
            super().drain()
            drained.set()

    retry = RetryPolicy(Backoff.fixed(5, 0.01), on_exception=raised(OSError))
    assert one.attempt(Drained(busy, ROWS, capacity=6, retry=retry))[-1].phase == "finished"
    assert sorted(calls) == sorted(2 * list(range(6)))
    one.check_all_published_once()


@pytest.mark.requirement("R-F135-29")
def test_a_commit_is_due_by_its_bytes(one: OneConsumer) -> None:
    """Rows that fill the memory are committed, however few and however soon."""
    one.settings = replace(one.settings, commit_rows=1_000_000, writer_memory_bytes=1 << 16)
    one.write(4, 4, 4, end="FINITE")
    held: list[int] = []

    class Large(Plain):
        def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            held.append(len(list((one.folder / "out").glob("part-*"))))
            return pa.record_batch([list(range(8000))], schema=ROWS)

    assert one.attempt(Large([]))[-1].phase is TaskPhase.FINISHED
    assert held == [0, 0, 1], "two batches of 64,000 bytes pass the limit of 65,536"
