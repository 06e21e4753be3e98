"""The operator for synchronous callers, on real loops and threads; bad functions."""

import asyncio
import gc
import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from durable_shuffle.recovery.async_calls import CallbackFunction, Completion
from durable_shuffle.recovery.async_map import async_map, iterate
from durable_shuffle.recovery.async_operator import AsyncOperator
from durable_shuffle.recovery.async_snapshot import Snapshot
from durable_shuffle.serialization.errors import (
    AbortedError,
    InvalidInputError,
    UnavailableError,
)
from durable_shuffle.shuffle.retry import Backoff, RetryPolicy, raised

SCHEMA = pa.schema([("n", pa.int64()), ("square", pa.int64())])
AGAIN = RetryPolicy(Backoff.fixed(3, 0.001), on_exception=raised(OSError))


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Every test ends without threads of the operator's."""
    yield
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        left = [t.name for t in threading.enumerate() if t.name.startswith("durable-shuffle-async")]
        if not left:
            return
        time.sleep(0.01)
    raise AssertionError(f"left behind: {left}")


async def square(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its square."""
    await asyncio.sleep(0)
    return {"n": row["n"], "square": row["n"] ** 2}


def batches(count: int, per_batch: int) -> Iterator[pa.RecordBatch]:
    """Rows 0 to count - 1 in several batches."""
    for start in range(0, count, per_batch):
        yield pa.RecordBatch.from_pydict({"n": list(range(start, min(count, start + per_batch)))})


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
@pytest.mark.parametrize(("count", "capacity"), [(0, 5), (1, 5), (500, 1), (1000, 64)])
def test_rows_of_batches(mode: str, count: int, capacity: int) -> None:
    """Every row comes to its own result; order as the mode says; batches of at most 100 rows."""
    run = async_map(square, SCHEMA, capacity=capacity, batch_rows=100, mode=mode)
    found = list(run(batches(count, 33)))
    rows = [(row["n"], row["square"]) for batch in found for row in batch.to_pylist()]
    expected = [(n, n * n) for n in range(count)]
    assert (rows if mode == "ordered" else sorted(rows)) == expected
    assert all(0 < batch.num_rows <= 100 and batch.schema == SCHEMA for batch in found)


def test_none_one_or_many_rows_for_one() -> None:
    """A list of rows, an empty list and None."""

    async def spread(row: dict[str, Any]) -> Any:
        n = row["n"]
        return None if n == 1 else [{"n": n, "square": i} for i in range(n)]

    run = async_map(spread, SCHEMA, capacity=4)
    (batch,) = run(batches(4, 2))
    assert batch.column("n").to_pylist() == [2, 2, 3, 3, 3]


def test_calls_go_on_while_the_source_makes_its_caller_wait() -> None:
    """A result is ready when the next input arrives, although nobody asked for it in between."""
    answered = threading.Event()

    async def fn(value: int) -> int:
        answered.set()
        return value

    def source() -> Iterator[int]:
        yield 1
        assert answered.wait(30), "the call did not run while its caller was in the source"
        yield 2

    assert list(iterate(lambda: AsyncOperator(fn, 5), source(), capacity=5)) == [1, 2]


@pytest.mark.requirement("R-F232-9")
def test_no_more_inputs_are_taken_than_capacity_allows() -> None:
    """A consumer that does not ask stops the source."""
    taken: list[int] = []

    def source() -> Iterator[int]:
        for n in range(100):
            taken.append(n)
            yield n

    async def fn(value: int) -> int:
        return value

    results = iterate(lambda: AsyncOperator(fn, 7), source(), capacity=7)
    for seen, _ in enumerate(results, 1):
        assert len(taken) <= seen + 7


@pytest.mark.parametrize("kind", ["async", "thread", "callback"])
def test_error_of_a_call_is_raised_to_the_caller(kind: str) -> None:
    """With the user's own exception, whatever kind of function it is; nothing hangs."""

    def plain(value: int) -> int:
        if value == 3:
            raise KeyError("three")
        return value

    async def coroutine(value: int) -> int:
        return plain(value)

    def callback(value: int, completion: Completion) -> None:
        completion.complete(plain(value))

    fn: Any = {"async": coroutine, "thread": plain, "callback": CallbackFunction(callback)}[kind]
    with pytest.raises(KeyError, match="three"):
        list(iterate(lambda: AsyncOperator(fn, 2), range(100), capacity=2))


def test_error_of_the_source_is_raised_and_ends_the_calls() -> None:
    """The source runs in the caller's thread."""

    def source() -> Iterator[int]:
        yield 1
        raise KeyError(threading.current_thread().name)

    async def fn(_: int) -> None:
        await asyncio.sleep(3600)

    with pytest.raises(KeyError, match=threading.current_thread().name):
        list(iterate(lambda: AsyncOperator(fn, 5), source(), capacity=5))


@pytest.mark.parametrize("ending", ["close", "forget"])
def test_iterator_that_is_not_read_to_its_end_stops_its_calls(ending: str) -> None:
    """Spark's limit closes or forgets generators: calls under way are cancelled."""
    cancelled = threading.Event()
    second_runs = asyncio.Event()

    async def fn(value: int) -> int:
        if value == 0:
            await second_runs.wait()
            return value
        second_runs.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return value

    results = iterate(lambda: AsyncOperator(fn, 2), range(100), capacity=2)
    assert next(results) == 0
    if ending == "close":
        results.close()  # type: ignore[attr-defined]
    else:
        del results
        gc.collect()
    assert cancelled.wait(10)


@pytest.mark.requirement("R-F232-23")
@pytest.mark.parametrize("mode", ["ordered", "unordered"])
def test_stress_of_threads_that_answer_twice_and_late(mode: Any) -> None:
    """Three threads answer each call, some retryable, some twice, at once: one result per input.

    Whatever the threads do, the elements change on the loop alone.
    """
    started = threading.Semaphore(0)
    work: list[tuple[int, int, Completion]] = []
    tries: dict[int, int] = {}
    lock = threading.Lock()
    over = threading.Event()

    def fn(value: int, completion: Completion) -> None:
        with lock:
            tries[value] = tries.get(value, 0) + 1
            work.extend([(value, tries[value], completion)] * 2)
        started.release(2)

    def answer() -> None:
        while not over.is_set():
            if not started.acquire(timeout=0.05):
                continue
            with lock:
                value, attempt, completion = work.pop()
            if attempt <= value % 3:
                completion.fail(OSError("try again"))
            else:
                completion.complete((value, attempt))

    threads = [threading.Thread(target=answer) for _ in range(3)]
    for thread in threads:
        thread.start()
    operators: list[AsyncOperator[Any, Any]] = []

    def make() -> AsyncOperator[Any, Any]:
        operators.append(AsyncOperator(CallbackFunction(fn), 50, mode=mode, retry=AGAIN))
        return operators[-1]

    try:
        found = list(iterate(make, range(3000), capacity=50))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    expected = [(n, n % 3 + 1) for n in range(3000)]
    assert (found if mode == "ordered" else sorted(found)) == expected
    assert operators[0].counts.attempts == sum(n % 3 + 1 for n in range(3000))
    assert operators[0].counts.retries == sum(n % 3 for n in range(3000))


def test_plain_function_runs_in_a_bounded_pool() -> None:
    """At most `threads` calls at a time, none of them on the caller's thread or the loop's."""
    lock, running, most, names = threading.Lock(), 0, 0, set()

    def fn(value: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            names.add(threading.current_thread().name.rsplit("_", 1)[0])
        time.sleep(0.002)
        with lock:
            running -= 1
        return value

    operator = lambda: AsyncOperator(fn, 50, threads=3)  # noqa: E731
    assert list(iterate(operator, range(200), capacity=50)) == list(range(200))
    assert most <= 3
    assert names == {"durable-shuffle-async"}


def bad_results(fn: Any, **options: Any) -> list[Any]:
    """The results for one input."""
    return list(iterate(lambda: AsyncOperator(fn, 1, **options), ["x"], capacity=1))


def test_function_that_never_answers_is_ended_by_its_deadline() -> None:
    """For each kind of function; a thread that cannot be stopped is not waited for."""

    async def sleeps(_: Any) -> None:
        await asyncio.sleep(3600)

    release = threading.Event()
    for fn in (sleeps, CallbackFunction(lambda _v, _c: None), lambda _: release.wait(30)):
        with pytest.raises(UnavailableError, match=r"timeout_seconds=0\.05"):
            bad_results(fn, timeout_seconds=0.05)
    release.set()


def test_function_that_ignores_its_cancellation_is_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Closing waits a bounded time for it and then goes on."""
    monkeypatch.setattr("durable_shuffle.recovery.async_operator._CLOSE_PATIENCE_SECONDS", 0.05)
    released = asyncio.Event()

    async def stubborn(_: Any) -> None:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    async def main() -> None:
        start = time.monotonic()
        async with AsyncOperator(stubborn, 1) as operator:
            await operator.submit("x")
            await asyncio.sleep(0)
        assert time.monotonic() - start < 5
        released.set()
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
        list(iterate(lambda: AsyncOperator(square, 1), [], capacity=0))


def test_result_that_is_no_row_is_refused() -> None:
    """The message shows what came."""

    async def wrong(_: Any) -> int:
        return 42

    with pytest.raises(InvalidInputError, match="42"):
        list(async_map(wrong, SCHEMA, capacity=3)(batches(3, 3)))


def test_operator_belongs_to_one_loop() -> None:
    """Another loop, or none, is a mistake that is told; so are two consumers."""

    async def fn(value: Any) -> Any:
        await asyncio.sleep(0.01)
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
