"""The inbox of a control loop and its companion: in order, waking the loop, never holding it up."""

import sys
import threading
import time
from functools import partial

import pytest

from durable_shuffle.recovery.job.phases import TaskPhase, TaskReport
from durable_shuffle.recovery.pipeline.coordinator.inbox import Companion, Inbox
from durable_shuffle.recovery.pipeline.lines.launcher import Threads
from durable_shuffle.recovery.pipeline.lines.processes import LocalProcesses
from durable_shuffle.recovery.pipeline.task.link import TaskLink

PATIENCE = 300.0
LOST = 60.0
"""So long nobody waits for an answer that is there."""
ROUNDS = 500


def ends(link: TaskLink) -> None:
    """A task without work."""
    link.say(TaskPhase.CANCELED)


def take(inbox: Inbox) -> int:
    """Call what is there, once there is something; return how many events that were."""
    start = time.monotonic()
    events = inbox.take(LOST)
    assert time.monotonic() - start < LOST, "nobody was woken"
    for event in events:
        event()
    return len(events)


@pytest.mark.requirement("R-MZ-22")
def test_no_wake_up_is_lost() -> None:
    """The loop waits as long as it likes; each answer ends its wait, whenever it comes."""
    inbox = Inbox()
    companion = Companion(inbox)
    seen: list[int] = []
    for n in range(ROUNDS):
        companion.submit(partial(int, n), seen.append, pytest.fail)
        while len(seen) <= n:
            take(inbox)
    assert seen == list(range(ROUNDS))
    companion.close(PATIENCE)
    assert inbox.take(0) == []


@pytest.mark.requirement("R-MZ-22")
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_report_ends_the_wait(kind: str) -> None:
    """Of a task of either launcher."""
    inbox = Inbox()
    heard: list[TaskReport] = []

    def hear(report: TaskReport) -> None:
        inbox.put(lambda: heard.append(report))

    launcher = (
        Threads(ends, hear)
        if kind == "threads"
        else LocalProcesses(ends, hear, heartbeat_seconds=PATIENCE, silence_seconds=2 * PATIENCE)
    )
    launcher.start("task", 1, 0)
    assert take(inbox) == 1
    assert heard == [TaskReport("task", 1, TaskPhase.CANCELED)]
    launcher.close()


def test_of_what_comes_meanwhile_nothing_is_taken() -> None:
    """An event that brings another one about cannot keep the loop from its other duties."""
    inbox = Inbox()

    def again() -> None:
        inbox.put(again)

    inbox.put(again)
    assert take(inbox) == 1
    assert take(inbox) == 1


@pytest.mark.requirement("R-MZ-13")
def test_what_is_submitted_later_is_done_later() -> None:
    """However slow what came before is: a drop does not overtake its run."""
    inbox = Inbox()
    companion = Companion(inbox)
    gate, done = threading.Event(), []

    def slow_lookup() -> str:
        assert gate.wait(PATIENCE)
        return "run"

    companion.submit(slow_lookup, done.append, pytest.fail)
    companion.submit(lambda: "drop", done.append, pytest.fail)
    assert inbox.take(0) == [], "nobody waits for it"
    gate.set()
    companion.close(PATIENCE)
    take(inbox)
    assert done == ["run", "drop"]


def test_an_error_is_an_answer() -> None:
    """And the next job is done."""
    inbox = Inbox()
    companion = Companion(inbox)
    errors: list[Exception] = []
    done: list[int] = []
    companion.submit(lambda: 1 // 0, pytest.fail, errors.append)
    companion.submit(lambda: sys.exit(3), pytest.fail, errors.append)
    companion.submit(lambda: 1, done.append, errors.append)
    companion.close(PATIENCE)
    take(inbox)
    assert [type(error) for error in errors] == [ZeroDivisionError, RuntimeError]
    assert done == [1]
