"""What a restored element may still use: the table of options and elapsed times; snapshots."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_shuffle.recovery.calls.elements import Marker, Phase
from durable_shuffle.recovery.calls.machine import AsyncMachine, Do
from durable_shuffle.recovery.calls.settings import (
    AsyncSettings,
    Budget,
    SavedElement,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
    restored_budget,
)
from durable_shuffle.serialization.control import encode_control
from durable_shuffle.serialization.errors import (
    AbortedError,
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.serialization.msgpack_codec import encode_records
from durable_shuffle.shuffle.base.retry import Backoff, RetryPolicy

T, M = 60.0, 4
SHARE = T / M
FIRST = 1_000_000.0
POLICY = RetryPolicy(Backoff.fixed(M - 1, 1.0), on_result=lambda r: r is None)


def budget(keep: Any, elapsed: float, charged: float, **changes: Any) -> Budget:
    """What is left of an element that was first called `elapsed` seconds before the restore."""
    arguments = {"on_expired": "last_attempt", "timeout_seconds": T, "max_attempts": M, **changes}
    saved = SavedElement(7, "x", 2, FIRST, charged)
    return restored_budget(saved, keep=keep, wall_now=FIRST + elapsed, **arguments)


@pytest.mark.requirement("R-F232-13")
@pytest.mark.parametrize(
    ("elapsed", "deadline"),
    [
        (0.0, T),
        (SHARE / 2, T - SHARE / 2),
        (T - SHARE - 1, SHARE + 1),
        (T - SHARE, SHARE),
        (T - 1, SHARE),
        (T, SHARE),
        (1000 * T, SHARE),
    ],
)
def test_deadline_option_charges_downtime_and_leaves_a_share(
    elapsed: float, deadline: float
) -> None:
    """max(T - elapsed, T / M) whatever was charged; attempts go on; the other options differ."""
    assert budget("deadline", elapsed, 0.0) == Budget(deadline, 2)
    assert budget("none", elapsed, 0.0) == Budget(T, 0)
    assert budget("remaining", elapsed, 5.0) == Budget(T - 5, 2), "downtime is not charged"


@pytest.mark.requirement("R-F232-13", "R-F232-14")
@pytest.mark.parametrize(
    ("charged", "last_attempt", "time_out"),
    [
        (0.0, Budget(T, 2), Budget(T, 2)),
        (SHARE / 2, Budget(T - SHARE / 2, 2), Budget(T - SHARE / 2, 2)),
        (T - 1, Budget(1.0, 2), Budget(1.0, 2)),
        (T, Budget(SHARE, 2, last=True), Budget(SHARE, 2, expired=True)),
        (50 * T, Budget(SHARE, 2, last=True), Budget(SHARE, 2, expired=True)),
    ],
)
def test_remaining_option_may_be_spent(
    charged: float, last_attempt: Budget, time_out: Budget
) -> None:
    """T - charged; when nothing is left the policy decides, and no time is negative."""
    assert budget("remaining", 0.0, charged) == last_attempt
    assert budget("remaining", 0.0, charged, on_expired="time_out") == time_out


@pytest.mark.requirement("R-F232-15")
@pytest.mark.parametrize("keep", ["deadline", "remaining"])
def test_clock_that_was_set_back_gives_no_extra_time(keep: Any) -> None:
    """An hour back between crash and restore: elapsed is 0, the budget is T and no more."""
    assert budget(keep, -3600.0, 0.0) == Budget(T, 2)
    assert budget(keep, -3600.0, -5.0) == Budget(T, 2)


@pytest.mark.requirement("R-F232-14")
@given(
    elapsed=st.floats(-1e9, 1e9),
    charged=st.floats(-1e9, 1e9),
    keep=st.sampled_from(["none", "deadline", "remaining"]),
    on_expired=st.sampled_from(["last_attempt", "time_out"]),
    max_attempts=st.integers(1, 100),
    timeout=st.floats(0.001, 1e6),
)
def test_no_budget_is_negative_or_above_the_timeout(
    elapsed: float,
    charged: float,
    keep: Any,
    on_expired: Any,
    max_attempts: int,
    timeout: float,
) -> None:
    """0 < budget <= T for all inputs, so no timer is ever set in the past."""
    found = budget(
        keep,
        elapsed,
        charged,
        on_expired=on_expired,
        max_attempts=max_attempts,
        timeout_seconds=timeout,
    )
    assert found.seconds is not None
    assert 0 < found.seconds <= timeout


def test_without_a_timeout_there_is_no_deadline_to_restore() -> None:
    """Attempts are kept all the same."""
    assert budget("deadline", 9.0, 9.0, timeout_seconds=None) == Budget(None, 2)
    assert budget("remaining", 9.0, 1e9, timeout_seconds=None) == Budget(None, 2)
    assert budget("remaining", 0.0, 0.0, max_attempts=3) == Budget(T, 2, last=True)


def machine(snapshot: Snapshot | None = None, **changes: Any) -> AsyncMachine:
    """An operator with retries and a timeout."""
    arguments: dict[str, Any] = {"capacity": 3, "retry": POLICY, "timeout_seconds": T, **changes}
    return AsyncMachine(AsyncSettings(**arguments), lambda: 0.0, snapshot)


def calls_until_answered(m: AsyncMachine, element: Any, now: float) -> int:
    """Answer with None, which asks for a retry, until no further call comes; return the calls."""
    calls = 1
    while True:
        m.completed(element, element.attempt, None, now)
        now += 1.0
        if not m.tick(now):
            return calls
        calls += 1


@pytest.mark.requirement("R-F232-13", "R-F232-16")
@pytest.mark.parametrize(
    ("wrote", "reads", "calls", "deadline"),
    [
        ("none", "none", M, T),
        ("none", "deadline", M, T),  # a blob without retry fields
        ("none", "remaining", M, T),
        ("deadline", "none", M, T),
        ("deadline", "deadline", M - 2, T - 30 - 10),
        ("remaining", "remaining", M - 2, T - 10),
    ],
)
def test_restored_element_gets_what_the_option_says(
    wrote: Any, reads: Any, calls: int, deadline: float
) -> None:
    """Two calls in ten seconds, a crash, thirty seconds of downtime, through bytes, then a restore.

    State without retry fields, as an older version or another setting wrote it, starts anew.
    """
    before = machine(keep_retry_state=wrote)
    element = before.submit("x", 100.0)
    before.completed(element, 1, None, 104.0)
    assert before.tick(105.0) == [(Do.CALL, element)]
    blob = encode_snapshot(before.snapshot(110.0, FIRST + 10))
    after = machine(decode_snapshot(blob), keep_retry_state=reads)
    ((what, restored),) = after.admit(5000.0, FIRST + 40)
    assert (what, restored.ordinal, restored.value) == (Do.CALL, 0, "x")
    assert after.next_when() == pytest.approx(5000.0 + deadline)
    assert calls_until_answered(after, restored, 5000.0) == calls


@pytest.mark.requirement("R-F232-13")
def test_time_charged_adds_up_over_restarts() -> None:
    """Ten seconds in each of three processes leave T - 30, whatever passed in between."""
    blob, wall = b"", FIRST
    for process in range(3):
        m = machine(decode_snapshot(blob) if blob else None, keep_retry_state="remaining")
        if process == 0:
            m.submit("x", 100.0)
        else:
            m.admit(100.0, wall)
            assert m.next_when() == pytest.approx(100.0 + T - 10 * process)
        blob = encode_snapshot(m.snapshot(110.0, wall + 10))
        wall += 100_000
    (entry,) = decode_snapshot(blob).entries
    assert isinstance(entry, SavedElement)
    assert entry.charged_seconds == pytest.approx(30)
    assert entry.first_wall_seconds == FIRST
    assert entry.attempts == 3


@pytest.mark.requirement("R-F232-16")
def test_retry_fields_are_ignored_where_retries_are_off() -> None:
    """An operator without retries starts every restored element anew, as it always did."""
    snapshot = Snapshot(0, 1, (SavedElement(0, "x", 3, FIRST, 59.0),))
    m = machine(snapshot, retry=RetryPolicy(), keep_retry_state="remaining")
    ((_, element),) = m.admit(0.0, FIRST)
    assert (element.attempt, m.next_when()) == (1, T)


@pytest.mark.requirement("R-F232-14")
@pytest.mark.parametrize("on_expired", ["last_attempt", "time_out"])
def test_spent_budget_ends_in_an_outcome_and_not_in_a_crash(on_expired: Any) -> None:
    """One last call within T / M, or the timeout handler; restoring itself never raises."""
    snapshot = Snapshot(0, 1, (SavedElement(0, "x", 1, FIRST, 2 * T),))
    m = machine(snapshot, keep_retry_state="remaining", on_expired=on_expired)
    ((what, element),) = m.admit(0.0, FIRST)
    if on_expired == "time_out":
        assert what is Do.EXPIRE
        m.timeout_handled(element, lambda: "handled")
        assert (element.attempt, m.pop().result) == (1, "handled")  # type: ignore[union-attr]
        assert m.next_when() is None
    else:
        assert what is Do.CALL
        assert m.next_when() == SHARE
        assert calls_until_answered(m, element, 0.0) == 1
        assert element.phase is Phase.DONE


@pytest.mark.requirement("R-F232-12")
@pytest.mark.parametrize("mode", ["ordered", "unordered"])
@pytest.mark.parametrize("capacity", [1, 2, 3, 9])
def test_full_queue_is_restored_before_new_input(mode: Any, capacity: int) -> None:
    """Five inputs, one done and not taken, and two markers come back through any capacity."""
    before = machine(capacity=9, mode=mode)
    elements = [before.submit(f"v{i}", 0.0) for i in range(3)]
    before.add_marker(Marker("m1"))
    elements += [before.submit(f"v{i}", 0.0) for i in (3, 4)]
    before.add_marker(Marker("m2"))
    before.completed(elements[1], 1, "done", 0.0)
    blob = encode_snapshot(before.snapshot(1.0, FIRST))

    after = machine(decode_snapshot(blob), capacity=capacity, mode=mode)
    out: list[Any] = []
    called: list[Any] = []
    for _ in range(30):
        for _, element in after.admit(0.0, FIRST):
            called.append(element.value)
            after.completed(element, 1, f"r-{element.value}", 0.0)
        assert len(after) <= capacity
        if after.has_backlog:
            assert not after.has_room
            with pytest.raises(InvalidInputError, match="full"):
                after.submit("new", 0.0)
        entry = after.pop()
        if entry is not None:
            out.append(entry.value)
    assert called == ["v0", "v1", "v2", "v3", "v4"]
    assert out == ["v0", "v1", "v2", "m1", "v3", "v4", "m2"]
    assert after.has_room
    assert after.cursor == 5
    assert after.submit("new", 0.0).ordinal == 5


@pytest.mark.requirement("R-F232-12")
def test_snapshot_in_mid_restore_holds_what_found_no_room() -> None:
    """A crash right after a restore loses nothing, at any point."""
    entries = tuple(SavedElement(i, f"v{i}") for i in range(5))
    m = machine(Snapshot(0, 5, entries), capacity=2)
    assert m.snapshot(0.0, FIRST).entries == entries
    m.admit(0.0, FIRST)
    assert m.snapshot(0.0, FIRST).entries == entries


@pytest.mark.requirement("R-F232-18")
def test_what_ended_keeps_no_state() -> None:
    """A snapshot after the end would lose the inputs that were dropped: it is refused."""
    m = machine()
    m.submit("x", 0.0)
    m.stop(AbortedError("cancelled"))
    with pytest.raises(AbortedError):
        m.snapshot(0.0, FIRST)


@pytest.mark.parametrize("keep", ["none", "deadline"])
def test_snapshot_bytes_come_back(keep: Any) -> None:
    """Values of all storable types, and values that need a codec of the caller's."""
    m = machine(capacity=9, keep_retry_state=keep)
    for value in ({"a": [1, None]}, ("t", 1.5), b"\0", None):
        m.submit(value, 1.0)
    m.add_marker(Marker({"checkpoint": 3}))
    snapshot = m.snapshot(3.0, FIRST)
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot
    odd = Snapshot(3, 5, (SavedElement(4, complex(1, 2)),))
    with pytest.raises(InvalidInputError, match="complex"):
        encode_snapshot(odd)
    blob = encode_snapshot(odd, lambda v: [v.real, v.imag])
    assert decode_snapshot(blob, decode_value=lambda v: complex(*v)) == odd


def test_damaged_and_unknown_snapshots_are_told_apart() -> None:
    """A flipped bit is corruption; an entry of a later version is incompatible."""
    blob = bytearray(encode_snapshot(Snapshot(0, 1, (SavedElement(0, "x"),))))
    blob[-1] ^= 1
    with pytest.raises(CorruptDataError, match="CRC"):
        decode_snapshot(blob)
    for row in (["element", 0, "x", 1], ["banner", 1], "x", ["element", "0", "x"]):
        fields = {"cursor": 0, "next_ordinal": 1, "entries": encode_records([row])}
        with pytest.raises(IncompatibleError, match="state of t"):
            decode_snapshot(encode_control("ASYNC_QUEUE", fields), name="state of t")
