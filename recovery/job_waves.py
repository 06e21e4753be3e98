"""A job with fewer slots than tasks: a scheduling attempt per wave. Pure; `waves` says who fits."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from durable_shuffle.recovery.job_machine import JobMachine
from durable_shuffle.recovery.job_phase import ENDS, Command, Failure, JobPhase, Kill
from durable_shuffle.recovery.job_state import TaskState
from durable_shuffle.recovery.task_phase import TaskPhase
from durable_shuffle.recovery.waves import Waves


@dataclass(slots=True)
class WavedJob(JobMachine):
    """A `JobMachine` that starts what fits, and the others as slots become free."""

    _waves: Waves = field(default_factory=Waves, init=False)
    _slots_by: float | None = field(default=None, init=False)
    """When there must be a slot."""

    @property
    def slots(self) -> int | None:
        """How many tasks can run at once, as it was told last; None: any number."""
        return self._waves.slots

    def slots_are(self, slots: int | None, now: float) -> list[Command]:
        """So many tasks can run at once from here on; None: any number."""
        self._waves.slots = slots
        return [] if self.phase in ENDS else self._settle(now)

    def tick(self, now: float) -> list[Command]:
        """Do what is due."""
        if self._slots_by is None or now < self._slots_by or self.phase in ENDS:
            return JobMachine.tick(self, now)
        text = f"no slot for any task within {self.timeouts.start_seconds:g} s"
        return self._give_up("", Failure("no_slots", text, retry=False)) + self._settle(now)

    def next_when(self) -> float | None:
        """Return when `tick` has something to do, None if that depends on what happens."""
        due = [at for at in (JobMachine.next_when(self), self._slots_by) if at is not None]
        return min(due) if due and self.phase not in ENDS else None

    def _launch(self, tasks: Collection[str], now: float) -> list[Command]:
        wave = self._waves.plan(self.graph, self._live(), tasks)
        commands = self._evicted(wave.evict)
        for task in set(tasks).difference(wave.launch):
            self._wait(task)
        self._waves.waiting.difference_update(wave.launch)
        self._to_start.clear()
        if wave.launch:
            return commands + JobMachine._launch(self, wave.launch, now)  # noqa: SLF001 - the base's
        return commands + self._settle(now)

    def _next_wave(self, now: float) -> list[Command]:
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

    def _kill_waiting(self) -> list[Command]:
        for task in self._waves.waiting:
            self.tasks[task].phase = TaskPhase.CANCELED
        self._waves.waiting.clear()
        return JobMachine._kill_waiting(self)  # noqa: SLF001 - the base's

    def _evicted(self, tasks: Iterable[str]) -> list[Command]:
        commands: list[Command] = []
        for task in tasks:
            epoch = self.tasks[task].epoch
            commands.append(Kill(task, epoch))
            self._wait(task)
            if epoch in self._starting:
                commands += self._let_go(self._starting[epoch].barrier.ended(task))
        return commands

    def _wait(self, task: str) -> None:
        """There is no slot for it: it has no attempt until there is."""
        before = self.tasks[task]
        self.tasks[task] = TaskState(
            phase=TaskPhase.WAITING, commit=before.commit, records=before.records
        )
        self._waves.waiting.add(task)
