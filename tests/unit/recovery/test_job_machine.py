"""One job's decisions, event by event: no process, no clock, no storage."""

import itertools
import random

import pytest
from job_shell import BROKEN, START_SECONDS, TASKS, JobShell, drive

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.job.phases import (
    ENDS,
    JOB_TRANSITIONS,
    TERMINAL,
    CallOff,
    Failure,
    JobPhase,
    Kill,
    Launch,
    PassBarrier,
    StopTasks,
    TaskPhase,
    WinGeneration,
    check_transition,
)
from durable_shuffle.serialization.errors import InvalidInputError


@pytest.mark.requirement("R-ARR-9")
def test_a_generation_is_durable_before_old_tasks_are_stopped_and_new_ones_started() -> None:
    """At the start and at every restart, also at two in a row; numbers rise."""
    job = JobShell()
    assert job.start() == [WinGeneration(), *(Launch(task, 1) for task in sorted(TASKS))]
    for epoch in (2, 3):
        job.fail("a")
        before = len(job.log)
        job.pass_time(10)
        commands = job.log[before:]
        assert commands[0] == WinGeneration()
        assert commands[1:4] == [Kill(task, epoch - 1) for task in sorted(TASKS)]
        assert commands[4:] == [Launch(task, epoch) for task in sorted(TASKS)]


@pytest.mark.requirement("R-ARR-1")
def test_nobody_goes_before_all_are_ready() -> None:
    """GO comes with the last arrival, to all; a task still in open holds up all."""
    job = JobShell()
    job.start()
    assert job.to_barrier("s", "b") == []
    job.say("a", TaskPhase.STARTING)
    assert job.machine.phase is JobPhase.SCHEDULING
    assert job.say("a", TaskPhase.AT_BARRIER) == [PassBarrier(("a", "b", "s"), 1)]


@pytest.mark.requirement("R-ARR-2")
def test_running_needs_the_planned_set() -> None:
    """Duplicates and other epochs do not count."""
    job = JobShell()
    job.start()
    job.fail("a")
    job.pass_time(10)
    job.to_barrier()
    job.say("s", TaskPhase.STARTED)
    job.say("a", TaskPhase.STARTED)
    with pytest.raises(InvalidInputError, match="'a' cannot say started"):
        job.say("a", TaskPhase.STARTED)
    job.say("b", TaskPhase.STARTED, epoch=1)
    job.say("b", TaskPhase.STARTED, epoch=7)
    assert job.machine.phase is JobPhase.SCHEDULING
    assert job.machine.ignored == 2
    job.say("b", TaskPhase.STARTED)
    assert job.machine.phase is JobPhase.RUNNING


@pytest.mark.requirement("R-ARR-10")
def test_messages_of_another_epoch_change_nothing() -> None:
    """A late failure of epoch 1 does not fail epoch 2, a late start does not start it."""
    job = JobShell()
    job.run()
    job.fail("a")
    job.pass_time(10)
    before = job.phases()
    assert job.fail("a", epoch=1) == []
    assert job.say("a", TaskPhase.STARTED, epoch=1) == []
    assert job.say("stranger", TaskPhase.STARTED, epoch=2) == []
    assert job.phases() == before
    assert job.machine.ignored == 3


@pytest.mark.requirement("R-ARR-8")
def test_a_task_that_finishes_before_the_others_start_is_not_forgotten() -> None:
    """FINISHED in SCHEDULING counts as started, and at the end as finished."""
    job = JobShell()
    job.start()
    job.say("a", TaskPhase.STARTING, TaskPhase.FINISHED)
    assert job.to_barrier("s", "b") == [PassBarrier(("b", "s"), 1)]
    job.say("s", TaskPhase.STARTED, TaskPhase.FINISHED)
    assert job.machine.phase is JobPhase.SCHEDULING
    job.say("b", TaskPhase.STARTED)
    assert job.machine.phase is JobPhase.RUNNING
    job.say("b", TaskPhase.FINISHED)
    assert job.result == (JobPhase.FINISHED, "")


