"""The fault wrapper itself: what fires, when, what took effect, and that silence is noticed."""

import os
import pickle
import signal
from pathlib import Path

import pytest
from small_stage import ManualClock

from durable_shuffle.serialization.errors import (
    InvalidInputError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.storage.contract import ByteRange, Created, Exists, Storage
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.testing.faulty_storage import (
    FaultyStorage,
    Rule,
    SimulatedCrash,
    chance_rules,
)


def keys_of(storage: Storage) -> list[str]:
    """Return the keys of all objects."""
    return [info.key for info in storage.list("")]


def test_without_rules_it_is_the_storage() -> None:
    """Every verb passes through and is logged with its keys."""
    inner = MemoryStorage()
    faulty = FaultyStorage(inner)
    faulty.put("a/x", [b"12", b"34"])
    assert faulty.put_if_absent("a/y", b"5") == Created()
    assert faulty.put_if_absent("a/y", b"6") == Exists(b"5")
    assert faulty.read("a/x") == b"1234"
    assert bytes(faulty.read_range("a/x", 1, 2)) == b"23"
    assert [bytes(v) for v in faulty.read_ranges([ByteRange("a/x", 0, 1)])] == [b"1"]
    assert [info.key for info in faulty.list("a/")] == ["a/x", "a/y"]
    faulty.delete(["a/x", "a/y"])
    assert keys_of(inner) == []
    assert [verb for verb, _ in faulty.calls] == [
        *("put", "put_if_absent", "put_if_absent", "read"),
        *("read_range", "read_ranges", "list", "delete"),
    ]
    assert faulty.calls[-1] == ("delete", ("a/x", "a/y"))
    assert faulty.fired == 0


@pytest.mark.parametrize(("when", "there"), [("before", []), ("after", ["k"])])
def test_lost_reply_before_or_after_the_effect(when: str, there: list[str]) -> None:
    """A lost reply says nothing about whether the object is there."""
    inner = MemoryStorage()
    faulty = FaultyStorage(inner, [Rule("put", when=when, fault="lost_reply")])
    with pytest.raises(OutcomeUnknownError, match="put k: simulated lost reply"):
        faulty.put("k", [b"1"])
    assert keys_of(inner) == there
    assert faulty.fired == 1


def test_nth_counts_matching_calls_only() -> None:
    """The second put below a/ fails, whatever happened elsewhere."""
    faulty = FaultyStorage(MemoryStorage(), [Rule("put", "a/", nth=2)])
    faulty.put("a/1", [b""])
    faulty.put("b/1", [b""])
    faulty.put_if_absent("a/2", b"")
    assert faulty.fired == 0
    with pytest.raises(UnavailableError):
        faulty.put("a/3", [b""])
    faulty.put("a/3", [b""])
    assert faulty.fired == 1


def test_every_fires_every_time() -> None:
    """An outage lasts."""
    faulty = FaultyStorage(MemoryStorage(), [Rule("read", nth="every")])
    for _ in range(3):
        with pytest.raises(UnavailableError):
            faulty.read("k")
    assert faulty.fired == 3


@pytest.mark.parametrize(("when", "there"), [("before", []), ("after", ["k"])])
def test_after_a_crash_nothing_reaches_the_storage(when: str, there: list[str]) -> None:
    """All later calls crash, too, so that no clean-up can run."""
    inner = MemoryStorage()
    faulty = FaultyStorage(inner, [Rule("*", when=when, fault="crash")])
    with pytest.raises(SimulatedCrash):
        faulty.put("k", [b"1"])
    for call in (
        lambda: faulty.delete(["k"]),
        lambda: faulty.read("k"),
        lambda: faulty.read_range("k", 0, 0),
        lambda: faulty.read_ranges([]),
        lambda: faulty.list(""),
        lambda: faulty.put_if_absent("l", b""),
    ):
        with pytest.raises(SimulatedCrash, match="after the crash"):
            call()
    assert keys_of(inner) == there
    assert faulty.fired == 1
    assert len(faulty.calls) == 1


def test_a_crash_is_not_an_exception_that_code_may_swallow() -> None:
    """`except Exception` does not see it."""
    assert not issubclass(SimulatedCrash, Exception)


def test_full_disk_writes_nothing_and_says_so() -> None:
    """Disk full is UnavailableError with a hint."""
    inner = MemoryStorage()
    faulty = FaultyStorage(inner, [Rule("put", nth="every", fault="disk_full")])
    with pytest.raises(UnavailableError, match="free space"):
        faulty.put("k", [b"1"])
    assert keys_of(inner) == []


def test_a_fault_that_never_came_is_told() -> None:
    """`unfired` names the rules that did nothing."""
    hit, missed = Rule("read", "a/"), Rule("read", "b/")
    faulty = FaultyStorage(MemoryStorage(), [hit, missed])
    with pytest.raises(UnavailableError):
        faulty.read("a/k")
    assert faulty.unfired == (missed,)


@pytest.mark.parametrize(
    "arguments",
    [
        {"verb": "open"},
        {"verb": "put", "nth": 0},
        {"verb": "read", "fault": "lost_reply"},
        {"verb": "*", "fault": "lost_reply"},
        {"verb": "delete", "fault": "disk_full"},
        {"verb": "put", "fault": "disk_full", "when": "after"},
        {"verb": "put", "fault": "error", "when": "after"},
        {"verb": "writes", "fault": "throttle", "when": "after"},
        {"verb": "reads", "fault": "short_read", "when": "after"},
        {"verb": "read", "fault": "short_read"},
        {"verb": "read", "probability": 1.5},
        {"verb": "read", "fault": "latency", "seconds": -1.0},
    ],
    ids=str,
)
def test_faults_that_no_storage_shows_are_refused(arguments: dict[str, object]) -> None:
    """A rule cannot break the storage contract."""
    with pytest.raises(InvalidInputError):
        Rule(**arguments)


def test_latency_passes_and_the_call_goes_on() -> None:
    """Only time is lost, before or after the effect."""
    clock = ManualClock(0.0, [])
    rules = [
        Rule("put", when="before", fault="latency", seconds=2),
        Rule("put", when="after", fault="latency", seconds=3),
    ]
    faulty = FaultyStorage(MemoryStorage(), rules, clock=clock)
    faulty.put("k", [b"1"])
    assert faulty.read("k") == b"1"
    assert clock.pauses == [2, 3]
    assert not faulty.unfired


def test_throttle_says_how_long_to_wait() -> None:
    """The time reaches whoever tries again."""
    faulty = FaultyStorage(MemoryStorage(), [Rule("put", fault="throttle", seconds=7)])
    with pytest.raises(UnavailableError, match="throttling") as caught:
        faulty.put("k", [b"1"])
    assert caught.value.retry_after_seconds == 7
    assert keys_of(faulty) == []


def test_short_reads_miss_their_last_byte() -> None:
    """Whole reads, ranges, and the last filled range of several."""
    inner = MemoryStorage()
    inner.put("k", [b"1234"])
    verbs = ("read", "read_range", "read_ranges")
    rules = [Rule(verb, when="after", fault="short_read") for verb in verbs]
    faulty = FaultyStorage(inner, rules)
    assert faulty.read("k") == b"123"
    assert bytes(faulty.read_range("k", 0, 2)) == b"1"
    ranges = [ByteRange("k", 0, 2), ByteRange("k", 1, 3), ByteRange("k", 4, 0)]
    assert [bytes(v) for v in faulty.read_ranges(ranges)] == [b"12", b"23", b""]
    assert [bytes(v) for v in faulty.read_ranges(ranges)] == [b"12", b"234", b""]
    assert not faulty.unfired


def failures(seed: int, calls: int = 400) -> list[int]:
    """Return which of so many reads fail with a fifth of chance."""
    faulty = FaultyStorage(MemoryStorage(), [Rule("reads", probability=0.2)], seed=seed)
    failed = []
    for number in range(calls):
        try:
            faulty.list("")
        except UnavailableError as error:
            failed.extend([number] * str(error).count(f"(seed={seed})"))
    return failed


def test_one_seed_replays_all_chance(seed: int) -> None:
    """Equal seeds fail the same calls, others do not, and about as many as were asked for."""
    assert failures(seed) == failures(seed) != failures(seed + 1)
    assert 30 < len(failures(seed)) < 140


def test_copies_fail_on_their_own(tmp_path: Path, seed: int) -> None:
    """Tasks that get a copy each do not fail in step; the rules travel with it."""
    faulty = FaultyStorage(LocalStorage(tmp_path), chance_rules(0.5), seed=seed)
    copies = [pickle.loads(pickle.dumps(faulty)) for _ in range(2)]
    drawn = [[copy._random.random() for _ in range(5)] for copy in (faulty, *copies)]
    assert len({tuple(numbers) for numbers in drawn}) == 3
    assert all(copy._rules == faulty._rules for copy in copies)


def test_kill_is_a_real_one(tmp_path: Path) -> None:
    """The process that makes the call is gone at once: SIGKILL, no clean-up."""
    child = os.fork()
    if child == 0:
        try:
            rule = Rule("put", when="after", fault="kill")
            FaultyStorage(LocalStorage(tmp_path), [rule]).put("k", [b"1"])
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert (tmp_path / "k").read_bytes() == b"1"


def test_a_fault_of_which_there_is_one(tmp_path: Path) -> None:
    """Of all copies one meets it, and its file says with which keys."""
    token = tmp_path / "token"
    rule = Rule("put_if_absent", "a/", fault="disk_full", once=str(token))
    first = FaultyStorage(MemoryStorage(), [rule])
    second = FaultyStorage(MemoryStorage(), [rule])
    first.put_if_absent("b/x", b"1")
    assert not token.exists()
    with pytest.raises(UnavailableError, match="no space left"):
        first.put_if_absent("a/x", b"1")
    assert token.read_text() == "a/x"
    assert second.put_if_absent("a/y", b"1") == Created()
    assert (first.fired, second.fired) == (1, 0)
