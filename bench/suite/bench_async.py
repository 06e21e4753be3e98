"""What does the async operator cost per element, against a bare loop and with many waiting?

Bars: at most 25 microseconds per element in ordered mode at capacity 1,000 on one core, all of the
run counted; at least 0.7 of the throughput of the faster of two bare asyncio semaphore loops doing
the same calls; 100,000 waiting elements cost O(log n) each: at most three times the time per
element of 1,000 (the logarithms' ratio is 1.7), and at most 4 log2(n) comparisons. Under
--benchmark-enable both write their tables of docs/benchmarks.md.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from document import record

from durable_shuffle.bench.interleaved import interleave
from durable_shuffle.recovery.calls.machine import AsyncMachine
from durable_shuffle.recovery.calls.operator import AsyncOperator
from durable_shuffle.recovery.calls.settings import AsyncSettings
from durable_shuffle.shuffle.base.retry import Backoff, RetryPolicy

CAPACITY = 1000
BAR_MICROSECONDS = 25.0
BAR_THROUGHPUT = 0.7
BAR_GROWTH = 3.0
GATHERED = "bare loop, `gather` of all behind a semaphore"
ACQUIRED = "bare loop, semaphore acquired before the task is made"
HEAD = (
    "100,000 calls",
    "us per element",
    "min",
    "max",
    "throughput of the faster bare loop",
    "bar",
)
WAITING_HEAD = ("elements waiting at once", "us per element", "growth", "comparisons each", "bar")


async def call(value: int) -> int:
    """What is called for each element: one turn of the loop."""
    await asyncio.sleep(0)
    return value


async def operator(count: int, **options: Any) -> int:
    """Results of the operator, counted."""
    found = 0
    async for _ in AsyncOperator(call, CAPACITY, **options).map(range(count)):
        found += 1
    return found


async def gathered(count: int) -> int:
    """All tasks at once behind a semaphore."""
    semaphore = asyncio.Semaphore(CAPACITY)

    async def one(value: int) -> int:
        async with semaphore:
            return await call(value)

    return len(await asyncio.gather(*(one(n) for n in range(count))))


async def acquired(count: int) -> int:
    """A task per element once the semaphore has room; results in order of input."""
    semaphore = asyncio.Semaphore(CAPACITY)

    async def one(value: int) -> int:
        try:
            return await call(value)
        finally:
            semaphore.release()

    tasks = []
    for n in range(count):
        await semaphore.acquire()
        tasks.append(asyncio.create_task(one(n)))
    return len([await task for task in tasks])


@pytest.mark.timeout(0)
def test_operator_against_a_bare_semaphore(benchmark: Any, rounds: int, measuring: bool) -> None:
    """All give every result; under --benchmark-enable the operator keeps both bars."""
    count = 100_000 if measuring else 2000

    def case(run: Callable[[int], Awaitable[int]]) -> Callable[[], None]:
        def timed() -> None:
            assert asyncio.run(run(count)) == count  # type: ignore[arg-type]

        return timed

    cases = {
        GATHERED: case(gathered),
        ACQUIRED: case(acquired),
        "ordered": case(operator),
        "unordered": case(lambda n: operator(n, mode="unordered")),
        "ordered, with a timeout": case(lambda n: operator(n, timeout_seconds=60.0)),
    }
    timings = benchmark.pedantic(
        interleave, (cases,), {"rounds": rounds, "warmups": 1 if measuring else 0}, rounds=1
    )
    bare = min((GATHERED, ACQUIRED), key=timings.median)
    throughput = timings.ratio(bare, "ordered")
    microseconds = timings.median("ordered") / count * 1e6
    benchmark.extra_info.update(throughput=throughput, microseconds=microseconds)
    print(
        f"\n{timings.table(bare)}\nthroughput {throughput:.2f} of {bare!r}, bar {BAR_THROUGHPUT}; "
        f"{microseconds:.1f} us per element, bar {BAR_MICROSECONDS}"
    )
    if measuring:
        for name in cases:
            low, high = timings.spread(name)
            figures = (
                f"{seconds / count * 1e6:.1f}" for seconds in (timings.median(name), low, high)
            )
            bars = f"{BAR_MICROSECONDS:.0f} us, {BAR_THROUGHPUT}" if name == "ordered" else ""
            record("async", HEAD, (name, *figures, f"{timings.ratio(bare, name):.2f}", bars))
        assert throughput >= BAR_THROUGHPUT
        assert microseconds <= BAR_MICROSECONDS


class Moment(float):
    """A time that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: float) -> bool:
        Moment.compared += 1
        return float(self) < float(other)

    def __radd__(self, other: float) -> "Moment":
        return Moment(other + float(self))


def seconds_per_waiting_element(count: int, kind: type[float] = float) -> float:
    """Have `count` elements wait at once, each for a moment of its own, and let all finish."""
    rng = random.Random(7)
    policy = RetryPolicy(Backoff.fixed(1, 1.0), on_result=lambda result: result is None)

    class Delays(Backoff):
        def delay_seconds(self, attempt: int, jitter: Callable[[], float]) -> float | None:
            return kind(1 + rng.random()) if attempt == 1 else None

    policy = RetryPolicy(Delays(1, 1.0), policy.on_result)
    machine = AsyncMachine(AsyncSettings(count, retry=policy), rng.random)
    start = time.perf_counter()
    elements = [machine.submit(n, 0.0) for n in range(count)]
    for element in elements:
        machine.completed(element, 1, None, 0.0)
    assert machine.counts.waiting == count
    for step in range(1, 101):
        for _, element in machine.tick(1 + step / 100):
            machine.completed(element, 2, "done", 0.0)
    taken = 0
    while machine.pop() is not None:
        taken += 1
    assert taken == count
    assert machine.counts.waiting == 0
    return (time.perf_counter() - start) / count


@pytest.mark.timeout(0)
def test_many_waiting_elements(benchmark: Any, rounds: int, measuring: bool) -> None:
    """100,000 that wait at once cost each about what one of 1,000 does."""
    few, many = (1000, 100_000) if measuring else (100, 1000)
    seen: dict[int, list[float]] = {few: [], many: []}

    def run() -> None:
        for _ in range(rounds):
            seen[few].append(min(seconds_per_waiting_element(few) for _ in range(5)))
            seen[many].append(seconds_per_waiting_element(many))

    benchmark.pedantic(run, rounds=1)
    growth = sorted(b / a for a, b in zip(seen[few], seen[many], strict=True))[rounds // 2]
    Moment.compared = 0
    seconds_per_waiting_element(many, Moment)
    comparisons = Moment.compared / many
    print(
        f"\nper element: {few}: {min(seen[few]) * 1e6:.1f} us, {many}: "
        f"{min(seen[many]) * 1e6:.1f} us, growth {growth:.2f}, bar {BAR_GROWTH}; "
        f"{comparisons:.0f} comparisons"
    )
    assert 0 < comparisons <= 4 * many.bit_length()
    if measuring:
        cells = (f"{min(seen[few]) * 1e6:.1f}", "", "", "")
        record("async-waiting", WAITING_HEAD, (f"{few:,}", *cells))
        bars = f"growth {BAR_GROWTH:.0f}, {4 * many.bit_length()} comparisons"
        cells = (f"{min(seen[many]) * 1e6:.1f}", f"{growth:.2f}", f"{comparisons:.0f}", bars)
        record("async-waiting", WAITING_HEAD, (f"{many:,}", *cells))
        assert growth <= BAR_GROWTH
