"""The start-up hang of Arroyo, and that each of the three protections alone prevents it.

Three tasks start together; one fails while it opens. The job hangs only if
(A) tasks say that they have started before that is true, (B) those that wait at the barrier are
never told, and (C) a failure that arrives while the job is being scheduled is dropped.
"""

import itertools

import pytest
from start_defects import cannot_be_called_off, drops_failures

from durable_shuffle.recovery.job.machine import Job
from durable_shuffle.recovery.job.phases import (
    ENDS,
    CallOff,
    Failure,
    JobAction,
    JobPhase,
    Kill,
    Launch,
    PassBarrier,
    StopTasks,
    TaskPhase,
    TaskReport,
    WinGeneration,
)
from durable_shuffle.recovery.job.restarts import RestartBudget, RestartSettings
from durable_shuffle.recovery.job.starts import JobTimeouts
from durable_shuffle.recovery.job.waves import TaskGraph

TASKS = ("one", "two", "three")
FAILS = "one"


class Simulation:
    """Messages arrive one by one, in order; time moves only when nothing else can happen."""

    def __init__(self, announces_early: bool) -> None:
        self.announces_early = announces_early
        edges = [("one", "two"), ("two", "three")]
        settings = RestartSettings(max_restarts=2, first_delay_seconds=1, jitter=0)
        budget = RestartBudget(settings, lambda: 0.0)
        self.machine = Job(TaskGraph(TASKS, edges), (), budget, JobTimeouts(60, 3, 60))
        self.now = 0.0
        self.generation = 0
        self.inbox: list[TaskReport] = []
        self.waiting: dict[str, int] = {}
        """Tasks at the barrier, with their epoch."""

    def run(self) -> bool:
        """Return whether the job noticed: it tried again and came to an end, or ran for real."""
        self.do(self.machine.start())
        for _ in range(1000):
            if self.machine.phase in ENDS:
                return True
            if self.inbox:
                self.do(self.machine.said(self.inbox.pop(0), self.now))
                continue
            when = self.machine.next_when()
            if when is None:
                return False  # nothing will ever happen again
            self.now = max(self.now, when)
            self.do(self.machine.tick(self.now))
        raise AssertionError("neither an end nor a standstill")

    def do(self, commands: list[JobAction]) -> None:
        for command in commands:
            if isinstance(command, WinGeneration):
                self.generation += 1
                self.do(self.machine.generation_won(self.generation, self.now))
            elif isinstance(command, Launch):
                self.launch(command.task, command.epoch)
            elif isinstance(command, CallOff):
                for task in command.tasks:
                    self.leave(task, "start aborted")
            elif isinstance(command, StopTasks):
                for task in command.tasks:
                    self.leave(task, "cancelled")
            elif isinstance(command, PassBarrier):
                for task in command.tasks:
                    self.waiting.pop(task, None)
            elif isinstance(command, Kill):
                self.waiting.pop(command.task, None)

    def say(self, task: str, epoch: int, *reports: TaskPhase) -> None:
        self.inbox += [TaskReport(task, epoch, report) for report in reports]

    def launch(self, task: str, epoch: int) -> None:
        self.say(task, epoch, TaskPhase.STARTING)
        if self.announces_early:  # true for nobody yet: open has not been called
            self.say(task, epoch, TaskPhase.AT_BARRIER, TaskPhase.STARTED)
        if task == FAILS:
            broken = Failure("ValueError", "open failed")
            self.inbox.append(TaskReport(task, epoch, TaskPhase.FAILED, broken))
            return
        if not self.announces_early:
            self.say(task, epoch, TaskPhase.AT_BARRIER)
        self.waiting[task] = epoch

    def leave(self, task: str, why: str) -> None:
        epoch = self.waiting.pop(task, None)
        if epoch is not None:
            secondary = Failure("aborted", why, secondary=True)
            # it comes after everything that is on its way
            self.inbox.append(TaskReport(task, epoch, TaskPhase.FAILED, secondary))


@pytest.mark.requirement("R-ARR-7")
@pytest.mark.requirement("R-ARR-17")
@pytest.mark.parametrize("switches", list(itertools.product([False, True], repeat=3)))
def test_only_all_three_defects_together_hang(
    monkeypatch: pytest.MonkeyPatch, switches: tuple[bool, bool, bool]
) -> None:
    """Eight combinations; in seven the job comes to an end with the failure as its cause."""
    early, deaf, drops = switches
    if deaf:
        cannot_be_called_off(monkeypatch)
    dropped = drops_failures(monkeypatch) if drops else []
    simulation = Simulation(early)
    assert simulation.run() == (switches != (True, True, True))
    assert bool(dropped) is drops
    if all(switches):
        assert simulation.machine.phase is JobPhase.RUNNING, "and it even says that it runs"
