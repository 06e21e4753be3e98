"""A loop with a clock of its own: timers fire at once, and waiting for ever is an error.

And no test leaves a thread of the operator's behind.
"""

import asyncio
import selectors
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
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


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Every test ends without threads of the operator's."""
    yield
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        left = [t.name for t in threading.enumerate() if t.name.startswith("durable-shuffle-async")]
        if not left:
            return
        time.sleep(0.01)
    raise AssertionError(f"left behind: {left}")
