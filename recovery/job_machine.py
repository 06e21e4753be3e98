"""One job: which tasks to start, restart, stop, and what it all came to. Pure.

Strategy: reports, stops and the time come in; commands come out, in the order in which they are to
be carried out. Every attempt has an epoch, the generation of the scheduling attempt that started
it; reports of other epochs are counted and ignored. The tasks of one scheduling attempt share a
start barrier; tasks that go on running are not asked for anything. After Arroyo's controller.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from durable_shuffle.recovery.barrier import BarrierState, StartBarrier
from durable_shuffle.recovery.job_phase import (
    ENDS,
    Abort,
    Command,
    Failure,
    Go,
    JobPhase,
    JobResult,
    Kill,
    Launch,
    Stop,
    TaskReport,
    WinGeneration,
    check_transition,
)
from durable_shuffle.recovery.job_state import (
    ENDED_WELL,
    ENDING,
    JobTimeouts,
    Starting,
    TaskState,
    end_of,
    late_members,
)
from durable_shuffle.recovery.restart_budget import RestartBudget
from durable_shuffle.recovery.restart_set import RestartGraph
from durable_shuffle.recovery.stop_order import StopMode, combined
from durable_shuffle.recovery.task_phase import (
    STARTED_ONCE,
    TERMINAL,
    Report,
    TaskPhase,
    next_phase,
)
from durable_shuffle.serialization.errors import InvalidInputError


@dataclass(slots=True)
class JobMachine:
    """Decides for one job. Times are of one monotonic clock, in seconds.

    Args:
        graph: the tasks and who restarts with whom.
        drained: tasks that a DRAIN is sent to: those whose input is not of this job. The others end
            because their input does.
    """

    graph: RestartGraph
    drained: Collection[str]
    budget: RestartBudget
    timeouts: JobTimeouts = field(default_factory=JobTimeouts)
    phase: JobPhase = field(default=JobPhase.IDLE, init=False)
    mode: StopMode | None = field(default=None, init=False)
    """The stop that was asked for."""
    tasks: dict[str, TaskState] = field(default_factory=dict, init=False)
    cause: Failure | None = field(default=None, init=False)
    """The first failure since the last time that all ran."""
    cause_task: str = field(default="", init=False)
    generation: int = field(default=0, init=False)
    ignored: int = field(default=0, init=False)
    late_starts: int = field(default=0, init=False)
    _to_start: set[str] = field(default_factory=set, init=False)
    _asked_generation: bool = field(default=False, init=False)
    _starting: dict[int, Starting] = field(default_factory=dict, init=False)
    """By epoch."""
    _restart_at: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.tasks = {task: TaskState() for task in self.graph.tasks}

    # -- what can happen

    def start(self) -> list[Command]:
        """Begin.

        Raises:
            InvalidInputError: it began before.
        """
        if self.phase is not JobPhase.IDLE:
            raise InvalidInputError(f"a job starts once, it is {self.phase}")
        self._to_start = set(self.tasks)
        return self._schedule()

    def generation_won(self, generation: int, now: float) -> list[Command]:
        """A generation is durable: stop the old attempts of what starts, then start it.

        Raises:
            InvalidInputError: nobody asked, or it is not above the last one.
        """
        if not self._asked_generation or generation <= self.generation:
            raise InvalidInputError(f"not a generation for now: {generation} at {self.generation}")
        self._asked_generation, self.generation = False, generation
        if self.phase is not JobPhase.SCHEDULING:
            return self._settle(now)  # stopped meanwhile
        old = [Kill(t, self.tasks[t].epoch) for t in sorted(self._to_start) if self.tasks[t].epoch]
        return [*old, *self._launch(self._to_start, now)]

    def said(self, message: TaskReport, now: float) -> list[Command]:
        """Take in a report.

        Raises:
            InvalidInputError: the attempt cannot say that in its phase. Nothing changed.
        """
        state = self.tasks.get(message.task)
        if state is None or state.epoch != message.epoch or self.phase in ENDS:
            self.ignored += 1
            return []
        if message.task in self._to_start or state.phase in TERMINAL:
            self.ignored += 1  # it is over for us already
            return []
        phase = next_phase(state.phase, message.report, task=message.task)
        state.records = max(state.records, message.records)
        if message.report is Report.FAILED:
            failure = message.failure or Failure("unknown", "no reason was given")
            state.commit = message.commit or state.commit
            return self._failed(message.task, failure, now)
        leaves = self._leaves(message.task)
        if phase in ENDED_WELL and not (self._lets_go or leaves):
            unasked = Failure("unasked", f"{message.task} was {phase}, and nobody had asked")
            return self._failed(message.task, unasked, now)
        state.phase = phase
        if message.report is Report.PREPARED:
            state.commit = message.commit
        elif phase in (TaskPhase.FINISHED, TaskPhase.SUSPENDED):
            state.commit = 0
        if phase in ENDING and message.report is not Report.ALIVE:
            state.end_by = now + self.timeouts.stop_seconds
        commands: list[Command] = []
        barrier = self._starting[state.epoch].barrier if state.epoch in self._starting else None
        if message.report is Report.AT_BARRIER and barrier is not None:
            if barrier.state is BarrierState.ABORTED:
                commands.append(Abort(message.task, message.epoch, barrier.cause))
            else:
                commands += self._let_go(barrier.arrive(message.task))
        elif phase in TERMINAL and barrier is not None:
            commands += self._let_go(barrier.ended(message.task))
        if phase in TERMINAL and leaves:
            self._left(message.task, now)
        return commands + self._settle(now)

    def stop(self, mode: StopMode, now: float) -> list[Command]:
        """Ask for an end.

        Raises:
            InvalidInputError: see `stop_order.combined`; or the job has ended in another way.
        """
        if self.phase in ENDS:
            if mode is self.mode:
                return []
            raise InvalidInputError(f"the job has ended: {self.phase}")
        before, self.mode = self.mode, combined(self.mode, mode)
        if before is self.mode or self.phase is JobPhase.FAILING:
            return []
        commands: list[Command] = []
        if self.mode is not StopMode.DRAIN:  # what has not started need not start
            commands += self._kill_waiting()
            for start in self._starting.values():
                commands += self._call_off(start, f"stop: {self.mode}", now)
            if self.phase is not JobPhase.IDLE:
                self._to(JobPhase.STOPPING)
        elif self.phase is JobPhase.RUNNING:
            self._to(JobPhase.STOPPING)
        return commands + self._settle(now)

    def tick(self, now: float) -> list[Command]:
        """Do what is due."""
        if self.phase in ENDS:
            return []
        if self._restart_at is not None and now >= self._restart_at:
            self._restart_at = None
            if self._to_start:
                return self._schedule()
            if self.phase is JobPhase.RECOVERING:  # nobody came in the place of what was dropped
                self._to(JobPhase.SCHEDULING)
                return self._settle(now)
        commands: list[Command] = []
        for epoch, start in list(self._starting.items()):
            if now >= start.start_by:
                commands += self._start_is_late(epoch, start, now)
        for task in self._live():
            end_by = self.tasks[task].end_by
            if end_by is not None and now >= end_by:
                commands += self._end_is_late(task, now)
        return commands

    @property
    def restart_at(self) -> float | None:
        """When what fell is started again; None if nothing waits for that."""
        return self._restart_at

    def next_when(self) -> float | None:
        """Return when `tick` has something to do, None if that depends on what happens."""
        due = [start.start_by for start in self._starting.values()]
        due += [end for task in self._live() if (end := self.tasks[task].end_by) is not None]
        due += [] if self._restart_at is None else [self._restart_at]
        return min(due) if due and self.phase not in ENDS else None

    def generation_lost(self, failure: Failure, now: float) -> list[Command]:
        """No generation could be made durable."""
        self._asked_generation = False
        return self._give_up("", failure) + self._settle(now)

    @property
    def result(self) -> JobResult | None:
        """What it came to, None while it goes on."""
        if self.phase not in ENDS:
            return None
        pending = tuple((task, s.commit) for task, s in self.tasks.items() if s.commit)
        pending = pending if self.phase is JobPhase.EFFECTS_PENDING else ()
        of = self.phase, self.cause, self.cause_task
        return JobResult(*of, pending, self.budget.total, self.ignored)

    # -- rules

    def _to(self, phase: JobPhase) -> None:
        check_transition(self.phase, phase)
        self.phase = phase

    @property
    def _lets_go(self) -> bool:
        """Whether tasks may end before their work is done."""
        asked = self.mode in (StopMode.SUSPEND, StopMode.CANCEL)
        return asked or self.phase is JobPhase.FAILING

    def _live(self) -> list[str]:
        return [
            task
            for task, state in self.tasks.items()
            if state.epoch and state.phase not in TERMINAL and task not in self._to_start
        ]

    def _schedule(self) -> list[Command]:
        self._to(JobPhase.SCHEDULING)
        self._asked_generation = True
        return [WinGeneration()]

    def _launch(self, tasks: Collection[str], now: float) -> list[Command]:
        """Start these, and only these, with a barrier of their own."""
        names, epoch = sorted(tasks), self.generation
        for task in names:
            self.tasks[task] = TaskState(epoch)
        self._to_start.clear()
        until = now + self.timeouts.start_seconds
        self._starting[epoch] = Starting(StartBarrier(names), until)
        return [Launch(task, epoch) for task in names]

    @property
    def _restarts(self) -> bool:
        """Whether a scheduling attempt is to come."""
        return self._asked_generation or self._restart_at is not None or bool(self._to_start)

    def _next_wave(self, now: float) -> list[Command]:
        """Nobody waits for a slot here; see `WavedJob`."""
        return []

    def _let_go(self, tasks: Iterable[str]) -> list[Command]:
        waiting = [t for t in tasks if self.tasks[t].phase is TaskPhase.AT_BARRIER]
        return [Go(task, self.tasks[task].epoch) for task in waiting]

    def _call_off(self, start: Starting, cause: str, now: float) -> list[Command]:
        """Abort the start of everybody who has not passed the barrier."""
        if not start.barrier.abort(cause):
            return []
        start.start_by = math.inf
        found: list[Command] = []
        for task in sorted(start.barrier.members):
            state = self.tasks[task]
            if state.epoch and task not in self._to_start and state.phase not in TERMINAL:
                state.end_by = now + self.timeouts.stop_seconds / 10
                found.append(Abort(task, state.epoch, cause))
        return found

    def _leaves(self, task: str) -> bool:
        """Whether an attempt was told to end by an update, see `job_update`."""
        return False

    def _left(self, task: str, now: float) -> None:
        """An attempt that was to end has ended, in whatever way."""

    def _failed(self, task: str, failure: Failure, now: float) -> list[Command]:
        state = self.tasks[task]
        state.phase = TaskPhase.FAILED
        if self._leaves(task) and not self._lets_go:
            self._left(task, now)
            return self._settle(now)
        if self.cause is None or (self.cause.secondary and not failure.secondary):
            self.cause, self.cause_task = failure, task
        if self.phase is JobPhase.FAILING or self.mode in (StopMode.CANCEL, StopMode.SUSPEND):
            return self._settle(now)  # what was committed stays; a later run goes on there
        if not failure.retry:
            return self._give_up(task, failure) + self._settle(now)
        restart = set(self.graph.restart_set([task]))
        commands: list[Command] = []
        start = self._starting.get(state.epoch)
        if start is not None and start.barrier.state is not BarrierState.OPEN:
            restart |= start.barrier.members  # their start is void, too
            commands += self._call_off(start, f"{task} failed: {failure}", now)
        restart -= {t for t in restart if self.tasks[t].phase is TaskPhase.FINISHED}
        waiting = bool(self._to_start)
        self._to_start |= restart
        if waiting:
            return commands  # one restart for all that fell since the last
        delay = self.budget.failed(now)
        if delay is None:
            return commands + self._give_up(task, failure) + self._settle(now)
        self._restart_at = now + delay
        self._to(JobPhase.RECOVERING)
        return commands

    def _give_up(self, task: str, failure: Failure) -> list[Command]:
        """End the job: what still runs is closed."""
        if self.cause is None:
            self.cause, self.cause_task = failure, task
        self._to(JobPhase.FAILING)
        return self._kill_waiting()

    def _kill_waiting(self) -> list[Command]:
        """Restart nobody: what waits for its restart has ended."""
        waiting = [t for t in sorted(self._to_start) if self.tasks[t].phase not in TERMINAL]
        self._to_start.clear()
        self._restart_at = None
        for task in waiting:
            self.tasks[task].phase = TaskPhase.CANCELED
        return [Kill(t, self.tasks[t].epoch) for t in waiting if self.tasks[t].epoch]

    def _start_is_late(self, epoch: int, start: Starting, now: float) -> list[Command]:
        del self._starting[epoch]
        members = start.barrier.members - self._to_start
        late = late_members({task: self.tasks[task] for task in members}, epoch)
        if not late:
            return []
        self.late_starts += 1
        text = (
            f"not started within {self.timeouts.start_seconds:g} s, try {self.late_starts} of "
            f"{self.timeouts.start_tries}: {', '.join(late)}"
        )
        failure = Failure("start_timeout", text, retry=self.late_starts < self.timeouts.start_tries)
        self._starting[epoch] = start
        start.start_by = math.inf
        commands: list[Command] = [Kill(task, epoch) for task in late]
        for task in late:
            if self.tasks[task].phase not in TERMINAL and task not in self._to_start:
                commands += self._failed(task, failure, now)
        return commands

    def _end_is_late(self, task: str, now: float) -> list[Command]:
        state = self.tasks[task]
        text = f"{task} did not get on with its end in time: it is {state.phase}"
        text += "" if self.mode is None else f", the job stops by {self.mode}"
        return [Kill(task, state.epoch), *self._failed(task, Failure("stop_timeout", text), now)]

    def _settle(self, now: float) -> list[Command]:
        """Look what the tasks add up to."""
        placed = [s for s in self.tasks.values() if s.phase is not TaskPhase.WAITING]
        if self.phase is JobPhase.SCHEDULING and not self._asked_generation:
            counts = STARTED_ONCE if self.mode is None else STARTED_ONCE | ENDED_WELL
            if placed and all(state.phase in counts for state in placed):
                self._all_started(now)
        commands = self._send_stops(now) + self._next_wave(now)
        if self._live() or self._restarts or len(placed) < len(self.tasks):
            return commands
        end = end_of(self.phase, self.mode, self.tasks.values())
        if end is not None:
            self._to(end)
        return commands

    def _all_started(self, now: float) -> None:
        self._starting.clear()
        self.late_starts = 0
        self.cause, self.cause_task = None, ""
        self.budget.running(now)
        self._to(JobPhase.STOPPING if self.mode is not None else JobPhase.RUNNING)
        for state in self.tasks.values():
            if state.phase is TaskPhase.STARTED:
                state.phase = TaskPhase.RUNNING

    def _send_stops(self, now: float) -> list[Command]:
        """Tell everybody who has to know and was not told."""
        failing = self.phase is JobPhase.FAILING
        mode = StopMode.CANCEL if failing else self.mode
        if mode is None:
            return []
        patience = self.timeouts.stop_seconds / (10 if mode is StopMode.CANCEL else 1)
        commands: list[Command] = []
        for task in self._live():
            state = self.tasks[task]
            started = state.phase in STARTED_ONCE
            wanted = mode is not StopMode.DRAIN or task in self.drained
            if wanted and state.told is not mode and (started or mode is StopMode.CANCEL):
                state.told, state.end_by = mode, now + patience
                commands.append(Stop(task, state.epoch, mode))
        return commands
