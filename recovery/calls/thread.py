"""An async operator for a synchronous caller: on a loop of its own, in a thread of its own.

The caller hands over batches of inputs and gets back what is done by then, so calls go on while it
reads its source or works on results. Only as many inputs are inside as the operator has room for.
The thread ends with `close`; a reused worker process starts its next task from nothing.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

from durable_shuffle.recovery.calls.elements import Marker, Output
from durable_shuffle.recovery.calls.operator import AsyncOperator
from durable_shuffle.recovery.calls.snapshot import Snapshot
from durable_shuffle.serialization.errors import AbortedError

T = TypeVar("T")

_JOIN_SECONDS = 10.0
"""How long `close` waits for the loop's thread; fn may be blocking it."""
_REST = 1024
"""So many outputs are handed over at a time once the input has ended."""

_log = logging.getLogger(__name__)


class OperatorThread:
    """Runs one operator that nobody used yet. Its methods are for one caller, and wait."""

    def __init__(self, operator: AsyncOperator[Any, Any]) -> None:
        self._operator = operator
        self._loop = asyncio.new_event_loop()
        self._closing = False
        self._thread = threading.Thread(
            target=self._run, name="durable-shuffle-async-loop", daemon=True
        )
        self._thread.start()

    def give(self, values: Iterable[Any]) -> list[Output | Marker]:
        """Hand inputs over as there is room; return what is done by now.

        Raises:
            Exception: what ended the operator.
        """
        return self._call(self._give(values))

    def rest(self) -> list[Output | Marker]:
        """Close the input and return what comes next, some outputs together; empty at the end.

        Raises:
            Exception: what ended the operator.
        """
        return self._call(self._rest())

    def snapshot(self) -> Snapshot:
        """Return the inputs whose outputs were not returned."""
        return self._call(self._snapshot())

    def close(self) -> None:
        """Stop calls under way, the loop and its thread; bounded."""
        done = asyncio.run_coroutine_threadsafe(self._operator.aclose(), self._loop)
        done.add_done_callback(lambda _: self._stop())
        self._thread.join(_JOIN_SECONDS)
        if self._thread.is_alive():
            _log.warning("the async loop did not stop: fn blocks it; its thread is left behind")

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop(self) -> None:
        self._closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)

    # -- in the loop's thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            loop = runner.get_loop()
            while not self._closing:  # fn may stop the loop, too
                try:
                    loop.run_forever()
                except (SystemExit, KeyboardInterrupt):
                    continue  # raised by fn: the operator has ended by it, and tells its caller

    async def _give(self, values: Iterable[Any]) -> list[Output | Marker]:
        operator = self._operator
        left: list[Output | Marker] = []
        for value in values:
            while not operator.has_room:
                left += operator.take_ready() or [await anext(operator)]
            try:
                await operator.submit(value)
            except AbortedError as error:  # what ended it says more
                raise error.__cause__ or error from None
        return left + operator.take_ready()

    async def _rest(self) -> list[Output | Marker]:
        operator = self._operator
        operator.close_input()
        left: list[Output | Marker] = []
        async for output in operator:
            left.append(output)
            if len(left) >= _REST:
                break
        return left

    async def _snapshot(self) -> Snapshot:
        return self._operator.snapshot()


def iterate(
    make: Callable[[], AsyncOperator[Any, Any]], batches: Iterable[Iterable[Any]]
) -> Iterator[Output | Marker]:
    """Yield what the operator that `make` makes gives for the inputs in `batches`.

    Outputs come with the batch during which they were done; the caller's own thread reads
    `batches`. Closing the iterator cancels everything under way.

    Raises:
        Exception: what ended the operator, or `batches`.
    """
    thread: OperatorThread | None = None
    try:
        for batch in batches:
            if thread is None:
                thread = OperatorThread(make())
            yield from thread.give(batch)
        while thread is not None and (outputs := thread.rest()):
            yield from outputs
    finally:
        if thread is not None:
            thread.close()
