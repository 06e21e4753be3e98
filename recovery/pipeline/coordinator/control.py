"""Carries out requests from outside, through the supervisor.

It reads requests one at a time, each after the answer to the one before. The companion imports and
checks a description. When all tasks run, the supervisor adopts it part by part. Drops and runs go
through the same queue, so neither overtakes the other.

From time to time it has data deleted that all consumers have committed.
"""

import logging
import math
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from durable_shuffle.recovery.job.phases import TaskReport
from durable_shuffle.recovery.pipeline.commands.orders import ApplySettings, InternalCommand
from durable_shuffle.recovery.pipeline.commands.requests import (
    AllowRelease,
    ChangeSettings,
    DropPart,
    ExternalCommand,
    Reconcile,
    RestartPart,
    ResumeIt,
    RunThis,
    StopIt,
)
from durable_shuffle.recovery.pipeline.coordinator.complaints import RestartRequests
from durable_shuffle.recovery.pipeline.coordinator.inbox import Companion
from durable_shuffle.recovery.pipeline.coordinator.logs import (
    PipelineLogs,
    Request,
)
from durable_shuffle.recovery.pipeline.coordinator.reporter import Reporter
from durable_shuffle.recovery.pipeline.plan.plan import PipelinePlan
from durable_shuffle.recovery.pipeline.plan.settings import PipelineSettings
from durable_shuffle.recovery.pipeline.plan.updates import PreparedPlan
from durable_shuffle.recovery.pipeline.task.link import PASSING
from durable_shuffle.serialization.errors import (
    DurableShuffleError,
    FencedError,
    InvalidInputError,
)
from durable_shuffle.shuffle.base.user_code import named_text_of

if TYPE_CHECKING:
    from durable_shuffle.recovery.pipeline.coordinator.supervisor import Supervisor

_ANY_EPOCH = 1 << 62
"""Above the epoch of every attempt: a request from outside always means the newest one."""
_log = logging.getLogger(__name__)


