"""Other tasks for a job that runs: those that neither change nor go notice nothing. Pure.

Strategy: an attempt that is to be replaced, or to go for good, is told to suspend; however it ends,
it has ended before its successor is started. A failure on the way there is none.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from durable_shuffle.recovery.job_phase import Command, JobPhase, Stop
from durable_shuffle.recovery.job_state import TaskState
from durable_shuffle.recovery.job_waves import WavedJob
from durable_shuffle.recovery.restart_set import RestartGraph
from durable_shuffle.recovery.stop_order import StopMode
from durable_shuffle.recovery.task_phase import TaskPhase
from durable_shuffle.serialization.errors import InvalidInputError


@dataclass(slots=True)
class UpdatableJob(WavedJob):
    """A `WavedJob` whose tasks can change."""

    _replacing: set[str] = field(default_factory=set, init=False)
    """Tasks whose attempt is to end before the next one starts."""
    _dropping: set[str] = field(default_factory=set, init=False)
    """Tasks that are to end for good."""

    def described(self, graph: RestartGraph, drained: Collection[str]) -> None:
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
        graph: RestartGraph,
        drained: Collection[str],
        now: float,
        *,
        replace: Collection[str] = (),
        drop: Collection[str] = (),
    ) -> list[Command]:
        """Go on with other tasks while it runs: those that neither change nor go notice nothing.

        Args:
            graph: of all tasks from here on, without those in `drop`.
            replace: tasks whose attempt ends where it is, before the next one starts.
            drop: tasks that end where they are and start no more.

        Raises:
            InvalidInputError: not all tasks run, or it is being stopped. Nothing changed.
        """
        if self.phase is not JobPhase.RUNNING:
            raise InvalidInputError(f"a job is updated while it runs, it is {self.phase}")
        self.graph, self.drained = graph, drained
        new = [task for task in graph.tasks if task not in self.tasks]
        self.tasks |= {task: TaskState() for task in new}
        self._to_start |= set(new)
        leaving = [t for t in self._live() if t in replace or t in drop]
        self._replacing |= set(replace) & set(leaving)
        self._dropping |= set(drop)
        for task in drop:
            self._to_start.discard(task)
            self._waves.waiting.discard(task)
            if task not in leaving:
                self.tasks[task].phase = TaskPhase.FINISHED
        commands: list[Command] = []
        for task in leaving:
            state = self.tasks[task]
            state.told, state.end_by = StopMode.SUSPEND, now + self.timeouts.stop_seconds
            commands.append(Stop(task, state.epoch, StopMode.SUSPEND))
        if leaving or new:
            self._to(JobPhase.RECOVERING)
            self._start_when_all_left(now)
        return commands + self._settle(now)

    def _leaves(self, task: str) -> bool:
        return task in self._replacing or task in self._dropping

    def _left(self, task: str, now: float) -> None:
        """An attempt that was to end has ended, in whatever way."""
        if task in self._dropping:
            self._replacing.discard(task)
            self.tasks[task].phase, self.tasks[task].commit = TaskPhase.FINISHED, 0
        elif task in self._replacing:
            self._replacing.remove(task)
            if self.tasks[task].phase is not TaskPhase.FINISHED and not self._lets_go:
                self._to_start.add(task)
        self._start_when_all_left(now)

    def _start_when_all_left(self, now: float) -> None:
        leaving = self._replacing | {t for t in self._dropping if t in self._live()}
        if not leaving and self._restart_at is None and not self._lets_go:
            self._restart_at = now
