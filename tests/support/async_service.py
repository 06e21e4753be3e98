"""Functions for an asynchronous operator whose calls follow a script."""

import asyncio
from collections.abc import Callable
from typing import Any

from durable_shuffle.recovery.calls.callers import Completion
from durable_shuffle.recovery.calls.elements import Marker
from durable_shuffle.recovery.calls.operator import AsyncOperator
from durable_shuffle.shuffle.base.retry import Backoff, RetryPolicy, raised

Run = Callable[[Any], Any]
TWICE = RetryPolicy(
    Backoff.fixed(2, 1.0), on_result=lambda r: r is None, on_exception=raised(OSError)
)


class Service:
    """An async function with a script: how long each call takes, and which calls fail."""

    def __init__(self, seconds: Callable[[Any], float] = lambda _: 1.0) -> None:
        self.seconds = seconds
        self.calls: list[tuple[float, Any]] = []
        self.under_way = self.most = 0
        self.failing: dict[Any, list[Any]] = {}

    async def __call__(self, value: Any) -> Any:
        self.calls.append((asyncio.get_running_loop().time(), value))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(self.seconds(value))
            script = self.failing.get(value, [])
            answer = script.pop(0) if script else f"r{value}"
            if isinstance(answer, BaseException):
                raise answer
            return answer
        finally:
            self.under_way -= 1


async def collect(operator: AsyncOperator[Any, Any], source: Any) -> list[Any]:
    """All results."""
    return [r.value if isinstance(r, Marker) else r async for r in operator.map(source)]


class Scripted:
    """A function whose calls answer when the test says so, as often as it says so."""

    def __init__(self) -> None:
        self.calls: list[Completion] = []

    def __call__(self, value: Any, completion: Completion) -> None:
        self.calls.append(completion)
