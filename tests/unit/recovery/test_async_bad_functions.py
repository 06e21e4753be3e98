"""The operator for synchronous callers: bad functions, bad options, functions that never end."""

import asyncio
import pickle
import threading
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from async_world import one_by_one

from durable_shuffle.recovery.calls.batches import async_map
from durable_shuffle.recovery.calls.callers import CallbackFunction, Completion
from durable_shuffle.recovery.calls.operator import AsyncOperator
from durable_shuffle.recovery.calls.settings import Snapshot
from durable_shuffle.serialization.errors import (
    AbortedError,
    InvalidInputError,
)
from durable_shuffle.shuffle.base.retry import Backoff, RetryPolicy, raised

SCHEMA = pa.schema([("n", pa.int64()), ("square", pa.int64())])
AGAIN = RetryPolicy(Backoff.fixed(3, 0.001), on_exception=raised(OSError))


async def square(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its square."""
    await asyncio.sleep(0)
    return {"n": row["n"], "square": row["n"] ** 2}


def bad_results(fn: Any, **options: Any) -> list[Any]:
    """The results for one input."""
    return list(one_by_one(lambda: AsyncOperator(fn, 1, **options), ["x"]))


@pytest.mark.requirement("R-F232-4")
def test_function_that_never_answers_is_ended_by_its_deadline() -> None:
    """For each kind of function; a thread that cannot be stopped is not waited for."""

    async def sleeps(_: Any) -> None:
        await asyncio.sleep(3600)

    release = threading.Event()
    for fn in (sleeps, CallbackFunction(lambda _v, _c: None), lambda _: release.wait(60)):
        with pytest.raises(TimeoutError, match=r"timeout_seconds=0\.05"):
            bad_results(fn, timeout_seconds=0.05)
    release.set()


def test_function_that_ignores_its_cancellation_is_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Closing waits a bounded time for it and then goes on."""
    monkeypatch.setattr("durable_shuffle.recovery.calls.operator._CLOSE_PATIENCE_SECONDS", 0.05)
    released = asyncio.Event()

    async def stubborn(_: Any) -> None:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    async def main() -> None:
        async with AsyncOperator(stubborn, 1) as operator:
            await operator.submit("x")
            await asyncio.sleep(0)
        released.set()  # not before: that the block was left is what is shown
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    asyncio.run(main())


def test_answers_after_the_loop_is_closed_are_dropped() -> None:
    """A client library that calls back when everything is over raises nothing."""
    kept: list[Completion] = []

    def fn(_: Any, completion: Completion) -> None:
        kept.append(completion)
        completion.complete("first")

    assert bad_results(CallbackFunction(fn)) == ["first"]
    kept[0].complete("after close")
    kept[0].fail(ValueError("after close"))


def test_supplier_that_raises_is_a_failed_call() -> None:
    """Its exception goes the way of the function's own: retried by the predicate, else raised."""
    asked = 0

    def supplier() -> str:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise OSError("not yet")
        return "third time"

    fn = CallbackFunction(lambda _v, c: c.complete_from(supplier))
    assert bad_results(fn, retry=AGAIN) == ["third time"]
    asked = 0
    with pytest.raises(OSError, match="not yet"):
        bad_results(fn)


async def _cancels_itself(_: Any) -> None:
    raise asyncio.CancelledError


def _stops_iteration(_: Any) -> None:
    raise StopIteration("from fn")


async def _coroutine() -> None:
    raise AssertionError("never awaited")


@pytest.mark.parametrize(
    ("fn", "error", "text"),
    [
        (_cancels_itself, AbortedError, "cancelled by somebody else"),
        (_stops_iteration, RuntimeError, "StopIteration"),
        (CallbackFunction(lambda _v, c: c.complete_from(lambda: _stops_iteration(0))),
         RuntimeError, "StopIteration"),
        (lambda _: _coroutine(), InvalidInputError, "returned an awaitable"),
        (CallbackFunction(lambda _v: None), TypeError, "positional"),  # type: ignore[arg-type]
        (lambda: None, TypeError, "positional"),
        (square, TypeError, "string indices"),
    ],
    ids=["cancels", "stops", "supplier-stops", "coroutine", "callback-arity", "arity", "type"],
)  # fmt: skip
def test_functions_that_break_the_rules(fn: Any, error: type[Exception], text: str) -> None:
    """Each comes to one clear error, and nothing waits for ever."""
    with pytest.raises(error, match=text):
        bad_results(fn)


def test_timeout_handler_that_breaks_the_rules() -> None:
    """A handler that returns an awaitable would never be awaited."""

    async def slow(_: Any) -> None:
        await asyncio.sleep(3600)

    with pytest.raises(InvalidInputError, match="awaitable"):
        bad_results(slow, timeout_seconds=0.01, on_timeout=lambda _: _coroutine())


def test_predicate_that_raises() -> None:
    """Its error ends the operator; the call is not repeated."""

    def predicate(_: Any) -> bool:
        raise KeyError("predicate")

    policy = RetryPolicy(Backoff.fixed(3, 0.001), on_result=predicate)
    with pytest.raises(KeyError, match="predicate"):
        bad_results(lambda v: v, retry=policy)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"capacity": 0}, "capacity"),
        ({"capacity": -1}, "capacity"),
        ({"capacity": 2.0}, "capacity"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"timeout_seconds": -1.0}, "timeout_seconds"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds"),
        ({"threads": 0}, "threads"),
        ({"mode": "sorted"}, "mode"),
        ({"keep_retry_state": "some"}, "keep_retry_state"),
        ({"on_expired": "never"}, "on_expired"),
        ({"fn": 3}, "fn"),
        ({"fn": CallbackFunction(None)}, "fn"),  # type: ignore[arg-type]
        ({"on_timeout": 3}, "on_timeout"),
    ],
)
def test_values_out_of_range_are_refused_by_name(arguments: dict[str, Any], name: str) -> None:
    """When the operator is made, before anything runs."""
    with pytest.raises(InvalidInputError, match=name):
        AsyncOperator(**{"fn": square, "capacity": 3, **arguments})


