"""A storage that fails where it is told to: errors, lost replies, slowness, full disks, crashes.

Strategy: rules are tried in order for every call; a rule counts the calls that it matches, and
fires at its nth, or by chance, before the call reaches the wrapped storage or after it did. All
chance comes from one seed: the same calls in the same order meet the same faults. A copy in another
process, and every further copy, draws from a seed of its own, derived from the given one. Faults
that fired are counted, so that a test can tell a fault that was survived from one that never came.

It must not break the contract that it wraps: it refuses rules for faults that no storage may show.
The one exception is `short_read`, which careless drivers do and every reader must notice.
"""

import itertools
import math
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NoReturn, TypeVar

from durable_shuffle.serialization.errors import (
    InvalidInputError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.clock import Clock, SystemClock
from durable_shuffle.shuffle.base.settings import check_number
from durable_shuffle.shuffle.storage import open as open_storage
from durable_shuffle.shuffle.storage.contract import Storage, StorageLayer

READS = ("read", "read_range", "read_ranges", "list")
WRITES = ("put", "put_if_absent", "delete")
GROUPS = {"*": (*READS, *WRITES), "reads": READS, "writes": WRITES}
"""Names for several verbs."""

Fault = Literal[
    "error", "throttle", "lost_reply", "disk_full", "latency", "short_read", "crash", "kill"
]
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
    """A method of Storage, or "reads", "writes", "*" for several."""
    prefix: str = ""
    """Only calls with a key that starts with this."""
    when: Literal["before", "after"] = "before"
    """Whether the fault comes instead of the call, or instead of its reply."""
    nth: int | Literal["every"] = 1
    """Which of the matching calls, from 1."""
    fault: Fault = "error"
    """"error": an outage. "throttle": told to wait `seconds`. "lost_reply": nobody knows.
    "latency": `seconds` pass, then the call goes on. "short_read": the last byte is missing.
    "crash": SimulatedCrash from here on. "kill": SIGKILL to the own process."""
    probability: float | None = None
    """Share of the matching calls that fail, 0 to 1, instead of `nth`."""
    seconds: float = 0.0
    """Of a latency or a throttle."""
    once: str | None = None
    """A file that does not exist yet: the fault happens to the one process that makes it, which
    leaves the call's keys in it."""

    def __post_init__(self) -> None:
        verbs = self.verbs
        known = set(GROUPS["*"])
        if not set(verbs) <= known or (self.nth != "every" and self.nth < 1):
            raise InvalidInputError(f"no call matches: verb={self.verb!r} nth={self.nth!r}")
        if self.probability is not None:
            check_number("probability", self.probability, at_least=0, at_most=1)
        check_number("seconds", self.seconds, at_least=0)
        if self.fault == "lost_reply" and set(verbs) & set(READS):
            raise InvalidInputError("only writes have an unknown outcome; give the verb of a write")
        if self.fault == "disk_full" and (set(verbs) - {"put", "put_if_absent"}):
            raise InvalidInputError("only put and put_if_absent need space")
        if self.fault == "short_read" and (
            set(verbs) - {"read", "read_range", "read_ranges"} or self.when != "after"
        ):
            raise InvalidInputError("only reads are short, and only after the call")
        if self.when == "after" and (
            self.fault == "disk_full"
            or (self.fault in ("error", "throttle") and set(verbs) & set(WRITES))
        ):
            raise InvalidInputError(f"a write that took effect never raises {self.fault!r}")

    @property
    def verbs(self) -> tuple[str, ...]:
        """The methods of Storage that this is about."""
        return GROUPS.get(self.verb, (self.verb,))


class FaultyStorage(StorageLayer):
    """The wrapped storage with faults. Safe to call from several threads.

    Args:
        seed: of all chance; fault messages hold it.
        clock: what a latency passes on; not kept by pickles.
    """

    _copies: ClassVar[Iterator[int]] = itertools.count()

    def __init__(
        self,
        storage: Storage,
        rules: Sequence[Rule] = (),
        *,
        seed: int = 0,
        clock: Clock | None = None,
        copy: bool = False,
    ) -> None:
        super().__init__(storage)
        self._rules, self._seed = tuple(rules), seed
        self._clock = SystemClock() if clock is None else clock
        own = f"{seed}/{os.getpid()}/{next(self._copies)}" if copy else f"{seed}"
        self._random = random.Random(own)
        self._matched = [0] * len(self._rules)
        self._fired = [0] * len(self._rules)
        self._crashed = False
        self._lock = threading.Lock()
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        """All calls so far, as (verb, keys); those after a crash are not counted."""

    @property
    def fired(self) -> int:
        """How many faults happened."""
        return sum(self._fired)

    @property
    def unfired(self) -> tuple[Rule, ...]:
        """Rules whose fault never happened."""
        return tuple(r for r, n in zip(self._rules, self._fired, strict=True) if not n)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return _copied, (self._storage, self._rules, self._seed)

    def _call(self, verb: str, keys: tuple[str, ...], request: Callable[[], T]) -> T:
        hits = self._hits(verb, keys)
        for i in hits:
            if self._rules[i].when == "before":
                self._fail(i, verb, keys)
        try:
            answer = request()
        except BaseException:  # the reply that is lost may have been an error
            for i in hits:
                if self._rules[i].when == "after" and self._rules[i].fault != "short_read":
                    self._fail(i, verb, keys)
            raise
        for i in hits:
            if self._rules[i].fault == "short_read":
                with self._lock:
                    self._fired[i] += 1
                answer = _shortened(answer)
            elif self._rules[i].when == "after":
                self._fail(i, verb, keys)
        return answer

    def _hits(self, verb: str, keys: tuple[str, ...]) -> Sequence[int]:
        """Count the call; return the rules that fire, in order."""
        with self._lock:
            if self._crashed:
                raise SimulatedCrash(f"{verb} after the crash")
            self.calls.append((verb, keys))
            firing = []
            for i, rule in enumerate(self._rules):
                if verb in rule.verbs and any(k.startswith(rule.prefix) for k in keys or [""]):
                    self._matched[i] += 1
                    if rule.probability is not None:
                        fires = self._random.random() < rule.probability
                    else:
                        fires = rule.nth in ("every", self._matched[i])
                    if fires and (rule.once is None or _made(rule.once, keys)):
                        firing.append(i)
        return firing

    def _fail(self, i: int, verb: str, keys: tuple[str, ...]) -> None:
        """Let the fault of rule `i` happen; returns only from a latency."""
        rule = self._rules[i]
        with self._lock:
            self._fired[i] += 1
            self._crashed = self._crashed or rule.fault == "crash"
        if rule.fault == "latency":
            self._clock.sleep(rule.seconds)
            return
        if rule.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        chance = "" if rule.probability is None else f" (seed={self._seed})"
        _raise(rule, f"{self.description}: {verb} {', '.join(keys)}: simulated{chance}")


def _raise(rule: Rule, where: str) -> NoReturn:
    if rule.fault == "crash":
        raise SimulatedCrash(where)
    if rule.fault == "lost_reply":
        raise OutcomeUnknownError(f"{where} lost reply")
    if rule.fault == "disk_full":
        full = UnavailableError(f"{where} no space left, nothing was written: free space")
        full.retry_after_seconds = math.inf
        raise full
    if rule.fault == "throttle":
        slow = UnavailableError(f"{where} throttling")
        slow.retry_after_seconds = rule.seconds
        raise slow
    raise UnavailableError(f"{where} outage")


def _made(path: str, keys: Sequence[str]) -> bool:
    """Make the file with the keys in it; False if somebody else did."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write("\n".join(keys))
    return True


def _shortened(answer: T) -> T:
    """Return a read's answer without its last byte; of several, the last that has one."""
    if isinstance(answer, bytes | memoryview):
        return answer[:-1]  # type: ignore[return-value]
    if isinstance(answer, list):
        whole = max((i for i, view in enumerate(answer) if len(view)), default=None)
        return [v[:-1] if i == whole else v for i, v in enumerate(answer)]  # type: ignore[return-value]
    return answer


def _copied(storage: Storage, rules: Sequence[Rule], seed: int) -> FaultyStorage:
    return FaultyStorage(storage, rules, seed=seed, copy=True)


def chance_rules(rate: float) -> tuple[Rule, ...]:
    """Return rules by which about a share `rate` of all calls fails, 0 to 1.

    Of the writes that fail, half took effect, a quarter did not and say so, a quarter do not say.
    """
    check_number("rate", rate, at_least=0, at_most=1)
    return (
        Rule("reads", probability=rate / 2),
        Rule("reads", when="after", probability=rate / 2),
        Rule("writes", probability=rate / 4),
        Rule("writes", fault="lost_reply", probability=rate / 4),
        Rule("writes", when="after", fault="lost_reply", probability=rate / 2),
    )


def install(rate: float, seed: int) -> list[FaultyStorage]:
    """Have every storage that this process opens by its URL from now on fail; for tests.

    Returns:
        Those storages, as they are opened.
    """
    opened: list[FaultyStorage] = []
    plain = open_storage.open_backend

    def open_flaky(url: str, options: Mapping[str, object]) -> Storage:
        opened.append(FaultyStorage(plain(url, options), chance_rules(rate), seed=seed, copy=True))
        return opened[-1]

    open_storage.open_backend = open_flaky
    return opened
