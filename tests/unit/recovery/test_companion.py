"""The companion: in order, waking who waits, never holding up the control loop."""

import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from durable_shuffle.recovery.pipeline.coordinator.companion import Companion
from durable_shuffle.recovery.pipeline.lines.launcher import Threads
from durable_shuffle.recovery.pipeline.lines.processes import LocalProcesses

PATIENCE = 300.0
LOST = 60.0
"""So long nobody waits for an answer that is there."""
ROUNDS = 500


def nothing(_: object) -> None:
    """A task without work."""


def processes() -> LocalProcesses:
    return LocalProcesses(nothing, heartbeat_seconds=1, silence_seconds=10)


@pytest.mark.requirement("R-MZ-22")
@pytest.mark.parametrize("make", [lambda: Threads(nothing), processes], ids=["threads", "pipes"])
def test_no_wake_up_is_lost(make: Callable[[], Threads | LocalProcesses]) -> None:
    """The loop waits as long as it likes; each answer ends its wait, whenever it comes."""
    launcher = make()
    companion = Companion(launcher.wake)
    seen: list[int] = []
    for n in range(ROUNDS):
        companion.submit(partial(int, n), seen.append, pytest.fail)
        while len(seen) <= n:
            if not companion.has_answer:
                start = time.monotonic()
                launcher.receive(LOST)
                assert time.monotonic() - start < LOST, "nobody was woken"
            companion.answer()
    assert seen == list(range(ROUNDS))
    companion.close(PATIENCE)
    launcher.close()


@pytest.mark.requirement("R-MZ-13")
def test_what_is_submitted_later_is_done_later() -> None:
    """However slow what came before is: a drop does not overtake its run."""
    companion = Companion(lambda: None)
    gate, done = threading.Event(), []
    assert not companion.answer()

    def slow_lookup() -> str:
        assert gate.wait(PATIENCE)
        return "run"

    companion.submit(slow_lookup, done.append, pytest.fail)
    companion.submit(lambda: "drop", done.append, pytest.fail)
    assert not companion.answer(), "nobody waits for it"
    gate.set()
    companion.close(PATIENCE)
    companion.answer()
    assert done == ["run", "drop"]


def test_an_error_is_an_answer() -> None:
    """And the next job is done."""
    companion = Companion(lambda: None)
    errors: list[Exception] = []
    done: list[int] = []
    companion.submit(lambda: 1 // 0, pytest.fail, errors.append)
    companion.submit(lambda: sys.exit(3), pytest.fail, errors.append)
    companion.submit(lambda: 1, done.append, errors.append)
    companion.close(PATIENCE)
    companion.answer()
    assert [type(error) for error in errors] == [ZeroDivisionError, RuntimeError]
    assert done == [1]
