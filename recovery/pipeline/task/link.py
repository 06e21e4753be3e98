"""Connects a task to its supervisor.

The supervisor's commands are in the command log of the pipeline. Either the reader of the line
pushes slots, or a thread of the link reads them (`follow`). In both cases each slot is taken in
once, in order. The task looks for commands; it is never interrupted in the middle of a call. If the
line is lost, or another coordinator leads, the task ends as after a cancel, and a later supervisor
continues from the logs. A process without heartbeats counts as dead, so a separate thread sends
them.
"""

import logging
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.job.phases import (
    CallOff,
    Failure,
    PassBarrier,
    StopTasks,
    TaskPhase,
    TaskReport,
    Told,
)
from durable_shuffle.recovery.pipeline.commands.orders import (
    Answered,
    ApplySettings,
    Decided,
    InternalCommand,
    Lead,
    SlotOrder,
    StartTasks,
    decode_slot,
)
from durable_shuffle.recovery.pipeline.plan.updates import is_installed
from durable_shuffle.recovery.pipeline.task.watch import HungError
from durable_shuffle.serialization.errors import (
    AbortedError,
    ConflictError,
    CorruptDataError,
    DurableShuffleError,
    FencedError,
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.retry import backoff_seconds
from durable_shuffle.shuffle.base.user_code import own_error, text_of, user_code
from durable_shuffle.shuffle.log.slot_log import SlotLog

_FIRST_LOOK_SECONDS = 0.05
_LONE_SECONDS = 2.0
"""A link with this pause or a shorter one gets no pushes, so it looks more often at first."""
_log = logging.getLogger(__name__)


class StartAborted(AbortedError):
    """The start barrier was cancelled: this attempt never runs."""


class TaskLink:
    """The line of one attempt.

    Args:
        send: sends a report; must not block for long, may be called by several threads.
        slot: first slot of the command log that the attempt reads.
        poll_seconds: how often an idle link reads the command log by itself, None: never. Use 1
            or 2 for an attempt without a line, and much more for one whose slots are pushed.
    """

    def __init__(
        self,
        task: str,
        epoch: int,
        send: Callable[[TaskReport], None],
        *,
        slot: int = 0,
        poll_seconds: float | None = None,
    ) -> None:
        self.task, self.epoch, self._send_on = task, epoch, send
        self._ended = False
        """Whether the last report was sent: nothing is sent after it."""
        self._poll_seconds = poll_seconds
        self._changed = threading.Condition()
        self._order = SlotOrder(slot)
        self._coordinator = ""
        self._start: StartTasks | None = None
        self._settings: dict[str, int | float] = {}
        self._go = False
        self._aborted = ""
        self._stop: StopMode | None = None
        self._broken: Exception | None = None
        self._over = False
        self._records = 0
        self._commit = 0

    # -- for the reader of the line

    def push(self, slot: int, record: bytes) -> None:
        """Take in a slot of the command log, in any order, any number of times."""
        with self._changed:
            try:
                decided = decode_slot(record, name=f"slot {slot} of the command log")
                for ready in self._order.take(slot, decided):
                    self._apply(ready)
            except DurableShuffleError as error:
                self._break(error)
            self._changed.notify_all()

    def follow(self, log: SlotLog) -> None:
        """Start reading the command log, in addition to pushed slots. Ends with the attempt."""
        if self._poll_seconds is not None:
            name = f"durable-shuffle-commands-{self.task}"
            threading.Thread(target=self._poll, args=(log,), name=name, daemon=True).start()

    def deliver(self, command: InternalCommand) -> None:
        """Obey a command if it is for this attempt."""
        with self._changed:
            self._obey(command)
            self._changed.notify_all()

    def _apply(self, decided: Decided) -> None:
        for command in decided.commands:
            if isinstance(command, StartTasks) and self._is_mine(command):
                self._coordinator = decided.coordinator
            self._obey(command)
        if self._coordinator not in ("", decided.coordinator):
            self._end("another coordinator leads")

    def _obey(self, command: InternalCommand) -> None:
        if isinstance(command, ApplySettings):
            self._settings = command.settings
        elif isinstance(command, Lead | Answered) or not self._is_mine(command):
            return
        elif isinstance(command, StartTasks):
            self._start, self._settings = command, command.settings
        elif isinstance(command, PassBarrier):
            self._go = True
        elif isinstance(command, CallOff):
            self._aborted = self._aborted or command.cause or "called off"
        elif isinstance(command, StopTasks):
            self._stop = command.mode

    def _is_mine(self, command: StartTasks | Told) -> bool:
        return command.epoch == self.epoch and self.task in command.tasks

    def _poll(self, log: SlotLog) -> None:
        """Read on; more often while a slot is missing or has just come."""
        longest = self._poll_seconds
        assert longest is not None
        misses = 0
        while True:
            with self._changed:
                first = min(_FIRST_LOOK_SECONDS, longest)
                pause = (
                    backoff_seconds(misses, first, longest) if longest <= _LONE_SECONDS else longest
                )
                self._changed.wait_for(lambda: self._over or self._order.has_gap, pause)
                if self._over or self._broken is not None:
                    return
                slot = self._order.next_slot
            try:
                record = log.read(slot)
            except UnavailableError:
                _log.warning("cannot read the command log of task %s", self.task, exc_info=True)
                record = None
            except DurableShuffleError as error:
                self._break(error)
                return
            misses = misses + 1 if record is None else 0
            if record is not None:
                self.push(slot, record)

    def _break(self, error: Exception) -> None:
        with self._changed:
            self._broken = self._broken or error
            self._stop = StopMode.CANCEL
            self._changed.notify_all()

    def _end(self, why: str) -> None:
        self._aborted = self._aborted or why
        self._stop = StopMode.CANCEL

    def lost(self) -> None:
        """Take in that nobody listens any more."""
        with self._changed:
            self._end("the supervisor is gone")
            self._changed.notify_all()

    def over(self) -> None:
        """Stop following the log: the attempt has ended."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def alive(self) -> None:
        """Report that the process is alive."""
        self._send(TaskReport(self.task, self.epoch, None, records=self._records))

    def _send(self, report: TaskReport) -> None:
        with self._changed:
            if self._ended:
                return
            self._ended = report.is_last
        self._send_on(report)

    # -- for the task

    def hung(self, error: BaseException, commit: int) -> None:
        """Report that the attempt failed, although it has not ended. It ends when it can."""
        self.failed(error, commit)
        with self._changed:
            self._end("it took too long")
            self._changed.notify_all()

    def complain(self, cause: str) -> None:
        """Ask for a restart of all tasks of this part."""
        self._send(TaskReport(self.task, self.epoch, None, complaint=cause or "no cause given"))

    def hear(self, part: Any) -> None:
        """Pass on the cause that a step or source returns from `wants_restart()`; "" for none."""
        if hasattr(part, "wants_restart"):
            with user_code():
                cause = part.wants_restart()
            if cause:
                self.complain(text_of(cause))

    @property
    def stop(self) -> StopMode | None:
        """How to end, None if nobody asked for a stop."""
        return self._stop

    @property
    def settings(self) -> dict[str, int | float]:
        """Settings that replace those of the pipeline, after the newest slot."""
        return self._settings

    @property
    def start(self) -> StartTasks | None:
        """The attempt's start values, None before they are known."""
        return self._start

    def wait_start(self) -> StartTasks:
        """Wait until this attempt may begin and write; return its start values.

        Raises:
            StartAborted: the start was cancelled.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._start is not None or self._is_called_off())
        if self._start is None:
            self.check()
            raise StartAborted(f"the start was called off: stop {self._stop}")
        return self._start

    def check_writes(self) -> None:
        """Refuse to write before START: until then it is unknown whether the coordinator leads.

        Raises:
            FencedError: there was no START for this attempt.
        """
        if self._start is None:
            raise FencedError(
                f"task {self.task!r} of epoch {self.epoch} is read-only: its coordinator has not "
                "shown that it leads"
            )

    def _is_called_off(self) -> bool:
        return bool(self._aborted) or self._stop is not None

    def say(self, report: TaskPhase, *, commit: int = 0) -> None:
        """Report a phase."""
        self._commit = commit
        self._send(TaskReport(self.task, self.epoch, report, None, commit, self._records))

    def pass_barrier(self) -> None:
        """Wait until all tasks that start together are ready; then report STARTED.

        Raises:
            StartAborted: the start was cancelled.
        """
        self.say(TaskPhase.AT_BARRIER)
        with self._changed:
            self._changed.wait_for(lambda: self._go or self._is_called_off())
        self.check()
        if not self._go:
            raise StartAborted(f"the start was called off: stop {self._stop}")
        self.say(TaskPhase.STARTED)

    def check(self) -> None:
        """Raise StartAborted if the start was cancelled, AbortedError if the task was cancelled, or
        an error of the command log, because an unreadable record must not be skipped."""
        if self._broken is not None:
            raise self._broken
        if self._aborted and not self._go:
            raise StartAborted(f"the start was called off: {self._aborted}")
        if self._stop is StopMode.CANCEL:
            raise AbortedError("cancelled")

    def progress(self, records: int) -> None:
        """Remember the task's progress, for people."""
        self._records = records

    def failed(self, error: BaseException, commit: int) -> None:
        """Report that an attempt failed before its end."""
        asked = isinstance(error, AbortedError) and (self._stop or self._aborted)
        if asked and self._stop is not None:
            self.say(TaskPhase.CANCELED)
            return
        failure = failure_of(error)
        self._send(
            TaskReport(self.task, self.epoch, TaskPhase.FAILED, failure, commit, self._records)
        )


def failure_of(error: BaseException) -> Failure:
    """Return what a supervisor must know about an error. The text holds no credential.

    Only errors of this library have a kind. What user code raised is known by its class alone, so
    it is never taken for an outage of the storage or for a newer owner.
    """
    own = own_error(error)
    ours = own is error and isinstance(own, DurableShuffleError | HungError)
    return Failure(
        str(own.kind) if ours else type(own).__name__,  # type: ignore[attr-defined]
        text_of(own),
        retry=can_retry(own),
        secondary=ours and isinstance(own, FencedError | StartAborted),
        where="" if ours else _place_of(own),
    )


def coordinator_failure(error: Exception) -> Failure:
    """Return a failure of the coordinator itself. Only what passes by itself is tried again."""
    return replace(failure_of(error), retry=isinstance(error, PASSING), secondary=False)


def _place_of(error: BaseException) -> str:
    """Return the innermost line of the user's own code, "" if there is none."""
    library = Path(__file__).parents[3]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if library not in file.parents and not is_installed(frame.filename):
            return f"{file.name}:{frame.lineno} in {frame.name}"
    return ""


def can_retry(error: BaseException) -> bool:
    """Return whether another attempt can succeed.

    An error of user code can say so with an attribute `retry`. Without it, the task is restarted
    as often as the budget allows.
    """
    said = getattr(error, "retry", None)
    if isinstance(said, bool):
        return said
    return not isinstance(error, _FINAL)


PASSING = (ConflictError, OutcomeUnknownError, UnavailableError)
"""Errors of the storage that pass by themselves."""
_FINAL = (InvalidInputError, IncompatibleError, CorruptDataError, NotFoundError)
