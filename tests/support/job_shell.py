"""A job machine under a shell of the test: no process, no clock, no storage."""

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.job.machine import Job
from durable_shuffle.recovery.job.phases import (
    ENDS,
    TERMINAL,
    CallOff,
    Failure,
    JobAction,
    JobPhase,
    PassBarrier,
    TaskPhase,
    TaskReport,
    WinGeneration,
)
from durable_shuffle.recovery.job.restarts import RestartBudget, RestartSettings
from durable_shuffle.recovery.job.starts import JobTimeouts
from durable_shuffle.recovery.job.waves import TaskGraph

TASKS = ("s", "a", "b")
EDGES = [("s", "a"), ("s", "b")]
BROKEN = Failure("ValueError", "broken")
START_SECONDS, STOP_SECONDS = 60.0, 50.0


class JobShell:
    """A machine with a shell that writes down what it is told, and a clock that it moves."""

    def __init__(self, max_restarts: int = 5, outage_seconds: float = 3600.0) -> None:
        settings = RestartSettings(
            max_restarts, 1, 8, jitter=0, healthy_seconds=1000, outage_seconds=outage_seconds
        )
        self.machine = Job(
            TaskGraph(TASKS, EDGES),
            ("s",),
            RestartBudget(settings, lambda: 0.0),
            JobTimeouts(START_SECONDS, 3, STOP_SECONDS),
        )
        self.now = 0.0
        self.generation = 0
        self.log: list[JobAction] = []

    def do(self, commands: list[JobAction]) -> list[JobAction]:
        """Carry out: a generation is won at once."""
        self.log += commands
        for command in commands:
            if isinstance(command, WinGeneration):
                self.generation += 1
                return commands + self.do(self.machine.generation_won(self.generation, self.now))
        return commands

    def start(self) -> list[JobAction]:
        return self.do(self.machine.start())

    def say(
        self, task: str, *reports: TaskPhase | None, epoch: int = 0, **more: object
    ) -> list[JobAction]:
        found: list[JobAction] = []
        for report in reports:
            at = epoch or self.machine.tasks[task].epoch
            message = TaskReport(task, at, report, **more)  # type: ignore[arg-type]
            found += self.do(self.machine.said(message, self.now))
        return found

    def fail(self, task: str, failure: Failure = BROKEN, **more: object) -> list[JobAction]:
        return self.say(task, TaskPhase.FAILED, failure=failure, **more)

    def stop(self, mode: StopMode) -> list[JobAction]:
        return self.do(self.machine.stop(mode, self.now))

    def pass_time(self, seconds: float) -> list[JobAction]:
        self.now += seconds
        return self.do(self.machine.tick(self.now))

    def to_barrier(self, *tasks: str) -> list[JobAction]:
        found: list[JobAction] = []
        for task in tasks or TASKS:
            found += self.say(task, TaskPhase.STARTING, TaskPhase.AT_BARRIER)
        return found

    def run(self) -> None:
        """Bring all tasks up."""
        self.start()
        self.to_barrier()
        for task in TASKS:
            self.say(task, TaskPhase.STARTED)
        assert self.machine.phase is JobPhase.RUNNING

    def was_told(self, what: type[CallOff | PassBarrier], task: str, epoch: int) -> bool:
        told = (c for c in self.log if isinstance(c, what) and c.epoch == epoch)
        return any(task in one.tasks for one in told)

    def phases(self) -> dict[str, TaskPhase]:
        return {task: state.phase for task, state in self.machine.tasks.items()}

    @property
    def result(self) -> tuple[JobPhase, str]:
        found = self.machine.result
        assert found is not None, (self.machine.phase, self.phases())
        return found.phase, found.cause.text if found.cause else ""


def drive(job: JobShell) -> None:
    """Have everybody do what is expected of him, once; then let time pass."""
    for task, state in list(job.machine.tasks.items()):
        if state.phase in TERMINAL or job.machine.phase in ENDS:
            continue
        told = state.told
        if state.phase is TaskPhase.CREATED:
            job.say(task, TaskPhase.STARTING)
        elif told is StopMode.CANCEL:
            job.say(task, TaskPhase.CANCELED)
        elif state.phase is TaskPhase.STARTING:
            job.say(task, TaskPhase.AT_BARRIER)
        elif state.phase is TaskPhase.AT_BARRIER and job.was_told(PassBarrier, task, state.epoch):
            job.say(task, TaskPhase.STARTED)
        elif state.phase is TaskPhase.AT_BARRIER and job.was_told(CallOff, task, state.epoch):
            job.say(task, TaskPhase.CANCELED)
        elif state.phase is TaskPhase.AT_BARRIER:
            continue  # it waits
        elif state.phase is TaskPhase.PREPARING:
            job.say(task, TaskPhase.PREPARED)
        elif state.phase is TaskPhase.PREPARED:
            job.say(task, TaskPhase.COMMITTING)
        elif state.phase is TaskPhase.COMMITTING:
            job.say(task, TaskPhase.FINISHED)
        elif state.phase is TaskPhase.SUSPENDING or told is StopMode.SUSPEND:
            job.say(task, TaskPhase.SUSPENDED)
        elif told is StopMode.DRAIN or (
            job.machine.mode is StopMode.DRAIN and job.phases()["s"] is TaskPhase.FINISHED
        ):
            job.say(task, TaskPhase.FINISHED)
    job.pass_time(1)
