"""Updates of a job that runs: who is told to end, who starts when, who notices nothing."""

import pytest

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.job.machine import Job
from durable_shuffle.recovery.job.phases import (
    Failure,
    JobAction,
    JobPhase,
    Kill,
    Launch,
    StopTasks,
    TaskPhase,
    TaskReport,
    WinGeneration,
)
from durable_shuffle.recovery.job.restarts import RestartBudget, RestartSettings
from durable_shuffle.recovery.job.starts import JobTimeouts
from durable_shuffle.recovery.job.waves import TaskGraph
from durable_shuffle.serialization.errors import InvalidInputError

BROKEN = Failure("ValueError", "broken")
STOP_SECONDS = 50.0
SUSPENDED = (TaskPhase.SUSPENDING, TaskPhase.SUSPENDED)


class Updated:
    """A machine whose generations are won at once."""

    def __init__(self, *tasks: str) -> None:
        self.machine = Job(
            TaskGraph(tasks, []),
            ("s",),
            RestartBudget(RestartSettings(5, 1, 8, jitter=0), lambda: 0.0),
            JobTimeouts(60, 3, STOP_SECONDS),
        )
        self.now = 0.0
        self.generation = 0
        self.do(self.machine.start())
        self.come_up(*tasks)
        assert self.machine.phase is JobPhase.RUNNING

    def do(self, commands: list[JobAction]) -> list[JobAction]:
        for command in commands:
            if isinstance(command, WinGeneration):
                self.generation += 1
                return commands + self.do(self.machine.generation_won(self.generation, self.now))
        return commands

    def say(
        self, task: str, *reports: TaskPhase, failure: Failure | None = None
    ) -> list[JobAction]:
        found: list[JobAction] = []
        for report in reports:
            message = TaskReport(task, self.machine.tasks[task].epoch, report, failure)
            found += self.do(self.machine.said(message, self.now))
        return found

    def come_up(self, *tasks: str) -> None:
        for task in tasks:
            self.say(task, TaskPhase.STARTING, TaskPhase.AT_BARRIER)
        for task in tasks:
            self.say(task, TaskPhase.STARTED)

    def update(self, *tasks: str, replace: str = "", drop: str = "") -> list[JobAction]:
        graph = TaskGraph(tasks, [])
        return self.do(
            self.machine.update(graph, ("s",), self.now, replace=replace.split(), drop=drop.split())
        )

    def tick(self, seconds: float = 0.0) -> list[JobAction]:
        self.now += seconds
        return self.do(self.machine.tick(self.now))

    def stop(self, mode: StopMode) -> list[JobAction]:
        return self.do(self.machine.stop(mode, self.now))

    @property
    def epochs(self) -> dict[str, int]:
        return {name: state.epoch for name, state in self.machine.tasks.items()}


@pytest.mark.requirement("R-MZ-11")
def test_the_old_attempt_ends_before_the_new_one_starts() -> None:
    """Told to end where it is; nothing is started until it has said that it did."""
    job = Updated("s", "a", "b")
    assert job.update("s", "a", "b", replace="a") == [StopTasks(("a",), 1, StopMode.SUSPEND)]
    assert job.machine.phase is JobPhase.RECOVERING
    assert job.tick(1.0) == []
    assert job.say("a", *SUSPENDED) == []
    assert job.tick() == [WinGeneration(), Kill("a", 1), Launch("a", 2)]
    job.come_up("a")
    assert job.machine.phase is JobPhase.RUNNING
    assert job.epochs == {"s": 1, "a": 2, "b": 1}
    assert job.machine.budget.total == 0, "no failure"


@pytest.mark.requirement("R-MZ-11")
def test_several_are_replaced_in_one_start() -> None:
    """With what is new; the last to end lets all of them start."""
    job = Updated("s", "a", "b")
    job.update("s", "a", "b", "c", replace="a b")
    job.say("a", *SUSPENDED)
    assert job.tick() == []
    job.say("b", *SUSPENDED)
    assert [c for c in job.tick() if isinstance(c, Launch)] == [
        Launch("a", 2),
        Launch("b", 2),
        Launch("c", 2),
    ]


def test_what_is_new_starts_at_once() -> None:
    job = Updated("s")
    job.update("s", "c")
    assert job.tick() == [WinGeneration(), Launch("c", 2)]
    job.come_up("c")
    assert job.machine.phase is JobPhase.RUNNING


@pytest.mark.parametrize("way", ["suspended", "failed", "hangs"])
def test_what_is_dropped_starts_no_more(way: str) -> None:
    """However its attempt ends; the job goes on, and ends without it."""
    job = Updated("s", "a")
    job.update("s", drop="a")
    if way == "suspended":
        job.say("a", *SUSPENDED)
    elif way == "failed":
        job.say("a", TaskPhase.FAILED, failure=BROKEN)
    else:
        assert Kill("a", 1) in job.tick(STOP_SECONDS)
    commands = job.tick(1000.0)
    assert not [c for c in commands if isinstance(c, Launch)]
    assert job.machine.phase is JobPhase.RUNNING
    assert job.machine.tasks["a"].phase is TaskPhase.FINISHED
    job.say("s", TaskPhase.PREPARING, TaskPhase.PREPARED, TaskPhase.COMMITTING, TaskPhase.FINISHED)
    assert job.machine.phase is JobPhase.FINISHED