class Control:
    """Handles the requests to one coordinator. Used only by the control loop.

    Args:
        check_plan: refuses a plan whose tasks cannot be launched; callable from any thread.
    """

    def __init__(
        self,
        job: "Supervisor",
        logs: PipelineLogs,
        companion: Companion,
        reporter: Reporter,
        settings: PipelineSettings,
        check_plan: Callable[[PipelinePlan], None],
    ) -> None:
        self._job, self._logs, self._companion = job, logs, companion
        self._reporter, self._settings, self._check_plan = reporter, settings, check_plan
        self._restarts = RestartRequests(settings.complaint_seconds)
        self._next: PreparedPlan | None = None
        """Accepted, but not adopted yet."""
        self._drops: list[tuple[DropPart, PreparedPlan]] = []
        """Each drop with the plan that ran before it."""
        self._asking = False
        self._look_at = self._drop_at = 0.0
        self._release_at = math.inf
        self._releasing = False
        """One at a time: a queue of slow ones would hold up all other work on the logs."""

    @property
    def target(self) -> PreparedPlan | None:
        """The plan that runs, or that will run once all tasks run."""
        return self._next or self._job.running

    def next_when(self) -> float | None:
        """Return when `turn` is due, None if that depends on events."""
        due = [] if self._asking or self._job.running is None else [self._look_at]
        when = self._restarts.next_when()
        due += [] if when is None or not self._job.all_run else [when]
        due += [self._release_at] if self._job.all_run else []
        return min(due) if due else None

    def turn(self, now: float) -> None:
        """Do everything that is due."""
        if self._job.running is None:
            return
        if not self._asking and now >= self._look_at:
            self._asking = True
            self._look_at = now + self._settings.request_seconds
            self._companion.submit(self._logs.next_request, self._read, self._cannot_read)
        self._take_over()
        if self._job.all_run:
            assert self._job.running is not None
            due = self._restarts.due(now, self._job.running.parts)
            if due:
                _log.warning("restart of %s", ", ".join(f"{p}: {cause}" for p, cause in due))
                self._job.go_on_with(self._job.running, [part for part, _ in due], ())
        self._finish_drops(now)
        self._release_consumed(now)

    def complain(self, report: TaskReport, part: str, now: float) -> None:
        """Take in that a task asks for a restart of its part."""
        self._restarts.complain(part, report.epoch, f"{report.task}: {report.complaint}", now)

    def launched(self, part: str, epoch: int) -> None:
        """Take in that a task of a part was started under this epoch."""
        self._restarts.restarted(part, epoch)

    # -- requests

    def _cannot_read(self, error: Exception) -> None:
        self._asking = False
        if isinstance(error, PASSING):
            _log.warning("cannot look for requests: %s", error)
        else:
            self._job.lost(error)

    def _read(self, request: Request | None) -> None:
        if request is None:
            self._asking = False
            return
        if request.handled is None:
            self._answer(request, request.error)
            return
        commands, target = request.handled.requests, self.target
        runs = [command for command in commands if isinstance(command, RunThis)]
        try:
            for command in commands:
                self._check(command)
        except DurableShuffleError as error:
            self._answer(request, error)
            return
        if not runs:
            self._unless_refused(request, commands)
            return
        assert target is not None
        wanted = runs[-1].description
        self._companion.submit(
            lambda: self._logs.prepare(wanted, target, self._check_plan),
            lambda prepared: self._carry_out(request, commands, prepared),
            lambda error: self._answer(request, _told(error)),
        )

    def _unless_refused(self, request: Request, commands: Collection[ExternalCommand]) -> None:
        """Carry out requests, unless one drops what cannot be dropped."""
        target = self.target
        assert target is not None
        command = request.command
        if not isinstance(command, DropPart):
            self._carry_out(request, commands, None)
            return
        self._companion.submit(
            lambda: self._logs.check_part(command.part, target),
            lambda _: self._carry_out(request, commands, None),
            lambda error: self._answer(request, _told(error)),
        )

    def _carry_out(
        self, request: Request, commands: Collection[ExternalCommand], prepared: PreparedPlan | None
    ) -> None:
        """Carry out all requests; from here on nothing can be refused."""
        notes: list[str] = []
        said: list[InternalCommand] = []
        releases: list[AllowRelease] = []
        for command in commands:
            match command:
                case ChangeSettings():
                    assert request.handled is not None
                    said.append(ApplySettings(request.handled.wanted.settings))
                case RunThis():
                    notes.append(self._run(prepared))
                case DropPart():
                    notes.append(self._drop(command))
                case AllowRelease():
                    releases.append(command)
                case StopIt():
                    self._job.stop(command.mode)
                case ResumeIt():
                    self._job.resume()
                case RestartPart():
                    now = self._reporter.clock.monotonic()
                    self._restarts.complain(command.part, _ANY_EPOCH, command.cause, now)
                case Reconcile():
                    target = self.target
                    self._reporter.reset(() if target is None else tuple(target.parts))
        self._answer(request, None, "; ".join(filter(None, notes)), said, releases)

    def _check(self, command: ExternalCommand) -> None:
        if isinstance(command, StopIt):
            self._job.check_stop(command.mode)
        elif isinstance(command, ChangeSettings):
            self._settings.tuned(command.settings)
        elif isinstance(command, RestartPart):
            target = self.target
            if target is None or command.part not in target.parts:
                raise InvalidInputError(f"there is no source or consumer {command.part!r}")

    def _run(self, prepared: PreparedPlan | None) -> str:
        """Accept a new description."""
        target = self.target
        assert prepared is not None
        assert target is not None
        for drop, _ in self._drops:  # is for good: no later description brings it back
            prepared = prepared.without(drop.part)
        changes = target.changes_to(prepared.parts, prepared.description)
        for part in changes.drop:  # at the command, not only when its tasks have ended
            self._gone(part)
        self._reporter.frontiers.ask(tuple(prepared.parts))
        self._next = prepared
        parts = [
            f"{what} {', '.join(names)}"
            for what, names in (
                ("keeps", changes.keep),
                ("replaces", changes.replace),
                ("starts", changes.start),
                ("ends", changes.drop),
            )
            if names
        ]
        return "; ".join(parts)

    def _drop(self, command: DropPart) -> str:
        target = self.target
        assert target is not None
        self._drops.append((command, target))
        if command.part in target.parts:  # else it was left out before
            self._gone(command.part)
            self._next = target.without(command.part)
        return f"drops {command.part}"

    def _gone(self, part: str) -> None:
        self._reporter.frontiers.drop(part)
        self._restarts.forget(part)

    def _answer(
        self,
        request: Request,
        error: DurableShuffleError | None,
        text: str = "",
        said: Collection[InternalCommand] = (),
        releases: Collection[AllowRelease] = (),
    ) -> None:
        target = self.target

        def work() -> tuple[int, bytes]:
            refused, notes = error, [text] if text else []
            for release in releases:
                assert target is not None
                try:
                    notes.append(self._logs.release(release, target))
                except DurableShuffleError as failed:
                    refused = failed
            return self._logs.answer(request, refused, "; ".join(notes), said)

        self._companion.submit(work, self._answered, self._cannot_read)

    def _answered(self, slot: tuple[int, bytes]) -> None:
        self._asking, self._look_at = False, 0.0  # the next request may be there already
        self._job.push(slot)

    # -- accepted requests

    def _take_over(self) -> None:
        running = self._job.running
        if self._next is None or running is None:
            return
        wanted = self._next
        if self._job.at_rest:
            self._next = None
            self._job.go_on_with(wanted, (), ())
        elif self._job.all_run:
            changes = running.changes_to(wanted.parts, wanted.description)
            self._next = None
            self._job.go_on_with(wanted, changes.replace, changes.drop)

    def _finish_drops(self, now: float) -> None:
        """End parts for good once their tasks have ended."""
        if self._next is not None or not self._drops or now < self._drop_at:
            return
        self._drop_at = now + self._settings.request_seconds
        for drop in list(self._drops):
            command, before = drop
            tasks = [t for t, a in before.plan.tasks.items() if a.owner == command.part]
            if self._job.ended(tasks):
                self._drops.remove(drop)
                self._end_part(drop)

    def _release_consumed(self, now: float) -> None:
        """Have consumed data deleted, from time to time."""
        seconds, running = self._settings.release_seconds, self._job.running
        if not seconds or running is None or self._releasing:
            return
        self._release_at = min(self._release_at, now + seconds)
        if now < self._release_at or not self._job.all_run:
            return
        self._releasing, self._release_at = True, math.inf
        self._companion.submit(
            lambda: self._logs.release_consumed(running), self._released, self._not_released
        )

    def leave(self, *, whole: bool) -> None:
        """Say that this coordinator has ended.

        Args:
            whole: what consumers have committed is what they need no more.
        """
        running = self._job.running
        if running is not None and whole and self._settings.release_seconds:
            self._companion.submit(
                lambda: self._logs.release_consumed(running), lambda _: None, lambda _: None
            )
        self._companion.submit(self._logs.end, lambda _: None, lambda _: None)

    def _released(self, _: object) -> None:
        self._releasing = False  # the next turn says when again

    def _not_released(self, error: Exception) -> None:
        self._released(None)
        if isinstance(error, FencedError):
            self._job.lost(error)
        else:  # the next turn tries again
            _log.warning("cannot delete data that all consumers have committed: %s", error)

    def _end_part(self, drop: tuple[DropPart, PreparedPlan]) -> None:
        def failed(error: Exception) -> None:
            if isinstance(error, PASSING):
                _log.warning("cannot end %s yet: %s", drop[0].part, error)
                self._drops.append(drop)  # a later turn tries again
            else:
                self._job.lost(error)

        self._companion.submit(partial(self._logs.drop, *drop), lambda _: None, failed)


def _told(error: Exception) -> DurableShuffleError:
    if isinstance(error, DurableShuffleError):
        return error
    return InvalidInputError(named_text_of(error))
