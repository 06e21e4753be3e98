"""The operator on a loop: order, back-pressure, deadlines. Time is virtual."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from async_service import TWICE, Run, Scripted, Service, collect

from durable_shuffle.recovery.calls.callers import CallbackFunction
from durable_shuffle.recovery.calls.elements import Marker
from durable_shuffle.recovery.calls.operator import AsyncOperator, Output
from durable_shuffle.serialization.errors import AbortedError
from durable_shuffle.shuffle.base.retry import Backoff, RetryPolicy, raised


@pytest.mark.requirement("R-F232-10")
@pytest.mark.parametrize("mode", ["ordered", "unordered"])
def test_odd_inputs_are_empty_until_retried(run: Run, mode: Any) -> None:
    """Flink's case: every odd input needs a retry; all results come, in the order of the mode."""
    service = Service(lambda v: 0.1 * (v + 1))
    service.failing = {v: [None] for v in range(6) if v % 2}
    operator = AsyncOperator(service, 10, mode=mode, retry=TWICE)
    found = run(collect(operator, range(6)))
    if mode == "ordered":
        assert found == [f"r{v}" for v in range(6)]
    else:
        assert found == ["r0", "r2", "r4", "r1", "r3", "r5"]
    assert operator.counts.attempts == 9
    assert operator.counts.retries == 3


@pytest.mark.requirement("R-F232-10")
@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("ordered", ["r3", "r1", "m", "r2", "r0", "n"]),
        ("unordered", ["r1", "r3", "m", "r0", "r2", "n"]),
    ],
)
def test_markers_are_fences_in_a_stream(run: Run, mode: Any, expected: list[str]) -> None:
    """Slow elements before a marker hold back fast ones behind it."""
    source = [3, 1, Marker("m"), 2, 0, Marker("n")]
    assert run(collect(AsyncOperator(Service(float), 10, mode=mode), source)) == expected


@pytest.mark.requirement("R-F232-9")
@pytest.mark.parametrize("capacity", [1, 3, 7])
@pytest.mark.parametrize("mode", ["ordered", "unordered"])
def test_never_more_than_capacity_inside(run: Run, capacity: int, mode: Any) -> None:
    """Calls and waiting elements together; input is taken only as results are taken."""
    service = Service(lambda v: 1 + v % 3)
    service.failing = {v: [OSError("busy")] for v in range(0, 40, 2)}
    operator = AsyncOperator(service, capacity, mode=mode, retry=TWICE)
    taken = 0

    def source() -> Iterator[int]:
        nonlocal taken
        for v in range(40):
            taken += 1
            yield v

    async def main() -> list[Any]:
        found = []
        async for result in operator.map(source()):
            found.append(result)
            assert len(operator) <= capacity
            assert taken <= len(found) + capacity + 1  # one is in the feeder's hand
        return found

    assert sorted(run(main())) == sorted(f"r{v}" for v in range(40))
    assert service.most <= capacity


@pytest.mark.requirement("R-F232-9")
def test_a_consumer_that_takes_nothing_stops_the_input(run: Run) -> None:
    """Finished results keep their places until they are taken."""

    async def main() -> None:
        async with AsyncOperator(Service(), 2) as operator:
            await operator.submit(0)
            await operator.submit(1)
            third = asyncio.ensure_future(operator.submit(2))
            await asyncio.sleep(100)
            assert not third.done()
            assert await anext(operator) == Output(0, "r0")
            await third
            assert len(operator) == 2

    run(main())


@pytest.mark.requirement("R-F232-4")
@pytest.mark.parametrize("retries", [1, 10])
def test_deadline_covers_all_attempts(run: Run, retries: int) -> None:
    """250 ms in all, calls of 100 ms, retries at once: three calls at most, then the handler."""
    service = Service(lambda _: 0.1)
    service.failing = {"x": [None] * 20}
    policy = RetryPolicy(Backoff.fixed(retries, 0.0), on_result=lambda r: r is None)
    operator = AsyncOperator(
        service, 1, retry=policy, timeout_seconds=0.25, on_timeout=lambda v: f"late {v}"
    )
    assert run(collect(operator, ["x"])) == ([None] if retries == 1 else ["late x"])
    assert len(service.calls) == min(retries + 1, 3)
    assert service.under_way == 0


