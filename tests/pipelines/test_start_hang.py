"""The start-up hang of Arroyo in the product: its defects are put in place, one alone or two."""

from pathlib import Path
from typing import Any

import pytest
from pipeline_steps import Numbers
from pipelines import copying, prefix_of_all, published, threads, until

from durable_shuffle.recovery.job.machine import Job
from durable_shuffle.recovery.job.phases import JobPhase, TaskPhase, TaskReport
from durable_shuffle.recovery.job.starts import StartBarrier
from durable_shuffle.recovery.pipeline.task.link import TaskLink

UPTO = 60


class FailsFirst:
    """A step of this process whose first `open` fails, once the others wait at the barrier."""

    def __init__(self) -> None:
        self.opened = 0

    def __deepcopy__(self, _: Any) -> "FailsFirst":
        return self

    def open(self) -> None:
        self.opened += 1
        if self.opened == 1:
            raise OSError("cannot open")

    def process(self, batch: Any) -> Any:
        return batch


def _announces_early(patched: pytest.MonkeyPatch) -> None:
    """(A) a task says that it has started, then waits at the barrier."""
    passes, says = TaskLink.pass_barrier, TaskLink.say

    def early(self: TaskLink) -> None:
        says(self, TaskPhase.AT_BARRIER)
        says(self, TaskPhase.STARTED)
        passes(self)

    def once(self: TaskLink, report: TaskPhase, *, commit: int = 0) -> None:
        if report not in (TaskPhase.AT_BARRIER, TaskPhase.STARTED):
            says(self, report, commit=commit)

    patched.setattr(TaskLink, "pass_barrier", early)
    patched.setattr(TaskLink, "say", once)


def _cannot_be_called_off(patched: pytest.MonkeyPatch) -> None:
    """(B) nobody who waits at the barrier is told that a neighbour has failed."""
    patched.setattr(StartBarrier, "abort", lambda self, cause: False)


def _drops_failures(patched: pytest.MonkeyPatch) -> list[str]:
    """(C) a failure that arrives while the job is being scheduled is dropped."""
    said, dropped = Job.said, []

    def drops(self: Job, message: TaskReport, now: float) -> Any:
        if message.phase is TaskPhase.FAILED and self.phase is JobPhase.SCHEDULING:
            dropped.append(message.task)
            return []
        return said(self, message, now)

    patched.setattr(Job, "said", drops)
    return dropped


@pytest.mark.requirement("R-ARR-7")
@pytest.mark.requirement("R-ARR-17")
@pytest.mark.parametrize("defects", ["", "A", "B", "C", "AB", "BC"])
def test_a_start_that_fails_is_noticed_with_defects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defects: str
) -> None:
    """What is left of the protections, time limits included, brings the job to its end."""
    dropped: list[str] = []
    if "A" in defects:
        _announces_early(monkeypatch)
    if "B" in defects:
        _cannot_be_called_off(monkeypatch)
    if "C" in defects:
        dropped = _drops_failures(monkeypatch)
    times = {"start_seconds": 0.5 if "C" in defects else 60.0, "stop_seconds": 1.0}
    step = FailsFirst()
    running = copying(tmp_path, Numbers(1, UPTO), step, **times).start(launcher=threads)
    result = running.wait(300)
    assert result.phase is JobPhase.FINISHED
    assert result.restarts >= 1
    assert bool(dropped) is ("C" in defects)
    assert published(tmp_path).total() == UPTO
    assert prefix_of_all(published(tmp_path), 1)


@pytest.mark.requirement("R-ARR-7")
def test_all_three_defects_together_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So each of them is a defect: the job even says that it runs."""
    _announces_early(monkeypatch)
    _cannot_be_called_off(monkeypatch)
    dropped = _drops_failures(monkeypatch)
    step = FailsFirst()
    running = copying(tmp_path, Numbers(1, UPTO), step, partitions=1).start(launcher=threads)
    until(lambda: dropped, "a failure that is dropped")
    machine = running._supervisor.machine
    assert machine.next_when() is None or machine.phase is JobPhase.SCHEDULING
    assert machine.budget.total == 0
    assert published(tmp_path).total() == 0
    running.stop("CANCEL")
    assert running.wait(300).phase is JobPhase.CANCELED
