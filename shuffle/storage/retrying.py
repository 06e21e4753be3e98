"""The only layer that retries storage calls; and a layer that counts them.

Strategy: backends report every failed request at once as one of our errors (their drivers' retries
are off), and no layer above retries. This layer retries UnavailableError and OutcomeUnknownError
for every verb:

    read, read_range, read_ranges, list    have no effect, so they are repeated
    put, delete                            a repetition asks for the same end state
    put_if_absent                          the same bytes are sent until the outcome is known;
                                           if a retry finds the same bytes stored, an earlier try
                                           of this call won and its reply was lost

All other errors are raised at once. A call gives up at its deadline, after `max_retries`, or when
the task's budget for waiting is spent, whichever comes first. If any try may have taken effect, the
call raises OutcomeUnknownError, whatever came later. The exception is ConflictError: other bytes
hold the key, so no try of this call can ever succeed. An object that the disk fails to read several
times is damaged: CorruptDataError. A refusal without a reason that comes again is meant: it raises
InvalidInputError.

Do not put another retry loop around `RetryingStorage`: the tries would multiply.
"""

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from durable_shuffle.serialization.errors import (
    ConflictError,
    CorruptDataError,
    InvalidInputError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.clock import Clock, SystemClock, system_jitter
from durable_shuffle.shuffle.base.retry import Backoff, Jitter
from durable_shuffle.shuffle.base.settings import STORAGE_CALL_SECONDS, check_number
from durable_shuffle.shuffle.storage.contract import (
    ByteRange,
    Created,
    Exists,
    Storage,
    StorageLayer,
)

T = TypeVar("T")

_log = logging.getLogger(__name__)

_DELETE_BATCH = 1000
"""Most keys that S3 takes in one request."""

_UNREADABLE_TRIES = 4
"""A disk retries by itself. These tries are for network file systems, which report a short outage
as an unreadable file."""

_STRAY_TRIES = 3
"""A proxy that stumbles drops one request, or two. The service itself goes on refusing."""

_SAY_AFTER_SECONDS = 10.0
"""A call that has waited this long logs one warning, because nothing else shows that it waits."""

GIVEN_BACK_SECONDS = 0.1
"""A successful call returns this much to the task's budget. So a long-lived driver survives any
number of occasional failures, while a long outage still exhausts the budget."""


@dataclass(frozen=True, slots=True)
class StorageRetries:
    """How long and how often calls are retried.

    Raises:
        InvalidInputError: a value is out of its range; the message names it.
    """

    backoff: Backoff = field(
        default_factory=lambda: Backoff(
            max_retries=10_000, first_delay_seconds=0.05, multiplier=2, cap_seconds=2, jitter=0.5
        )
    )
    """The pauses. Its number of retries is a last resort: normally the deadline ends a call."""
    call_seconds: float = STORAGE_CALL_SECONDS
    """No try of a call starts later than this after its first try; above 0."""
    task_seconds: float = 3600.0
    """Most time that one task, or the driver, waits between tries. All its threads share this
    budget, so it is many times `call_seconds`."""

    def __post_init__(self) -> None:
        check_number("call_seconds", self.call_seconds, at_least=0, above=True)
        check_number("task_seconds", self.task_seconds, at_least=0)


@dataclass(frozen=True, slots=True)
class RetryCounts:
    """How many calls a storage got, and how often they were retried."""

    calls: int = 0
    """Calls, however many tries each took."""
    retries: int = 0
    """Tries beyond the first of each call."""
    lost_replies: int = 0
    """Tries with an unknown outcome."""
    throttled: int = 0
    """Tries that the storage answered with a time to wait."""
    give_ups: int = 0
    """Calls that failed after the last permitted try."""
    waited_seconds: float = 0.0


def pause_before_retry(
    retries: StorageRetries,
    attempt: int,
    retry_after_seconds: float | None,
    *,
    elapsed_seconds: float,
    budget_seconds: float,
    jitter: Jitter,
) -> float | str:
    """Return the seconds to wait after a failed try, or the reason to give up. Pure.

    Args:
        attempt: number of the failed try, from 1.
        retry_after_seconds: the pause that the storage asked for, a lower bound; infinite if a
            retry is useless.
        elapsed_seconds: time since the call began.
        budget_seconds: what is left of the task's budget for waiting.
    """
    if retry_after_seconds == math.inf:
        return "trying again is of no use"
    delay = retries.backoff.delay_seconds(attempt, jitter)
    if delay is None:
        return "no more retries"
    pause = delay if retry_after_seconds is None else retry_after_seconds + delay
    if elapsed_seconds + pause > retries.call_seconds:
        return f"the call's {retries.call_seconds:g} s are over"
    if pause > budget_seconds:
        return f"the task's {retries.task_seconds:g} s of waiting are spent"
    return pause


class RetryingStorage(StorageLayer):
    """The storage contract, with retries. Safe to call from several threads.

    After unpickling in another process it starts with a full budget and with counts of 0.
    """

    def __init__(
        self,
        storage: Storage,
        retries: StorageRetries | None = None,
        *,
        clock: Clock | None = None,
        jitter: Jitter | None = None,
    ) -> None:
        """Wrap `storage`, which must not retry by itself."""
        super().__init__(storage)
        self._retries = retries or StorageRetries()
        self._clock = clock or SystemClock()
        self._jitter = jitter or system_jitter()
        self._lock = threading.Lock()
        self._counts = RetryCounts()
        self._budget_seconds = self._retries.task_seconds

    @property
    def counts(self) -> RetryCounts:
        """The calls and retries so far."""
        return self._counts

    @property
    def backend(self) -> Storage:
        """The wrapped storage, for operations beyond the contract. It sends each request once."""
        return self._storage

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        return self._ranges(tuple(ranges), 1, self._begin())

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        tries = 0

        def send() -> Created | Exists:
            nonlocal tries
            tries += 1
            answer = self._storage.put_if_absent(key, data)
            return Created() if tries > 1 and answer == Exists(data) else answer

        return self._call("put_if_absent", (key,), send)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete in batches, so that a failure repeats one batch only.

        If the backend has `deletes_per_second`, the batches keep to that rate.
        """
        pace = getattr(self._storage, "deletes_per_second", math.inf)
        for first in range(0, len(keys), _DELETE_BATCH):
            batch = keys[first : first + _DELETE_BATCH]
            start = self._clock.monotonic()
            super().delete(batch)
            rest = start + len(batch) / pace - self._clock.monotonic()
            if rest > 0 and first + len(batch) < len(keys):
                self._clock.sleep(rest)

    def __reduce__(self) -> tuple[type["RetryingStorage"], tuple[Storage, StorageRetries]]:
        return RetryingStorage, (self._storage, self._retries)

    def _call(self, verb: str, keys: tuple[str, ...], request: Callable[[], T]) -> T:
        start, attempt, unknown, strays = self._begin(), 1, False, 0
        while True:
            try:
                answer = request()
            except (UnavailableError, OutcomeUnknownError) as error:
                unknown = unknown or isinstance(error, OutcomeUnknownError)
                strays = _strays(error, strays)
                self._wait_or_raise(error, attempt, start, unknown=unknown, strays=strays)
                attempt += 1
            except Exception as error:
                if not unknown or isinstance(error, ConflictError):
                    raise
                self._count(give_ups=1)
                raise OutcomeUnknownError(
                    f"{error}; tries={attempt}, an earlier one may have taken effect; read it "
                    f"back before anything else is done"
                ) from error
            else:
                self._give_back()
                return answer

    def _ranges(
        self, ranges: tuple[ByteRange, ...], attempt: int, start: float, strays: int = 0
    ) -> list[memoryview]:
        """Read ranges. After a failure, read two halves, so that one failing request among many
        does not make all of them be sent again and again."""
        while True:  # ends: at the latest at the call's deadline
            try:
                views = self._storage.read_ranges(ranges)
            except (UnavailableError, OutcomeUnknownError) as error:
                strays = _strays(error, strays)
                self._wait_or_raise(error, attempt, start, unknown=False, strays=strays)
                attempt += 1
            else:
                self._give_back()
                return views
            if len(ranges) > 1:
                break
        middle = len(ranges) // 2
        halves = (ranges[:middle], ranges[middle:])
        return [view for half in halves for view in self._ranges(half, attempt, start, strays)]

    def _begin(self) -> float:
        self._count(calls=1)
        return self._clock.monotonic()

    def _wait_or_raise(
        self,
        error: UnavailableError | OutcomeUnknownError,
        attempt: int,
        start: float,
        *,
        unknown: bool,
        strays: int,
    ) -> None:
        """Wait until the call may be tried again, or raise.

        Args:
            strays: refusals without a reason in a row, this one included.

        Raises:
            OutcomeUnknownError, UnavailableError: the call must not be tried again.
            InvalidInputError: it is refused again and again, without a reason.
            CorruptDataError: several tries could not read the object.
        """
        unreadable = isinstance(error, UnavailableError) and error.unreadable
        if strays >= _STRAY_TRIES:
            self._count(give_ups=1)
            text = f"{error}; tries={attempt}"
            if unknown:
                raise OutcomeUnknownError(
                    f"{text}, an earlier one may have taken effect"
                ) from error
            raise InvalidInputError(f"{text}: it is not allowed") from error
        if unreadable and attempt >= _UNREADABLE_TRIES and not unknown:
            self._count(give_ups=1)
            raise CorruptDataError(
                f"{error}; tries={attempt}: what it holds is damaged; run verify --repair"
            ) from error
        asked, elapsed = error.retry_after_seconds, self._clock.monotonic() - start
        self._count(
            lost_replies=int(isinstance(error, OutcomeUnknownError)),
            throttled=int(asked is not None and asked != math.inf),
        )
        with self._lock:
            pause = pause_before_retry(
                self._retries,
                attempt,
                asked,
                elapsed_seconds=elapsed,
                budget_seconds=self._budget_seconds,
                jitter=self._jitter,
            )
            if not isinstance(pause, str):
                self._budget_seconds -= pause
        if not isinstance(pause, str):
            self._count(retries=1, waited_seconds=pause)
            if elapsed <= _SAY_AFTER_SECONDS < elapsed + pause:
                most = self._retries.call_seconds
                _log.warning("%s; trying again, %g s in all before this fails", error, most)
            self._clock.sleep(pause)
            return
        self._count(give_ups=1)
        text = f"{error}; tries={attempt}, {pause}"
        if unknown:
            raise OutcomeUnknownError(
                f"{text}; read it back before anything else is done"
            ) from error
        raise UnavailableError(text) from error

    def _count(self, **more: float) -> None:
        with self._lock:
            added = {name: getattr(self._counts, name) + n for name, n in more.items()}
            self._counts = replace(self._counts, **added)

    def _give_back(self) -> None:
        if self._budget_seconds < self._retries.task_seconds:
            with self._lock:
                self._budget_seconds = min(
                    self._budget_seconds + GIVEN_BACK_SECONDS, self._retries.task_seconds
                )


def _strays(error: UnavailableError | OutcomeUnknownError, before: int) -> int:
    """Return how many tries in a row were refused without a reason."""
    return before + 1 if isinstance(error, UnavailableError) and error.stray else 0


def retry_counts(storage: object) -> RetryCounts:
    """Return the retry counts of a storage; all 0 if it is no `RetryingStorage`."""
    return storage.counts if isinstance(storage, RetryingStorage) else RetryCounts()


class CountingStorage(StorageLayer):
    """Counts calls by verb, one per range or deleted object, and passes them on."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.counts: Counter[str] = Counter()

    @property
    def retry_counts(self) -> RetryCounts:
        """The retries of the wrapped storage; all 0 if it is no `RetryingStorage`."""
        return retry_counts(self._storage)

    @property
    def total(self) -> int:
        """All requests so far."""
        return self.counts.total()

    def _call(self, verb: str, keys: tuple[str, ...], request: Callable[[], T]) -> T:
        self.counts["read_range" if verb == "read_ranges" else verb] += len(keys)
        return request()
