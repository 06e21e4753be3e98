"""Processes of a coordinator whose modules were imported anew since: they start all the same."""

import sys
from pathlib import Path

import pytest
from pipelines import until

from durable_shuffle.recovery.job.phases import TaskPhase, TaskReport
from durable_shuffle.recovery.pipeline.commands.requests import Description
from durable_shuffle.recovery.pipeline.lines.processes import LocalProcesses
from durable_shuffle.recovery.pipeline.plan.updates import plan_of
from durable_shuffle.serialization.errors import InvalidInputError

MODULE = """
import pyarrow as pa
from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.plan.updates import pipeline_factory
from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource
from durable_shuffle.recovery.job.phases import TaskPhase

def numbers(position, producer):
    yield from ()

class Task:
    def __call__(self, link):
        link.say(TaskPhase.STARTING)
        link.say(TaskPhase.FINISHED, commit={number})

class Raises:
    def __call__(self, link):
        raise AttributeError("no such thing")

@pipeline_factory
def make(**arguments):
    pipeline = Pipeline("new", "memory://new", version="{number}")
    pipeline.source("n", IteratorSource(numbers), schema=pa.schema([("n", pa.int64())]))
    return pipeline
"""


def _write(folder: Path, number: int) -> None:
    (folder / "users_code.py").write_text(MODULE.format(number=number) + "#" * number)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    _write(tmp_path, 1)
    return tmp_path


def test_a_process_starts_behind_a_new_import(folder: Path) -> None:
    """What was given to the launcher before is not what is imported now; the process has the
    newest text."""
    import users_code  # type: ignore[import-not-found]

    heard: list[TaskReport] = []
    task = users_code.Task()
    launcher = LocalProcesses(task, heard.append, heartbeat_seconds=1, silence_seconds=60)
    _write(folder, 22)
    plan, _ = plan_of(Description("users_code:make", "", ""), packages=["users_code"])
    assert plan.version == "22"
    assert sys.modules["users_code"] is not users_code
    launcher.start("task", 1, 0)
    until(lambda: any(report.phase is TaskPhase.FINISHED for report in heard), "its end")
    assert heard[-1].commit == 22
    launcher.close()


def test_a_refused_description_puts_the_modules_back(folder: Path) -> None:
    """Whatever was wrong with it."""
    import users_code

    _write(folder, 333)
    plan, undo = plan_of(Description("users_code:make", "", ""), packages=["users_code"])
    assert plan.version == "333"
    undo()
    assert sys.modules["users_code"] is users_code
    (folder / "users_code.py").write_text("raise ValueError('broken')  " + "#" * 5000)
    with pytest.raises(InvalidInputError, match="ValueError: broken"):
        plan_of(Description("users_code:make", "", ""), packages=["users_code"])
    assert sys.modules["users_code"] is users_code


def test_code_that_is_not_there_is_a_failure_of_the_task(folder: Path) -> None:
    """Not a silent end of the process."""
    import users_code

    heard: list[TaskReport] = []
    task = users_code.Task()
    launcher = LocalProcesses(task, heard.append, heartbeat_seconds=1, silence_seconds=60)
    (folder / "users_code.py").unlink()
    launcher.start("task", 1, 0)
    until(lambda: any(report.failure for report in heard), "a report of a failure")
    failure = heard[-1].failure
    assert failure is not None
    assert "users_code" in failure.text
    launcher.close()


def test_an_error_outside_of_the_task_is_told(folder: Path) -> None:
    """A task that raises, instead of reporting a failure, is reported with its error."""
    import users_code

    heard: list[TaskReport] = []
    task = users_code.Raises()
    launcher = LocalProcesses(task, heard.append, heartbeat_seconds=1, silence_seconds=60)
    launcher.start("task", 1, 0)
    until(lambda: any(report.failure for report in heard), "a report of a failure")
    failure = heard[-1].failure
    assert failure is not None
    assert "no such thing" in failure.text
    launcher.close()
