"""Runs one attempt whose only connection to its supervisor is the storage.

One thread beside the task writes the task's reports; the link itself follows the command log.
Reports that cannot be written are held and sent again. A line that is broken for too long, or that
nobody reads, is lost: the task ends, and its successor goes on from the logs.
"""

import logging
import threading

from durable_shuffle.recovery.job.phases import TaskReport
from durable_shuffle.recovery.pipeline.lines.launcher import RunAttempt
from durable_shuffle.recovery.pipeline.lines.report_log import LineSettings, ReportWriter
from durable_shuffle.recovery.pipeline.task.link import TaskLink
from durable_shuffle.serialization.errors import (
    DurableShuffleError,
    FencedError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.clock import Clock

_log = logging.getLogger(__name__)
_AGAIN_SECONDS = 0.5
"""Pause after a report could not be written."""


class StorageLine:
    """One attempt's line.

    Args:
        slot: of the command log, from which on it is read.
        writer: of this attempt's reports.
    """

    def __init__(
        self,
        task: str,
        epoch: int,
        slot: int,
        writer: ReportWriter,
        settings: LineSettings,
        clock: Clock,
    ) -> None:
        self.link = TaskLink(
            task, epoch, self._put, slot=slot, poll_seconds=settings.command_seconds
        )
        self._writer, self._settings, self._clock = writer, settings, clock
        self._changed = threading.Condition()
        self._said: list[TaskReport] = []
        self._over = False

    def run(self, run_task: RunAttempt) -> None:
        """Run the attempt to its end; returns when what it said is written, or cannot be.

        Does nothing if another try of the same attempt came first.
        """
        try:
            self._writer.open(self._clock.monotonic())
        except DurableShuffleError as error:
            _log.warning("task %s does not begin: %s", self.link.task, error)
            return
        pump = threading.Thread(target=self._pump, name="durable-shuffle-line", daemon=True)
        pump.start()
        try:
            run_task(self.link)
        finally:
            with self._changed:
                self._over = True
                self._changed.notify()
            pump.join()

    def _put(self, report: TaskReport) -> None:
        with self._changed:
            self._said.append(report)
            self._changed.notify()

    def _pump(self) -> None:
        try:
            self._turns()
        except DurableShuffleError as error:
            _log.warning("task %s ends, its line is lost: %s", self.link.task, error)
        finally:
            self.link.lost()  # means nothing to a task that has ended

    def _turns(self) -> None:
        settings, clock = self._settings, self._clock
        written = clock.monotonic()
        failed = over = False
        while not (over and not self._writer.has_more):
            beat = written + settings.heartbeat_seconds
            over = self._wait_for_words(beat - clock.monotonic(), failed=failed)
            now = clock.monotonic()
            if now >= beat:
                self.link.alive()
                self._collect()
            if self._writer.has_more:
                failed = not self._flushed(now)
                written = written if failed else now
            if now - written >= settings.silence_seconds:
                raise UnavailableError("reports could not be written for too long")
            if now >= beat and not failed:
                self._check_listener(now)

    def _wait_for_words(self, seconds: float, *, failed: bool) -> bool:
        """Wait until something is said, at most so long; return whether the task is over."""
        if failed:
            self._clock.sleep(_AGAIN_SECONDS)
        with self._changed:
            if not failed:
                self._changed.wait_for(lambda: self._said or self._over, max(0.0, seconds))
            over = self._over
            self._collect()
        return over

    def _collect(self) -> None:
        with self._changed:
            for report in self._said:
                self._writer.say(report)
            self._said.clear()

    def _flushed(self, now: float) -> bool:
        try:
            self._writer.flush(now)
        except (OutcomeUnknownError, UnavailableError) as error:
            _log.warning("task %s could not report: %s", self.link.task, error)
            return False
        return True

    def _check_listener(self, now: float) -> None:
        try:
            is_read = self._writer.is_read(now)
        except UnavailableError:
            return  # nothing is known
        if not is_read:
            seconds = self._settings.silence_seconds
            raise FencedError(f"nobody reads what it says within {seconds:g} s")
