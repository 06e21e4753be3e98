"""The start-up hang of Arroyo in the product: of its three defects only all together hang."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from pipeline_steps import Numbers
from pipelines import copying, prefix_of_all, published, threads, until
from start_defects import cannot_be_called_off, drops_failures

from durable_shuffle.recovery.job.phases import JobPhase, TaskPhase
from durable_shuffle.recovery.pipeline.running import RunningPipeline
from durable_shuffle.recovery.pipeline.task.link import TaskLink

UPTO = 60
SOURCE = "numbers-p0000"


class FailsFirst:
    """A step of this process whose first `open` fails."""

    stateless = True

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


def _announces_early(patched: pytest.MonkeyPatch, dropped: list[str] | None) -> None:
    """(A) tasks say that they have started before they open anything.

    Args:
        dropped: the source says so only when this is not empty, so that the job is still being
            scheduled when the failure arrives; None: it waits for nothing.
    """
    says = TaskLink.say

    def early(self: TaskLink, report: TaskPhase, *, commit: int = 0) -> None:
        if report not in (TaskPhase.AT_BARRIER, TaskPhase.STARTED):
            says(self, report, commit=commit)
        if report is TaskPhase.STARTING:
            if self.task == SOURCE and dropped is not None:
                until(lambda: dropped, "a failure that is dropped")
            says(self, TaskPhase.AT_BARRIER)
            says(self, TaskPhase.STARTED)

    patched.setattr(TaskLink, "say", early)


def start(
    folder: Path, patched: pytest.MonkeyPatch, defects: str, **times: float
) -> tuple[RunningPipeline, list[str]]:
    """Start a pipeline of which a task fails while it opens; return it and what was dropped."""
    dropped = drops_failures(patched) if "C" in defects else []
    if "B" in defects:
        cannot_be_called_off(patched)
    if "A" in defects:
        _announces_early(patched, dropped if "C" in defects else None)
    pipeline = copying(folder, Numbers(1, UPTO), FailsFirst(), stop_seconds=1.0, **times)
    return pipeline.start(launcher=threads), dropped


@pytest.mark.requirement("R-ARR-7")
@pytest.mark.requirement("R-ARR-17")
@pytest.mark.parametrize(
    "defects", ["".join(some) for n in range(3) for some in itertools.combinations("ABC", n)]
)
def test_a_start_that_fails_is_noticed_with_defects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defects: str
) -> None:
    """What is left of the protections brings the job to its end."""
    times = {"start_seconds": 1.0, "start_tries": 20} if defects == "BC" else {}
    running, dropped = start(tmp_path, monkeypatch, defects, **times)
    result = running.wait(300)
    assert result.phase is JobPhase.FINISHED
    assert result.restarts >= 1
    assert bool(dropped) is ("C" in defects)
    assert published(tmp_path).total() == UPTO
    assert prefix_of_all(published(tmp_path), 1)


@pytest.mark.requirement("R-ARR-7")
def test_all_three_defects_together_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So each of them is a defect: the job even says that it runs, and waits for nothing."""
    running, dropped = start(tmp_path, monkeypatch, "ABC")
    until(lambda: dropped, "a failure that is dropped")
    machine = running._supervisor.machine
    others = [task for task in machine.tasks if task not in dropped]
    until(
        lambda: all(machine.tasks[task].phase is TaskPhase.FINISHED for task in others),
        "the end of all others",
    )
    assert running.phase == JobPhase.RUNNING
    assert machine.tasks[dropped[0]].phase is TaskPhase.RUNNING
    assert machine.next_when() is None
    assert machine.budget.total == 0
    assert 0 < published(tmp_path).total() < UPTO
    running.stop("CANCEL")
    assert running.wait(300).phase is JobPhase.CANCELED