@pytest.mark.requirement("R-ARR-4")
@pytest.mark.requirement("R-ARR-6")
def test_a_failure_at_the_start_calls_it_off_for_everybody() -> None:
    """Who waits is told at once; what they then say is secondary, whichever way they say it."""
    job = JobShell(max_restarts=0)
    job.start()
    job.to_barrier("s")
    job.say("b", TaskPhase.STARTING)
    commands = job.fail("a", Failure("ValueError", "no such table", retry=False))
    job2 = JobShell()
    job2.start()
    job2.to_barrier("s")
    job2.say("b", TaskPhase.STARTING)
    aborts = [c for c in job2.fail("a") if isinstance(c, CallOff)]
    assert [(c.tasks, c.epoch) for c in aborts] == [(("b", "s"), 1)]
    assert all("broken" in c.cause for c in aborts)
    job2.fail("s", Failure("aborted", "called off", secondary=True))
    assert job2.machine.cause == BROKEN
    assert job2.machine.phase is JobPhase.RECOVERING
    assert StopTasks(("s", "b"), 1, StopMode.CANCEL) in commands
    job.say("s", TaskPhase.CANCELED)
    job.fail("b", Failure("aborted", "called off", secondary=True))
    assert job.result == (JobPhase.FAILED, "no such table")


@pytest.mark.requirement("R-ARR-6")
def test_a_first_cause_that_comes_second_is_still_the_one_reported() -> None:
    """A secondary failure that arrives first gives way to what caused it."""
    job = JobShell(max_restarts=0)
    job.run()
    job.fail("b", Failure("fenced", "somebody else", secondary=True))
    job.fail("a")
    job.fail("s", Failure("aborted", "later", secondary=True))
    assert job.result == (JobPhase.FAILED, "broken")


@pytest.mark.requirement("R-ARR-6")
def test_a_failure_that_ends_the_job_is_its_cause() -> None:
    """Not the harmless one before it, after which it would have gone on."""
    job = JobShell()
    job.run()
    job.fail("a")
    job.pass_time(1)
    job.fail("b", Failure("invalid_input", "no column k", retry=False))
    job.fail("s", Failure("corrupt_data", "a consequence, or not", retry=False))
    job.say("a", TaskPhase.CANCELED)
    assert job.result == (JobPhase.FAILED, "no column k")


UNFAILED = [None, *(phase for phase in TaskPhase if phase is not TaskPhase.FAILED)]
PHASE_REPORTS: dict[TaskPhase, list[TaskPhase]] = {
    TaskPhase.CREATED: [],
    TaskPhase.STARTING: [TaskPhase.STARTING],
    TaskPhase.AT_BARRIER: [TaskPhase.STARTING, TaskPhase.AT_BARRIER],
    TaskPhase.STARTED: [TaskPhase.STARTING, TaskPhase.AT_BARRIER, TaskPhase.STARTED],
    TaskPhase.PREPARING: [TaskPhase.PREPARING],
    TaskPhase.PREPARED: [TaskPhase.PREPARING, TaskPhase.PREPARED],
    TaskPhase.COMMITTING: [TaskPhase.PREPARING, TaskPhase.PREPARED, TaskPhase.COMMITTING],
    TaskPhase.SUSPENDING: [TaskPhase.SUSPENDING],
}


