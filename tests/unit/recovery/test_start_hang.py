"""The start-up hang of Arroyo, and that each of the three protections alone prevents it.

Three tasks exchange rows through queues in memory; one fails while it opens. The job hangs only if
(A) tasks say that they have started before that is true, (B) those that wait at the barrier are
never told, so that they never touch the queue that would have shown them the dead neighbour,
and (C) a failure that arrives while the job is being scheduled is dropped.
"""

import itertools
from dataclasses import dataclass

import pytest

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
from durable_shuffle.recovery.job.restarts import Edge, RestartBudget, RestartGraph, RestartSettings
from durable_shuffle.recovery.job.starts import JobTimeouts

TASKS = ("one", "two", "three")
FAILS = "one"


@dataclass(frozen=True)
class Defects:
    announces_early: bool
    barrier_cannot_be_called_off: bool
    drops_failures_while_scheduling: bool


class Simulation:
    """Messages arrive one by one, in order; time moves only when nothing else can happen."""

    def __init__(self, defects: Defects) -> None:
        self.defects = defects
        edges = [Edge("one", "two", "volatile"), Edge("two", "three", "volatile")]
        settings = RestartSettings(max_restarts=2, first_delay_seconds=1, jitter=0)
        budget = RestartBudget(settings, lambda: 0.0)
        self.machine = Job(RestartGraph(TASKS, edges), (), budget, JobTimeouts(60, 3, 60))
        self.now = 0.0
        self.generation = 0
        self.inbox: list[TaskReport] = []
        self.waiting: dict[str, int] = {}
        """Tasks at the barrier, with their epoch."""
        self.called_off: set[int] = set()

    def run(self) -> bool:
        """Return whether the job noticed: it tried again and came to an end, or ran for real."""
        self.do(self.machine.start())
        for _ in range(1000):
            if self.machine.phase in ENDS:
                return True
            if self.inbox:
                self.receive(self.inbox.pop(0))
                continue
            when = self.machine.next_when()
            if when is None:
                return False  # nothing will ever happen again
            self.now = max(self.now, when)
            self.do(self.machine.tick(self.now))
        raise AssertionError("neither an end nor a standstill")

    def receive(self, report: TaskReport) -> None:
        scheduling = self.machine.phase is JobPhase.SCHEDULING
        failed = report.phase is TaskPhase.FAILED
        if failed and scheduling and self.defects.drops_failures_while_scheduling:
            return
        self.do(self.machine.said(report, self.now))

    def do(self, commands: list[JobAction]) -> None:
        for command in commands:
            if isinstance(command, WinGeneration):
                self.generation += 1
                self.do(self.machine.generation_won(self.generation, self.now))
            elif isinstance(command, Launch):
                self.launch(command.task, command.epoch)
            elif isinstance(command, CallOff) and not self.defects.barrier_cannot_be_called_off:
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
        early = self.defects.announces_early
        if early:  # true for nobody yet: open has not been called
            self.say(task, epoch, TaskPhase.AT_BARRIER, TaskPhase.STARTED)
        if task == FAILS:
            broken = Failure("ValueError", "open failed")
            self.inbox.append(TaskReport(task, epoch, TaskPhase.FAILED, broken))
            if not self.defects.barrier_cannot_be_called_off:
                self.called_off.add(epoch)  # by the failing process itself, for all
                for other in list(self.waiting):
                    self.leave(other, "start aborted")
            return
        if not early:
            self.say(task, epoch, TaskPhase.AT_BARRIER)
        self.waiting[task] = epoch
        if epoch in self.called_off:
            self.leave(task, "start aborted")

    def leave(self, task: str, why: str) -> None:
        epoch = self.waiting.pop(task, None)
        if epoch is not None:
            secondary = Failure("aborted", why, secondary=True)
            # it comes after everything that is on its way
            self.inbox.append(TaskReport(task, epoch, TaskPhase.FAILED, secondary))


@pytest.mark.requirement("R-ARR-7")
@pytest.mark.requirement("R-ARR-17")
@pytest.mark.parametrize("switches", list(itertools.product([False, True], repeat=3)))
def test_only_all_three_defects_together_hang(switches: tuple[bool, bool, bool]) -> None:
    """Eight combinations; in seven the job comes to an end with the failure as its cause."""
    simulation = Simulation(Defects(*switches))
    assert simulation.run() == (switches != (True, True, True))
    if all(switches):
        assert simulation.machine.phase is JobPhase.RUNNING, "and it even says that it runs"
