"""`AsyncStep` as whoever runs a resumable reducer uses it: rows, state, restore, ends."""

import asyncio
import copy
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from durable_shuffle.recovery.calls.batches import AsyncStep
from durable_shuffle.recovery.calls.settings import SavedElement, decode_snapshot
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.retry import Backoff, RetryPolicy, raised
from durable_shuffle.shuffle.rows.reducers import ResumableReducer

OUT = pa.schema([("n", pa.int64())])


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": list(numbers)})


def numbers(batches: list[pa.RecordBatch]) -> list[int]:
    return [n for b in batches for n in b.column("n").to_pylist()]


def saved(state: bytes) -> list[int]:
    """The rows that a state holds."""
    entries = decode_snapshot(state).entries
    return [e.value["n"] for e in entries if isinstance(e, SavedElement)]


def gated() -> tuple[Callable[[dict[str, Any]], Any], threading.Event]:
    """An echo that answers multiples of 3 only after the gate was opened."""
    gate = threading.Event()

    async def echo(row: dict[str, Any]) -> dict[str, Any]:
        while row["n"] % 3 == 0 and not gate.is_set():
            await asyncio.sleep(0.001)
        return row

    return echo, gate


@pytest.mark.requirement("R-F232-12")
@pytest.mark.parametrize("mode", ["ordered", "unordered"])
def test_rows_are_returned_or_in_the_state(mode: str) -> None:
    """After every batch each row was returned, or the state holds it; never both, never neither."""
    echo, gate = gated()
    step = AsyncStep(echo, OUT, capacity=12, mode=mode)
    assert isinstance(step, ResumableReducer)
    returned: list[int] = []
    try:
        for first in range(0, 24, 4):
            if first == 12:
                gate.set()  # with all places taken, if results leave in order
            returned += numbers(step.process(batch(*range(first, first + 4))))
            assert sorted(returned + saved(step.snapshot())) == list(range(first + 4))
        returned += numbers(step.finish())
        assert saved(step.snapshot()) == []
    finally:
        step.close()
    assert sorted(returned) == list(range(24))
    if mode == "ordered":
        assert returned == list(range(24))


@pytest.mark.requirement("R-F232-12")
def test_restored_rows_come_before_new_ones_and_never_twice() -> None:
    """The successor is given a smaller capacity than the state has rows."""
    echo, gate = gated()
    first = AsyncStep(echo, OUT, capacity=20, mode="unordered")
    returned = numbers(first.process(batch(*range(12))))
    state = first.snapshot()
    first.close()
    held = saved(state)
    assert {0, 3, 6, 9} <= set(held)
    gate.set()
    second = AsyncStep(echo, OUT, capacity=2)
    second.restore(state)
    after = numbers(second.process(batch(12, 13))) + numbers(second.finish())
    second.close()
    assert after == [*held, 12, 13]
    assert sorted(returned + after) == list(range(14))


def test_a_step_travels_and_is_copied_before_it_runs() -> None:
    """Spark pickles it, each attempt gets a copy: one's end does not touch the other."""

    async def double(row: dict[str, Any]) -> list[dict[str, Any]]:
        return [row, row]

    given = cloudpickle.loads(cloudpickle.dumps(AsyncStep(double, OUT, capacity=3)))
    one, two = copy.deepcopy(given), copy.deepcopy(given)
    assert numbers(one.process(batch(1, 2)) + one.finish()) == [1, 1, 2, 2]
    one.close()
    one.close()
    assert numbers(two.process(batch(4)) + two.finish()) == [4, 4]
    two.close()
    given.close()  # it never ran


def test_close_stops_what_is_under_way_and_leaves_no_thread() -> None:
    """A call that would never end is stopped; its thread is gone."""
    echo, _ = gated()
    step = AsyncStep(echo, OUT, capacity=5)
    assert step.process(batch(0, 3)) == []
    step.close()
    assert loops() == 0


def loops() -> int:
    """Return how many threads of such steps this process has."""
    return [t.name for t in threading.enumerate()].count("durable-shuffle-async-loop")


@pytest.mark.parametrize(
    ("full", "kind"), [(False, ConnectionError), (True, ConnectionError), (True, SystemExit)]
)
def test_what_fn_raised_reaches_the_caller(full: bool, kind: type[BaseException]) -> None:
    """Not AbortedError, which is what the operator says of itself afterwards."""

    async def refuse(row: dict[str, Any]) -> None:
        raise kind(f"busy: {row['n']}")

    step = AsyncStep(refuse, OUT, capacity=1 if full else 100)

    def run() -> None:
        step.process(batch(1, 2, 3))
        step.process(batch(4, 5))
        step.finish()

    with pytest.raises(kind, match="busy: 1"):
        run()
    with pytest.raises(kind, match="busy: 1"):
        step.process(batch(6))
    step.close()


def test_options_are_those_of_the_operator() -> None:
    """Retries, timeouts and their handlers work as there; a bad option is refused at once."""

    async def flaky(row: dict[str, Any]) -> dict[str, Any]:
        tried[row["n"]] = tried.get(row["n"], 0) + 1
        if tried[row["n"]] < 3:
            raise ConnectionError
        return row

    tried: dict[int, int] = {}
    policy = RetryPolicy(Backoff.fixed(2, 0.001), on_exception=raised(ConnectionError))
    step = AsyncStep(flaky, OUT, capacity=2, retry=policy)
    assert numbers(step.process(batch(1, 2, 3)) + step.finish()) == [1, 2, 3]
    step.close()
    assert tried == {1: 3, 2: 3, 3: 3}
    echo, _ = gated()
    late = AsyncStep(echo, OUT, capacity=2, timeout_seconds=0.2)
    assert late.process(batch(3)) == []
    with pytest.raises(TimeoutError, match="timeout_seconds"):
        late.finish()
    late.close()
    for bad in ({"capacity": 0}, {"capacity": 1, "mode": "sideways"}, {"capacity": 1, "colour": 1}):
        with pytest.raises(InvalidInputError):
            AsyncStep(echo, OUT, **bad)
    with pytest.raises(InvalidInputError, match="schema"):
        AsyncStep(echo, "n long", capacity=1)  # type: ignore[arg-type]


def test_step_that_saw_no_row_has_a_state_too() -> None:
    """An empty partition: nothing is called, the state restores."""
    echo, _ = gated()
    step = AsyncStep(echo, OUT, capacity=1)
    state = step.snapshot()
    assert step.finish() == []
    step.close()
    again = AsyncStep(echo, OUT, capacity=1)
    again.restore(state)
    assert numbers(again.process(batch(1)) + again.finish()) == [1]
    again.close()


def test_a_restore_leaves_no_thread_of_the_state_before() -> None:
    """However often an own loop restores."""
    step = AsyncStep(gated()[0], OUT, capacity=4)
    step.process(batch(1))
    state, before = step.snapshot(), loops()
    for _ in range(5):
        step.restore(state)
    assert loops() <= before
    step.close()
