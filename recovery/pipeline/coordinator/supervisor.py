"""Carries out the decisions of `Job` and reports events to it. One thread.

The loop waits for an event in its inbox, or for the next moment at which the machine, a request
from outside or the watch over silent tasks is due. It never waits for storage: the companion does
the storage work, in order. A new generation wins a CLAIM in the job log before it starts anything.
Commands to tasks are written into the command log before they are sent. If killing a task fails,
the logs fence it.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial

from durable_shuffle.recovery.job.ends import StopMode, combined_stop
from durable_shuffle.recovery.job.machine import Job
from durable_shuffle.recovery.job.phases import (
    TERMINAL,
    Failure,
    JobAction,
    JobPhase,
    JobResult,
    Kill,
    Launch,
    TaskPhase,
    TaskReport,
    Told,
    WinGeneration,
)
from durable_shuffle.recovery.job.restarts import AttemptKey, RestartBudget
from durable_shuffle.recovery.pipeline.commands.requests import Description
from durable_shuffle.recovery.pipeline.coordinator.attempts import Attempts
from durable_shuffle.recovery.pipeline.coordinator.control import Control
from durable_shuffle.recovery.pipeline.coordinator.inbox import Companion, Inbox
from durable_shuffle.recovery.pipeline.coordinator.logs import (
    Claimed,
    PipelineLogs,
    Started,
)
from durable_shuffle.recovery.pipeline.coordinator.numbers import Listener, Tell
from durable_shuffle.recovery.pipeline.coordinator.reporter import Reporter, StatusLog
from durable_shuffle.recovery.pipeline.lines.launcher import Launcher, MakeLauncher
from durable_shuffle.recovery.pipeline.plan.plan import PipelinePlan
from durable_shuffle.recovery.pipeline.plan.updates import PreparedPlan, digest_of, plan_parts
from durable_shuffle.recovery.pipeline.task.link import coordinator_failure, failure_of
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import Clock, IdSource
from durable_shuffle.shuffle.base.retry import Jitter

_LONGEST_WAIT_SECONDS = 0.1
"""How often the loop checks the launcher's slots, and `ask_stop` checks for the end of the loop."""
_CLOSE_SECONDS = 10.0
"""How long the companion has at the end to finish its work."""
_LEADS_NO_MORE = "this coordinator leads no more: %s"
_PAUSED = (JobPhase.SUSPENDED, JobPhase.EFFECTS_PENDING)
_COMMITTED = (JobPhase.SUSPENDED, JobPhase.FINISHED)
_log = logging.getLogger(__name__)


