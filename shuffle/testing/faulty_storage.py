"""A storage that fails where it is told to: errors, lost replies, full disks, crashes.

Strategy: rules are tried in order for every call; a rule counts the calls that it matches, and
fires at its nth, before the call reaches the wrapped storage or after it did. Nothing is random:
the same calls meet the same faults. Faults that fired are counted, so that a test can tell a fault
that was survived from one that never came.

It must not break the contract that it wraps: a fault that a storage may not show is refused.
"""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn, TypeVar

from durable_shuffle.serialization.errors import (
    InvalidInputError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.storage import ByteRange, Bytes, Created, Exists, ObjectInfo, Storage

READS = ("read", "read_range", "read_ranges", "list")
WRITES = ("put", "put_if_absent", "delete")

Fault = Literal["error", "lost_reply", "crash", "disk_full"]
T = TypeVar("T")


class SimulatedCrash(BaseException):
    """The process died here: not even its clean-up reaches the storage any more."""


@dataclass(frozen=True, slots=True)
class Rule:
    """When to fail, and how.

    Raises:
        InvalidInputError: no storage may behave like that, or no call could ever match.
    """

    verb: str
    """A method of Storage, or "*" for all."""
    prefix: str = ""
    """Only calls with a key that starts with this."""
    when: Literal["before", "after"] = "before"
    """Whether the fault comes instead of the call, or instead of its reply."""
    nth: int | Literal["every"] = 1
    """Which of the matching calls, from 1."""
    fault: Fault = "error"

    def __post_init__(self) -> None:
        verbs = (*READS, *WRITES) if self.verb == "*" else (self.verb,)
        if not set(verbs) <= {*READS, *WRITES} or (self.nth != "every" and self.nth < 1):
            raise InvalidInputError(f"no call matches: verb={self.verb!r} nth={self.nth!r}")
        if self.fault == "lost_reply" and set(verbs) & set(READS):
            raise InvalidInputError("only writes have an unknown outcome; give the verb of a write")
        if self.fault == "disk_full" and (set(verbs) - {"put", "put_if_absent"}):
            raise InvalidInputError("only put and put_if_absent need space")
        if self.when == "after" and (
            self.fault == "disk_full" or (self.fault == "error" and set(verbs) & set(WRITES))
        ):
            raise InvalidInputError(f"a write that took effect never raises {self.fault!r}")


class FaultyStorage:
    """The wrapped storage with faults. Safe to call from several threads."""

    def __init__(self, storage: Storage, rules: Sequence[Rule] = ()) -> None:
        self._storage, self._rules = storage, tuple(rules)
        self._matched = [0] * len(self._rules)
        self._fired = [0] * len(self._rules)
        self._crashed = False
        self._lock = threading.Lock()
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        """All calls so far, as (verb, keys); those after a crash are not counted."""

    @property
    def description(self) -> str:
        return self._storage.description

    @property
    def fired(self) -> int:
        """How many faults happened."""
        return sum(self._fired)

    @property
    def unfired(self) -> tuple[Rule, ...]:
        """Rules whose fault never happened."""
        return tuple(r for r, n in zip(self._rules, self._fired, strict=True) if not n)

    def read(self, key: str) -> bytes:
        return self._call("read", (key,), lambda: self._storage.read(key))

    def read_range(self, key: str, start: int, length: int) -> memoryview:
        return self._call(
            "read_range", (key,), lambda: self._storage.read_range(key, start, length)
        )

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        keys = tuple(r.key for r in ranges)
        return self._call("read_ranges", keys, lambda: self._storage.read_ranges(ranges))

    def put(self, key: str, parts: Sequence[Bytes]) -> None:
        self._call("put", (key,), lambda: self._storage.put(key, parts))

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        return self._call("put_if_absent", (key,), lambda: self._storage.put_if_absent(key, data))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._call("list", (prefix,), lambda: iter(tuple(self._storage.list(prefix))))

    def delete(self, keys: Sequence[str]) -> None:
        self._call("delete", tuple(keys), lambda: self._storage.delete(keys))

    def _call(self, verb: str, keys: tuple[str, ...], request: Callable[[], T]) -> T:
        before, after = self._hits(verb, keys)
        if before is not None:
            self._fail(before, verb, keys)
        try:
            return request()
        finally:  # also when the reply that is lost was an error
            if after is not None:
                self._fail(after, verb, keys)

    def _hits(self, verb: str, keys: tuple[str, ...]) -> tuple[int | None, int | None]:
        """Count the call; return the first rule that fires before it, and the first after it."""
        with self._lock:
            if self._crashed:
                raise SimulatedCrash(f"{verb} after the crash")
            self.calls.append((verb, keys))
            found: dict[str, int] = {}
            for i, rule in enumerate(self._rules):
                if rule.verb in (verb, "*") and any(
                    k.startswith(rule.prefix) for k in keys or [""]
                ):
                    self._matched[i] += 1
                    if rule.nth in ("every", self._matched[i]):
                        found.setdefault(rule.when, i)
        return found.get("before"), found.get("after")

    def _fail(self, i: int, verb: str, keys: tuple[str, ...]) -> NoReturn:
        rule = self._rules[i]
        with self._lock:
            self._fired[i] += 1
            self._crashed = self._crashed or rule.fault == "crash"
        where = f"{self.description}: {verb} {', '.join(keys)}: simulated"
        if rule.fault == "crash":
            raise SimulatedCrash(where)
        if rule.fault == "lost_reply":
            raise OutcomeUnknownError(f"{where} lost reply")
        if rule.fault == "disk_full":
            full = UnavailableError(f"{where} no space left, nothing was written: free space")
            full.retry_after_seconds = math.inf
            raise full
        raise UnavailableError(f"{where} outage")
