"""The operator on a loop: late answers, drain, suspend, cancel, errors, state. Time is virtual."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from async_service import TWICE, Run, Scripted, Service, collect

from durable_shuffle.recovery.calls.callers import CallbackFunction
from durable_shuffle.recovery.calls.elements import Marker
from durable_shuffle.recovery.calls.operator import AsyncOperator, Output
from durable_shuffle.recovery.calls.settings import (
    SavedElement,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
)
from durable_shuffle.serialization.errors import AbortedError


@pytest.mark.requirement("R-F232-7")
def test_answers_of_other_attempts_do_not_count(run: Run) -> None:
    """The first call answers again while the second is under way; then the second one twice."""

    async def main() -> None:
        fn = Scripted()
        async with AsyncOperator(CallbackFunction(fn), 1, retry=TWICE) as operator:
            await operator.submit("x")
            fn.calls[0].complete(None)
            await asyncio.sleep(1.5)
            fn.calls[0].complete("from the first call")
            fn.calls[0].fail(ValueError("from the first call"))
            await asyncio.sleep(1)
            assert operator.counts.late == 2
            fn.calls[1].complete("right")
            fn.calls[1].complete("twice")
            assert await anext(operator) == Output(0, "right")
            operator.close_input()
            with pytest.raises(StopAsyncIteration):
                await anext(operator)

    run(main())


@pytest.mark.requirement("R-F232-17")
def test_drain_calls_what_waits_once_more_and_ends(run: Run) -> None:
    """Waiting elements get their last call at once; their timers, due at the same moment, none."""

    async def main() -> list[Any]:
        loop: Any = asyncio.get_running_loop()
        service = Service(lambda _: 0.5)
        service.failing = {v: [None] * 5 for v in (0, 1)}
        service.failing[2] = [None] * 5
        operator = AsyncOperator(service, 4, retry=TWICE)
        for v in (0, 1):
            await operator.submit(v)
        await asyncio.sleep(0.6)  # both wait until 1.5
        await operator.submit(2)  # its call is under way
        loop.stall(0.9)  # the timers are due, and nobody has looked
        operator.drain()
        found = [output async for output in operator]
        assert [v for _, v in service.calls] == [0, 1, 2, 0, 1]
        assert operator.counts.give_ups == 3
        with pytest.raises(Exception, match="closed"):
            await operator.submit(3)
        await operator.aclose()
        return found

    assert run(main()) == [Output(0, None), Output(1, None), Output(2, None)]


@pytest.mark.requirement("R-F232-17")
def test_drain_with_a_backlog_of_restored_elements(run: Run) -> None:
    """What a restore could not take in yet is called once too before the output ends."""

    async def main() -> None:
        service = Service()
        service.failing = {f"v{i}": [None] for i in range(5)}
        first = AsyncOperator(Service(), 9)
        for i in range(5):
            await first.submit(f"v{i}")
        snapshot = first.suspend()
        operator = AsyncOperator(service, 2, retry=TWICE, snapshot=snapshot)
        operator.drain()
        assert [output async for output in operator] == [Output(i, None) for i in range(5)]
        assert len(service.calls) == 5

    run(main())


@pytest.mark.requirement("R-F232-18")
@pytest.mark.parametrize("how", ["suspend", "cancel", "error"])
def test_nothing_is_called_or_emitted_after_the_end(run: Run, how: str) -> None:
    """One done, one under way, one waiting: nothing leaves, late answers go quietly, no call comes;
    the cursor stays below what did not leave."""

    async def main() -> None:
        fn = Scripted()
        operator: AsyncOperator[Any, Any] = AsyncOperator(
            CallbackFunction(fn), 5, retry=TWICE, timeout_seconds=50
        )
        for v in "abcd":
            await operator.submit(v)
        fn.calls[0].complete("left")
        assert await anext(operator) == Output(0, "left")
        fn.calls[2].complete("done, not taken: held back by b")
        fn.calls[3].complete(None)
        await asyncio.sleep(0.1)
        assert operator.counts.waiting == 1
        if how == "suspend":
            kept = operator.suspend()
            assert kept.entries == tuple(SavedElement(i, v) for i, v in enumerate("abcd") if i)
        elif how == "cancel":
            operator.cancel()
        else:
            fn.calls[1].fail(ValueError("fatal"))
            await asyncio.sleep(0)
        calls = len(fn.calls)
        for completion in fn.calls:
            completion.complete("late")
        await asyncio.sleep(100)
        for _ in range(2):
            with pytest.raises(ValueError if how == "error" else AbortedError):
                await anext(operator)
        with pytest.raises(AbortedError):
            await operator.submit("e")
        assert len(fn.calls) == calls
        assert operator.cursor == 1
        assert len(operator) == operator.counts.waiting == 0
        await operator.aclose()

    run(main())


@pytest.mark.requirement("R-F232-18")
def test_running_calls_are_stopped(run: Run) -> None:
    """Tasks under way are cancelled by a cancel, and gone when the operator is closed."""

    async def main() -> None:
        service = Service(lambda _: 1e6)
        async with AsyncOperator(service, 3) as operator:
            for v in range(3):
                await operator.submit(v)
            await asyncio.sleep(1)
            assert service.under_way == 3
        assert service.under_way == 0
        assert len(asyncio.all_tasks()) == 1

    run(main())


@pytest.mark.requirement("R-F232-20")
@pytest.mark.parametrize("mode", ["ordered", "unordered"])
def test_failure_in_a_full_operator_blocks_nobody(run: Run, mode: Any) -> None:
    """A submitter that waits for room and the consumer both end, with the first cause."""

    async def main() -> None:
        service = Service(lambda v: 5.0 if v == 1 else 1e9)
        cause = ValueError("fatal")
        service.failing = {1: [cause]}
        operator = AsyncOperator(service, 2, mode=mode)
        await operator.submit(0)
        await operator.submit(1)
        third = asyncio.ensure_future(operator.submit(2))
        with pytest.raises(ValueError, match="fatal") as caught:
            await anext(operator)
        assert caught.value is cause
        assert "async element 1, attempt 1" in cause.__notes__
        with pytest.raises(AbortedError) as blocked:
            await third
        assert blocked.value.__cause__ is cause
        await operator.aclose()

    run(main())


@pytest.mark.requirement("R-F232-19")
def test_timer_after_the_completion_has_no_effect(run: Run) -> None:
    """The loop stalls beyond deadline and retry; the answer is handled first, then the timers."""

    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        fn = Scripted()
        operator: AsyncOperator[Any, Any] = AsyncOperator(
            CallbackFunction(fn), 2, timeout_seconds=5.0, on_timeout=lambda _: "late"
        )
        await operator.submit("x")
        fn.calls[0].complete("in time")
        loop.stall(5.0)
        assert await anext(operator) == Output(0, "in time")
        await asyncio.sleep(10)
        assert operator.counts.timeouts == 0
        await operator.aclose()

    run(main())


@pytest.mark.requirement("R-F232-12")
@pytest.mark.parametrize("mode", ["ordered", "unordered"])
def test_crash_with_a_full_queue_loses_and_doubles_nothing(run: Run, mode: Any) -> None:
    """Ten crashes over twenty inputs with every queue full: the outputs are the inputs', once each.

    The consumer acts as a pipeline's: outputs and snapshot become durable in one step.
    """
    inputs = list(range(20))
    published: list[Any] = []
    durable = b""

    async def life(crash_after: int) -> bool:
        nonlocal durable
        snapshot = decode_snapshot(durable) if durable else None
        operator = AsyncOperator(
            Service(lambda v: 1.0 + (v * 7) % 5), 4, mode=mode, snapshot=snapshot
        )
        start = snapshot.next_ordinal if snapshot else 0
        feeder = asyncio.ensure_future(operator._feed(inputs[start:]))
        unpublished: list[Any] = []
        try:
            async for output in operator:
                assert isinstance(output, Output)
                unpublished.append(output.value)
                if len(unpublished) == 2:
                    await asyncio.sleep(0)  # the feeder fills the queue again
                    durable = encode_snapshot(operator.snapshot())
                    published.extend(unpublished)
                    unpublished.clear()
                    crash_after -= 1
                    if crash_after == 0:
                        return False
            published.extend(unpublished)
            return True
        finally:
            feeder.cancel()
            await operator.aclose()

    lives = 1
    while not run(life(1)):
        lives += 1
    assert lives > 5
    assert sorted(published) == sorted(f"r{v}" for v in inputs)
    if mode == "ordered":
        assert published == [f"r{v}" for v in inputs]


def test_source_that_fails_ends_the_output_with_its_error(run: Run) -> None:
    """The source's exception is raised by the iteration, not lost in the feeder."""

    async def source() -> AsyncIterator[int]:
        yield 1
        raise KeyError("source")

    with pytest.raises(KeyError, match="source"):
        run(collect(AsyncOperator(Service(), 3), source()))


