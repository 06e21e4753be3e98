"""The operator for synchronous callers, on real loops and threads; bad functions."""

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from async_world import one_by_one

from durable_shuffle.recovery.calls.batches import async_map
from durable_shuffle.recovery.calls.callers import CallbackFunction, Completion
from durable_shuffle.recovery.calls.operator import AsyncOperator
from durable_shuffle.shuffle.base.retry import Backoff, RetryPolicy, raised

SCHEMA = pa.schema([("n", pa.int64()), ("square", pa.int64())])
AGAIN = RetryPolicy(Backoff.fixed(3, 0.001), on_exception=raised(OSError))


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
        assert answered.wait(60), "the call did not run while its caller was in the source"
        yield 2

    assert list(one_by_one(lambda: AsyncOperator(fn, 5), source())) == [1, 2]


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

    results = one_by_one(lambda: AsyncOperator(fn, 7), source())
    for seen, _ in enumerate(results, 1):
        assert len(taken) <= seen + 7


@pytest.mark.requirement("R-F232-9")
def test_a_large_batch_is_not_called_at_once() -> None:
    """Of one large batch only a slice, and what the operator holds, is ahead of the results."""
    called: list[int] = []

    async def fn(row: dict[str, Any]) -> dict[str, Any]:
        called.append(row["n"])
        return {"n": row["n"], "square": 0}

    run = async_map(fn, SCHEMA, capacity=7, batch_rows=1)
    for seen, _ in enumerate(run(batches(5000, 5000)), 1):
        assert len(called) <= seen + 256 + 7


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
        list(one_by_one(lambda: AsyncOperator(fn, 2), range(100)))


def test_error_of_the_source_is_raised_and_ends_the_calls() -> None:
    """The source runs in the caller's thread."""

    def source() -> Iterator[int]:
        yield 1
        raise KeyError(threading.current_thread().name)

    async def fn(_: int) -> None:
        await asyncio.sleep(3600)

    with pytest.raises(KeyError, match=threading.current_thread().name):
        list(one_by_one(lambda: AsyncOperator(fn, 5), source()))


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

    results = one_by_one(lambda: AsyncOperator(fn, 2), range(100))
    assert next(results) == 0
    if ending == "close":
        results.close()  # type: ignore[attr-defined]
    else:
        del results
        gc.collect()
    assert cancelled.wait(60)


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
        found = list(one_by_one(make, range(3000)))
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
    assert list(one_by_one(operator, range(200))) == list(range(200))
    assert most <= 3
    assert names == {"durable-shuffle-async"}