def test_map_function_refuses_bad_options_at_once() -> None:
    """On the driver, not in the task."""
    for options in ({"timeout_seconds": -1}, {"colour": 3}, {"mode": "sorted"}):
        with pytest.raises(InvalidInputError):
            async_map(square, SCHEMA, capacity=3, **options)
    for schema, rows in (("n long", 1), (SCHEMA, 0)):
        with pytest.raises(InvalidInputError):
            async_map(square, schema, capacity=3, batch_rows=rows)
    with pytest.raises(InvalidInputError, match="capacity"):
        async_map(square, SCHEMA, capacity=0)


def test_function_that_stops_the_loop_ends_nothing_but_its_own_call() -> None:
    """The loop goes on, and the other rows get their results."""

    async def stops(row: dict[str, Any]) -> dict[str, Any]:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        return {"n": row["n"], "square": 0}

    (found,) = async_map(stops, SCHEMA, capacity=2)([pa.record_batch({"n": [0, 1, 2]})])
    assert found.column("n").to_pylist() == [0, 1, 2]


def test_result_that_is_no_row_is_refused() -> None:
    """The message shows what came."""

    async def wrong(_: Any) -> int:
        return 42

    with pytest.raises(InvalidInputError, match="42"):
        list(async_map(wrong, SCHEMA, capacity=3)([pa.record_batch({"n": [0, 1, 2]})]))


def test_operator_belongs_to_one_loop() -> None:
    """Another loop, or none, is a mistake that is told; so are two consumers."""

    both_asked = asyncio.Event()

    async def fn(value: Any) -> Any:
        await both_asked.wait()
        return value

    operator = AsyncOperator(fn, 2)
    with pytest.raises(InvalidInputError, match="one loop"):
        operator.cancel()

    async def first() -> None:
        await operator.submit(1)

        def elsewhere() -> None:
            for call in (operator.cancel, operator.suspend, operator.drain):
                with pytest.raises(InvalidInputError, match="one loop"):
                    call()

        await asyncio.to_thread(elsewhere)
        waiting = asyncio.ensure_future(anext(operator))
        await asyncio.sleep(0)
        with pytest.raises(InvalidInputError, match="one consumer"):
            await anext(operator)
        both_asked.set()
        await waiting

    asyncio.run(first())

    async def second() -> None:
        with pytest.raises(InvalidInputError, match="one loop"):
            await operator.submit(2)

    asyncio.run(second())


def test_settings_travel_by_pickle() -> None:
    """Policies and snapshots are plain values."""
    for value in (AGAIN.backoff, Snapshot(0, 0, ())):
        assert pickle.loads(pickle.dumps(value)) == value
