"""A task's end of the line to its supervisor.

Strategy: orders are put in by whoever reads the line and looked up by the task, which is never
interrupted in the middle of a call. A line that is lost is a cancel: a task without a supervisor
ends, and a later supervisor goes on from the logs. A silent heart means a dead process, so a
thread of the process says ALIVE, whatever the task does.
"""

import threading
from collections.abc import Callable

from durable_shuffle.recovery.job_phase import Abort, Failure, Go, Stop, TaskReport
from durable_shuffle.recovery.pipeline.launcher import Order
from durable_shuffle.recovery.stop_order import StopMode
from durable_shuffle.recovery.task_phase import Report
from durable_shuffle.serialization.errors import AbortedError, FencedError


class StartAborted(AbortedError):
    """The start barrier was called off: this attempt never runs."""


class TaskLink:
    """One attempt's line.

    Args:
        send: hands a report over; must not block for long, may be called by several threads.
    """

    def __init__(self, task: str, epoch: int, send: Callable[[TaskReport], None]) -> None:
        self.task, self.epoch, self._send = task, epoch, send
        self._changed = threading.Condition()
        self._go = False
        self._aborted = ""
        self._stop: StopMode | None = None
        self._records = 0
        self._commit = 0

    # -- for the reader of the line

    def deliver(self, order: Order) -> None:
        """Take an order in; one for another attempt is none."""
        if (order.task, order.epoch) != (self.task, self.epoch):
            return
        with self._changed:
            if isinstance(order, Go):
                self._go = True
            elif isinstance(order, Abort):
                self._aborted = self._aborted or order.cause or "called off"
            elif isinstance(order, Stop):
                self._stop = order.mode
            self._changed.notify_all()

    def lost(self) -> None:
        """Nobody listens any more."""
        with self._changed:
            self._aborted = self._aborted or "the supervisor is gone"
            self._stop = StopMode.CANCEL
            self._changed.notify_all()

    def alive(self) -> None:
        """Say that the process lives."""
        self._send(TaskReport(self.task, self.epoch, Report.ALIVE, records=self._records))

    # -- for the task

    @property
    def stop(self) -> StopMode | None:
        """How to end, None if nobody asked."""
        return self._stop

    def say(self, report: Report, *, commit: int = 0) -> None:
        """Report."""
        self._commit = commit
        self._send(TaskReport(self.task, self.epoch, report, None, commit, self._records))

    def pass_barrier(self) -> None:
        """Wait until all that start together are ready; then this one has started.

        Raises:
            StartAborted: the start was called off.
        """
        self.say(Report.AT_BARRIER)
        with self._changed:
            self._changed.wait_for(lambda: self._go or self._aborted or self._stop is not None)
        self.check()
        if not self._go:
            raise StartAborted(f"the start was called off: stop {self._stop}")
        self.say(Report.STARTED)

    def check(self) -> None:
        """Raise StartAborted if the start was called off, AbortedError if all shall be dropped."""
        if self._aborted and not self._go:
            raise StartAborted(f"the start was called off: {self._aborted}")
        if self._stop is StopMode.CANCEL:
            raise AbortedError("cancelled")

    def wait(self, seconds: float) -> None:
        """Wait for an order, at most so long; at once if a stop was asked for."""
        with self._changed:
            self._changed.wait_for(lambda: self._stop is not None, seconds)

    def progress(self, records: int) -> None:
        """Remember how far the task is, for people."""
        self._records = records

    def failed(self, error: BaseException, commit: int) -> None:
        """Report the end of an attempt that did not reach its own."""
        asked = isinstance(error, AbortedError) and (self._stop or self._aborted)
        if asked and self._stop is not None:
            self.say(Report.CANCELED)
            return
        failure = failure_of(error)
        self._send(TaskReport(self.task, self.epoch, Report.FAILED, failure, commit, self._records))


def failure_of(error: BaseException) -> Failure:
    """Return what a supervisor has to know of an error. Its text holds no credential."""
    kind = getattr(error, "kind", None)
    name = str(kind) if kind is not None else type(error).__name__
    secondary = isinstance(error, FencedError | StartAborted)
    return Failure(name, str(error) or name, retry=can_retry(error), secondary=secondary)


def can_retry(error: BaseException) -> bool:
    """Return whether another attempt can come out better.

    An error of user code says so by an attribute `retry`; without it, it is tried again as often
    as the budget allows.
    """
    said = getattr(error, "retry", None)
    if isinstance(said, bool):
        return said
    return str(getattr(error, "kind", "")) not in _FINAL


_FINAL = frozenset(("invalid_input", "incompatible", "corrupt_data", "not_found"))
