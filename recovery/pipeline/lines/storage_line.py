"""The line of a task that shares nothing but the storage with its supervisor.

What the task says is a log under a random id that the launcher made, so that attempts cannot be
mixed up. The task appends entries of one or several reports; the supervisor reads them in order and
deletes what it has read. So the log stays short, and an entry that stays tells the task that nobody
listens. Nothing is decided by it.

One thread beside the task writes; the link itself follows the command log. Reports that cannot be
written are held and sent again. A line that is broken for too long, or that nobody reads, is lost:
the task ends, and its successor goes on from the logs.
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
"""If so many looks in a row find entries that should be read by then, nobody reads."""
_LOOK_HEARTBEATS = 3
"""Heartbeats from one look to the next."""


@dataclass(frozen=True, slots=True)
class LineSettings:
    """The traffic between a task and its supervisor over the storage.

    An idle task sends 1 / `heartbeat_seconds` entries, a third as many looks whether they are read,
    and 1 / `command_seconds` requests for commands; its supervisor reads and deletes what it sent.
    With these values that is less than one request per second in all.

    Raises:
        InvalidInputError: a value is out of its range; the message names it.
    """

    heartbeat_seconds: float = 12.0
    """How often a task that has nothing to say says that it lives."""
    silence_seconds: float = 60.0
    """After so long without a word a task counts as lost; a task that nobody listens to ends after
    about as long again."""
    command_seconds: float = 1.5
    """How often an idle task looks into the command log."""
    start_seconds: float = 0.25
    """How often the supervisor looks while a task starts."""

    def __post_init__(self) -> None:
        for name in ("heartbeat_seconds", "command_seconds", "start_seconds"):
            check_number(name, getattr(self, name), at_least=0, above=True)
        check_number("silence_seconds", self.silence_seconds, at_least=4 * self.heartbeat_seconds)


@dataclass(frozen=True, slots=True)
class ReportEntry:
    """Reports that went together."""

    KIND: ClassVar[str] = "REPORTS"
    line: str
    """Id of the line."""
    writer: str
    """Random id of its writer."""
    number: int
    """The slot that it was written for."""
    reports: tuple[TaskReport, ...]


ENTRIES: RecordCodec[ReportEntry] = RecordCodec((ReportEntry,))


class ReportWriter:
    """The task's end. For one thread, but for `say`. Times are monotonic seconds.

    Args:
        line: id of the line, random.
        nonce: random id of this writer: of several on one line the first one wins.
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
        """Make the line this writer's; nothing else may be done before.

        Raises:
            FencedError: it is another's.
            OutcomeUnknownError, UnavailableError: nobody knows; call again.
        """
        if self._sending is None:
            self._sending = self._entry()
        self.flush(now)

    def say(self, report: TaskReport) -> None:
        """Queue a report; a heartbeat only if nothing else is queued. From any thread."""
        if not report.is_heartbeat or not self.has_more:
            self._queued.append(report)

    @property
    def has_more(self) -> bool:
        """Whether something is not written yet."""
        return bool(self._queued) or self._sending is not None

    def flush(self, now: float) -> None:
        """Write everything that is queued, as one entry, behind one that could not be written.

        Raises:
            FencedError: somebody else writes this log.
            OutcomeUnknownError, UnavailableError: call again, the same bytes are sent.
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
        """Return False if it looks as if nobody reads; called with each heartbeat.

        Raises:
            UnavailableError: nothing is known.
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
    """The supervisor's end. Not thread-safe."""

    def __init__(self, storage: Storage, job: str, line: str, task: str, epoch: int) -> None:
        self._log = SlotLog(storage, reports_prefix(job, line))
        self._line, self._attempt = line, (task, epoch)
        self._writer = ""
        self._next = 0
        self._forgotten = 0

    def read(self, *, to_end: bool = False) -> list[TaskReport]:
        """Return what is new; with `to_end`, call again until nothing is.

        Args:
            to_end: a heartbeat is not the last entry. Otherwise nothing will stand behind it yet,
                which saves a request.

        Raises:
            CorruptDataError: an entry is damaged, or is not of this attempt. What stands behind it
                cannot be believed; what stands before it was returned.
            IncompatibleError: likewise, it was written by another version.
            UnavailableError: nothing is lost, read again later.
        """
        reports: list[TaskReport] = []
        while True:
            try:
                entry = self._entry()
            except DurableShuffleError:
                if reports:
                    return reports  # the next call raises it
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
        """Delete what was read, which tells the task so; with `all_of_it` the whole log."""
        storage = self._log.storage
        if all_of_it:
            left = [info.key for info in storage.list(self._log.prefix)]
        else:
            left = [self._log.key(slot) for slot in range(self._forgotten, self._next)]
        self._forgotten = self._next
        if left:
            storage.delete(left)


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
        self._over = False

    def run(self, run_task: RunAttempt) -> None:
        """Run the attempt to its end; return when its reports are written, or cannot be.

        Do nothing if another try of the same attempt came first.
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
            return  # nothing is known
        if not is_read:
            seconds = self._settings.silence_seconds
            raise FencedError(f"nobody reads what it says within {seconds:g} s")
