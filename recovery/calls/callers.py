"""How the async operator's calls are made: as tasks, in a pool of threads, or through callbacks.

Every answer arrives on the loop as (element, attempt, result or error). There the machine decides
whether the answer still counts. Answers from other threads go to the loop first; if the loop is
closed, they are dropped.
"""

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from durable_shuffle.recovery.calls.elements import Element
from durable_shuffle.serialization.errors import AbortedError, InvalidInputError

if TYPE_CHECKING:
    from durable_shuffle.recovery.calls.operator import AsyncOperator

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallbackFunction(Generic[T]):
    """A function that answers later, from any thread, through the `Completion` that it receives."""

    fn: Callable[[T, "Completion"], None]


class Completion:
    """The answer to one call. Only the first answer counts, and only while the element waits."""

    __slots__ = ("_answers", "_attempt", "_element", "_loop")

    def __init__(
        self, answers: "AsyncOperator[Any, Any]", element: Element, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._answers, self._loop = answers, loop
        self._element, self._attempt = element, element.attempt

    def complete(self, result: Any) -> None:
        """Answer the call with `result`."""
        self.complete_from(lambda: result)

    def complete_from(self, supplier: Callable[[], Any]) -> None:
        """Answer the call with the result of `supplier`, or with the error that it raises. The
        supplier is called on the operator's loop."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._ask, supplier)

    def fail(self, error: Exception) -> None:
        """Answer the call with an error."""

        def supplier() -> Any:
            raise error

        self.complete_from(supplier)

    def _ask(self, supplier: Callable[[], Any]) -> None:
        try:
            result = call_plain(supplier)
        except Exception as error:  # noqa: BLE001 - the user's error is the answer
            self._answers.on_error(self._element, self._attempt, error)
        else:
            self._answers.on_result(self._element, self._attempt, result)


class Caller:
    """Starts and stops calls of one function. Used only on the loop."""

    def __init__(self, fn: Any, threads: int, answers: "AsyncOperator[Any, Any]") -> None:
        """Create the caller without starting anything.

        Raises:
            InvalidInputError: `fn` cannot be called.
        """
        self._fn: Any = fn.fn if isinstance(fn, CallbackFunction) else fn
        if not callable(self._fn):
            raise InvalidInputError(f"fn must be callable, found={fn!r}")
        self._threads, self._answers = threads, answers
        self._pool: ThreadPoolExecutor | None = None
        self._stopping: set[asyncio.Future[Any]] = set()
        self.start: Callable[[Element, asyncio.AbstractEventLoop], None]
        """Call the function for the element's newest attempt."""
        if isinstance(fn, CallbackFunction):
            self.start = self._start_callback
        else:
            self.start = self._start_task if _is_async(fn) else self._start_thread

    def stop(self, element: Element) -> None:
        """Stop the running call as far as possible; its answer does not count."""
        call, element.call = element.call, None
        if call is not None and not call.done():
            self._stopping.add(call)
            call.add_done_callback(self._stopping.discard)
            call.cancel()

    async def close(self, patience_seconds: float) -> None:
        """Wait until stopped calls have ended. Leave behind a call that ignores the stop."""
        if self._stopping:
            await asyncio.wait(tuple(self._stopping), timeout=patience_seconds)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _start_task(self, element: Element, loop: asyncio.AbstractEventLoop) -> None:
        element.call = loop.create_task(self._run(element, element.attempt))

    async def _run(self, element: Element, attempt: int) -> None:
        """Call and answer in one task: a callback of the task would cost one more turn of the loop,
        a sixth of an element's time."""
        try:
            result = await self._fn(element.value)
        except asyncio.CancelledError:
            if element.attempt != attempt or element.call is None:
                raise  # we stopped it
            element.call = None
            self._answers.on_error(element, attempt, _cancelled())
        except BaseException as error:
            element.call = None
            self._answers.on_error(element, attempt, error)
            if not isinstance(error, Exception):
                raise  # KeyboardInterrupt and the like concern the loop, too
        else:
            element.call = None
            self._answers.on_result(element, attempt, result)

    def _start_thread(self, element: Element, loop: asyncio.AbstractEventLoop) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "durable-shuffle-async")
        future = loop.run_in_executor(self._pool, call_plain, self._fn, element.value)
        element.call = future
        future.add_done_callback(partial(self._done, element, element.attempt))

    def _start_callback(self, element: Element, loop: asyncio.AbstractEventLoop) -> None:
        completion = Completion(self._answers, element, loop)
        try:
            self._fn(element.value, completion)
        except Exception as error:  # noqa: BLE001 - the user's error is the answer
            completion.fail(error)

    def _done(self, element: Element, attempt: int, call: "asyncio.Future[Any]") -> None:
        ours = element.call is call
        if ours:
            element.call = None
        if call.cancelled():
            if ours:  # otherwise we stopped the call
                self._answers.on_error(element, attempt, _cancelled())
        elif (raised := call.exception()) is not None:
            self._answers.on_error(element, attempt, raised)
        else:
            self._answers.on_result(element, attempt, call.result())


def _cancelled() -> AbortedError:
    return AbortedError("fn was cancelled by somebody else")


def _is_async(fn: Any) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)  # noqa: B004 - an object with an async __call__
    )


def call_plain(fn: Callable[..., Any], *arguments: Any) -> Any:
    """Call a plain function, and refuse a coroutine or StopIteration as its answer.

    Raises:
        InvalidInputError: it returned an awaitable, which nobody would await.
        RuntimeError: it raised StopIteration, which a future cannot hold.
    """
    try:
        result = fn(*arguments)
    except StopIteration as error:
        raise RuntimeError("a plain function raised StopIteration") from error
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise InvalidInputError(f"{fn!r} is a plain function and returned an awaitable")
    return result