class Supervisor:
    """One coordinator of a pipeline.

    Args:
        given: the description of the plan; its digest is filled in.
        packages: packages whose functions an update may name.
        serve: whether to keep running while the pipeline is suspended from outside.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        make_launcher: MakeLauncher,
        *,
        given: Description,
        packages: Collection[str],
        serve: bool,
        clock: Clock,
        ids: IdSource,
        jitter: Jitter,
        on_numbers: Tell | None = None,
    ) -> None:
        self._plan, self._serve = plan, serve
        self._clock, self._jitter = clock, jitter
        given = replace(given, digest=digest_of(plan_parts(plan)))
        self._logs = PipelineLogs(plan, given, packages=packages, clock=clock, ids=ids)
        self._inbox = Inbox()
        self._companion = Companion(self._inbox)
        self._attempts = Attempts(make_launcher, self._hear)
        self._reporter = Reporter(clock, ids)
        listener = Listener(on_numbers, plan.settings.status_seconds)
        self._status = StatusLog(
            self._reporter, self._logs, self._companion, plan.settings.status_seconds, listener
        )
        self._control = Control(
            self, self._logs, self._companion, self._reporter, plan.settings, self._attempts.check
        )
        self.machine = self._new_machine(plan)
        self.running: PreparedPlan | None = None
        """The running plan; None before it is known."""
        self._lost = self._ended = self._resume = False
        self._leave: tuple[JobPhase, Failure | None] | None = None
        """How a pipeline that is at rest and will not be resumed ended, and why."""

    @property
    def launcher(self) -> Launcher | None:
        """The launcher of the tasks; None before it is made."""
        return self._attempts.launcher

    def ask_stop(self, mode: StopMode) -> None:
        """Ask for an end. Callable from any thread; returns when the job has accepted it.

        Raises:
            InvalidInputError: as for `Job.stop`.
        """
        answer: Future[None] = Future()

        def stop() -> None:
            try:
                self._stop_by_owner(mode)
            except InvalidInputError as error:
                answer.set_exception(error)
            else:
                answer.set_result(None)

        self._inbox.put(stop)
        while not self._ended:
            with suppress(TimeoutError):
                answer.result(_LONGEST_WAIT_SECONDS)
                return
        if mode is not self.machine.mode:
            raise InvalidInputError(f"the job has ended: {self.machine.phase}")

    def run(self) -> JobResult:
        """Run until the job ends."""
        try:
            self._do(self.machine.start())
            while (result := self._result()) is None:
                self._turn()
            return result
        finally:
            self._ended = True
            self._attempts.close()
            if not self._lost:
                self._status.close(self.machine, self.running, _CLOSE_SECONDS)
                self._control.leave(whole=self.machine.phase in _COMMITTED)
            self._companion.close(_CLOSE_SECONDS)

    def _result(self) -> JobResult | None:
        result = self.machine.result
        if result is None or not self._serve or result.phase not in _PAUSED:
            return result
        if self._leave is not None:
            phase, cause = self._leave
            pending = result.pending if phase is JobPhase.EFFECTS_PENDING else ()
            return replace(result, phase=phase, cause=cause or result.cause, pending=pending)
        if self._resume:
            self._resume = False
            self.machine = self._new_machine(self.running.plan if self.running else self._plan)
            self._do(self.machine.start())
        return None

    def _new_machine(self, plan: PipelinePlan) -> Job:
        budget = RestartBudget(plan.settings.restarts, self._jitter)
        return Job(plan.graph, plan.drained, budget, plan.settings.timeouts)

    def _turn(self) -> None:
        self._control.turn(self._clock.monotonic())
        when = (self.machine.next_when(), self._attempts.next_when(), self._control.next_when())
        now = self._clock.monotonic()
        due = (max(0.0, moment - now) for moment in when if moment is not None)
        wait = min([_LONGEST_WAIT_SECONDS, *due])
        for event in self._inbox.take(wait):
            event()
        self._look_at_slots()
        now = self._clock.monotonic()
        for attempt, failure in self._attempts.silent(now):
            self._attempts.kill(attempt)
            self._said(TaskReport(*attempt, TaskPhase.FAILED, failure))
        self._do(self.machine.tick(now))
        if self.running is not None and not self._lost:
            self._status.turn(now, self.machine, self.running)

    def _stop_by_owner(self, mode: StopMode) -> None:
        """Stop for the program that runs the pipeline; then nobody can resume it from outside."""
        self.stop(mode)
        if self.at_rest:
            self._leave = self._leave or (self.machine.phase, None)
        self._serve = self._serve and mode is not StopMode.SUSPEND

    # -- reports of tasks

    def _hear(self, report: TaskReport) -> None:
        """Take a report in. Callable from any thread."""
        self._inbox.put(lambda: self._heard(report))

    def _heard(self, report: TaskReport) -> None:
        now = self._clock.monotonic()
        if not self._attempts.counts(report, now):
            return
        assert self.running is not None
        address = self.running.plan.tasks.get(report.task)
        if not report.complaint:
            self._said(report)
        elif address is not None:
            self._control.complain(report, address.owner, now)

    def _said(self, report: TaskReport) -> None:
        now = self._clock.monotonic()
        if report.failure is not None:
            # report once that this coordinator is fenced, not once for each of its tasks
            told = self._lost and report.failure.kind == "fenced"
            level = logging.DEBUG if told else logging.WARNING
            _log.log(level, "task %s of epoch %s: %s", report.task, report.epoch, report.failure)
            self._reporter.fell(report)
        try:
            self._restarts(lambda: self.machine.said(report, now))
        except InvalidInputError as error:  # reports of this attempt cannot be trusted
            self._attempts.kill((report.task, report.epoch))
            failed = TaskReport(report.task, report.epoch, TaskPhase.FAILED, failure_of(error))
            self._restarts(lambda: self.machine.said(failed, now))

    def _restarts(self, take_in: Callable[[], list[JobAction]]) -> None:
        """Have the machine take in what may lead to a restart, and say if it does."""
        budget, before = self.machine.budget, self.machine.budget.total
        actions, at = take_in(), self.machine.restart_at
        if budget.total > before and at is not None:
            seconds = at - self._clock.monotonic()
            _log.warning("%s", self._plan.settings.restarts.said(budget.used, seconds))
        self._do(actions)

    # -- decisions of the machine

    def _do(self, actions: Iterable[JobAction]) -> None:
        launches: list[Launch] = []
        told: list[Told] = []
        for command in actions:
            if isinstance(command, WinGeneration):
                self._companion.submit(self._claim, self._won, self._not_won)
            elif isinstance(command, Launch):
                launches.append(command)
            elif isinstance(command, Kill):
                self._attempts.kill((command.task, command.epoch))
            else:
                told.append(command)
        if launches:
            self._start([launch.task for launch in launches], launches[0].epoch)
        if told:
            self._tell(told)

    def _claim(self) -> Claimed:
        """Win a generation. What refuses a start is checked before that: it fences nobody."""
        if self.running is None:
            self._attempts.make(self._logs.first_plan())
        return self._logs.claim()

    def _won(self, won: Claimed) -> None:
        if won.prepared is not None:
            plan = won.prepared.plan
            try:
                self._attempts.use(won.prepared)
            except Exception as error:  # noqa: BLE001 - all of it is reported
                self._not_won(error)
                return
            self.running = won.prepared
            self.machine.described(plan.graph, plan.drained)
            self._reporter.reset(tuple(won.prepared.parts))
        self._look_at_slots()
        self._do(self.machine.generation_won(won.generation, self._clock.monotonic()))

    def _look_at_slots(self) -> None:
        slots = self._attempts.slots
        if slots != self.machine.slots:
            self._do(self.machine.slots_are(slots, self._clock.monotonic()))

    def _not_won(self, error: Exception) -> None:
        failure = coordinator_failure(error)
        self._lost = self._lost or not failure.retry
        led = _LEADS_NO_MORE if self.running is not None else "the pipeline cannot start: %s"
        _log.warning("no generation was won: %s" if failure.retry else led, failure)
        self._restarts(lambda: self.machine.generation_lost(failure, self._clock.monotonic()))

    def _start(self, tasks: list[str], epoch: int) -> None:
        """Write START, then launch."""
        running = self.running
        assert running is not None
        attempts = [(task, epoch) for task in tasks]
        for attempt in attempts:
            self._attempts.planned(attempt)

        def stands(started: Started) -> None:
            for attempt in attempts:
                if self._attempts.is_planned(attempt):  # else it was killed in the meantime
                    self._launch(*attempt, started)
            self.push((started.slot, started.record))

        work = partial(self._logs.start, running, epoch, tasks)
        self._companion.submit(work, stands, partial(self._cannot_tell, attempts))

    def _launch(self, task: str, epoch: int, started: Started) -> None:
        assert self.running is not None
        if task in started.finished:  # in an earlier run
            self._said(TaskReport(task, epoch, TaskPhase.STARTING))
            self._said(TaskReport(task, epoch, TaskPhase.FINISHED))
            return
        if (address := self.running.plan.tasks.get(task)) is not None:
            self._control.launched(address.owner, epoch)
        if (failure := self._attempts.launch((task, epoch), started.slot)) is not None:
            self._said(TaskReport(task, epoch, TaskPhase.FAILED, failure))

    def _tell(self, told: list[Told]) -> None:
        """Write commands into the command log, then push them."""
        attempts = [(task, command.epoch) for command in told for task in command.tasks]
        work = partial(self._logs.emit, *told)
        self._companion.submit(work, self.push, partial(self._cannot_tell, attempts))

    def _cannot_tell(self, attempts: Iterable[AttemptKey], error: Exception) -> None:
        """Handle that these attempts' commands are not in the command log, or not yet."""
        failure = coordinator_failure(error)
        if not failure.retry:
            self.lost(error)
            failure = replace(failure_of(error), secondary=True)
        for attempt in attempts:
            self._attempts.kill(attempt)
            self._said(TaskReport(*attempt, TaskPhase.FAILED, failure))

    # -- interface for `Control`

    @property
    def all_run(self) -> bool:
        """Whether all tasks run and nobody has asked for an end."""
        return self.machine.phase is JobPhase.RUNNING

    @property
    def at_rest(self) -> bool:
        """Whether no task runs."""
        return self.machine.result is not None

    def check_stop(self, mode: StopMode) -> None:
        """Raise InvalidInputError if the pipeline cannot be stopped in this way now."""
        combined_stop(self.machine.mode, mode)
        if self.at_rest and mode not in (StopMode.CANCEL, self.machine.mode):
            raise InvalidInputError(f"the job has ended: {self.machine.phase}")

    def stop(self, mode: StopMode) -> None:
        """End or suspend the pipeline in this way."""
        self._resume = False
        if self.at_rest and mode is StopMode.CANCEL and self.machine.phase in _PAUSED:
            self._leave = JobPhase.CANCELED, None
            return
        self._do(self.machine.stop(mode, self._clock.monotonic()))

    def resume(self) -> None:
        """Resume the pipeline if it is suspended, or as soon as it is."""
        self._resume = self.machine.mode is StopMode.SUSPEND

    def go_on_with(
        self, wanted: PreparedPlan, replaced: Collection[str], dropped: Collection[str]
    ) -> None:
        """Run another plan from now on; tasks of parts that are not named keep running."""
        assert self.running is not None
        before = self.running.plan.tasks
        try:
            self._attempts.use(wanted)
        except Exception:  # noqa: BLE001 - the current plan keeps running
            _log.exception("version %s cannot be started", wanted.description)
            return
        self.running = wanted
        if self.at_rest:
            return
        plan = wanted.plan
        commands = self.machine.update(
            plan.graph,
            plan.drained,
            self._clock.monotonic(),
            replace=[task for task, address in plan.tasks.items() if address.owner in replaced],
            drop=[task for task, address in before.items() if address.owner in dropped],
        )
        self._do(commands)

    def ended(self, tasks: Collection[str]) -> bool:
        """Whether none of these tasks runs."""
        states = [self.machine.tasks[task] for task in tasks if task in self.machine.tasks]
        return all(not state.epoch or state.phase in TERMINAL for state in states)

    def push(self, slot: tuple[int, bytes]) -> None:
        """Push a slot of the command log to the tasks."""
        self._attempts.push(slot)

    def lost(self, error: Exception) -> None:
        """Stop leading."""
        if self._lost:
            return
        self._lost = True
        failure = coordinator_failure(error)
        _log.warning(_LEADS_NO_MORE, failure)
        if self.at_rest:
            self._leave = JobPhase.FAILED, failure
        else:
            self._do(self.machine.ended_by(failure, self._clock.monotonic()))
