"""How an async operator treats its elements, what it counts, and what it remembers over a restart.

A snapshot holds the inputs whose results did not leave. Stored, it is one control record
`ASYNC_QUEUE` whose `entries` are msgpack records, one per element or marker (docs/format.md). Retry
fields are there only if they are kept: without them an element starts anew.

What is left of an element's time and attempts after a restart follows one of three bargains, after
FLIP-232 (its second formula is read as "what is left until the deadline, but a fair share of it at
least": as printed there it would grow with the downtime):

    none        nothing is stored; the element starts anew
    deadline    max(T - elapsed, T / M): downtime counts, and one attempt's share always remains
    remaining   T - charged: only time in which a process worked on the element counts

with T the timeout, M the most attempts, elapsed the wall time since the first call, never below 0.
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
    """An input whose result did not leave, whether it was called or not."""

    ordinal: int
    value: Any
    attempts: int | None = None
    """Calls begun so far; None if retry state was not kept."""
    first_wall_seconds: float = 0.0
    """Wall time of its first call, seconds since 1970."""
    charged_seconds: float = 0.0
    """Seconds in which a process worked on it, waiting for retries included."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The operator between two events."""

    cursor: int
    """All ordinals below it have left: acknowledge up to here, exclusive."""
    next_ordinal: int
    """Of the next new input: read the source on from here."""
    entries: tuple[SavedElement | Marker, ...]
    """What has not left, in order."""


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
    """Most elements and markers inside at a time, waiting and finished ones included; from 1."""
    mode: Mode = "ordered"
    retry: RetryPolicy = NO_RETRY
    timeout_seconds: float | None = None
    """From taking an element in until its outcome, over all attempts; None waits for ever."""
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
    """What happened so far, and how many elements wait now."""

    attempts: int = 0
    """Calls of fn."""
    retries: int = 0
    """Calls that were not an element's first."""
    give_ups: int = 0
    """Elements that still asked for a retry when none was left."""
    timeouts: int = 0
    """Elements that met their deadline."""
    late: int = 0
    """Completions that came when nobody waited for them any more."""
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
        encode_value: makes something msgpack can hold from an input that it cannot, such as bytes
            from a record batch.

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
        CorruptDataError: not an intact snapshot.
        IncompatibleError: intact, but with entries that this version does not know.
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
    """What a restored element starts with."""

    seconds: float | None
    """Until its deadline, above 0; None without a timeout."""
    attempts_used: int
    last: bool = False
    """True if the next call is not to be followed by another."""
    expired: bool = False
    """True if it goes to the timeout handler without another call."""


def restored_budget(
    saved: SavedElement,
    *,
    keep: KeepRetryState,
    on_expired: OnExpired,
    timeout_seconds: float | None,
    max_attempts: int,
    wall_now: float,
) -> Budget:
    """Return what `saved` starts with.

    Args:
        saved: without retry fields it starts anew, whatever `keep` says.
        max_attempts: M, calls in all.
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
