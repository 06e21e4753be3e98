"""A loop with a clock of its own: timers fire at once, and waiting for ever is an error."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import pytest


class _Selector(selectors.DefaultSelector):
    """Advances the loop's clock where a real one would sleep."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise AssertionError("deadlock: everybody waits and no timer is set")
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that never sleeps."""

    def __init__(self) -> None:
        self._jumping = _Selector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def stall(self, seconds: float) -> None:
        """Let time pass without running anything."""
        self._jumping.now += seconds


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine to its end on a virtual loop; a deadlock fails the test."""

    def run_virtual(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(main)

    return run_virtual
