"""Carries out what `JobMachine` decides, and tells it what happens. One thread.

Strategy: the loop waits for reports, for a stop, or for the next moment at which the machine or the
watch over silent tasks has something to do. A new generation is a CLAIM in the job log, won before
anything of it starts. Killing may fail; the logs fence who could not be killed.
"""

import logging
import math
import queue
from collections.abc import Callable, Iterable, Mapping

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
from durable_shuffle.recovery.liveness import Liveness
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
from durable_shuffle.shuffle.layout import StagePath
from durable_shuffle.shuffle.open_storage import open_storage
from durable_shuffle.shuffle.retry import Jitter

_LONGEST_WAIT_SECONDS = 0.1
"""A stop is seen at most this much later."""
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
        self._job: JobLog | None = None
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
        now = self._clock.monotonic()
        due = [t for t in (self.machine.next_when(), self._watch.next_when()) if t is not None]
        wait = min([_LONGEST_WAIT_SECONDS, *(max(0.0, t - now) for t in due)])
        if self.launcher is None:
            self._clock.sleep(wait)
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
        for command in commands:
            if isinstance(command, WinGeneration):
                self._win_generation()
                continue
            assert self.launcher is not None
            if isinstance(command, Launch):
                self._watch.launched((command.task, command.epoch))
                self._launch(command)
            elif isinstance(command, Kill):
                self._kill(command.task, command.epoch)
            else:
                self.launcher.send(command)

    def _launch(self, launch: Launch) -> None:
        assert self.launcher is not None
        try:
            self.launcher.start(launch.task, launch.epoch)
        except Exception as error:  # noqa: BLE001 - it is the end of that attempt
            self._watch.forget((launch.task, launch.epoch))
            failure = failure_of(error)
            self._said(TaskReport(launch.task, launch.epoch, Report.FAILED, failure))

    def _kill(self, task: str, epoch: int) -> None:
        self._watch.forget((task, epoch))
        try:
            if self.launcher is not None:
                self.launcher.kill(task, epoch)
        except Exception:  # noqa: BLE001 - fencing is what counts
            _log.warning("could not kill task %s of epoch %s", task, epoch, exc_info=True)

    def _win_generation(self) -> None:
        try:
            generation = self._claimed()
        except Exception as error:  # noqa: BLE001 - all of it is reported
            failure = failure_of(error)
            self._do(self.machine.generation_lost(failure, self._clock.monotonic()))
            return
        self._do(self.machine.generation_won(generation, self._clock.monotonic()))

    def _claimed(self) -> int:
        """Win the next generation; the first time also make the stages and the launcher."""
        plan = self._plan
        if self._job is not None:
            self._job.check_owner()
        storage = open_storage(plan.url, plan.storage_options)
        self._job = JobLog.claim(storage, plan.name, self._ids.new_id())
        if self.launcher is None:
            paths = {
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
            self.launcher = self._make_launcher(paths)
            self._watch = Liveness(self.launcher.silence_seconds)
        return self._job.generation
