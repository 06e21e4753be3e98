"""Run the storage contract against a live backend and say what the backend may be used for.

Strategy: one function per law. Each function works below a scratch prefix with a random name; it
returns a sentence about what it tried, or raises `_Broken` with the reason. The check notes every
key that it may create and deletes those keys at the end, without a listing. It proves nothing about
power failures, nor that several hosts share a `file:` root.
"""

import pickle
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from durable_shuffle.serialization.errors import (
    ConflictError,
    CorruptDataError,
    DurableShuffleError,
    InvalidInputError,
    NotFoundError,
)
from durable_shuffle.shuffle.base.clock import Clock, IdSource, SystemClock
from durable_shuffle.shuffle.storage.contract import ByteRange, Created, Exists, Storage
from durable_shuffle.shuffle.storage.create_race import (
    RaceClaim,
    race_key,
    race_processes,
    race_threads,
)

_TIMED_BYTES = 1000
_TIMED_CALLS = 30
_LARGE_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class LawResult:
    """The outcome of trying one law of the contract."""

    law: str
    passed: bool
    reason: str
    """What was tried, or how the law was broken."""


@dataclass(frozen=True, slots=True)
class StorageReport:
    """What `check_storage` found.

    Times are in milliseconds: the median of one caller's requests of 1 kB each, one after the
    other. None means that a request failed.
    """

    root: str
    laws: tuple[LawResult, ...]
    put_ms: float | None
    create_ms: float | None
    get_ms: float | None
    leftovers: str | None
    """Why the scratch objects could not be deleted, or None if they are gone."""

    @property
    def passed(self) -> bool:
        """True if every law holds."""
        return all(law.passed for law in self.laws)

    @property
    def verdict(self) -> str:
        """One sentence on what the storage may be used for."""
        broken = [law.law for law in self.laws if not law.passed]
        if not broken:
            return f"{self.root} may be used for durable shuffles from any number of processes"
        if broken == [_OTHER_PROCESS]:
            return f"{self.root} may be used by one process only, that is for tests"
        return f"{self.root} must not be used: {', '.join(broken)}"


