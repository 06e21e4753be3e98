"""How one job ends when it is told to, decision by decision."""

import pytest
from job_shell import BROKEN, STOP_SECONDS, TASKS, JobShell, drive

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.job.phases import (
    SETTLED,
    CallOff,
    Failure,
    JobPhase,
    Kill,
    StopTasks,
    TaskPhase,
    WinGeneration,
)
from durable_shuffle.serialization.errors import InvalidInputError


@pytest.mark.requirement("R-ARR-5")
@pytest.mark.requirement("R-ARR-14")
@pytest.mark.parametrize("mode", [StopMode.SUSPEND, StopMode.CANCEL])
def test_a_stop_while_a_task_hangs_in_open(mode: StopMode) -> None:
    """The barrier is called off at once; who does not react is killed within the bound."""
    job = JobShell()
    job.start()
    job.to_barrier("s", "b")
    job.say("a", TaskPhase.STARTING)
    commands = job.stop(mode)
    assert [set(c.tasks) for c in commands if isinstance(c, CallOff)] == [set(TASKS)]
    job.say("s", TaskPhase.CANCELED)
    job.say("b", TaskPhase.CANCELED)
    assert job.machine.phase is JobPhase.STOPPING
    assert Kill("a", 1) in job.pass_time(STOP_SECONDS / 10)
    assert job.result[0] is (JobPhase.SUSPENDED if mode == "SUSPEND" else JobPhase.CANCELED)


@pytest.mark.requirement("R-ARR-6")
@pytest.mark.parametrize("mode", [StopMode.SUSPEND, StopMode.CANCEL])
def test_a_start_that_is_called_off_by_a_stop_has_no_cause(mode: StopMode) -> None:
    """What tasks say when they are told so is what was asked for; a real failure is still named."""
    for real in (False, True):
        job = JobShell()
        job.start()
        job.to_barrier("s", "b")
        job.say("a", TaskPhase.STARTING)
        job.stop(mode)
        for task in ("s", "b"):
            job.fail(task, Failure("aborted", f"called off: stop {mode}", secondary=True))
        job.fail("a", BROKEN) if real else job.say("a", TaskPhase.CANCELED)
        ended = JobPhase.SUSPENDED if mode == "SUSPEND" else JobPhase.CANCELED
        assert job.result == (ended, BROKEN.text if real else "")


@pytest.mark.requirement("R-ARR-14")
def test_a_drain_during_scheduling_is_carried_out_once_all_have_started() -> None:
    """Sources are told as soon as they have started; the job never counts as running."""
    job = JobShell()
    job.start()
    job.to_barrier()
    assert job.stop(StopMode.DRAIN) == []
    assert job.say("s", TaskPhase.STARTED) == [StopTasks(("s",), 1, StopMode.DRAIN)]
    job.say("a", TaskPhase.STARTED)
    job.say("b", TaskPhase.STARTED)
    assert job.machine.phase is JobPhase.STOPPING


@pytest.mark.requirement("R-F46-14")
def test_an_attempt_that_settled_its_end_leaves_nothing_pending() -> None:
    """It fails behind its last record, in close(): its own word outranks what it said before."""
    job = JobShell(max_restarts=0)
    job.run()
    job.say("a", TaskPhase.PREPARING)
    job.say("a", TaskPhase.PREPARED, TaskPhase.COMMITTING, commit=4)
    job.fail("a", Failure("OSError", "close"), commit=SETTLED)
    for _ in range(5):
        drive(job)
    assert job.result == (JobPhase.FAILED, "close")


def test_a_stop_before_the_generation_is_durable() -> None:
    """Nothing is launched for a job that was stopped meanwhile."""
    job = JobShell()
    assert job.machine.start() == [WinGeneration()]
    job.stop(StopMode.SUSPEND)
    assert job.machine.generation_won(1, 0.0) == []
    assert job.result == (JobPhase.SUSPENDED, "")


@pytest.mark.requirement("R-F46-14")
@pytest.mark.parametrize("mode", [None, StopMode.DRAIN])
def test_what_is_durable_and_not_published_is_reported_as_that(mode: StopMode | None) -> None:
    """Once the budget is spent the result names task and commit; no other phase would be true."""
    job = JobShell(max_restarts=0)
    job.run()
    if mode:
        job.stop(mode)
    job.say("a", TaskPhase.PREPARING)
    job.say("a", TaskPhase.PREPARED, TaskPhase.COMMITTING, commit=4)
    job.fail("a", Failure("OSError", "no route"), commit=4)
    for _ in range(5):
        drive(job)
    assert job.result == (JobPhase.EFFECTS_PENDING, "no route")
    assert job.machine.result is not None
    assert job.machine.result.pending == (("a", 4),)


@pytest.mark.requirement("R-F46-22")
def test_a_second_stop_of_another_kind_is_refused_and_changes_nothing() -> None:
    """The same again does nothing; CANCEL overtakes and is told to everybody."""
    job = JobShell()
    job.run()
    job.stop(StopMode.SUSPEND)
    with pytest.raises(InvalidInputError, match="SUSPEND already"):
        job.stop(StopMode.DRAIN)
    assert job.machine.mode is StopMode.SUSPEND
    assert job.stop(StopMode.SUSPEND) == []
    assert job.stop(StopMode.CANCEL) == [StopTasks(TASKS, 1, StopMode.CANCEL)]
    for task in TASKS:
        job.say(task, TaskPhase.CANCELED)
    assert job.result[0] is JobPhase.CANCELED
    assert job.stop(StopMode.CANCEL) == []
    with pytest.raises(InvalidInputError, match="has ended"):
        job.stop(StopMode.DRAIN)


@pytest.mark.requirement("R-F46-13")
@pytest.mark.parametrize("first", ["finished", "suspend"])
def test_suspend_and_natural_end_in_both_orders(first: str) -> None:
    """Each task ends in the way that it came to; the job waits for nothing else."""
    job = JobShell()
    job.run()
    job.say("s", TaskPhase.FINISHED)
    if first == "finished":
        for task in ("a", "b"):
            job.say(task, TaskPhase.PREPARING, TaskPhase.PREPARED, TaskPhase.COMMITTING)
        job.stop(StopMode.SUSPEND)
        for task in ("a", "b"):
            job.say(task, TaskPhase.FINISHED)
        assert job.result == (JobPhase.FINISHED, "")
    else:
        assert job.stop(StopMode.SUSPEND) == [StopTasks(("a", "b"), 1, StopMode.SUSPEND)]
        job.say(
            "a", TaskPhase.PREPARING, TaskPhase.PREPARED, TaskPhase.COMMITTING, TaskPhase.FINISHED
        )
        job.say("b", TaskPhase.SUSPENDING, TaskPhase.SUSPENDED)
        assert job.result == (JobPhase.SUSPENDED, "")


def test_a_hook_that_hangs_is_bounded_and_named() -> None:
    """Each step of an end has its own time; then the task is killed and counts as failed."""
    job = JobShell(max_restarts=0)
    job.run()
    job.say("a", TaskPhase.PREPARING)
    job.pass_time(STOP_SECONDS - 1)
    job.say("a", TaskPhase.PREPARED, commit=1)
    assert job.pass_time(2) == []
    job.say("a", TaskPhase.COMMITTING)
    assert Kill("a", 1) in job.pass_time(STOP_SECONDS)
    for _ in range(5):
        drive(job)
    assert job.result == (
        JobPhase.EFFECTS_PENDING,
        "a did not get on with its end in time: it is committing",
    )