def test_leaving_the_iteration_early_closes_everything(run: Run) -> None:
    """A consumer that breaks off leaves no task behind."""

    async def main() -> None:
        operator = AsyncOperator(Service(), 3)
        results = operator.map(range(100))
        async for _ in results:
            break
        await results.aclose()
        assert len(asyncio.all_tasks()) == 1

    run(main())


def test_empty_source(run: Run) -> None:
    """No input, no output, no call."""
    operator = AsyncOperator(Service(), 3)
    assert run(collect(operator, [])) == []
    assert operator.counts.attempts == 0


@pytest.mark.requirement("R-F232-12")
@pytest.mark.parametrize("capacity", [1, 2, 9])
def test_map_over_a_snapshot_that_is_larger_than_the_queue(run: Run, capacity: int) -> None:
    """What was restored comes first, through whatever room there is, then the source; no hang."""
    entries = (*(SavedElement(i, i) for i in range(5)), Marker("m"), SavedElement(5, 5))
    operator = AsyncOperator(Service(), capacity, snapshot=Snapshot(0, 6, entries))
    expected = [*(f"r{i}" for i in range(5)), "m", *(f"r{i}" for i in range(5, 9))]
    assert run(collect(operator, [6, 7, 8])) == expected


@pytest.mark.requirement("R-F232-18")
def test_a_deadline_that_ends_all_makes_no_call_of_the_same_moment(run: Run) -> None:
    """A late tick finds one element's deadline and another's retry due: the first ends all."""

    async def main() -> None:
        fn = Scripted()
        operator: AsyncOperator[Any, Any] = AsyncOperator(
            CallbackFunction(fn), 4, retry=TWICE, timeout_seconds=50
        )
        await operator.submit("a")
        await asyncio.sleep(49)
        await operator.submit("b")
        fn.calls[1].complete(None)  # is to be tried again, in a second
        await asyncio.sleep(0.5)
        asyncio.get_running_loop().stall(10)  # type: ignore[attr-defined]
        with pytest.raises(TimeoutError, match="no result within"):
            await anext(operator)
        await asyncio.sleep(100)
        assert len(fn.calls) == 2
        await operator.aclose()

    run(main())


