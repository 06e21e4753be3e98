"""One job: which tasks to start, restart, replace and stop, and how the job ended. Pure.

Reports, stops, updates and the time come in; actions come out, in the order in which the shell has
to carry them out. Every attempt has an epoch, the generation of the scheduling attempt that started
it; reports of other epochs are counted and ignored. The tasks of one scheduling attempt share a
start barrier; tasks that go on running are asked for nothing. With fewer slots than tasks there is
a scheduling attempt per wave; `Waves` says which tasks fit. An update tells attempts that are
replaced or dropped to suspend; each has ended, in whatever way, before its successor starts. After
Arroyo's controller.

One file, since starts, waves, updates and ends change the same few fields.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from durable_shuffle.recovery.job.ends import StopMode, combined_stop
from durable_shuffle.recovery.job.leaving import Leaving
from durable_shuffle.recovery.job.phases import (
    ENDS,
    STARTED_ONCE,
    TERMINAL,
    Failure,
    JobAction,
    JobPhase,
    JobResult,
    Kill,
    Launch,
    StopTasks,
    TaskPhase,
    TaskReport,
    WinGeneration,
    check_reached,
    check_transition,
)
from durable_shuffle.recovery.job.restarts import START, RestartBudget
from durable_shuffle.recovery.job.starts import (
    ENDED_WELL,
    ENDING,
    PUBLISHED,
    BarrierState,
    JobTimeouts,
    StartBarrier,
    Starting,
    TaskState,
    end_of,
    late_members,
    start_timeout,
)
from durable_shuffle.recovery.job.waves import TaskGraph, Waves
from durable_shuffle.serialization.errors import InvalidInputError


@dataclass(slots=True)
class Job:
    """Decides for one job. Times are of one monotonic clock, in seconds.

    Args:
        graph: the tasks and the data between them.
        drained: tasks that a DRAIN is sent to: those whose input is not of this job. The others end
            because their input does.
    """

    graph: TaskGraph
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
    restart_at: float | None = field(default=None, init=False)
    """When tasks that failed are started again; None if none waits for that."""
    _to_start: set[str] = field(default_factory=set, init=False)
    _asked_generation: bool = field(default=False, init=False)
    _starting: dict[int, Starting] = field(default_factory=dict, init=False)
    """By epoch."""
    _waves: Waves = field(default_factory=Waves, init=False)
    _slots_by: float | None = field(default=None, init=False)
    """When there must be a slot."""
    _leaving: Leaving = field(default_factory=Leaving, init=False)

    def __post_init__(self) -> None:
        self.tasks = {task: TaskState() for task in self.graph.tasks}

    # -- what can happen

    def start(self) -> list[JobAction]:
        """Begin.

        Raises:
            InvalidInputError: it began before.
        """
        if self.phase is not JobPhase.IDLE:
            raise InvalidInputError(f"a job starts once, it is {self.phase}")
        self._to_start = set(self.tasks)
        return self._schedule()

    def generation_won(self, generation: int, now: float) -> list[JobAction]:
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

    def generation_lost(self, failure: Failure, now: float) -> list[JobAction]:
        """No generation could be made durable: ask again after a delay, if that can help."""
        self._asked_generation = False
        if not failure.retry:
            return self.ended_by(failure, now)
        if self._lets_go:
            return self._settle(now)  # nothing is to be started
        self._note_cause("", failure)
        return self._try_again(self.budget.failed(now, outage=failure.is_outage), now)

    def ended_by(self, failure: Failure, now: float) -> list[JobAction]:
        """The coordinator itself cannot go on: this outranks failures that a restart follows."""
        if self.phase is not JobPhase.FAILING:
            self.cause, self.cause_task = failure, ""
        return self._give_up() + self._settle(now)

    def said(self, message: TaskReport, now: float) -> list[JobAction]:
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
        if message.phase is not None:
            check_reached(state.phase, message.phase, task=message.task)
        state.records = max(state.records, message.records)
        phase = message.phase
        if phase is None:
            return self._settle(now)
        if phase is TaskPhase.FAILED:
            failure = message.failure or Failure("unknown", "no reason was given")
            state.commit = max(0, message.commit or state.commit)
            return self._failed(message.task, failure, now)
        leaves = message.task in self._leaving
        if phase in ENDED_WELL and not (self._lets_go or leaves):
            unasked = Failure("unasked", f"{message.task} was {phase}, and nobody had asked")
            return self._failed(message.task, unasked, now)
        state.phase = phase
        if phase is TaskPhase.PREPARED:
            state.commit = message.commit
        elif phase in PUBLISHED:
            state.commit = 0
        if phase is TaskPhase.STARTED:
            self.budget.running(now, message.task)
        if phase in ENDING:
            state.end_by = now + self.timeouts.stop_seconds
        actions: list[JobAction] = []
        start = self._starting.get(state.epoch)
        if phase is TaskPhase.AT_BARRIER and start is not None:
            actions += start.arrived(message.task, self.tasks)
        elif phase in TERMINAL and start is not None:
            actions += start.ended(message.task, self.tasks)
        if phase in TERMINAL and leaves:
            self._left(message.task, now)
        return actions + self._settle(now)

    def stop(self, mode: StopMode, now: float) -> list[JobAction]:
        """Ask for an end.

        Raises:
            InvalidInputError: see `ends.combined_stop`; or the job has ended in another way.
        """
        if self.phase in ENDS:
            if mode is self.mode:
                return []
            raise InvalidInputError(f"the job has ended: {self.phase}")
        before, self.mode = self.mode, combined_stop(self.mode, mode)
        if before is self.mode or self.phase is JobPhase.FAILING:
            return []
        actions: list[JobAction] = []
        if self.mode is not StopMode.DRAIN:  # what has not started need not start
            actions += self._kill_waiting()
            for start in self._starting.values():
                actions += self._call_off(start, f"stop: {self.mode}", now)
            if self.phase is not JobPhase.IDLE:
                self._to(JobPhase.STOPPING)
        elif self.phase is JobPhase.RUNNING:
            self._to(JobPhase.STOPPING)
        return actions + self._settle(now)

    def tick(self, now: float) -> list[JobAction]:
        """Do what is due."""
        if self.phase in ENDS:
            return []
        if self._slots_by is not None and now >= self._slots_by:
            text = f"no slot for any task within {self.timeouts.start_seconds:g} s"
            self._note_cause("", Failure("no_slots", text, retry=False))
            return self._give_up() + self._settle(now)
        restart_at = self._restart_due
        if restart_at is not None and now >= restart_at:
            self.restart_at = None
            if self._to_start:
                return self._schedule()
            if self.phase is JobPhase.RECOVERING:  # nobody came in the place of what was dropped
                self._to(JobPhase.SCHEDULING)
            return self._settle(now)
        actions: list[JobAction] = []
        for start in list(self._starting.values()):
            if now >= start.start_by:
                actions += self._start_is_late(start, now)
        for task in self._live():
            end_by = self.tasks[task].end_by
            if end_by is not None and now >= end_by and task in self._live():
                actions += self._end_is_late(task, now)  # which may end others, and the job
        return actions

    def next_when(self) -> float | None:
        """Return when `tick` has something to do, None if that depends on what happens."""
        due = [start.start_by for start in self._starting.values()]
        due += [end for task in self._live() if (end := self.tasks[task].end_by) is not None]
        due += [moment for moment in (self._restart_due, self._slots_by) if moment is not None]
        return min(due) if due and self.phase not in ENDS else None

    @property
    def _restart_due(self) -> float | None:
        """When to ask for a generation: never for two at a time."""
        return None if self._asked_generation else self.restart_at

    @property
    def slots(self) -> int | None:
        """How many tasks can run at once, as it was told last; None: any number."""
        return self._waves.slots

    def slots_are(self, slots: int | None, now: float) -> list[JobAction]:
        """So many tasks can run at once from here on; None: any number."""
        self._waves.slots = slots
        return [] if self.phase in ENDS else self._settle(now)

    def described(self, graph: TaskGraph, drained: Collection[str]) -> None:
        """Have other tasks, before any was launched.

        Raises:
            InvalidInputError: one was.
        """
        if any(state.epoch for state in self.tasks.values()):
            raise InvalidInputError("tasks were launched: this is an update")
        self.graph, self.drained = graph, drained
        if self._to_start:  # else it was stopped meanwhile
            self.tasks = {task: TaskState() for task in graph.tasks}
            self._to_start = set(graph.tasks)

    def update(
        self,
        graph: TaskGraph,
        drained: Collection[str],
        now: float,
        *,
        replace: Collection[str] = (),
        drop: Collection[str] = (),
    ) -> list[JobAction]:
        """Go on with other tasks while the job runs; tasks that stay as they are go on undisturbed.

        Args:
            graph: of all tasks from here on, without those in `drop`.
            replace: tasks whose attempt ends where it is, before the next one starts.
            drop: tasks that end where they are and start no more, until another update names them.

        Raises:
            InvalidInputError: not all tasks run, or it is being stopped. Nothing changed.
        """
        if self.phase is not JobPhase.RUNNING:
            raise InvalidInputError(f"a job is updated while it runs, it is {self.phase}")
        self.graph, self.drained = graph, drained
        back = self._leaving.come_back(graph.tasks)
        new = [task for task in graph.tasks if task not in self.tasks or task in back]
        self.tasks |= {task: TaskState() for task in new}
        self._to_start |= set(new)
        leaving = [t for t in self._live() if t in replace or t in drop]
        self._leaving.replaced |= set(replace) & set(leaving)
        self._leaving.dropped |= set(drop)
        for task in drop:
            self._to_start.discard(task)
            self._waves.waiting.discard(task)
            if task not in leaving:
                self.tasks[task].phase = TaskPhase.FINISHED
        actions = self._tell(leaving, StopMode.SUSPEND, now + self.timeouts.stop_seconds)
        if leaving or new:
            self._to(JobPhase.RECOVERING)
            self._start_when_all_left(now)
        return actions + self._settle(now)

    @property
    def result(self) -> JobResult | None:
        """How the job ended, None while it goes on."""
        if self.phase not in ENDS:
            return None
        pending = tuple((task, s.commit) for task, s in self.tasks.items() if s.commit)
        pending = pending if self.phase is JobPhase.EFFECTS_PENDING else ()
        of = self.phase, self.cause, self.cause_task
        return JobResult(*of, pending, self.budget.total, self.ignored)

    # -- what the tasks add up to

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

    @property
    def _restarts(self) -> bool:
        """Whether a scheduling attempt is to come."""
        return self._asked_generation or self.restart_at is not None or bool(self._to_start)

    def _settle(self, now: float) -> list[JobAction]:
        """Derive the job's phase from its tasks."""
        placed = [s for s in self.tasks.values() if s.phase is not TaskPhase.WAITING]
        if self.phase is JobPhase.SCHEDULING and not self._asked_generation:
            leaving = self._leaving.under_way(self._live())
            counts = STARTED_ONCE if self.mode is None else STARTED_ONCE | ENDED_WELL
            if placed and not leaving and all(s.phase in counts for s in placed):
                self._all_started(now)
        actions = self._send_stops(now) + self._next_wave(now)
        if self._live() or self._restarts or len(placed) < len(self.tasks):
            return actions
        end = end_of(self.phase, self.mode, self.tasks.values())
        if end is not None:
            self._to(end)
        return actions

    def _all_started(self, now: float) -> None:
        self._starting.clear()
        self.late_starts = 0
        self.cause, self.cause_task = None, ""
        self.budget.running(now)
        self._to(JobPhase.STOPPING if self.mode is not None else JobPhase.RUNNING)
        for state in self.tasks.values():
            if state.phase is TaskPhase.STARTED:
                state.phase = TaskPhase.RUNNING

    def _send_stops(self, now: float) -> list[JobAction]:
        """Tell the tasks that have to stop and were not told."""
        failing = self.phase is JobPhase.FAILING
        mode = StopMode.CANCEL if failing else self.mode
        if mode is None:
            return []
        tasks: list[str] = []
        for task in self._live():
            state = self.tasks[task]
            started = state.phase in STARTED_ONCE
            wanted = mode is not StopMode.DRAIN or task in self.drained
            if wanted and state.told is not mode and (started or mode is StopMode.CANCEL):
                tasks.append(task)
        patience = self.timeouts.stop_seconds / (10 if mode is StopMode.CANCEL else 1)
        return self._tell(tasks, mode, now + patience)

    def _tell(self, tasks: Iterable[str], mode: StopMode, end_by: float) -> list[JobAction]:
        """Have these attempts end in this way, those of one epoch together."""
        by_epoch: dict[int, list[str]] = {}
        for task in tasks:
            state = self.tasks[task]
            state.told, state.end_by = mode, end_by
            by_epoch.setdefault(state.epoch, []).append(task)
        return [StopTasks(tuple(told), epoch, mode) for epoch, told in by_epoch.items()]

    # -- starts and waves

    def _schedule(self) -> list[JobAction]:
        self._to(JobPhase.SCHEDULING)
        self._asked_generation = True
        return [WinGeneration()]

    def _launch(self, tasks: Collection[str], now: float) -> list[JobAction]:
        """Start the tasks that fit, with a barrier of their own; the others wait."""
        wave = self._waves.plan(self.graph, self._live(), tasks)
        actions = self._evicted(wave.evict)
        for task in set(tasks).difference(wave.launch):
            self._wait(task)
        self._waves.waiting.difference_update(wave.launch)
        self._to_start.clear()
        if not wave.launch:
            return actions + self._settle(now)
        names, epoch = sorted(wave.launch), self.generation
        for task in names:
            before = self.tasks[task]
            self.tasks[task] = TaskState(epoch, commit=before.commit, records=before.records)
        until = now + self.timeouts.start_seconds
        self._starting[epoch] = Starting(epoch, StartBarrier(names), until)
        return [*actions, *(Launch(task, epoch) for task in names)]

    def _evicted(self, tasks: Iterable[str]) -> list[JobAction]:
        actions: list[JobAction] = []
        for task in tasks:
            epoch = self.tasks[task].epoch
            actions.append(Kill(task, epoch))
            self._wait(task)
            if (start := self._starting.get(epoch)) is not None:
                actions += start.ended(task, self.tasks)
        return actions

    def _wait(self, task: str) -> None:
        """The task has no slot, and so no attempt until there is one."""
        before = self.tasks[task]
        self.tasks[task] = TaskState(
            phase=TaskPhase.WAITING, commit=before.commit, records=before.records
        )
        self._waves.waiting.add(task)

    def _next_wave(self, now: float) -> list[JobAction]:
        starts = self.phase is JobPhase.SCHEDULING and self._live()
        if starts or self._restarts or self.phase is JobPhase.RECOVERING or not self._waves.waiting:
            self._slots_by = None
            return []
        if self._waves.plan(self.graph, self._live()).launch:
            self._slots_by = None
            return self._schedule()
        if not self._live() and self._slots_by is None:
            self._slots_by = now + self.timeouts.start_seconds
        return []

    def _call_off(self, start: Starting, cause: str, now: float) -> list[JobAction]:
        end_by = now + self.timeouts.stop_seconds / 10
        return [*start.call_off(cause, self._live(), self.tasks, end_by)]

    def _start_is_late(self, start: Starting, now: float) -> list[JobAction]:
        members = start.barrier.members - self._to_start
        late = late_members({task: self.tasks[task] for task in members}, start.epoch)
        start.start_by = math.inf
        if not late:
            del self._starting[start.epoch]
            return []
        self.late_starts += 1
        failure = start_timeout(late, self.late_starts, self.timeouts)
        actions: list[JobAction] = [Kill(task, start.epoch) for task in late]
        for task in late:
            if self.tasks[task].phase not in TERMINAL and task not in self._to_start:
                actions += self._failed(task, failure, now)
        return actions

    # -- failures and ends

    def _failed(self, task: str, failure: Failure, now: float) -> list[JobAction]:
        state = self.tasks[task]
        ran = state.phase in STARTED_ONCE
        state.phase = TaskPhase.FAILED
        if task in self._leaving and not self._lets_go:
            self._left(task, now)
            return self._settle(now)
        stops = self.mode in (StopMode.CANCEL, StopMode.SUSPEND)
        if not (stops and failure.is_called_off):  # by that stop
            self._note_cause(task, failure)
        if self.phase is JobPhase.FAILING or stops:
            return self._settle(now)  # what was committed stays; a later run goes on there
        if not failure.retry:
            return self._give_up() + self._settle(now)
        restart = {task}
        actions: list[JobAction] = []
        start = self._starting.get(state.epoch)
        if start is not None and start.barrier.state is not BarrierState.OPEN:
            restart |= start.barrier.members  # their start is void, too
            actions += self._call_off(start, f"{task} failed: {failure}", now)
        restart -= {t for t in restart if self.tasks[t].phase is TaskPhase.FINISHED}
        waiting = bool(self._to_start)
        self._to_start |= restart
        if waiting:
            return actions  # one restart for all that fell since the last
        key = task if ran else START
        return actions + self._try_again(
            self.budget.failed(now, key, outage=failure.is_outage), now
        )

    def _try_again(self, delay: float | None, now: float) -> list[JobAction]:
        """Schedule again after a delay, None: end the job."""
        if delay is None:
            return self._give_up() + self._settle(now)
        self.restart_at = now + delay
        self._to(JobPhase.RECOVERING)
        return []

    def _note_cause(self, task: str, failure: Failure) -> None:
        if failure.explains(self.cause, failing=self.phase is JobPhase.FAILING):
            self.cause, self.cause_task = failure, task

    def _give_up(self) -> list[JobAction]:
        """End the job: what still runs is closed."""
        self._to(JobPhase.FAILING)
        return self._kill_waiting()

    def _kill_waiting(self) -> list[JobAction]:
        """Restart nothing: tasks that wait for a restart, or for a slot, have ended."""
        for task in self._waves.waiting:
            self.tasks[task].phase = TaskPhase.CANCELED
        self._waves.waiting.clear()
        waiting = [t for t in sorted(self._to_start) if self.tasks[t].phase not in TERMINAL]
        self._to_start.clear()
        self.restart_at = None
        for task in waiting:
            self.tasks[task].phase = TaskPhase.CANCELED
        return [Kill(t, self.tasks[t].epoch) for t in waiting if self.tasks[t].epoch]

    def _end_is_late(self, task: str, now: float) -> list[JobAction]:
        state = self.tasks[task]
        text = f"{task} did not get on with its end in time: it is {state.phase}"
        text += "" if self.mode is None else f", the job stops by {self.mode}"
        return [Kill(task, state.epoch), *self._failed(task, Failure("stop_timeout", text), now)]

    # -- updates

    def _left(self, task: str, now: float) -> None:
        """An attempt that was to end has ended, in whatever way."""
        state = self.tasks[task]
        if self._leaving.ended(task):
            state.phase, state.commit = TaskPhase.FINISHED, 0
        elif state.phase is not TaskPhase.FINISHED and not self._lets_go:
            self._to_start.add(task)
        self._start_when_all_left(now)

    def _start_when_all_left(self, now: float) -> None:
        left = not self._leaving.under_way(self._live())
        if left and self.restart_at is None and not self._lets_go:
            self.restart_at = now
