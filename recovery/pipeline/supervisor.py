"""Carries out what `JobMachine` decides, and tells it what happens. One thread.

Strategy: the loop waits for reports, for a stop, for an answer of the companion, or for the next
moment at which the machine or the watch over silent tasks has something to do. It never waits for
storage: the companion does that, in order. A new generation is a CLAIM in the job log, won before
anything of it starts; what tasks are told is a slot of the command log. Killing may fail; the logs
fence who could not be killed.
"""

import logging
import math
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from durable_shuffle.recovery.command.companion import Companion
from durable_shuffle.recovery.command.emitter import Emitter
from durable_shuffle.recovery.command.grouping import Said, grouped
from durable_shuffle.recovery.command.internal import AllowWrites, StartTasks
from durable_shuffle.recovery.job_machine import JobMachine
from durable_shuffle.recovery.job_phase import (
    Command,
    Failure,
    JobResult,
    Kill,
    Launch,
    TaskReport,
    WinGeneration,
)
from durable_shuffle.recovery.liveness import AttemptKey, Liveness
from durable_shuffle.recovery.pipeline.launcher import Launcher
from durable_shuffle.recovery.pipeline.link import failure_of
from durable_shuffle.recovery.pipeline.plan import PipelinePlan
from durable_shuffle.recovery.pipeline.stages import own_stage
from durable_shuffle.recovery.restart_budget import RestartBudget
from durable_shuffle.recovery.stop_order import StopMode
from durable_shuffle.recovery.task_phase import TERMINAL, Report
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.clock import Clock, IdSource
from durable_shuffle.shuffle.job_log import JobLog
from durable_shuffle.shuffle.layout import StagePath, command_log_prefix
from durable_shuffle.shuffle.open_storage import open_storage
from durable_shuffle.shuffle.retry import Jitter
from durable_shuffle.shuffle.slot_log import SlotLog
from durable_shuffle.shuffle.storage import Storage

_LONGEST_WAIT_SECONDS = 0.1
"""A stop is seen at most this much later."""
_CLOSE_SECONDS = 10.0
"""What the companion may take to finish what it was given."""
_TERMINAL = frozenset(str(phase) for phase in TERMINAL)
_log = logging.getLogger(__name__)

MakeLauncher = Callable[[Mapping[str, StagePath]], Launcher]