@pytest.mark.requirement("R-MZ-10")
@pytest.mark.parametrize("way", ["suspended", "failed", "hangs"])
def test_what_was_dropped_and_is_named_again_goes_on(way: str) -> None:
    """As often as it is left out and brought back, whatever became of its attempt."""
    job = Updated("s", "a")
    for epoch in (2, 3, 4):
        job.update("s", drop="a")
        if way == "suspended":
            job.say("a", *SUSPENDED)
        elif way == "failed":
            job.say("a", TaskPhase.FAILED, failure=BROKEN)
        else:
            job.tick(STOP_SECONDS)
        job.tick()
        assert job.machine.phase is JobPhase.RUNNING
        job.update("s", "a")
        assert Launch("a", epoch) in job.tick()
        job.come_up("a")
        assert job.machine.phase is JobPhase.RUNNING
        assert job.machine.tasks["a"].phase is TaskPhase.RUNNING
    job.stop(StopMode.SUSPEND)
    job.say("s", *SUSPENDED)
    assert job.machine.phase is JobPhase.STOPPING, "a is waited for"


def test_one_generation_at_a_time() -> None:
    """A neighbour's restart is being won when what is replaced ends: it goes with that start."""
    job = Updated("s", "a", "b")
    job.update("s", "a", "b", replace="a")
    job.say("b", TaskPhase.FAILED, failure=BROKEN)
    assert job.machine.tick(1.0) == [WinGeneration()], "the answer is on its way"
    job.now = 1.0
    job.say("a", *SUSPENDED)
    for _ in range(3):
        assert job.machine.tick(1.5) == []
        assert job.machine.next_when() is None, "the loop does not spin"
    launched = [c for c in job.machine.generation_won(2, 2.0) if isinstance(c, Launch)]
    assert launched == [Launch("a", 2), Launch("b", 2)]
    job.generation, job.now = 2, 2.0
    assert job.tick() == []
    job.come_up("a", "b")
    assert job.machine.phase is JobPhase.RUNNING


@pytest.mark.parametrize("way", ["failed", "hangs"])
def test_a_replaced_attempt_may_end_badly(way: str) -> None:
    """Killed or fallen, it is replaced all the same."""
    job = Updated("s", "a")
    job.update("s", "a", replace="a")
    if way == "failed":
        job.say("a", TaskPhase.FAILED, failure=BROKEN)
        commands = job.tick()
    else:
        commands = job.tick(STOP_SECONDS) + job.tick()
    assert Launch("a", 2) in commands


@pytest.mark.requirement("R-MZ-14")
def test_a_drop_and_a_restart_in_both_orders() -> None:
    """What fell and waits for its restart is dropped; what was dropped and falls stays so."""
    job = Updated("s", "a")
    job.say("a", TaskPhase.FAILED, failure=BROKEN)
    with pytest.raises(InvalidInputError, match="while it runs"):
        job.update("s", drop="a")  # it is kept until all run again
    job.tick(1.0)
    job.come_up("a")
    job.update("s", drop="a")
    job.say("a", TaskPhase.FAILED, failure=BROKEN)
    assert not [c for c in job.tick(1000.0) if isinstance(c, Launch)]
    assert job.machine.phase is JobPhase.RUNNING


def test_a_neighbour_that_falls_meanwhile() -> None:
    """It restarts after its delay, together with what was replaced by then."""
    job = Updated("s", "a", "b")
    job.update("s", "a", "b", replace="a")
    job.say("b", TaskPhase.FAILED, failure=BROKEN)
    assert [c for c in job.tick(1.0) if isinstance(c, Launch)] == [Launch("b", 2)]
    job.say("a", *SUSPENDED)
    assert [c for c in job.tick() if isinstance(c, Launch)] == [Launch("a", 3)]
    job.come_up("b", "a")
    assert job.machine.phase is JobPhase.RUNNING


@pytest.mark.parametrize(
    ("mode", "end"),
    [(StopMode.SUSPEND, JobPhase.SUSPENDED), (StopMode.CANCEL, JobPhase.CANCELED)],
)
def test_a_stop_in_the_middle_of_an_update(mode: StopMode, end: JobPhase) -> None:
    """Nobody is started any more."""
    job = Updated("s", "a", "b")
    job.update("s", "a", "c", replace="a", drop="b")
    job.stop(mode)
    for task in ("s", "a", "b"):
        if mode is StopMode.CANCEL:
            job.say(task, TaskPhase.CANCELED)
        else:
            job.say(task, *SUSPENDED)
    assert not [c for c in job.tick(1000.0) if isinstance(c, Launch)]
    assert job.machine.phase is end


def test_a_drain_in_the_middle_of_an_update() -> None:
    """What was replaced starts, and drains with the others."""
    job = Updated("s", "a")
    job.update("s", "a", replace="a")
    job.stop(StopMode.DRAIN)
    job.say("a", *SUSPENDED)
    assert Launch("a", 2) in job.tick()
    job.come_up("a")
    for task in ("s", "a"):
        job.say(
            task, TaskPhase.PREPARING, TaskPhase.PREPARED, TaskPhase.COMMITTING, TaskPhase.FINISHED
        )
    assert job.machine.phase is JobPhase.FINISHED


def test_nothing_is_updated_while_it_does_not_run() -> None:
    job = Updated("s")
    job.stop(StopMode.SUSPEND)
    with pytest.raises(InvalidInputError, match="it is stopping"):
        job.update("s", "c")
    assert set(job.machine.tasks) == {"s"}
    with pytest.raises(InvalidInputError, match="were launched"):
        job.machine.described(TaskGraph(["c"], []), ())
