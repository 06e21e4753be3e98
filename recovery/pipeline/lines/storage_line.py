"""Connects a task to its supervisor through the storage alone.

The task's reports form a log under a random id that the launcher chose, so attempts cannot be
mixed up. The task appends entries with one or several reports. The supervisor reads them in order
and deletes them. So the log stays short, and an entry that is not deleted tells the task that
nobody reads. No decision depends on this log.

One thread beside the task writes the reports; the link itself follows the command log. A report
that cannot be written is kept and sent again. If the line is broken for too long, or if nobody
reads it, it is lost: the task ends, and its successor continues from the logs.
"""

import logging
import threading
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from durable_shuffle.recovery.job.phases import TaskReport
from durable_shuffle.recovery.pipeline.lines.launcher import RunAttempt
from durable_shuffle.recovery.pipeline.task.link import TaskLink
from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    DurableShuffleError,
    FencedError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.clock import Clock
from durable_shuffle.shuffle.base.settings import check_number
from durable_shuffle.shuffle.log.layout import reports_prefix
from durable_shuffle.shuffle.log.slot_log import Lost, SlotLog
from durable_shuffle.shuffle.storage.contract import Storage

_log = logging.getLogger(__name__)
_AGAIN_SECONDS = 0.5
"""Pause after a report could not be written."""
_UNREAD_STRIKES = 2
"""After so many checks in a row that find overdue entries, nobody reads them."""
_LOOK_HEARTBEATS = 3
"""Heartbeats between two checks."""


@dataclass(frozen=True, slots=True)
class LineSettings:
    """The traffic between a task and its supervisor over the storage.

    An idle task sends 1 / `heartbeat_seconds` entries, a third as many checks whether they are
    read, and 1 / `command_seconds` requests for commands. Its supervisor reads and deletes the
    entries. With the default values this is less than one request per second in total.

    Raises:
        InvalidInputError: a value is out of its range; the message names it.
    """

    heartbeat_seconds: float = 12.0
    """How often a task without other reports says that it is alive."""
    silence_seconds: float = 60.0
    """A task without a report for so long counts as lost. A task that nobody reads ends after about
    the same time."""
    command_seconds: float = 1.5
    """How often an idle task reads the command log."""
    start_seconds: float = 0.25
    """How often the supervisor looks for reports while a task starts."""

    def __post_init__(self) -> None:
        for name in ("heartbeat_seconds", "command_seconds", "start_seconds"):
            check_number(name, getattr(self, name), at_least=0, above=True)
        check_number("silence_seconds", self.silence_seconds, at_least=4 * self.heartbeat_seconds)


@dataclass(frozen=True, slots=True)
class ReportEntry:
    """Reports that were written together."""

    KIND: ClassVar[str] = "REPORTS"
    line: str
    """Id of the line."""
    writer: str
    """Random id of the entry's writer."""
    number: int
    """The slot for which the entry was written."""
    reports: tuple[TaskReport, ...]


ENTRIES: RecordCodec[ReportEntry] = RecordCodec((ReportEntry,))


class ReportWriter:
    """The task's end of the line. For one thread, except `say`. Times are monotonic seconds.

    Args:
        line: id of the line, random.
        nonce: random id of this writer; if a line has several writers, the first one wins.
    """

    def __init__(
        self, storage: Storage, job: str, line: str, nonce: str, settings: LineSettings
    ) -> None:
        self._log = SlotLog(storage, reports_prefix(job, line))
        self._line, self._nonce, self._settings = line, nonce, settings
        self._slot = 0
        self._queued: deque[TaskReport] = deque()
        self._sending: bytes | None = None
        self._unread: deque[tuple[int, float]] = deque()
        self._strikes = 0
        self._beats = 0

    def open(self, now: float) -> None:
        """Claim the line for this writer; must be called first.

        Raises:
            FencedError: the line belongs to another writer.
            OutcomeUnknownError, UnavailableError: the outcome is unknown; call again.
        """
        if self._sending is None:
            self._sending = self._entry()
        self.flush(now)

    def say(self, report: TaskReport) -> None:
        """Queue a report; a heartbeat only if the queue is empty. Callable from any thread."""
        if not report.is_heartbeat or not self.has_more:
            self._queued.append(report)

    @property
    def has_more(self) -> bool:
        """Whether some reports are not written yet."""
        return bool(self._queued) or self._sending is not None

    def flush(self, now: float) -> None:
        """Write the whole queue as one entry, after any entry that could not be written before.

        Raises:
            FencedError: another writer uses this log.
            OutcomeUnknownError, UnavailableError: call again; the same bytes are sent.
        """
        while self.has_more:
            if self._sending is None:
                self._sending = self._entry()
            if isinstance(self._log.append(self._slot, self._sending), Lost):
                key = self._log.key(self._slot)
                raise FencedError(f"another try of this attempt reports already: {key!r}")
            self._sending = None
            self._unread.append((self._slot, now))
            self._slot += 1

    def _entry(self) -> bytes:
        reports = tuple(self._queued.popleft() for _ in range(len(self._queued)))
        return ENTRIES.encode(ReportEntry(self._line, self._nonce, self._slot, reports))

    def is_read(self, now: float) -> bool:
        """Return False if it seems that nobody reads; called with each heartbeat.

        Raises:
            UnavailableError: the answer is unknown.
        """
        self._beats += 1
        if self._beats % _LOOK_HEARTBEATS:
            return True
        due = [
            s for s, written in self._unread if now - written >= self._settings.silence_seconds / 2
        ]
        if not due:
            return True
        if self._log.read(due[-1]) is None:
            self._strikes = 0
        else:
            self._strikes += 1
        while self._unread and self._unread[0][0] <= due[-1]:
            self._unread.popleft()
        return self._strikes < _UNREAD_STRIKES


