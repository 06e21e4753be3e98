"""Following log producers: the extents of one partition, as they are appended.

Strategy: one cursor per producer reads its log slot by slot, from the hint of the start position
on. Bytes that no APPEND names are never read. An empty slot is asked for again after a pause that
doubles up to a bound, so an idle follower sends (producers / `follow_longest_pause_seconds`)
requests per second. `FeedWait` pauses meanwhile.

It must not ask the stage log while there is data. Only a log that is closed or gone makes it look
whether the stage was released.
"""

import math
from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.errors import (
    AbortedError,
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    NotReadyError,
)
from durable_shuffle.shuffle.base.clock import Clock
from durable_shuffle.shuffle.base.retry import backoff_seconds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.appender_log import (
    Append,
    AppenderOpen,
    AppenderRecord,
    End,
    JobAbort,
    appender_log,
)
from durable_shuffle.shuffle.log.appender_reads import gone_below
from durable_shuffle.shuffle.log.records import Closed
from durable_shuffle.shuffle.log.stage import StageHandle, live_state
from durable_shuffle.shuffle.read.extents import Extent, appended_extents, clip
from durable_shuffle.shuffle.read.feed import EndMode, EndOfInput
from durable_shuffle.shuffle.read.position import (
    AT_START,
    Positions,
    ProducerPosition,
    refuse_unknown,
)

_CANCEL_SECONDS = 0.5
"""A cancellation is seen within this time."""
_LOOK_SECONDS = 30.0
"""A log that seems to have ended is asked so often whether the slot is one that is gone."""


class LogFeed:
    """Implements `ExtentFeed` over the logs of a stage's producers. Sends nothing until polled.

    Producers take turns; each one's extents come in order and without gaps. A suspended producer is
    waited for, and the extents of its successor follow its own.

    Markers have no ordinal, so a marker at the start position is given even if it was given before.
    A reader that must not see a marker twice skips ids at or below its floor.

    Args:
        positions: where to start; hints that do not fit cost requests, not correctness.

    Raises:
        InvalidInputError: not a stage of log producers, or no such subpartition.
        CorruptDataError: a position is of a producer that there is not.
    """

    def __init__(
        self,
        stage: StageHandle,
        subpartition: int,
        positions: Positions,
        *,
        settings: Settings,
        clock: Clock,
    ) -> None:
        describe = stage.describe
        if describe.writing != "log" or not 0 <= subpartition < describe.partitions:
            raise InvalidInputError(
                f"no such partition of log producers: subpartition={subpartition} "
                f"R={describe.partitions} writing={describe.writing!r} "
                f"stage={stage.path.prefix!r}"
            )
        refuse_unknown(positions, describe.producers, name=stage.path.prefix)
        self._clock = clock
        self._cursors = [
            _Cursor(stage, subpartition, p, positions.get(p, AT_START), settings)
            for p in stage.producers_of(subpartition, describe.producers)
        ]
        self._turn = 0
        self.given = 0
        """How many extents were handed out."""

    @property
    def producers(self) -> int:
        return len(self._cursors)

    @property
    def modes(self) -> tuple[EndMode | None, ...]:
        """How each producer ended, as far as read; SUSPEND until its successor is seen."""
        return tuple(cursor.mode for cursor in self._cursors)

    @property
    def ended(self) -> dict[int, int]:
        """Producers that have ended, as far as read, and how many records each has in all."""
        return {cursor.producer: cursor.records for cursor in self._cursors if cursor.ended}

    def poll(self) -> Extent | EndOfInput | None:
        """See `ExtentFeed`. Asks each due producer once, and again only after a new record."""
        while True:  # ends: every turn reads one more record of some log, or is the last
            extent = self._next_extent()
            if extent is not None:
                return extent
            modes = [cursor.mode for cursor in self._cursors if cursor.ended]
            if len(modes) == len(self._cursors):
                records = sum(cursor.records for cursor in self._cursors)
                return EndOfInput(tuple(mode for mode in modes if mode is not None), records)
            now = self._clock.monotonic()
            due = [cursor for cursor in self._cursors if not cursor.ended and cursor.due <= now]
            answers = [cursor.read_next(self._clock) for cursor in due]
            if not any(answers):
                return None

    def quiet_seconds(self) -> float:
        """Return how long `poll` will return None without a request; 0 if it would send one now."""
        if any(cursor.extents for cursor in self._cursors):
            return 0.0
        due = [cursor.due for cursor in self._cursors if not cursor.ended]
        return max(0.0, min(due) - self._clock.monotonic()) if due else 0.0

    def _next_extent(self) -> Extent | None:
        """Take from the producer whose turn it is, or from the next one that has something."""
        for step in range(len(self._cursors)):
            turn = (self._turn + step) % len(self._cursors)
            if self._cursors[turn].extents:
                self._turn = turn + 1
                self.given += 1
                return self._cursors[turn].extents.popleft()
        return None


