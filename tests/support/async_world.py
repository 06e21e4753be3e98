"""A shell for the asynchronous operator's state machine: no loop, no clock but the test's."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from durable_shuffle.recovery.calls.batches import iterate
from durable_shuffle.recovery.calls.elements import Element, Output
from durable_shuffle.recovery.calls.machine import AsyncMachine, CallAction, Do
from durable_shuffle.recovery.calls.operator import AsyncOperator
from durable_shuffle.recovery.calls.settings import AsyncSettings
from durable_shuffle.shuffle.base.retry import Backoff, RetryPolicy, raised

RETRIES, DELAY, TIMEOUT = 2, 10.0, 35.0
POLICY = RetryPolicy(
    Backoff.fixed(RETRIES, DELAY), on_result=lambda r: r == "bad", on_exception=raised(OSError)
)


def no_chance() -> float:
    """Fails a test that asks for jitter where none is due."""
    raise AssertionError("jitter was asked for")


class World:
    """A shell without a loop: keeps the calls under way, obeys commands, moves the clock."""

    def __init__(self, settings: AsyncSettings, handler: str = "returns") -> None:
        self.machine = AsyncMachine(settings, no_chance)
        self.now = 0.0
        self.handler = handler
        self.elements: list[Element] = []
        self.calls: list[tuple[Element, int]] = []
        self.emitted: list[Any] = []
        self.waited: set[int] = set()

    def submit(self, value: Any) -> Element:
        """Take in an element and note its first call."""
        element = self.machine.submit(value, self.now)
        self.elements.append(element)
        self.calls.append((element, element.attempt))
        return element

    def obey(self, commands: Sequence[CallAction]) -> None:
        """Carry out commands; stopped calls stay known, so that they can answer late."""
        for what, element in commands:
            if what is Do.CALL:
                self.calls.append((element, element.attempt))
            elif what is Do.EXPIRE:
                self.obey(self.machine.timeout_handled(element, self.handle))

    def handle(self) -> str:
        """The timeout handler; what it raises would be retried if a call raised it."""
        if self.handler == "raises":
            raise TimeoutError("from the handler")
        return "bad" if self.handler == "returns bad" else "handled"

    def tick(self, now: float) -> None:
        """Let the clock reach `now` and the timers fire."""
        self.now = max(self.now, now)
        self.obey(self.machine.tick(self.now))

    def take(self) -> None:
        """Take out whatever leaves."""
        while (entry := self.machine.pop()) is not None:
            assert isinstance(entry, Element)
            self.emitted.append((entry.ordinal, entry.result))


def one_by_one(make: Callable[[], AsyncOperator[Any, Any]], source: Iterable[Any]) -> Iterator[Any]:
    """Yield the results for inputs that are handed over one at a time."""
    outputs = iterate(make, ([value] for value in source))
    try:
        for output in outputs:
            assert isinstance(output, Output)
            yield output.value
    finally:
        outputs.close()  # type: ignore[attr-defined]
