"""The one retry layer: how long it waits, how often it tries, what is said in the end."""

import math
import pickle
from typing import Any

import pytest
from patient_storage import PATIENCE, filled, patient
from small_stage import ManualClock

from durable_shuffle.serialization.errors import (
    InvalidInputError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.retry import Backoff
from durable_shuffle.shuffle.storage.contract import MOST_BYTES, ByteRange, Created, Exists, Storage
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.storage.open import open_storage
from durable_shuffle.shuffle.storage.retrying import (
    RetryCounts,
    RetryingStorage,
    StorageRetries,
    pause_before_retry,
)
from durable_shuffle.shuffle.testing.faulty_storage import FaultyStorage, Rule


def throttled(seconds: float, times: int) -> Storage:
    """A storage that asks to wait before it answers."""

    class Throttled(MemoryStorage):
        left = times

        def read(self, key: str, most_bytes: int = MOST_BYTES) -> bytes:
            self.left -= 1
            if self.left >= 0:
                error = UnavailableError("slow down")
                error.retry_after_seconds = seconds
                raise error
            return b"answer"

    return Throttled()


@pytest.mark.requirement("R-F232-21")
def test_retry_after_is_honoured() -> None:
    """The pause is never shorter than what the storage asked for, and is spread by our delay."""
    storage, clock = patient(throttled(7.0, 2))
    assert storage.read("a") == b"answer"
    assert clock.pauses == [7 + 1, 7 + 2]
    assert storage.counts.throttled == 2


def test_retry_after_that_is_too_long_ends_the_call_at_once() -> None:
    """Nobody sits through a pause after which the call's time is over."""
    storage, clock = patient(throttled(3600.0, 9))
    with pytest.raises(UnavailableError, match=r"slow down; tries=1, the call's 60 s are over"):
        storage.read("a")
    assert clock.pauses == []


def test_full_disk_is_not_tried_again() -> None:
    """Only somebody who frees space can help."""
    rule = Rule("put", fault="disk_full")
    storage, clock = patient(FaultyStorage(MemoryStorage(), [rule]))
    with pytest.raises(UnavailableError, match="no space left"):
        storage.put("a", [b"x"])
    assert clock.pauses == []


@pytest.mark.requirement("R-F232-4")
def test_one_deadline_covers_all_tries_of_a_call() -> None:
    """Tries of 10 s each within 35 s: at 0, 11, 22 and 33 by the clock, then it is over."""
    clock = ManualClock(0.0, [])

    class Slow(MemoryStorage):
        begun: list[float]

        def read(self, key: str, most_bytes: int = MOST_BYTES) -> bytes:
            self.begun.append(clock.now)
            clock.now += 10
            raise UnavailableError("down")

    inner = Slow()
    inner.begun = []
    retries = StorageRetries(Backoff.fixed(99, 1.0), call_seconds=35)
    storage = RetryingStorage(inner, retries, clock=clock)
    with pytest.raises(UnavailableError, match="tries=4, the call's 35 s are over"):
        storage.read("a")
    assert inner.begun == [0, 11, 22, 33]


class Away(MemoryStorage):
    """A server that does not answer before a moment of the clock."""

    def __init__(self, clock: ManualClock, until: float) -> None:
        super().__init__()
        self.manual, self.until, self.tries = clock, until, 0

    def _asked(self) -> None:
        self.tries += 1
        if self.manual.now < self.until:
            raise UnavailableError("connection refused")

    def read(self, key: str, most_bytes: int = MOST_BYTES) -> bytes:
        self._asked()
        return super().read(key, most_bytes)

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        self._asked()
        return super().put_if_absent(key, data)


def test_a_server_that_is_away_for_minutes_ends_no_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By default it may be away for more than two; the log says once what is waited for."""
    clock = ManualClock(0.0, [])
    inner = Away(clock, 170.0)
    storage = RetryingStorage(inner, clock=clock)
    assert storage.put_if_absent("a", b"x") == Created()
    assert 170 <= clock.now < 172
    assert 80 < inner.tries < 200, "steadily, not at once and not too often"
    said = [r.getMessage() for r in caplog.records]
    assert said == ["connection refused; trying again, 180 s in all before this fails"]


def test_one_range_is_asked_for_as_often_as_a_whole_object() -> None:
    """Thousands of tries within an hour: no call nests in another."""
    clock = ManualClock(0.0, [])
    inner = Away(clock, 3500.0)
    inner.until = 0.0
    inner.put_if_absent("a", b"x")
    inner.until = 3500.0
    storage = RetryingStorage(inner, StorageRetries(call_seconds=3600), clock=clock)
    wanted = [ByteRange("a", 0, 1)] * 3
    assert [bytes(view) for view in storage.read_ranges(wanted)] == [b"x"] * 3
    assert inner.tries > 1500


@pytest.mark.parametrize("seconds", [5.0, 180.0, 600.0])
def test_a_server_that_stays_away_ends_the_call_at_its_deadline(seconds: float) -> None:
    """Not before: the deadline is a setting, and the number of tries is none."""
    clock = ManualClock(0.0, [])
    retries = open_storage("/tmp/x", call_seconds=seconds)._retries
    storage = RetryingStorage(Away(clock, math.inf), retries, clock=clock)
    with pytest.raises(UnavailableError, match=f"the call's {seconds:g} s are over"):
        storage.read("a")
    assert seconds - 2 <= clock.now <= seconds


def test_budget_of_a_task_is_shared_by_its_calls_and_refilled_by_success() -> None:
    """Two calls wait 6 s in all; the third has nothing left; successes give some back."""
    inner = filled()
    faulty = FaultyStorage(inner, [Rule("read", "a", nth="every")])
    retries = StorageRetries(Backoff.fixed(3, 1.0), task_seconds=6)
    storage, clock = patient(faulty, retries)
    for tries in (4, 4, 1):
        with pytest.raises(UnavailableError, match=f"tries={tries}"):
            storage.read("a")
    assert sum(clock.pauses) == 6
    with pytest.raises(UnavailableError, match="the task's 6 s of waiting are spent"):
        storage.read("a")
    for _ in range(25):
        storage.read("b")
    with pytest.raises(UnavailableError, match="tries=3"):
        storage.read("a")
    fresh = pickle.loads(pickle.dumps(RetryingStorage(LocalStorage("/tmp/x"), retries)))
    assert fresh._budget_seconds == 6
    assert fresh.counts == RetryCounts()


@pytest.mark.requirement("R-F232-2")
def test_pause_is_a_pure_function() -> None:
    """The table of pauses, by attempt, request, time and budget."""

    def pause(attempt: int, asked: float | None, elapsed: float, budget: float) -> Any:
        return pause_before_retry(
            PATIENCE,
            attempt,
            asked,
            elapsed_seconds=elapsed,
            budget_seconds=budget,
            jitter=lambda: 0.0,
        )

    assert [pause(n, None, 0, 99) for n in (1, 2, 3, 4)] == [1, 2, 4, 4]
    assert pause(5, None, 0, 99) == "no more retries"
    assert pause(1, 30, 0, 99) == 31
    assert pause(1, 0, 0, 99) == 1
    assert pause(1, None, 59, 99) == 1
    assert pause(1, None, 59.5, 99) == "the call's 60 s are over"
    assert pause(1, None, 0, 0.5) == "the task's 300 s of waiting are spent"
    assert pause(1, math.inf, 0, 99) == "trying again is of no use"


@pytest.mark.parametrize("arguments", [{"call_seconds": 0}, {"task_seconds": -1}])
def test_values_out_of_range_are_refused_by_name(arguments: dict[str, float]) -> None:
    """Negative and zero limits."""
    with pytest.raises(InvalidInputError, match=next(iter(arguments))):
        StorageRetries(**arguments)