class _Cursor:
    """One producer's log, read forwards."""

    def __init__(
        self,
        stage: StageHandle,
        subpartition: int,
        producer: int,
        start: ProducerPosition,
        settings: Settings,
    ) -> None:
        self._stage, self._subpartition, self.producer = stage, subpartition, producer
        self._settings, self._start = settings, start
        self._log = stage.producer_log(producer)
        writes = stage.subpartitions_of(producer)
        self._states = len(writes)
        self._column = int(writes.searchsorted(subpartition))
        self._slot = start.slot
        self._begun = False
        self._ordinal = 0
        self._owner: str | None = None
        self._misses = 0
        self._gone = 0
        """Below it slots may be gone, as far as known."""
        self._looks_at = math.inf
        self.extents: deque[Extent] = deque()
        self.mode: EndMode | None = None
        self.due = 0.0

    @property
    def records(self) -> int:
        """Records appended for this partition, as far as read."""
        return self._ordinal

    @property
    def ended(self) -> bool:
        """Whether this log will get no other record."""
        return self.mode in ("FINITE", "DRAIN")

    def read_next(self, clock: Clock) -> bool:
        """Ask for the next slot; return whether to ask again at once."""
        record = appender_log(self._log).record(self._slot)
        if record is not None:
            self._misses, self.due = 0, 0.0
            self._take(record)
            return True
        if self._stands_further(clock.monotonic()):
            return True
        if not self._begun and self._slot > self._gone:
            self._slot = self._gone  # the hint was wrong
            return True
        if not self._begun and self._start.next_ordinal > 0:
            live_state(self._stage)
            raise NotFoundError(f"records were read of a log that is gone: {self._log.prefix!r}")
        self._misses += 1
        if self._misses == 2:  # not where it is only a moment ahead of its producer
            self._log.refuse_hole(self._slot)
        self.due = clock.monotonic() + backoff_seconds(
            self._misses,
            self._settings.follow_first_pause_seconds,
            self._settings.follow_longest_pause_seconds,
        )
        return False

    def _stands_further(self, now: float) -> bool:
        """Go on where the log does if the empty slot is one that is gone.

        An idle reader does not ask each time: it looks at the second miss, then now and then.
        """
        behind = not self._begun or self._ordinal < self._start.next_ordinal
        looks = behind or self._misses == 1 or now >= self._looks_at
        if not looks or not self._slot:  # slot 0 is an OPEN, which never goes
            return False
        self._looks_at = now + _LOOK_SECONDS
        self._gone = gone_below(self._stage)[self.producer]
        if self._slot >= self._gone:
            return False
        if self._ordinal > self._start.next_ordinal:
            self._start = ProducerPosition(self._ordinal, slot=self._gone)
        self._slot, self._begun, self._owner = self._gone, False, None
        return True

    def _take(self, record: AppenderRecord) -> None:
        if isinstance(record, Closed):
            live_state(self._stage)
            raise NotFoundError(
                f"a log was closed before its producer ended: {self._log.key(self._slot)!r} "
                f"cause={record.cause}"
            )
        extents: list[Extent] = []
        if isinstance(record, Append):
            key = self._log.key(self._slot)
            where = self._stage.path, self.producer, self._slot
            extents = list(appended_extents(*where, record, self._is_mine, key))
        after = int(record.after.ordinals(self._states, self._where)[self._column])
        before = after - sum(extent.rows for extent in extents)
        if not self._begun:
            if before > self._start.next_ordinal and self._slot > self._gone:
                self._slot = self._gone  # the hint was wrong
                return
            if before > self._start.next_ordinal and self._gone:
                raise NotFoundError(
                    f"records were released that the reader asks for: {self._where} asked for "
                    f"{self._start.next_ordinal}, the earliest that is left is {before}"
                )
            self._begun, self._ordinal = True, before
        self._check(record, extents, before)
        self._ordinal = after
        self._owner = record.after.owner
        self.mode = record.mode if isinstance(record, End) else None
        wanted = self._start.next_ordinal
        for extent in extents:
            last = extent.first_ordinal + extent.rows
            if last > wanted or (extent.rows == 0 and last == wanted):
                self.extents.append(clip(extent, self._start))
        if self.ended and after < wanted:
            raise CorruptDataError(
                f"a position lies behind the end: {self._where} next_ordinal={wanted} rows={after}"
            )
        self._slot += 1

    @property
    def _where(self) -> str:
        return f"{self._log.key(self._slot)!r} subpartition={self._subpartition}"

    def _is_mine(self, entries: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        mine: npt.NDArray[np.bool_] = entries["subpartition"] == self._subpartition
        return mine

    def _check(
        self, record: AppenderOpen | Append | End | JobAbort, extents: list[Extent], before: int
    ) -> None:
        """Refuse a record that does not join up with those before it."""
        ordinal = self._ordinal
        fits = before == ordinal
        for extent in extents:
            fits = fits and extent.first_ordinal == ordinal
            ordinal += extent.rows
        if not fits:
            raise CorruptDataError(
                f"records do not join up: {self._where} expected first ordinal {self._ordinal}, "
                f"found {before} and extents from {[e.first_ordinal for e in extents]}"
            )
        opens = isinstance(record, AppenderOpen)
        if not opens and self._owner is not None and record.after.owner != self._owner:
            raise CorruptDataError(
                f"a record of an attempt that is not open: {self._where} "
                f"expected={self._owner} found={record.after.owner}"
            )


class FeedWait:
    """Call it each time a feed has nothing: it pauses once, until asking again makes sense.

    Args:
        timeout_seconds: without a new extent; `math.inf` waits until there is one or `cancelled`.
        cancelled: asked before each pause, and no pause is longer than half a second.
        what: is waited for, for messages.
    """

    def __init__(
        self,
        feed: LogFeed,
        *,
        clock: Clock,
        timeout_seconds: float,
        cancelled: Callable[[], bool] = lambda: False,
        what: str = "the next records",
    ) -> None:
        self._feed, self._clock, self._cancelled = feed, clock, cancelled
        self._timeout_seconds, self._what = timeout_seconds, what
        self._given = -1
        self._deadline = 0.0

    def __call__(self) -> None:
        """Pause.

        Raises:
            NotReadyError: nothing came in time. The feed is as it was: wait again, or give up.
            AbortedError: `cancelled` said so.
        """
        now = self._clock.monotonic()
        if self._given != self._feed.given:  # the first pause since something came
            self._given, self._deadline = self._feed.given, now + self._timeout_seconds
        if self._cancelled():
            raise AbortedError(f"waiting for {self._what} was cancelled")
        remaining = self._deadline - now
        if remaining <= 0:
            self._given = -1
            raise NotReadyError(
                f"nothing came within {self._timeout_seconds} s: {self._what}; wait again"
            )
        self._clock.sleep(min(self._feed.quiet_seconds(), remaining, _CANCEL_SECONDS))