class _Broken(Exception):
    """A law does not hold; the message says how."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """What a law works with. `key` notes each key before the law writes it, for the clean-up."""

    storage: Storage
    prefix: str
    racers: int
    rounds: int
    keys: list[str]

    def key(self, name: str) -> str:
        key = self.prefix + name
        self.keys.append(key)
        return key

    def copy(self) -> Storage:
        """Return the storage as another process would get it: pickled and loaded again."""
        copy: Storage = pickle.loads(pickle.dumps(self.storage))
        return copy


def check_storage(
    storage: Storage,
    *,
    ids: IdSource,
    processes: int = 8,
    rounds: int = 50,
    clock: Clock | None = None,
) -> StorageReport:
    """Try every law of the contract on `storage`, then delete the objects that this wrote.

    A broken law is reported, not raised. If the clean-up fails, the report says so.

    Args:
        ids: names the scratch prefix `storage-check-<id>/`.
        processes: how many processes race for each key, at least 2; threads if the storage cannot
            be pickled.
        rounds: how many keys they race for, at least 1.

    Raises:
        InvalidInputError: fewer than two processes or one round.
    """
    if processes < 2 or rounds < 1:
        raise InvalidInputError(
            f"a race needs two processes and a round, found processes={processes} rounds={rounds}"
        )
    prefix = f"storage-check-{ids.new_id()}/"
    trial = _Trial(storage, prefix, processes, rounds, keys=[])
    try:
        laws = tuple(_try_law(name, law, trial) for name, law in _LAWS)
        times = _measure(trial, SystemClock() if clock is None else clock)
    finally:
        leftovers = _clean_up(trial)
    return StorageReport(storage.description, laws, *times, leftovers)


def _try_law(name: str, law: Callable[[_Trial], str], trial: _Trial) -> LawResult:
    try:
        return LawResult(name, passed=True, reason=law(trial))
    except _Broken as broken:
        return LawResult(name, passed=False, reason=str(broken))
    except DurableShuffleError as error:
        return LawResult(name, passed=False, reason=f"{type(error).__name__}: {error}")


def _other_process(trial: _Trial) -> str:
    key = trial.key("pickled")
    copy = trial.copy()
    trial.storage.put(key, [b"shared"])
    if copy.read(key) != b"shared":
        raise _Broken("a pickled copy does not read what the original wrote")
    return "a pickled copy reads what the original wrote"


def _create_race(trial: _Trial) -> str:
    trial.keys.extend(race_key(trial.prefix, number) for number in range(trial.rounds))
    try:
        trial.copy()
    except DurableShuffleError:
        race, kind = race_threads, "threads"
    else:
        race, kind = race_processes, "processes"
    rounds = race(trial.storage, trial.prefix, racers=trial.racers, rounds=trial.rounds)
    for number, claims in enumerate(rounds):
        _judge_round(trial.storage.read(race_key(trial.prefix, number)), number, claims)
    return f"{trial.rounds} races of {trial.racers} {kind}, one winner each"


def _judge_round(stored: bytes, number: int, claims: Sequence[RaceClaim]) -> None:
    winners = [claim.offered for claim in claims if claim.created]
    if len(winners) != 1:
        raise _Broken(f"round {number}: {len(winners)} of {len(claims)} creates won, expected 1")
    if stored != winners[0]:
        raise _Broken(f"round {number}: the object does not hold the winner's bytes")
    if any(claim.existing != winners[0] for claim in claims if not claim.created):
        raise _Broken(f"round {number}: a loser was not shown the winner's complete bytes")


def _read_after_write(trial: _Trial) -> str:
    for size_bytes in (0, 1, _LARGE_BYTES):
        content = bytes(index % 251 for index in range(min(size_bytes, 251)))
        content = (content * (size_bytes // 251 + 1))[:size_bytes]
        key = trial.key(f"whole/{size_bytes}")
        trial.storage.put(key, [content[: size_bytes // 3], content[size_bytes // 3 :]])
        if trial.storage.read(key) != content:
            raise _Broken(f"an object of {size_bytes} bytes does not read as it was written")
    return f"objects of 0, 1 and {_LARGE_BYTES} bytes read as they were written"


def _exclusive_put(trial: _Trial) -> str:
    key = trial.key("exclusive")
    trial.storage.put(key, [b"first"])
    try:
        trial.storage.put(key, [b"second"])
    except ConflictError:
        pass
    else:
        raise _Broken("a second put of one key was not refused")
    if trial.storage.put_if_absent(key, b"third") != Exists(b"first"):
        raise _Broken("a create of an existing key did not return what is there")
    if trial.storage.read(key) != b"first":
        raise _Broken("a refused write changed the object")
    return "a second put and a second create are refused and change nothing"


def _missing(trial: _Trial) -> str:
    missing = trial.prefix + "missing"
    reads: list[Callable[[], object]] = [
        lambda: trial.storage.read(missing),
        lambda: trial.storage.read_range(missing, 0, 1),
        lambda: trial.storage.read_range(missing, 0, 0),
    ]
    for read in reads:
        try:
            read()
        except NotFoundError:
            continue
        raise _Broken("a read of a missing object did not raise NotFoundError")
    return "reads of a missing object raise NotFoundError"


def _ranges(trial: _Trial) -> str:
    key = trial.key("ranges")
    content = bytes(range(100))
    trial.storage.put(key, [content])
    wanted = [(0, 100), (0, 1), (99, 1), (37, 20), (50, 0), (100, 0)]
    views = trial.storage.read_ranges([ByteRange(key, *place) for place in wanted])
    for (start, length), view in zip(wanted, views, strict=True):
        if bytes(view) != content[start : start + length]:
            raise _Broken(f"range start={start} length={length} returned other bytes")
    for start, length in ((0, 101), (99, 2), (100, 1), (200, 5), (101, 0)):
        try:
            trial.storage.read_range(key, start, length)
        except CorruptDataError:
            continue
        raise _Broken(
            f"range start={start} length={length} of 100 bytes did not raise CorruptDataError"
        )
    return "ranges inside are exact, ranges beyond the end raise CorruptDataError"


def _listing(trial: _Trial) -> str:
    expected = {trial.key(f"list/{name}"): len(name) for name in ("a", "bb", "deep/er/ccc")}
    for key, size_bytes in expected.items():
        trial.storage.put(key, [b"x" * size_bytes])
    listed = {info.key: info.size_bytes for info in trial.storage.list(trial.prefix + "list/")}
    if listed != expected:
        raise _Broken(f"listing found={listed} expected={expected}; clean-up would leave objects")
    return "a listing of a quiet prefix names its objects and their sizes"


def _deleting(trial: _Trial) -> str:
    key = trial.key("delete")
    trial.storage.put(key, [b"x"])
    trial.storage.delete([key, trial.prefix + "missing"])
    try:
        trial.storage.read(key)
    except NotFoundError:
        pass
    else:
        raise _Broken("a deleted object can still be read")
    if trial.storage.put_if_absent(key, b"y") != Created():
        raise _Broken("a deleted key cannot be created again")
    return "deleted objects are gone, deleting a missing one is fine"


_OTHER_PROCESS = "other processes see the same objects"
_LAWS: tuple[tuple[str, Callable[[_Trial], str]], ...] = (
    ("one create of a key wins", _create_race),
    ("what was written can be read", _read_after_write),
    ("put is exclusive", _exclusive_put),
    ("missing is an error, never empty", _missing),
    ("ranges are exact or an error", _ranges),
    ("listing", _listing),
    ("deleting", _deleting),
    (_OTHER_PROCESS, _other_process),
)


def _measure(trial: _Trial, clock: Clock) -> tuple[float | None, float | None, float | None]:
    """Return the medians of put, create and get in milliseconds, or None where one failed."""
    content = b"m" * _TIMED_BYTES
    puts = [trial.key(f"time/put-{number}") for number in range(_TIMED_CALLS)]
    creates = [trial.key(f"time/create-{number}") for number in range(_TIMED_CALLS)]

    def median_ms(call: Callable[[str], object], keys: Sequence[str]) -> float | None:
        times = []
        for key in keys:
            started = clock.monotonic()
            try:
                call(key)
            except DurableShuffleError:
                return None
            times.append(1000 * (clock.monotonic() - started))
        return statistics.median(times)

    return (
        median_ms(lambda key: trial.storage.put(key, [content]), puts),
        median_ms(lambda key: trial.storage.put_if_absent(key, content), creates),
        median_ms(trial.storage.read, puts),
    )


def _clean_up(trial: _Trial) -> str | None:
    try:
        trial.storage.delete(trial.keys)
    except DurableShuffleError as error:
        return f"{trial.prefix} could not be deleted: {error}"
    return None
