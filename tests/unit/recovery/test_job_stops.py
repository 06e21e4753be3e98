"""How one job ends when it is told to, decision by decision."""

import pytest
from job_shell import STOP_SECONDS, TASKS, Job, drive

from durable_shuffle.recovery.job_phase import (
    Abort,
    Failure,
    JobPhase,
    Kill,
    Stop,
    WinGeneration,
)
from durable_shuffle.recovery.stop_order import StopMode
from durable_shuffle.recovery.task_phase import Report
from durable_shuffle.serialization.errors import InvalidInputError


@pytest.mark.requirement("R-ARR-5")
@pytest.mark.requirement("R-ARR-14")
@pytest.mark.parametrize("mode", [StopMode.SUSPEND, StopMode.CANCEL])
def test_a_stop_while_a_task_hangs_in_open(mode: StopMode) -> None:
    """The barrier is called off at once; who does not react is killed within the bound."""
    job = Job()
    job.start()
    job.to_barrier("s", "b")
    job.say("a", Report.STARTING)
    commands = job.stop(mode)
    assert {c.task for c in commands if isinstance(c, Abort)} == set(TASKS)
    job.say("s", Report.CANCELED)
    job.say("b", Report.CANCELED)
    assert job.machine.phase is JobPhase.STOPPING
    assert Kill("a", 1) in job.pass_time(STOP_SECONDS / 10)
    assert job.result[0] is (JobPhase.SUSPENDED if mode == "SUSPEND" else JobPhase.CANCELED)


@pytest.mark.requirement("R-ARR-14")
def test_a_drain_during_scheduling_is_carried_out_once_all_have_started() -> None:
    """Sources are told as soon as they have started; the job never counts as running."""
    job = Job()
    job.start()
    job.to_barrier()
    assert job.stop(StopMode.DRAIN) == []
    assert job.say("s", Report.STARTED) == [Stop("s", 1, StopMode.DRAIN)]
    job.say("a", Report.STARTED)
    job.say("b", Report.STARTED)
    assert job.machine.phase is JobPhase.STOPPING


def test_a_stop_before_the_generation_is_durable() -> None:
    """Nothing is launched for a job that was stopped meanwhile."""
    job = Job()
    assert job.machine.start() == [WinGeneration()]
    job.stop(StopMode.SUSPEND)
    assert job.machine.generation_won(1, 0.0) == []
    assert job.result == (JobPhase.SUSPENDED, "")


@pytest.mark.requirement("R-F46-14")
@pytest.mark.parametrize("mode", [None, StopMode.DRAIN])
def test_what_is_durable_and_not_published_is_reported_as_that(mode: StopMode | None) -> None:
    """Once the budget is spent the result names task and commit; no other phase would be true."""
    job = Job(max_restarts=0)
    job.run()
    if mode:
        job.stop(mode)
    job.say("a", Report.PREPARING)
    job.say("a", Report.PREPARED, Report.COMMITTING, commit=4)
    job.fail("a", Failure("OSError", "no route"), commit=4)
    for _ in range(5):
        drive(job)
    assert job.result == (JobPhase.EFFECTS_PENDING, "no route")
    assert job.machine.result is not None
    assert job.machine.result.pending == (("a", 4),)


@pytest.mark.requirement("R-F46-22")
def test_a_second_stop_of_another_kind_is_refused_and_changes_nothing() -> None:
    """The same again does nothing; CANCEL overtakes and is told to everybody."""
    job = Job()
    job.run()
    job.stop(StopMode.SUSPEND)
    with pytest.raises(InvalidInputError, match="SUSPEND already"):
        job.stop(StopMode.DRAIN)
    assert job.machine.mode is StopMode.SUSPEND
    assert job.stop(StopMode.SUSPEND) == []
    assert job.stop(StopMode.CANCEL) == [Stop(task, 1, StopMode.CANCEL) for task in TASKS]
    for task in TASKS:
        job.say(task, Report.CANCELED)
    assert job.result[0] is JobPhase.CANCELED
    assert job.stop(StopMode.CANCEL) == []
    with pytest.raises(InvalidInputError, match="has ended"):
        job.stop(StopMode.DRAIN)


@pytest.mark.requirement("R-F46-13")
@pytest.mark.parametrize("first", ["finished", "suspend"])
def test_suspend_and_natural_end_in_both_orders(first: str) -> None:
    """Each task ends in the way that it came to; the job waits for nothing else."""
    job = Job()
    job.run()
    job.say("s", Report.FINISHED)
    if first == "finished":
        for task in ("a", "b"):
            job.say(task, Report.PREPARING, Report.PREPARED, Report.COMMITTING)
        job.stop(StopMode.SUSPEND)
        for task in ("a", "b"):
            job.say(task, Report.FINISHED)
        assert job.result == (JobPhase.FINISHED, "")
    else:
        assert job.stop(StopMode.SUSPEND) == [Stop(t, 1, StopMode.SUSPEND) for t in ("a", "b")]
        job.say("a", Report.PREPARING, Report.PREPARED, Report.COMMITTING, Report.FINISHED)
        job.say("b", Report.SUSPENDING, Report.SUSPENDED)
        assert job.result == (JobPhase.SUSPENDED, "")


def test_a_hook_that_hangs_is_bounded_and_named() -> None:
    """Each step of an end has its own time; then the task is killed and counts as failed."""
    job = Job(max_restarts=0)
    job.run()
    job.say("a", Report.PREPARING)
    job.pass_time(STOP_SECONDS - 1)
    job.say("a", Report.PREPARED, commit=1)
    assert job.pass_time(2) == []
    job.say("a", Report.COMMITTING)
    assert Kill("a", 1) in job.pass_time(STOP_SECONDS)
    for _ in range(5):
        drive(job)
    assert job.result == (
        JobPhase.EFFECTS_PENDING,
        "a did not get on with its end in time: it is committing",
    )
