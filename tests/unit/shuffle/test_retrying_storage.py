"""The one retry layer: what is tried again, and that faults change no outcome."""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from patient_storage import filled, patient

from durable_shuffle.serialization.errors import (
    ConflictError,
    CorruptDataError,
    DurableShuffleError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.retry import Backoff
from durable_shuffle.shuffle.log.slot_log import SlotLog, Won
from durable_shuffle.shuffle.storage.contract import (
    MOST_BYTES,
    ByteRange,
    Created,
    Exists,
    ObjectInfo,
    Storage,
)
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.storage.retrying import (
    RetryCounts,
    RetryingStorage,
    StorageRetries,
    retry_counts,
)
from durable_shuffle.shuffle.testing.faulty_storage import FaultyStorage, Rule, chance_rules

Call = Callable[[Storage], Any]
CALLS: dict[str, Call] = {
    "read": lambda s: s.read("a"),
    "read_range": lambda s: bytes(s.read_range("a", 1, 2)),
    "read_ranges": lambda s: [bytes(v) for v in s.read_ranges([ByteRange("a", 0, 1)])],
    "list": lambda s: [info.key for info in s.list("")],
    "put": lambda s: s.put("new", [b"x", b"y"]),
    "put_if_absent": lambda s: s.put_if_absent("new", b"xy"),
    "delete": lambda s: s.delete(["a", "b"]),
}
ANSWERS: dict[str, Any] = {
    "read": b"bytes",
    "read_range": b"yt",
    "read_ranges": [b"b"],
    "list": ["a", "b"],
    "put": None,
    "put_if_absent": Created(),
    "delete": None,
}
AFTERWARDS: dict[str, dict[str, bytes]] = {
    "put": {"a": b"bytes", "b": b"more", "new": b"xy"},
    "put_if_absent": {"a": b"bytes", "b": b"more", "new": b"xy"},
    "delete": {},
}


def faults() -> list[tuple[str, str, str]]:
    """(verb, when, fault) that a storage may show."""
    found = []
    for verb in CALLS:
        found.append((verb, "before", "error"))
        if verb in AFTERWARDS:
            found += [(verb, "before", "lost_reply"), (verb, "after", "lost_reply")]
        else:
            found.append((verb, "after", "error"))
    return found


@pytest.mark.requirement("R-F232-21")
@pytest.mark.parametrize(("verb", "when", "fault"), faults())
@pytest.mark.parametrize("failures", [1, 3])
def test_every_verb_survives_faults_before_and_after_it_took_effect(
    verb: str, when: Any, fault: Any, failures: int
) -> None:
    """The answer is the one of a storage without faults, and so is what is stored."""
    inner = filled()
    rules = [Rule(verb, "", when, n, fault) for n in range(1, failures + 1)]
    faulty = FaultyStorage(inner, rules)
    storage, clock = patient(faulty)
    assert CALLS[verb](storage) == ANSWERS[verb]
    assert faulty.unfired == ()
    assert len(faulty.calls) == failures + 1
    assert clock.pauses == [1, 2, 4][:failures]
    stored = {info.key: inner.read(info.key) for info in inner.list("")}
    assert stored == AFTERWARDS.get(verb, {"a": b"bytes", "b": b"more"})
    assert storage.counts == RetryCounts(
        calls=1,
        retries=failures,
        lost_replies=failures if fault == "lost_reply" else 0,
        waited_seconds=sum(clock.pauses),
    )


@pytest.mark.requirement("R-F232-21")
def test_own_create_whose_reply_was_lost_is_no_rival() -> None:
    """The bytes that stand there are compared: ours won; a rival's are handed back."""
    inner = MemoryStorage()
    lost = Rule("put_if_absent", "", "after", 1, "lost_reply")
    storage, _ = patient(FaultyStorage(inner, [lost]))
    assert storage.put_if_absent("slot", b"mine") == Created()
    assert storage.put_if_absent("slot", b"mine") == Exists(b"mine"), "that is another call"
    storage, _ = patient(FaultyStorage(inner, [lost]))
    assert storage.put_if_absent("slot", b"other") == Exists(b"mine")
    storage, _ = patient(FaultyStorage(inner, [lost]))
    with pytest.raises(ConflictError):
        storage.put("slot", [b"other"])
    assert SlotLog(patient(FaultyStorage(inner, [lost]))[0], "log/").append(0, b"r") == Won()


@pytest.mark.requirement("R-F232-21")
def test_rival_that_comes_between_two_tries_wins() -> None:
    """Our first try was lost on the way and a rival created meanwhile: Exists, not Created."""
    inner = MemoryStorage()

    class Raced(FaultyStorage):
        def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
            try:
                return super().put_if_absent(key, data)
            except OutcomeUnknownError:
                inner.put_if_absent(key, b"rival")
                raise

    storage, _ = patient(Raced(inner, [Rule("put_if_absent", "", "before", 1, "lost_reply")]))
    assert storage.put_if_absent("slot", b"mine") == Exists(b"rival")


@pytest.mark.requirement("R-F232-1", "R-F232-22")
@pytest.mark.parametrize("verb", list(CALLS))
@pytest.mark.parametrize("retries", [0, 3])
def test_calls_reach_the_storage_once_plus_retries(verb: str, retries: int) -> None:
    """Also through a slot log: an outage is asked max_retries + 1 times, never more."""
    faulty = FaultyStorage(filled(), [Rule(verb, nth="every")])
    storage, clock = patient(faulty, StorageRetries(Backoff.fixed(retries, 1.0)))
    with pytest.raises(UnavailableError, match=f"tries={retries + 1}, no more retries"):
        CALLS[verb](storage)
    assert len(faulty.calls) == retries + 1
    assert len(clock.pauses) == retries
    assert storage.counts.give_ups == 1
    if verb in ("put_if_absent", "read"):
        faulty.calls.clear()
        log = SlotLog(storage, "log/")
        with pytest.raises(UnavailableError):
            log.append(0, b"x") if verb == "put_if_absent" else log.read(0)
        assert len(faulty.calls) == retries + 1


@pytest.mark.parametrize("verb", list(AFTERWARDS))
def test_one_lost_reply_makes_the_end_unknown(verb: str) -> None:
    """Whatever came after it, the write may stand: OutcomeUnknownError says to read back."""
    rules = [Rule(verb, "", "before", 2, "lost_reply"), Rule(verb, nth="every")]
    storage, _ = patient(FaultyStorage(filled(), rules))
    with pytest.raises(OutcomeUnknownError, match="read it back"):
        CALLS[verb](storage)


OTHERS = (InvalidInputError("403"), CorruptDataError("x"), NotFoundError("x"), KeyError("x"))


@pytest.mark.parametrize("error", OTHERS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("verb", list(AFTERWARDS))
def test_an_error_behind_a_lost_reply_is_no_proof(verb: str, error: Exception) -> None:
    """The first try took effect, the second was not allowed: nobody may take it for undone."""
    inner = filled()

    class Expired(FaultyStorage):
        def _call(self, *request: Any) -> Any:
            if self.fired:
                raise error
            return super()._call(*request)

    storage, _ = patient(Expired(inner, [Rule(verb, "", "after", 1, "lost_reply")]))
    with pytest.raises(OutcomeUnknownError, match=r"tries=2.*read it back") as caught:
        CALLS[verb](storage)
    assert caught.value.__cause__ is error
    stored = {info.key: inner.read(info.key) for info in inner.list("")}
    assert stored == AFTERWARDS[verb]
    assert storage.counts.give_ups == 1


@pytest.mark.parametrize(
    "error",
    [
        NotFoundError("x"),
        ConflictError("x"),
        CorruptDataError("x"),
        InvalidInputError("x"),
        FencedError("x"),
        KeyError("not ours"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_other_errors_pass_at_once(error: Exception) -> None:
    """Trying again cannot help, or must not."""

    class Failing(MemoryStorage):
        def read(self, key: str, most_bytes: int = MOST_BYTES) -> bytes:
            raise error

    storage, clock = patient(Failing())
    with pytest.raises(type(error)) as caught:
        storage.read("a")
    assert caught.value is error
    assert clock.pauses == []


def test_one_bad_range_among_many_does_not_have_all_of_them_sent_again() -> None:
    """Halves are tried on their own: a range that fails three times costs few other requests."""
    inner = MemoryStorage()
    for n in range(64):
        inner.put_if_absent(f"k{n}", b"%03d" % n)
    sent: list[str] = []

    class OneBad(MemoryStorage):
        bad = 7

        def read_ranges(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
            sent.extend(r.key for r in ranges)
            if self.bad and any(r.key == "k37" for r in ranges):
                self.bad -= 1
                raise UnavailableError("k37")
            return inner.read_ranges(ranges)

    storage, _ = patient(OneBad(), StorageRetries(Backoff.fixed(9, 0.0)))
    found = storage.read_ranges([ByteRange(f"k{n}", 0, 3) for n in range(64)])
    assert [bytes(v) for v in found] == [b"%03d" % n for n in range(64)]
    assert sent.count("k37") == 8
    assert len(sent) < 3 * 64
    assert storage.read_ranges([]) == []


def test_outage_of_many_ranges_ends_as_that_of_one() -> None:
    """Halving does not multiply the tries: each range sees max_retries + 1 at most."""
    faulty = FaultyStorage(filled(), [Rule("read_ranges", nth="every")])
    storage, _ = patient(faulty, StorageRetries(Backoff.fixed(5, 0.0)))
    with pytest.raises(UnavailableError, match="tries=6"):
        storage.read_ranges([ByteRange("a", 0, 1)] * 8)
    assert len(faulty.calls) == 6


def test_listing_that_breaks_off_yields_nothing_twice() -> None:
    """A listing that fails half-way starts again before the caller has seen any of it."""
    inner = filled()

    class Breaks(MemoryStorage):
        broken = True

        def list(self, prefix: str) -> Iterator[ObjectInfo]:
            for info in inner.list(prefix):
                yield info
                if self.broken:
                    self.broken = False
                    raise UnavailableError("half-way")

    storage, _ = patient(Breaks())
    assert [info.key for info in storage.list("")] == ["a", "b"]


@pytest.mark.requirement("R-F232-6")
def test_random_faults_change_no_outcome(seed: int) -> None:
    """A thousand calls against a dictionary while a third of all requests fail, half of them after
    they took effect."""
    rng = random.Random(seed)
    inner = MemoryStorage()

    faulty = FaultyStorage(inner, chance_rules(1 / 3), seed=seed)
    storage, _ = patient(faulty, StorageRetries(Backoff.fixed(30, 0.0), task_seconds=1e9))
    model: dict[str, bytes] = {}
    for n in range(1000):
        key, data = f"k{rng.randrange(40)}", b"%d" % n
        verb = rng.choice(["read", "put", "put_if_absent", "delete", "list"])
        if verb == "read":
            assert outcome(lambda: storage.read(key)) == model.get(key, NotFoundError)  # noqa: B023
        elif verb == "put":
            expected = None if key not in model else ConflictError
            assert outcome(lambda: storage.put(key, [data])) == expected  # noqa: B023
            model.setdefault(key, data)
        elif verb == "put_if_absent":
            answer = Exists(model[key]) if key in model else Created()
            assert storage.put_if_absent(key, data) == answer
            model.setdefault(key, data)
        elif verb == "delete":
            storage.delete([key])
            model.pop(key, None)
        else:
            assert [info.key for info in storage.list("")] == sorted(model)
    assert {info.key: inner.read(info.key) for info in inner.list("")} == model
    assert storage.counts.retries > 300
    assert not faulty.unfired


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the class of what it raises."""
    try:
        return call()
    except DurableShuffleError as error:
        return type(error)


@pytest.mark.requirement("R-F232-23", "R-F232-24")
def test_counts_hold_under_threads() -> None:
    """Eight threads, every second request fails: no call and no retry goes uncounted."""
    inner = filled()
    lock, sent = threading.Lock(), 0

    class EverySecond(MemoryStorage):
        def read(self, key: str, most_bytes: int = MOST_BYTES) -> bytes:
            nonlocal sent
            with lock:
                sent += 1
                fails = sent % 2
            if fails:
                raise UnavailableError("every second")
            return inner.read(key)

    retries = StorageRetries(Backoff.fixed(200, 0.0))
    storage = RetryingStorage(EverySecond(), retries)

    def work() -> None:
        for _ in range(300):
            assert storage.read("a") == b"bytes"

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert storage.counts.calls == 2400
    assert storage.counts.retries == sent - 2400
    assert retry_counts(storage) == storage.counts
    assert retry_counts(inner) == RetryCounts()


@pytest.mark.parametrize(("pace", "pauses"), [(None, []), (500, [2.0, 2.0])])
def test_deletes_go_in_batches_at_the_pace_of_the_backend(
    pace: int | None, pauses: list[float]
) -> None:
    """A thousand keys a call, no pause behind the last; a failed batch alone is sent again."""
    faulty = FaultyStorage(MemoryStorage(), [Rule("delete", nth=2)])
    if pace is not None:
        faulty.deletes_per_second = pace  # type: ignore[attr-defined]
    storage, clock = patient(faulty, StorageRetries(Backoff.fixed(1, 0.0)))
    keys = [f"k{n}" for n in range(2500)]
    storage.delete(keys)
    assert [len(deleted) for _, deleted in faulty.calls] == [1000, 1000, 1000, 500]
    assert [key for _, deleted in (faulty.calls[0], *faulty.calls[2:]) for key in deleted] == keys
    assert [pause for pause in clock.pauses if pause] == pauses
    assert faulty.fired == 1