@pytest.mark.requirement("R-F232-18")
def test_an_expired_element_that_ends_all_makes_no_call_at_the_restore(run: Run) -> None:
    """One element's time is used up, the next one is fresh, and is not called."""

    async def main() -> None:
        fn = Scripted()
        old = SavedElement(0, "old", 1, 0.0, 999.0)
        fresh = SavedElement(1, "fresh", 1, 0.0, 0.0)
        operator: AsyncOperator[Any, Any] = AsyncOperator(
            CallbackFunction(fn),
            4,
            retry=TWICE,
            timeout_seconds=1,
            snapshot=Snapshot(0, 2, (old, fresh)),
            keep_retry_state="remaining",
            on_expired="time_out",
        )
        with pytest.raises(TimeoutError):
            await anext(operator)
        await asyncio.sleep(100)
        assert fn.calls == []
        await operator.aclose()

    run(main())


@pytest.mark.requirement("R-F232-6")
def test_a_source_that_is_cancelled_by_somebody_else_ends_the_output(run: Run) -> None:
    """A task of a client library was; the consumer learns of it."""

    async def source() -> AsyncIterator[int]:
        yield 1
        inner = asyncio.ensure_future(asyncio.sleep(10))
        inner.cancel()
        await inner
        yield 2

    async def main() -> None:
        async def same(value: int) -> int:
            return value

        with pytest.raises(AbortedError, match="source was cancelled"):
            [result async for result in AsyncOperator(same, 3).map(source())]

    run(main())