class ReportReader:
    """The supervisor's end of the line. Not thread-safe."""

    def __init__(self, storage: Storage, job: str, line: str, task: str, epoch: int) -> None:
        self._log = SlotLog(storage, reports_prefix(job, line))
        self._line, self._attempt = line, (task, epoch)
        self._writer = ""
        self._next = 0
        self._forgotten = 0

    def read(self, *, to_end: bool = False) -> list[TaskReport]:
        """Return new reports; with `to_end`, call again until there are none.

        Args:
            to_end: read on after a heartbeat. Without it, a heartbeat is taken for the last entry,
                which saves a request.

        Raises:
            CorruptDataError: an entry is damaged, or belongs to another attempt. Earlier reports
                were returned; later ones cannot be trusted.
            IncompatibleError: likewise, but another version wrote the entry.
            UnavailableError: nothing is lost; read again later.
        """
        reports: list[TaskReport] = []
        while True:
            try:
                entry = self._entry()
            except DurableShuffleError:
                if reports:
                    return reports  # the next call raises the error
                raise
            if entry is None:
                return reports
            self._next += 1
            reports += entry.reports
            if not to_end and all(report.is_heartbeat for report in entry.reports):
                return reports

    def _entry(self) -> ReportEntry | None:
        key = self._log.key(self._next)
        if (data := self._log.read(self._next)) is None:
            return None
        entry = ENTRIES.decode(data, name=key)
        self._writer = self._writer or entry.writer
        mine = (self._line, self._writer, self._next)
        of = {(report.task, report.epoch) for report in entry.reports}
        if (entry.line, entry.writer, entry.number) != mine or of - {self._attempt}:
            raise CorruptDataError(f"not what the task of {self._attempt} wrote: {key!r}")
        return entry

    def forget(self, *, all_of_it: bool = False) -> None:
        """Delete the entries that were read, which the task notices; `all_of_it`: the whole log."""
        storage = self._log.storage
        if all_of_it:
            left = [info.key for info in storage.list(self._log.prefix)]
        else:
            left = [self._log.key(slot) for slot in range(self._forgotten, self._next)]
        self._forgotten = self._next
        if left:
            storage.delete(left)


class StorageLine:
    """The line of one attempt.

    Args:
        slot: first slot of the command log that the attempt reads.
        writer: writes this attempt's reports.
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
        self._over = False

    def run(self, run_task: RunAttempt) -> None:
        """Run the attempt to its end; return when its reports are written or cannot be written.

        Does nothing if another try at the same attempt came first.
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
            self._writer.say(report)
            self._changed.notify()

    def _pump(self) -> None:
        try:
            self._turns()
        except DurableShuffleError as error:
            _log.warning("task %s ends, its line is lost: %s", self.link.task, error)
        finally:
            self.link.lost()  # has no effect on a task that has ended

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
            if self._writer.has_more:
                failed = not self._flushed(now)
                written = written if failed else now
            if now - written >= settings.silence_seconds:
                raise UnavailableError("reports could not be written for too long")
            if now >= beat and not failed:
                self._check_listener(now)

    def _wait_for_words(self, seconds: float, *, failed: bool) -> bool:
        """Wait for a report, with a timeout; return whether the task is over."""
        if failed:
            self._clock.sleep(_AGAIN_SECONDS)
        with self._changed:
            if not failed:
                self._changed.wait_for(
                    lambda: self._writer.has_more or self._over, max(0.0, seconds)
                )
            return self._over

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
            return  # the result is unknown
        if not is_read:
            seconds = self._settings.silence_seconds
            raise FencedError(f"nobody reads what it says within {seconds:g} s")