@pytest.mark.requirement("R-F232-4")
def test_calls_too_long_for_a_second_retry(run: Run) -> None:
    """Flink's case: five retries every 100 ms, calls of 501 ms, one second: two calls, then -1."""
    service = Service(lambda _: 0.501)
    service.failing = {v: [None] * 9 for v in (1, 2)}
    policy = RetryPolicy(Backoff.fixed(5, 0.1), on_result=lambda r: r is None)
    operator = AsyncOperator(
        service, 10, retry=policy, timeout_seconds=1.0, on_timeout=lambda _: -1
    )
    assert run(collect(operator, [1, 2])) == [-1, -1]
    assert len(service.calls) == 4


@pytest.mark.requirement("R-F232-5")
@pytest.mark.parametrize("kind", ["raises", "returns what asks for a retry", "default"])
def test_nothing_follows_a_deadline(run: Run, kind: str) -> None:
    """The handler's answer is final, also if a call with that answer would be tried again."""

    def handler(value: Any) -> None:
        if kind == "raises":
            raise OSError("retryable")

    service = Service(lambda _: 10.0)
    operator = AsyncOperator(
        service,
        1,
        retry=RetryPolicy(
            Backoff.fixed(9, 0.1),
            on_result=lambda r: r is None,
            on_exception=raised(OSError, TimeoutError),
        ),
        timeout_seconds=1.0,
        on_timeout=None if kind == "default" else handler,
    )
    if kind.startswith("returns"):
        assert run(collect(operator, ["x"])) == [None]
    else:
        with pytest.raises(OSError if kind == "raises" else TimeoutError) as caught:
            run(collect(operator, ["x"]))
        if kind == "default":
            assert "timeout_seconds=1.0" in str(caught.value)
    assert len(service.calls) == 1
    assert operator.counts.timeouts == 1


@pytest.mark.requirement("R-F232-6", "R-F232-19")
@pytest.mark.parametrize("handler", ["returns", "raises"])
@pytest.mark.parametrize("mode", ["ordered", "unordered"])
def test_every_order_of_late_result_timer_timeout_finish_cancel(
    run: Run, mode: Any, handler: str
) -> None:
    """The five events in all orders, each followed by an idle loop or not: one outcome, no hang."""

    def on_timeout(value: Any) -> str:
        if handler == "raises":
            raise OSError("retryable")
        return "handled"

    async def play(order: tuple[str, ...], pauses: tuple[bool, ...]) -> None:
        fn = Scripted()
        operator: AsyncOperator[Any, Any] = AsyncOperator(
            CallbackFunction(fn), 1, mode=mode, retry=TWICE, timeout_seconds=9.5,
            on_timeout=on_timeout,
        )  # fmt: skip
        loop: Any = asyncio.get_running_loop()
        await operator.submit("x")
        fn.calls[0].complete(None)  # asks for a retry, one second from now
        await asyncio.sleep(0.1)
        outcomes: list[Any] = []
        ends: list[type[BaseException]] = []

        async def consume() -> None:
            try:
                async for output in operator:
                    assert isinstance(output, Output)
                    outcomes.append(output.value)
            except (AbortedError, OSError) as error:
                ends.append(type(error))

        consumer = asyncio.ensure_future(consume())
        for event, pause in zip(order, pauses, strict=True):
            if event == "late result":
                fn.calls[-1].complete("ok")
                fn.calls[-1].complete("twice")
            elif event == "timer":
                loop.stall(1.0)
            elif event == "timeout":
                loop.stall(10.0)
            elif event == "finish":
                if operator._machine.ended is None:
                    operator.drain()
            else:
                operator.cancel()
            if pause:
                for _ in range(4):
                    await asyncio.sleep(0)
        for completion in fn.calls:
            completion.complete("very late")
        await asyncio.wait_for(consumer, 100)
        # a value, or an end without one; a cancel after the value left ends the operator only
        assert len(outcomes) == 1 or (not outcomes and len(ends) == 1), (order, outcomes, ends)
        assert set(outcomes) <= {"ok", "handled", "very late"}
        assert operator.counts.waiting == len(operator) == 0
        assert operator._machine.next_when() is None
        assert len(fn.calls) <= 3
        await operator.aclose()

    async def main() -> None:
        events = ("late result", "timer", "timeout", "finish", "cancel")
        for order in itertools.permutations(events):
            for pauses in itertools.product((False, True), repeat=5):
                await play(order, pauses)

    run(main())