@pytest.mark.requirement("R-ARR-3")
@pytest.mark.parametrize("phase", [p for p in TaskPhase if p not in {*TERMINAL, "waiting"}])
@pytest.mark.parametrize("mode", [None, *list(StopMode)[1:]])
@pytest.mark.parametrize("retry", [True, False])
def test_a_failure_in_every_phase_restarts_or_ends_the_job(
    phase: TaskPhase, mode: StopMode | None, retry: bool
) -> None:
    """Whatever phase the task and the job are in: within a bound it runs again or has ended."""
    job = JobShell()
    early = phase in (
        TaskPhase.CREATED,
        TaskPhase.STARTING,
        TaskPhase.AT_BARRIER,
        TaskPhase.STARTED,
    )
    if early:
        job.start()
        job.say("a", *PHASE_REPORTS[phase]) if phase is not TaskPhase.STARTED else None
        if phase is TaskPhase.STARTED:
            job.to_barrier()
            job.say("a", TaskPhase.STARTED)
    else:
        job.run()
        job.say("a", *PHASE_REPORTS.get(phase, []))
    if mode is not None:
        job.stop(mode)
    assert job.phases()["a"] is phase
    job.fail("a", Failure("ValueError", "broken", retry=retry))
    for _ in range(40):
        if job.machine.phase in ENDS or job.machine.phase is JobPhase.RUNNING:
            break
        drive(job)
    ended = job.machine.phase
    if mode is StopMode.CANCEL:
        assert ended is JobPhase.CANCELED
    elif mode is StopMode.SUSPEND:
        assert ended is JobPhase.SUSPENDED
    elif not retry:
        assert job.result == (JobPhase.FAILED, "broken")
    else:
        assert ended is (JobPhase.RUNNING if mode is None else JobPhase.FINISHED)
        assert job.machine.tasks["a"].epoch == 2


@pytest.mark.requirement("R-ARR-12")
def test_an_error_that_cannot_go_away_ends_the_job_at_once() -> None:
    """No restart; what runs is closed; the cause is that error."""
    job = JobShell()
    job.run()
    commands = job.fail("a", Failure("invalid_input", "no column k", retry=False))
    assert commands == [StopTasks(("s", "b"), 1, StopMode.CANCEL)]
    job.say("s", TaskPhase.CANCELED)
    job.say("b", TaskPhase.CANCELED)
    assert job.result == (JobPhase.FAILED, "no column k")
    assert job.machine.budget.total == 0


@pytest.mark.requirement("R-ARR-13")
@pytest.mark.requirement("R-ARR-19")
def test_a_start_that_takes_too_long_names_who_is_missing_three_times() -> None:
    """Only those that have not arrived are named; after the third try the job has failed."""
    job = JobShell()
    job.start()
    for _ in range(3):
        job.to_barrier("s", "b")
        assert job.machine.next_when() == job.now + START_SECONDS
        job.pass_time(START_SECONDS)
        for task in ("s", "b"):
            job.say(task, TaskPhase.CANCELED)
        job.pass_time(10)
    phase, text = job.result
    assert phase is JobPhase.FAILED
    assert text.startswith("not started within 60 s, try 1 of 3: a")
    assert sum(isinstance(c, WinGeneration) for c in job.log) == 3


@pytest.mark.requirement("R-F46-14")
def test_a_pending_commit_is_remembered_until_it_is_published() -> None:
    """The next attempt dies before it opens its log; then one opens it, which publishes."""
    job = JobShell(max_restarts=1)
    job.run()
    job.fail("a", commit=4)
    job.pass_time(1)
    job.say("a", TaskPhase.STARTING)
    assert job.machine.tasks["a"].commit == 4
    job.fail("a")
    job.pass_time(2)
    job.fail("a", Failure("invalid_input", "gone", retry=False))
    for task in ("s", "b"):
        job.say(task, TaskPhase.CANCELED)
    assert job.machine.result is not None
    assert job.machine.result.phase is JobPhase.EFFECTS_PENDING
    assert job.machine.result.pending == (("a", 4),)
    other = JobShell()
    other.run()
    other.fail("a", commit=4)
    other.pass_time(1)
    other.to_barrier("a")
    other.say("a", TaskPhase.STARTED)
    other.fail("a", Failure("invalid_input", "gone", retry=False))
    for task in ("s", "b"):
        other.say(task, TaskPhase.CANCELED)
    assert other.result == (JobPhase.FAILED, "gone")


@pytest.mark.requirement("R-F135-20")
@pytest.mark.requirement("R-F135-26")
@pytest.mark.parametrize("failed", TASKS)
def test_the_restart_set_ends_at_durable_data(failed: str) -> None:
    """Neither who wrote what it reads nor who reads what it wrote restarts with a task."""
    job = JobShell()
    job.run()
    job.fail(failed)
    launched = [c for c in job.pass_time(1) if isinstance(c, Launch)]
    assert launched == [Launch(failed, 2)]


