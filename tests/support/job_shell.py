"""A job machine under a shell of the test: no process, no clock, no storage."""

from durable_shuffle.recovery.job_machine import JobMachine
from durable_shuffle.recovery.job_phase import (
    ENDS,
    Abort,
    Command,
    Failure,
    Go,
    JobPhase,
    TaskReport,
    WinGeneration,
)
from durable_shuffle.recovery.job_state import JobTimeouts
from durable_shuffle.recovery.restart_budget import RestartBudget, RestartSettings
from durable_shuffle.recovery.restart_set import Edge, RestartGraph
from durable_shuffle.recovery.stop_order import StopMode
from durable_shuffle.recovery.task_phase import TERMINAL, Report, TaskPhase

TASKS = ("s", "a", "b")
EDGES = [Edge("s", "a", "continued"), Edge("s", "b", "continued")]
BROKEN = Failure("ValueError", "broken")
START_SECONDS, STOP_SECONDS = 60.0, 50.0


class Job:
    """A machine with a shell that writes down what it is told, and a clock that it moves."""

    def __init__(self, max_restarts: int = 5) -> None:
        settings = RestartSettings(max_restarts, 1, 8, jitter=0, healthy_seconds=1000)
        self.machine = JobMachine(
            RestartGraph(TASKS, EDGES),
            ("s",),
            RestartBudget(settings, lambda: 0.0),
            JobTimeouts(START_SECONDS, 3, STOP_SECONDS),
        )
        self.now = 0.0
        self.generation = 0
        self.log: list[Command] = []

    def do(self, commands: list[Command]) -> list[Command]:
        """Carry out: a generation is won at once."""
        self.log += commands
        for command in commands:
            if isinstance(command, WinGeneration):
                self.generation += 1
                return commands + self.do(self.machine.generation_won(self.generation, self.now))
        return commands

    def start(self) -> list[Command]:
        return self.do(self.machine.start())

    def say(self, task: str, *reports: Report, epoch: int = 0, **more: object) -> list[Command]:
        found: list[Command] = []
        for report in reports:
            at = epoch or self.machine.tasks[task].epoch
            message = TaskReport(task, at, report, **more)  # type: ignore[arg-type]
            found += self.do(self.machine.said(message, self.now))
        return found

    def fail(self, task: str, failure: Failure = BROKEN, **more: object) -> list[Command]:
        return self.say(task, Report.FAILED, failure=failure, **more)

    def stop(self, mode: StopMode) -> list[Command]:
        return self.do(self.machine.stop(mode, self.now))

    def pass_time(self, seconds: float) -> list[Command]:
        self.now += seconds
        return self.do(self.machine.tick(self.now))

    def to_barrier(self, *tasks: str) -> list[Command]:
        found: list[Command] = []
        for task in tasks or TASKS:
            found += self.say(task, Report.STARTING, Report.AT_BARRIER)
        return found

    def run(self) -> None:
        """Bring all tasks up."""
        self.start()
        self.to_barrier()
        for task in TASKS:
            self.say(task, Report.STARTED)
        assert self.machine.phase is JobPhase.RUNNING

    def phases(self) -> dict[str, TaskPhase]:
        return {task: state.phase for task, state in self.machine.tasks.items()}

    @property
    def result(self) -> tuple[JobPhase, str]:
        found = self.machine.result
        assert found is not None, (self.machine.phase, self.phases())
        return found.phase, found.cause.text if found.cause else ""


def drive(job: Job) -> None:
    """Have everybody do what is expected of him, once; then let time pass."""
    for task, state in list(job.machine.tasks.items()):
        if state.phase in TERMINAL or job.machine.phase in ENDS:
            continue
        told = state.told
        if state.phase is TaskPhase.CREATED:
            job.say(task, Report.STARTING)
        elif told is StopMode.CANCEL:
            job.say(task, Report.CANCELED)
        elif state.phase is TaskPhase.STARTING:
            job.say(task, Report.AT_BARRIER)
        elif state.phase is TaskPhase.AT_BARRIER and Go(task, state.epoch) in job.log:
            job.say(task, Report.STARTED)
        elif state.phase is TaskPhase.AT_BARRIER and any(
            isinstance(c, Abort) and (c.task, c.epoch) == (task, state.epoch) for c in job.log
        ):
            job.say(task, Report.CANCELED)
        elif state.phase is TaskPhase.AT_BARRIER:
            continue  # it waits
        elif state.phase is TaskPhase.PREPARING:
            job.say(task, Report.PREPARED)
        elif state.phase is TaskPhase.PREPARED:
            job.say(task, Report.COMMITTING)
        elif state.phase is TaskPhase.COMMITTING:
            job.say(task, Report.FINISHED)
        elif state.phase is TaskPhase.SUSPENDING or told is StopMode.SUSPEND:
            job.say(task, Report.SUSPENDED)
        elif told is StopMode.DRAIN or (
            job.machine.mode is StopMode.DRAIN and job.phases()["s"] is TaskPhase.FINISHED
        ):
            job.say(task, Report.FINISHED)
    job.pass_time(1)
