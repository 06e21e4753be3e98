"""A job that wins no generation: the storage does not answer, or another coordinator leads."""

import pytest
from job_shell import BROKEN, JobShell

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.job.phases import (
    Failure,
    JobPhase,
    Launch,
    TaskPhase,
    WinGeneration,
)


def test_no_generation_no_job() -> None:
    """A supervisor that was superseded ends with that as the cause."""
    job = JobShell()
    job.machine.start()
    job.machine.generation_lost(Failure("fenced", "another supervisor", retry=False), 0.0)
    assert job.result == (JobPhase.FAILED, "another supervisor")


OUTAGE = Failure("unavailable", "the storage is down")


@pytest.mark.requirement("R-ARR-9")
@pytest.mark.requirement("R-ARR-11")
def test_an_outage_is_waited_out_within_the_budget() -> None:
    """A CLAIM that could not be written is tried again, later and later."""
    job = JobShell(max_restarts=5)
    job.run()
    job.fail("a")
    waits = []
    assert job.machine.tick(1.0) == [WinGeneration()]
    now = 1.0
    for _ in range(4):
        assert job.machine.generation_lost(OUTAGE, now) == []
        assert job.machine.phase is JobPhase.RECOVERING
        when = job.machine.next_when()
        assert when is not None
        waits.append(when - now)
        now = when
        assert job.machine.tick(now) == [WinGeneration()]
    assert waits == [1, 2, 4, 8]
    assert Launch("a", 2) in job.machine.generation_won(2, now)
    assert job.machine.cause == BROKEN, "what led to it"


def test_an_outage_that_lasts_longer_than_the_budget() -> None:
    """The job ends, and says why: it does not matter how many restarts that took."""
    job = JobShell(max_restarts=2, outage_seconds=30)
    job.run()
    job.fail("a", OUTAGE)
    now = 1.0
    for turn in range(5):
        assert (job.machine.phase is JobPhase.FAILING) is (turn == 4)
        if job.machine.phase is JobPhase.FAILING:
            break
        job.machine.tick(now)
        job.machine.generation_lost(OUTAGE, now)
        now += 10
    for task in ("s", "b"):
        job.say(task, TaskPhase.CANCELED)
    assert job.result == (JobPhase.FAILED, "the storage is down")


@pytest.mark.parametrize("mode", [StopMode.SUSPEND, StopMode.CANCEL])
def test_an_outage_does_not_fail_what_is_to_stop_anyway(mode: StopMode) -> None:
    """Nothing is to be started: no generation is missed."""
    job = JobShell()
    job.run()
    job.fail("a")
    assert job.machine.tick(1.0) == [WinGeneration()]
    job.stop(mode)
    job.machine.generation_lost(OUTAGE, 2.0)
    for task in ("s", "b"):
        end = (TaskPhase.SUSPENDING, TaskPhase.SUSPENDED)
        job.say(task, *(end if mode is StopMode.SUSPEND else (TaskPhase.CANCELED,)))
    ended = JobPhase.SUSPENDED if mode is StopMode.SUSPEND else JobPhase.CANCELED
    assert job.machine.phase is ended


@pytest.mark.requirement("R-ARR-6")
def test_a_coordinator_that_is_fenced_says_so() -> None:
    """The harmless failure after which it found out is not the cause."""
    job = JobShell()
    job.run()
    job.fail("a")
    assert job.machine.tick(1.0) == [WinGeneration()]
    job.machine.generation_lost(Failure("fenced", "another one leads", retry=False), 1.0)
    for task in ("s", "b"):
        job.say(task, TaskPhase.CANCELED)
    assert job.result == (JobPhase.FAILED, "another one leads")
