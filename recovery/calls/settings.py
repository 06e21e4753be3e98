"""How an async operator treats its elements, what it counts, and which values survive a restart.

A snapshot holds the inputs whose results have not left. It is stored as one control record
`ASYNC_QUEUE`; its `entries` are msgpack records, one per element or marker
(docs/internals/format.md). Retry fields exist only if retry state is kept; without them an element
starts again.

One of three rules decides how much of its time and attempts an element keeps after a restart. They
follow FLIP-232. Its second formula is read as "the time left until the deadline, but at least a
fair share"; as printed there, it would grow with the downtime:

    none        nothing is stored; the element starts again
    deadline    max(T - elapsed, T / M): downtime counts, and one attempt's share always remains
    remaining   T - charged: only time in which a process worked on the element counts

with T the timeout, M the maximum of attempts, elapsed the wall time since the first call (>= 0).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypedDict

from durable_shuffle.recovery.calls.elements import Marker
from durable_shuffle.serialization.checksum import Bytes
from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.errors import IncompatibleError, InvalidInputError
from durable_shuffle.serialization.msgpack_codec import decode_records, encode_records
from durable_shuffle.shuffle.base.clock import Clock
from durable_shuffle.shuffle.base.retry import NO_RETRY, Jitter, RetryPolicy
from durable_shuffle.shuffle.base.settings import check_count, check_number

Mode = Literal["ordered", "unordered"]
KeepRetryState = Literal["none", "deadline", "remaining"]
OnExpired = Literal["last_attempt", "time_out"]


@dataclass(frozen=True, slots=True)
class SavedElement:
    """An input whose result has not left, whether it was called or not."""

    ordinal: int
    value: Any
    attempts: int | None = None
    """Calls started so far; None if retry state was not kept."""
    first_wall_seconds: float = 0.0
    """Wall time of its first call, seconds since 1970."""
    charged_seconds: float = 0.0
    """Seconds in which a process worked on it, including waits for retries."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of an operator between two events."""

    cursor: int
    """All ordinals below it have left: acknowledge up to here, exclusive."""
    next_ordinal: int
    """Ordinal of the next new input: continue reading the source here."""
    entries: tuple[SavedElement | Marker, ...]
    """Entries that have not left, in order."""


class AsyncOptions(TypedDict, total=False):
    """Arguments that `AsyncOperator`, `async_map` and `AsyncStep` share; for type checkers."""

    mode: Mode
    retry: RetryPolicy
    timeout_seconds: float | None
    on_timeout: Callable[[Any], Any] | None
    threads: int
    keep_retry_state: KeepRetryState
    on_expired: OnExpired
    clock: Clock | None
    jitter: Jitter | None


class OperatorOptions(AsyncOptions, total=False):
    """Arguments of `AsyncOperator` besides the function and its capacity."""

    snapshot: Snapshot | None


@dataclass(frozen=True, slots=True)
class AsyncSettings:
    """How the operator treats its elements.

    Raises:
        InvalidInputError: a value is out of its range; the message names it.
    """

    capacity: int
    """Most elements and markers inside at a time, including waiting and finished ones; from 1."""
    mode: Mode = "ordered"
    retry: RetryPolicy = NO_RETRY
    timeout_seconds: float | None = None
    """From taking an element in to its outcome, over all attempts; None: no limit."""
    keep_retry_state: KeepRetryState = "none"
    on_expired: OnExpired = "last_attempt"

    def __post_init__(self) -> None:
        check_count("capacity", self.capacity, at_least=1)
        if self.timeout_seconds is not None:
            check_number("timeout_seconds", self.timeout_seconds, at_least=0, above=True)
        for name, allowed in (
            ("mode", ("ordered", "unordered")),
            ("keep_retry_state", ("none", "deadline", "remaining")),
            ("on_expired", ("last_attempt", "time_out")),
        ):
            if getattr(self, name) not in allowed:
                raise InvalidInputError(
                    f"{name} must be one of {', '.join(allowed)}, found={getattr(self, name)!r}"
                )