class Supervisor:
    """One run of a pipeline.

    Args:
        make_launcher: given the stages' places, once they are made.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        make_launcher: MakeLauncher,
        *,
        clock: Clock,
        ids: IdSource,
        jitter: Jitter,
    ) -> None:
        self._plan, self._make_launcher = plan, make_launcher
        self._clock, self._ids = clock, ids
        budget = RestartBudget(plan.settings.restarts, jitter)
        self.machine = JobMachine(plan.graph, plan.drained, budget, plan.settings.timeouts)
        self.launcher: Launcher | None = None
        self._awake = threading.Event()
        self._storage: Storage | None = None
        self._job: JobLog | None = None
        self._paths: dict[str, StagePath] = {}
        self._emitter: Emitter | None = None
        self._emitter_lost = False
        self._companion = Companion(self._wake)
        self._to_launch: set[AttemptKey] = set()
        """Told to be launched; their START does not stand yet."""
        self._watch = Liveness(math.inf)
        self._stops: queue.SimpleQueue[tuple[StopMode, queue.SimpleQueue[Exception | None]]]
        self._stops = queue.SimpleQueue()
        self._ended = False

    def ask_stop(self, mode: StopMode) -> None:
        """Ask for an end; from any thread. Returns when the job has taken it in.

        Raises:
            InvalidInputError: see `JobMachine.stop`.
        """
        answer: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._stops.put((mode, answer))
        while True:
            try:
                error = answer.get(timeout=_LONGEST_WAIT_SECONDS)
            except queue.Empty:
                if not self._ended:
                    continue
                if mode is self.machine.mode:
                    return
                raise InvalidInputError(f"the job has ended: {self.machine.phase}") from None
            if error is not None:
                raise error
            return

    def run(self) -> JobResult:
        """Run to the end."""
        try:
            self._do(self.machine.start())
            while (result := self.machine.result) is None:
                self._turn()
            return result
        finally:
            self._ended = True
            if self.launcher is not None:
                self.launcher.close()
            self._companion.close(_CLOSE_SECONDS)

    def _turn(self) -> None:
        while not self._stops.empty():
            mode, answer = self._stops.get()
            try:
                commands = self.machine.stop(mode, self._clock.monotonic())
            except InvalidInputError as error:
                answer.put(error)
                continue
            answer.put(None)
            self._do(commands)
        self._companion.answer()
        now = self._clock.monotonic()
        due = [t for t in (self.machine.next_when(), self._watch.next_when()) if t is not None]
        wait = min([_LONGEST_WAIT_SECONDS, *(max(0.0, t - now) for t in due)])
        if self._companion.has_answer:
            wait = 0.0  # it came behind the last look
        if self.launcher is None:
            self._awake.wait(wait)
            self._awake.clear()
        else:
            for report in self.launcher.receive(wait):
                self._heard(report)
        now = self._clock.monotonic()
        for task, epoch in list(self._watch.silent(now)):
            text = f"the process of {task} said nothing for {self._watch.silence_seconds:g} s"
            self._kill(task, epoch)
            self._said(TaskReport(task, epoch, Report.FAILED, Failure("silent", text)))
        self._do(self.machine.tick(now))

    def _heard(self, report: TaskReport) -> None:
        terminal = str(report.report) in _TERMINAL
        attempt = (report.task, report.epoch)
        if self._watch.heard(attempt, self._clock.monotonic(), terminal=terminal):
            self._said(report)

    def _said(self, report: TaskReport) -> None:
        now = self._clock.monotonic()
        if report.failure is not None:
            _log.warning("task %s of epoch %s: %s", report.task, report.epoch, report.failure)
        try:
            commands = self.machine.said(report, now)
        except InvalidInputError as error:  # whoever says such a thing cannot be believed
            self._kill(report.task, report.epoch)
            failed = TaskReport(report.task, report.epoch, Report.FAILED, failure_of(error))
            commands = self.machine.said(failed, now)
        self._do(commands)

    def _do(self, commands: Iterable[Command]) -> None:
        launches: list[Launch] = []
        said: list[Said] = []
        for command in commands:
            if isinstance(command, WinGeneration):
                self._companion.submit(self._claimed, self._won, self._lost)
            elif isinstance(command, Launch):
                launches.append(command)
            elif isinstance(command, Kill):
                self._kill(command.task, command.epoch)
            else:
                said.append(command)
        if launches:
            self._start(launches)
        if said:
            self._tell(said)

    def _start(self, launches: list[Launch]) -> None:
        """Have START and ALLOW_WRITES stand, then launch."""
        epoch = launches[0].epoch
        start = StartTasks(tuple(launch.task for launch in launches), epoch)
        self._to_launch |= {(launch.task, epoch) for launch in launches}

        def stands(at: tuple[int, bytes]) -> None:
            assert self.launcher is not None
            for launch in launches:
                if (launch.task, epoch) in self._to_launch:  # else it was killed meanwhile
                    self._to_launch.remove((launch.task, epoch))
                    self._watch.launched((launch.task, epoch))
                    self._launch(launch, at[0])
            self.launcher.push(*at)

        def failed(error: Exception) -> None:
            self._cannot_tell(error, [(launch.task, epoch) for launch in launches])

        emitter = self._emitter
        assert emitter is not None
        self._companion.submit(lambda: emitter.emit(start, AllowWrites(epoch)), stands, failed)

    def _tell(self, said: list[Said]) -> None:
        """Have it stand in the command log, and pass it on."""
        assert self.launcher is not None
        assert self._emitter is not None
        emitter, launcher = self._emitter, self.launcher

        def failed(error: Exception) -> None:
            self._cannot_tell(error, [(one.task, one.epoch) for one in said])

        self._companion.submit(
            lambda: emitter.emit(*grouped(said)), lambda at: launcher.push(*at), failed
        )

    def _cannot_tell(self, error: Exception, attempts: Iterable[AttemptKey]) -> None:
        """What was to be said does not stand: nobody can be led any more."""
        failure = failure_of(error)
        if not self._emitter_lost and self.machine.result is None:
            self._emitter_lost = True
            _log.warning("the command log cannot be written: %s", failure)
            self._do(self.machine.generation_lost(failure, self._clock.monotonic()))
        for task, epoch in attempts:
            self._kill(task, epoch)
            self._said(TaskReport(task, epoch, Report.FAILED, replace(failure, secondary=True)))

    def _launch(self, launch: Launch, slot: int) -> None:
        assert self.launcher is not None
        try:
            self.launcher.start(launch.task, launch.epoch, slot)
        except Exception as error:  # noqa: BLE001 - it is the end of that attempt
            self._watch.forget((launch.task, launch.epoch))
            failure = failure_of(error)
            self._said(TaskReport(launch.task, launch.epoch, Report.FAILED, failure))

    def _kill(self, task: str, epoch: int) -> None:
        self._watch.forget((task, epoch))
        self._to_launch.discard((task, epoch))
        try:
            if self.launcher is not None:
                self.launcher.kill(task, epoch)
        except Exception:  # noqa: BLE001 - fencing is what counts
            _log.warning("could not kill task %s of epoch %s", task, epoch, exc_info=True)

    def _won(self, won: "_Claimed") -> None:
        if self.launcher is None:
            self.launcher = self._make_launcher(won.paths)
            self._watch = Liveness(self.launcher.silence_seconds)
        self._do(self.machine.generation_won(won.generation, self._clock.monotonic()))

    def _lost(self, error: Exception) -> None:
        failure = failure_of(error)
        self._do(self.machine.generation_lost(failure, self._clock.monotonic()))

    def _wake(self) -> None:
        """Called by the companion: an answer is there."""
        self._awake.set()
        if self.launcher is not None:
            self.launcher.wake()

    # -- done by the companion

    def _claimed(self) -> "_Claimed":
        """Win the next generation; the first time also make the stages."""
        plan = self._plan
        if self._job is not None:
            self._job.check_owner()
        storage = self._storage = self._storage or open_storage(plan.url, plan.storage_options)
        self._job = JobLog.claim(storage, plan.name, self._ids.new_id())
        if self._emitter is None:
            log = SlotLog(storage, command_log_prefix(plan.name))
            self._emitter = Emitter(log, self._ids.new_id(), self._job.generation, self._ids)
            self._paths = {
                name: own_stage(
                    storage,
                    self._job,
                    stage,
                    settings=plan.settings.shuffle,
                    ids=self._ids,
                    clock=self._clock,
                )
                for name, stage in plan.stages.items()
                if stage.elsewhere is None
            }
        self._emitter.lead(self._job.generation)
        return _Claimed(self._job.generation, self._paths)


@dataclass(frozen=True, slots=True)
class _Claimed:
    generation: int
    paths: Mapping[str, StagePath]