@pytest.mark.requirement("R-F135-26")
def test_a_consumer_restarts_alone_and_waits_for_nobody() -> None:
    """The others are not told anything; the barrier has one member."""
    job = JobShell()
    job.run()
    assert job.fail("a") == []
    commands = job.pass_time(1)
    assert commands == [WinGeneration(), Kill("a", 1), Launch("a", 2)]
    assert job.to_barrier("a") == [PassBarrier(("a",), 2)]
    job.say("a", TaskPhase.STARTED)
    assert job.machine.phase is JobPhase.RUNNING
    assert {task: state.epoch for task, state in job.machine.tasks.items()} == {
        "s": 1,
        "a": 2,
        "b": 1,
    }


def test_failures_while_a_restart_waits_share_it() -> None:
    """One restart for all that fell; one that falls during a start gets a start of its own."""
    job = JobShell()
    job.run()
    job.fail("a")
    job.fail("b")
    assert job.machine.budget.total == 1
    commands = job.pass_time(1)
    assert [c for c in commands if isinstance(c, Launch)] == [Launch("a", 2), Launch("b", 2)]
    job.to_barrier("a")
    job.fail("s")  # not of that start: a and b go on with it
    assert PassBarrier(("a", "b"), 2) in job.to_barrier("b")
    job.say("a", TaskPhase.STARTED)
    job.say("b", TaskPhase.STARTED)
    job.pass_time(10)
    job.to_barrier("s")
    job.say("s", TaskPhase.STARTED)
    assert job.machine.phase is JobPhase.RUNNING


@pytest.mark.requirement("R-ARR-19")
def test_an_endless_restart_ends() -> None:
    """So many restarts, then the job has failed with the cause."""
    job = JobShell(max_restarts=3)
    job.start()
    for _ in range(10):
        if job.machine.phase in ENDS:
            break
        job.fail("a")
        for task in ("s", "b"):
            job.say(task, TaskPhase.CANCELED)
        job.pass_time(10)
    assert job.result == (JobPhase.FAILED, "broken")
    assert sum(isinstance(c, WinGeneration) for c in job.log) == 4


def test_the_table_of_job_phases() -> None:
    """Ends are final; a transition that is not in the table raises."""
    for before, after in itertools.product(JobPhase, JobPhase):
        if before is after or after in JOB_TRANSITIONS[before]:
            check_transition(before, after)
        else:
            with pytest.raises(InvalidInputError, match="cannot go from"):
                check_transition(before, after)
    assert all(not JOB_TRANSITIONS[end] for end in ENDS)


@pytest.mark.requirement("R-ARR-20")
@pytest.mark.parametrize("part", range(20))
def test_any_order_of_events_ends_or_runs(seed: int, part: int) -> None:
    """Random failures, stops, silences and delays; illegal ones raise and change nothing."""
    source = random.Random(seed * 1000 + part)
    for _ in range(20):
        job = JobShell(max_restarts=source.choice([-1, 0, 2, 5]))
        job.start()
        for _ in range(source.randrange(60)):
            event = source.random()
            task = source.choice(TASKS)
            try:
                if event < 0.5:
                    drive(job)
                elif event < 0.7:
                    job.fail(task, Failure("E", "random", source.random() < 0.9))
                elif event < 0.9:
                    before = job.phases()
                    job.say(
                        task,
                        source.choice([None, *(p for p in TaskPhase if p is not TaskPhase.FAILED)]),
                    )
                elif event < 0.95:
                    job.pass_time(source.choice([1, 10, 100]))
                else:
                    job.stop(source.choice(list(StopMode)[1:]))
            except InvalidInputError:
                if 0.7 <= event < 0.9:
                    assert job.phases() == before
        if job.machine.phase not in ENDS and job.machine.mode is None:
            job.stop(source.choice([StopMode.SUSPEND, StopMode.CANCEL]))
        for _ in range(400):
            if job.machine.phase in ENDS:
                break
            drive(job)
        assert job.machine.phase in ENDS, (job.machine.phase, job.phases(), job.machine.mode)