@dataclass(frozen=True, slots=True)
class AsyncCounts:
    """Counts of events so far, and how many elements wait now."""

    attempts: int = 0
    """Calls of fn."""
    retries: int = 0
    """Calls that were not an element's first."""
    give_ups: int = 0
    """Elements that asked for a retry when none was left."""
    timeouts: int = 0
    """Elements that reached their deadline."""
    late: int = 0
    """Completions that came too late."""
    emitted: int = 0
    waiting: int = 0
    """Elements that wait for a retry now."""


@dataclass(frozen=True, slots=True)
class _Record:
    KIND: ClassVar[str] = "ASYNC_QUEUE"
    cursor: int
    next_ordinal: int
    entries: bytes


_CODEC: RecordCodec[_Record] = RecordCodec((_Record,))
_ELEMENT, _MARKER = "element", "marker"


def _same(value: Any) -> Any:
    return value


def encode_snapshot(snapshot: Snapshot, encode_value: Callable[[Any], object] = _same) -> bytes:
    """Return the snapshot as bytes, for the state of an acknowledgement.

    Args:
        encode_value: turns an input that msgpack cannot hold into a value that it can, such as a
            record batch into bytes.

    Raises:
        InvalidInputError: a value cannot be stored; the message names its type.
    """
    rows: list[object] = []
    for entry in snapshot.entries:
        if isinstance(entry, Marker):
            rows.append([_MARKER, entry.value])
        else:
            row: list[object] = [_ELEMENT, entry.ordinal, encode_value(entry.value)]
            if entry.attempts is not None:
                row += [entry.attempts, entry.first_wall_seconds, entry.charged_seconds]
            rows.append(row)
    return _CODEC.encode(_Record(snapshot.cursor, snapshot.next_ordinal, encode_records(rows)))


def decode_snapshot(
    data: Bytes, *, name: str = "async snapshot", decode_value: Callable[[Any], Any] = _same
) -> Snapshot:
    """Return the snapshot in `data`.

    Raises:
        CorruptDataError: the data is not an intact snapshot.
        IncompatibleError: the data is intact, but has entries that this version does not know.
    """
    record = _CODEC.decode(data, name)
    entries = tuple(_entry(row, name, decode_value) for row in decode_records(record.entries))
    return Snapshot(record.cursor, record.next_ordinal, entries)


def _entry(row: object, name: str, decode_value: Callable[[Any], Any]) -> SavedElement | Marker:
    parts: Sequence[Any] = row if isinstance(row, list) else ()
    match parts:
        case [str(kind), value] if kind == _MARKER:
            return Marker(value)
        case [str(kind), int(ordinal), value] if kind == _ELEMENT:
            return SavedElement(ordinal, decode_value(value))
        case [str(kind), int(ordinal), value, int(attempts), float(first), float(charged)] if (
            kind == _ELEMENT
        ):
            return SavedElement(ordinal, decode_value(value), attempts, first, charged)
    raise IncompatibleError(f"{name}: an entry of {len(parts)} parts is not known here")


@dataclass(frozen=True, slots=True)
class Budget:
    """The time and calls that a restored element starts with."""

    seconds: float | None
    """Until its deadline, above 0; None without a timeout."""
    attempts_used: int
    last: bool = False
    """Whether the next call is the last one."""
    expired: bool = False
    """Whether it goes to the timeout handler without another call."""


def restored_budget(
    saved: SavedElement,
    *,
    keep: KeepRetryState,
    on_expired: OnExpired,
    timeout_seconds: float | None,
    max_attempts: int,
    wall_now: float,
) -> Budget:
    """Return the budget of `saved`.

    Args:
        saved: without retry fields, the element starts again, whatever `keep` says.
        max_attempts: M, the number of all calls.
        wall_now: seconds since 1970. If the clock was set back, no time has passed.
    """
    if keep == "none" or saved.attempts is None:
        return Budget(timeout_seconds, 0)
    used = saved.attempts
    last = used + 1 >= max_attempts
    if timeout_seconds is None:
        return Budget(None, used, last=last)
    share = timeout_seconds / max_attempts
    if keep == "deadline":
        elapsed = max(0.0, wall_now - saved.first_wall_seconds)
        return Budget(max(timeout_seconds - elapsed, share), used, last=last)
    left = timeout_seconds - max(0.0, saved.charged_seconds)
    if left > 0:
        return Budget(left, used, last=last)
    if on_expired == "time_out":
        return Budget(share, used, expired=True)
    return Budget(share, used, last=True)
