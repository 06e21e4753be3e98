"""Attempts at tasks in a world that is late, and the launcher that starts them.

An attempt follows the command log, obeys late, and reports late. It hangs, falls, or is lost as the
world decides.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.job.phases import (
    TERMINAL,
    CallOff,
    Failure,
    PassBarrier,
    StopTasks,
    TaskPhase,
    TaskReport,
)
from durable_shuffle.recovery.pipeline.commands.orders import SlotOrder, StartTasks, decode_slot
from durable_shuffle.shuffle.consume.log import read_resume_set
from durable_shuffle.shuffle.log.layout import ConsumerPath
from durable_shuffle.shuffle.log.slot_log import SlotLog

if TYPE_CHECKING:
    from late_world import World

NAME, SOURCE = "late", "s"
PARTS = ("a", "b", "c")
HEARTBEAT, SILENCE = 5.0, 16.0


class Launcher:
    """Starts attempts of the world."""

    silence_seconds = SILENCE
    slots: int | None = None

    def __init__(self, world: "World", hear: Callable[[TaskReport], object]) -> None:
        self._world, self._hear = world, hear

    def check(self, run_task: Any) -> None: ...
    def use(self, run_task: Any) -> None: ...

    def start(self, task: str, epoch: int, slot: int) -> None:
        world = self._world
        if world.bad(0.02):
            world.causes.add("OSError")
            raise OSError("no process can be started")
        world.attempts[task, epoch] = Attempt(world, self._hear, task, epoch, slot)

    def push(self, slot: int, record: bytes) -> None:
        for attempt in self._world.attempts.values():
            if attempt.lives and not self._world.bad(0.1):
                attempt.get(lambda a=attempt: a.slot(slot, record))
                if self._world.bad(0.1):
                    attempt.get(lambda a=attempt: a.slot(slot, record))

    def kill(self, task: str, epoch: int) -> None:
        attempt = self._world.attempts.get((task, epoch))
        if attempt is not None:
            attempt.doomed = True
            if not self._world.bad(0.1):  # else it goes on, and is fenced by its logs
                self._world.later(attempt.die, 0.01, 1.0, 30.0)

    def close(self) -> None:
        for task, epoch in self._world.attempts:
            self.kill(task, epoch)


class Attempt:
    """One attempt: follows the command log, and reports, late."""

    def __init__(self, world: "World", hear: Any, task: str, epoch: int, slot: int) -> None:
        self.world, self._hear, self.task, self.epoch = world, hear, task, epoch
        self.lives, self.doomed, self.reads = True, False, False
        self._order = SlotOrder(slot)
        self._said_at = self._got_at = world.now
        self._phase: TaskPhase | None = None
        self._records = self._commit = 0
        self._may_write = self._goes = self._ends = False
        self._hangs = world.bad(0.03)
        if world.bad(0.04):
            world.later(lambda: self._lost("lost"), 0.1, 3.0)
        elif not self._hangs:
            world.later(lambda: self._become(TaskPhase.STARTING), 0.2, 2.0, 20.0)
        world.later(self._look, 0.3, 10.0)

    # -- what it hears

    def get(self, event: Callable[[], object]) -> None:
        """Have something arrive."""
        self.world.later(event, 0.01, 0.5, 20.0)

    def _look(self) -> None:
        """Read the command log by itself."""
        if not self.lives:
            return
        if self.world.now >= self.world.down_until:
            for slot, record in self.world.commands.read_from(self._order.next_slot):
                self.slot(slot, record)
        self.world.later(self._look, 3.0, 10.0)

    def slot(self, slot: int, record: bytes) -> None:
        if not self.lives:
            return
        for decided in self._order.take(slot, decode_slot(record, name="x")):
            for command in decided.commands:
                mine = getattr(command, "epoch", 0) == self.epoch
                if mine and self.task in getattr(command, "tasks", ()):
                    self._obey(command)

    def _obey(self, command: Any) -> None:
        if isinstance(command, StartTasks):
            self._may_write = True
            self._open()
        elif isinstance(command, PassBarrier):
            self._goes = True
            self._pass()
        elif isinstance(command, CallOff):
            self.fails(Failure("aborted", "called off", secondary=True))
        elif isinstance(command, StopTasks):
            self._stop(command.mode)

    # -- what it does

    def _become(self, phase: TaskPhase) -> None:
        if not self.lives or self._hangs or self._phase in TERMINAL:
            return
        if self.world.bad(0.01):
            self._hangs = True
            if self.reads:  # the watch over the step's calls notices
                self.world.at(self.world.now + 60, lambda: self._lost("no_progress"))
            return
        self._phase = phase
        self._say(TaskReport(self.task, self.epoch, phase, commit=self._commit))
        if phase is TaskPhase.STARTING:
            self._beat()
            self._open()
        elif phase is TaskPhase.AT_BARRIER:
            self._pass()
        elif phase is TaskPhase.STARTED:
            self.reads = True
            if self.world.bad(0.3):
                self.world.at(self.world.now + self.world.chance.uniform(0, 60), self.fall)
            self._follow_input()

    def _open(self) -> None:
        if self._phase is not TaskPhase.STARTING or not self._may_write:
            return
        if self.world.bad(0.03):
            self.fails(self.world.failed("ValueError"))
        elif self._is_over():
            self.world.later(lambda: self._become(TaskPhase.FINISHED), 0.1, 5.0)
        else:
            self.world.later(lambda: self._become(TaskPhase.AT_BARRIER), 0.1, 2.0, 20.0)

    def _is_over(self) -> bool:
        """Whether its log says that it was dropped for good."""
        owner = self.task.rpartition("-")[0]
        if owner == SOURCE or self.world.now < self.world.down_until:
            return False
        path = ConsumerPath(NAME, owner, self.task)
        return read_resume_set(SlotLog(self.world.storage, path.log_prefix)).finished

    def _pass(self) -> None:
        if self._phase is TaskPhase.AT_BARRIER and self._goes:
            self.world.later(lambda: self._become(TaskPhase.STARTED), 0.01, 1.0, 10.0)

    def _beat(self) -> None:
        if self.lives and self._phase not in TERMINAL:
            self._records += self.world.chance.randrange(100) if self.reads else 0
            self._say(TaskReport(self.task, self.epoch, None, records=self._records))
            self.world.at(self.world.now + HEARTBEAT, self._beat)

    def _stop(self, mode: StopMode) -> None:
        if self._ends and mode is not StopMode.CANCEL:
            return
        self._ends = True
        if mode is StopMode.CANCEL:
            self.world.later(lambda: self._become(TaskPhase.CANCELED), 0.1, 2.0)
        elif mode is StopMode.SUSPEND:
            self._row(TaskPhase.SUSPENDING, TaskPhase.SUSPENDED)
        else:
            self.world.later(lambda: self._become(TaskPhase.FINISHED), 0.1, 2.0)

    def _follow_input(self) -> None:
        """End after the sources, where they have finished."""
        if not self.lives or self._ends or self.task.startswith(f"{SOURCE}-"):
            return
        tasks = self.world.supervisor.machine.tasks
        sources = [state.phase for task, state in tasks.items() if task.startswith(f"{SOURCE}-")]
        if all(phase is TaskPhase.FINISHED for phase in sources):
            self._ends = True
            self._row(
                TaskPhase.PREPARING, TaskPhase.PREPARED, TaskPhase.COMMITTING, TaskPhase.FINISHED
            )
        else:
            self.world.later(self._follow_input, 2.0)

    def _row(self, *phases: TaskPhase) -> None:
        """Reach one phase after the other, unless something fails in between."""
        first, rest = phases[0], phases[1:]

        def reach() -> None:
            if self._phase in TERMINAL or not self.lives:
                return
            if self.world.bad(0.05):
                self.fall()
                return
            self._commit = 1 if first in (TaskPhase.PREPARED, TaskPhase.COMMITTING) else 0
            self._become(first)
            if rest:
                self._row(*rest)

        self.world.later(reach, 0.1, 3.0)

    def fall(self) -> None:
        """Fail in one of the ways that there are."""
        if not self.lives or self._phase in TERMINAL or self._phase is None:
            return
        kind = self.world.chance.choice(["error", "error", "lost", "hangs", "garbage"])
        if kind == "error":
            self.fails(self.world.failed("ValueError"))
        elif kind == "lost":
            self._lost("lost")
        elif kind == "hangs":
            self._hangs = True
            self.lives = False
            self.world.causes.add("silent")
        else:  # a report that cannot be
            self.world.causes.add("invalid_input")
            self._say(TaskReport(self.task, self.epoch, TaskPhase.COMMITTING))

    def fails(self, failure: Failure) -> None:
        if not self.lives or self._phase in TERMINAL or self._hangs:
            return
        self._phase = TaskPhase.FAILED
        # its close() may take a while, and it says so only then
        self.world.later(
            lambda: self._say(TaskReport(self.task, self.epoch, TaskPhase.FAILED, failure)),
            0.01,
            4.0,
        )

    def _lost(self, kind: str) -> None:
        if self.lives and self._phase not in TERMINAL:
            self._phase = TaskPhase.FAILED
            self.world.causes.add(kind)
            lost = Failure(kind, "its process ended without a word")
            self._say(TaskReport(self.task, self.epoch, TaskPhase.FAILED, lost))

    def die(self) -> None:
        self.lives = False

    def _say(self, report: TaskReport) -> None:
        """Have a report arrive behind the earlier ones."""
        if not self.lives:
            return
        world = self.world
        delay = 0.005 if world.calm else world.chance.choice([0.005] * 6 + [0.5, 5.0])
        self._said_at = max(self._said_at + 1e-9, world.now + delay)
        world.at(self._said_at, lambda: world.put(lambda: self._hear_now(report)))
        if report.is_last:
            self.lives = False

    def _hear_now(self, report: TaskReport) -> None:
        self.world.supervisor._heard(report)
