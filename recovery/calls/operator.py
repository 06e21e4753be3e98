"""The async operator: it retries each call separately, and neither loses nor doubles a result.

`AsyncMachine` decides. This shell runs on one asyncio loop. It makes tasks of the calls (a plain fn
runs in a bounded pool of threads), reports their completions with the attempt's number, and keeps
one timer for the machine's next moment. Submitters and the one consumer wait here. Everything
happens on the loop that first used the operator; completions from other threads go there first.

An operator that was cancelled or suspended raises AbortedError, so that nobody mistakes the end of
its output for the end of the data.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from threading import get_ident
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from durable_shuffle.recovery.calls.callers import CallbackFunction, Caller, call_plain
from durable_shuffle.recovery.calls.elements import Element, Marker, Output, Phase, as_output
from durable_shuffle.recovery.calls.machine import AsyncMachine, CallAction, Do
from durable_shuffle.recovery.calls.settings import (
    AsyncCounts,
    AsyncSettings,
    KeepRetryState,
    Mode,
    OnExpired,
    OperatorOptions,
    Snapshot,
)
from durable_shuffle.serialization.errors import AbortedError, InvalidInputError
from durable_shuffle.shuffle.base.clock import Clock, SystemClock, system_jitter
from durable_shuffle.shuffle.base.retry import NO_RETRY, Jitter, RetryPolicy
from durable_shuffle.shuffle.base.settings import check_count

T = TypeVar("T")
R = TypeVar("R")

_CLOSE_PATIENCE_SECONDS = 5.0
"""How long `aclose` waits for stopped calls."""


class AsyncOperator(Generic[T, R]):
    """Calls `fn` for each input, at most `capacity` at a time, and returns the results.

    Args:
        fn: an async function; a plain function, which runs in a pool of threads and must limit its
            own waits, because a thread cannot be stopped; or a `CallbackFunction`.
        capacity: most inputs inside at a time, including those that wait for a retry and those
            whose result was not taken yet.
        mode: "ordered" returns results in the order of the inputs, "unordered" as they become
            ready. Markers keep their place in both modes.
        retry: which results and exceptions are retried, and when. Without retries left, an
            element's last result or exception is its outcome.
        timeout_seconds: from taking an input in to its outcome, over all attempts.
        on_timeout: called with the input at its deadline, on the loop; must not block. It returns
            the result to use instead, or raises. Default: TimeoutError.
        threads: size of the pool for a plain `fn`.
        snapshot: inputs of an earlier operator, which come before all new inputs.
        keep_retry_state: which attempts and times a snapshot keeps, see `calls/settings.py`.
        on_expired: the outcome of a restored input whose time is used up.

    The first exception that is not retried ends the operator. Running calls are stopped, inputs
    whose results were not taken count as never done, and the consumer gets the exception.

    Not guaranteed: that fn runs once per input. After a timeout, a cancel or a restart, a call may
    have had its effect although its answer is ignored.

    Raises:
        InvalidInputError: fn cannot be called, or a value is out of its range.
    """

    @overload
    def __init__(
        self, fn: Callable[[T], Awaitable[R]], capacity: int, **options: Unpack[OperatorOptions]
    ) -> None: ...
    @overload
    def __init__(
        self,
        fn: Callable[[T], R] | CallbackFunction[T],
        capacity: int,
        **options: Unpack[OperatorOptions],
    ) -> None: ...
    def __init__(
        self,
        fn: Callable[[T], Awaitable[R]] | Callable[[T], R] | CallbackFunction[T],
        capacity: int,
        *,
        mode: Mode = "ordered",
        retry: RetryPolicy = NO_RETRY,
        timeout_seconds: float | None = None,
        on_timeout: Callable[[T], R] | None = None,
        threads: int = 8,
        snapshot: Snapshot | None = None,
        keep_retry_state: KeepRetryState = "none",
        on_expired: OnExpired = "last_attempt",
        clock: Clock | None = None,
        jitter: Jitter | None = None,
    ) -> None:
        if on_timeout is not None and not callable(on_timeout):
            raise InvalidInputError(f"on_timeout must be callable, found={on_timeout!r}")
        check_count("threads", threads, at_least=1)
        self._calls = Caller(fn, threads, self)
        self._settings = AsyncSettings(
            capacity, mode, retry, timeout_seconds, keep_retry_state, on_expired
        )
        self._retrying = retry.active
        self._machine = AsyncMachine(self._settings, jitter or system_jitter(), snapshot)
        self._on_timeout = self._time_out if on_timeout is None else on_timeout
        self._clock = clock or SystemClock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._timer: asyncio.TimerHandle | None = None
        self._consumer: asyncio.Future[None] | None = None
        self._submitters: deque[asyncio.Future[None]] = deque()

    async def submit(self, value: T) -> None:
        """Take `value` in; wait while there is no room.

        Raises:
            AbortedError: the operator has ended; the cause says why.
            InvalidInputError: the input is closed, or another loop owns the operator.
        """
        loop = self._loop
        # get_running_loop would ask the system for the process id each time
        ours = loop is not None and self._thread == get_ident() and loop.is_running()
        if not ours or not self._machine.has_room:
            await self._room()
            loop = self._loop
        assert loop is not None
        self._calls.start(self._machine.submit(value, loop.time()), loop)
        if self._timer is None:
            self._set_timer()

    async def submit_marker(self, marker: Marker) -> None:
        """Take a marker in; it takes up room like an input. Raises as `submit`."""
        await self._room()
        self._machine.add_marker(marker)
        self._wake_consumer()

    def close_input(self) -> None:
        """End the input. Inputs inside continue, with retries; then the output ends."""
        self._bind()
        self._machine.close_input()
        self._wake_all()

    def drain(self) -> None:
        """Close the input and end all retries; call waiting inputs one last time, at once.

        The output continues until everything has left, then ends.
        """
        loop = self._bind()
        self._do(self._machine.drain(), loop)
        self._wake_all()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Output | Marker:
        """Return the next output; `StopAsyncIteration` only if all input has come and left.

        Raises:
            AbortedError: the operator was cancelled or suspended.
            Exception: the first exception that was not retried.
        """
        entry = await self._leave()
        if entry is None:
            raise StopAsyncIteration
        return as_output(entry)

    @property
    def has_room(self) -> bool:
        """Whether `submit` takes an input in at once."""
        return self._machine.has_room

    def take_ready(self) -> list[Output | Marker]:
        """Return the outputs that may leave now, do not wait; if none may, raise as `__anext__`."""
        outputs = []
        while (entry := self._machine.pop()) is not None:
            outputs.append(as_output(entry))
        if not outputs and self._machine.ended is not None:
            raise self._machine.ended
        self._made_room()
        return outputs

    async def _leave(self) -> Element | Marker | None:
        """Return the next output, None at the end of the input; raises as `__anext__`."""
        machine = self._machine
        while (entry := machine.pop()) is None:
            if machine.ended is not None:
                raise machine.ended
            if machine.finished:
                return None
            await self._until_output()
        if self._submitters or machine.has_backlog:
            self._made_room()
        return entry

    async def map(self, source: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[R | Marker]:
        """Submit the items of `source` and yield the results; its markers keep their place.

        The operator is closed when this ends, for any reason.
        """
        feeder = asyncio.ensure_future(self._feed(source))
        try:
            machine = self._machine
            while True:
                # take ready results without a coroutine, unless an input waits for their room
                wanted = self._submitters or machine.has_backlog
                entry = None if wanted else machine.pop()
                if entry is None and (entry := await self._leave()) is None:
                    return
                yield entry if isinstance(entry, Marker) else entry.result
        finally:
            feeder.cancel()
            await asyncio.wait({feeder})
            await self.aclose()

    @property
    def cursor(self) -> int:
        """All inputs below this ordinal, exclusive, have left. Acknowledge it once the effects of
        the outputs that were taken are durable."""
        return self._machine.cursor

    @property
    def counts(self) -> AsyncCounts:
        """Counts of events so far."""
        return self._machine.counts

    def __len__(self) -> int:
        """Inputs and markers inside, without restored ones that had no room yet."""
        return len(self._machine)

    def snapshot(self) -> Snapshot:
        """Return the state that is needed to continue after a crash; changes nothing."""
        loop = self._bind()
        return self._machine.snapshot(loop.time(), self._clock.wall())

    def suspend(self) -> Snapshot:
        """Stop everything and return the state to restore; nothing leaves any more."""
        snapshot = self.snapshot()
        self._end(AbortedError("the async operator was suspended"))
        return snapshot

    def cancel(self) -> None:
        """Stop everything; nothing leaves any more. Does nothing if the operator has ended."""
        self._end(AbortedError("the async operator was cancelled"))

    async def aclose(self) -> None:
        """Cancel the remaining calls and wait, a bounded time, until they have stopped."""
        self._end(AbortedError("the async operator was closed"))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._calls.close(_CLOSE_PATIENCE_SECONDS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def on_result(self, element: Element, attempt: int, result: Any) -> None:
        """Handle that call number `attempt` returned."""
        loop = self._loop
        assert loop is not None
        commands = self._machine.completed(element, attempt, result, loop.time())
        if commands:
            self._do(commands, loop)
        if self._consumer is not None:
            self._wake_consumer()
        if self._retrying:
            self._set_timer()

    def on_error(self, element: Element, attempt: int, error: BaseException) -> None:
        """Handle that call number `attempt` raised."""
        loop = self._loop
        assert loop is not None
        self._do(self._machine.failed(element, attempt, error, loop.time()), loop)
        self._set_timer()

    def _set_timer(self) -> None:
        when = self._machine.next_when()
        if when is None or (self._timer is not None and self._timer.when() <= when):
            return  # a timer that fired too early looks again
        if self._timer is not None:
            self._timer.cancel()
        assert self._loop is not None
        self._timer = self._loop.call_at(when, self._tick)

    def _tick(self) -> None:
        loop = self._bind()
        self._timer = None
        self._do(self._machine.tick(loop.time()), loop)
        self._wake_consumer()
        self._set_timer()

    def _time_out(self, value: T) -> R:
        raise TimeoutError(  # no UnavailableError: that is the storage's
            f"no result within timeout_seconds={self._settings.timeout_seconds}, retries included"
        )

    def _do(self, commands: Sequence[CallAction], loop: asyncio.AbstractEventLoop) -> None:
        for what, element in commands:
            if what is Do.CALL:
                if element.phase is Phase.CALLING:  # an earlier command may have ended everything
                    self._calls.start(element, loop)
                continue
            self._calls.stop(element)
            if what is Do.EXPIRE:
                handler = partial(call_plain, self._on_timeout, element.value)
                self._do(self._machine.timeout_handled(element, handler), loop)
        if self._machine.ended is not None:
            self._wake_all()

    def _end(self, reason: BaseException) -> None:
        loop = self._bind()
        self._do(self._machine.stop(reason), loop)

    def _bind(self) -> asyncio.AbstractEventLoop:
        """Return the loop that owns this operator: the loop that used it first."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if self._loop is None and running is not None:
            self._loop, self._thread = running, get_ident()
            self._do(self._machine.admit(running.time(), self._clock.wall()), running)
            self._set_timer()
        if running is None or running is not self._loop:
            raise InvalidInputError("an async operator is used on the one loop that it started on")
        return running

    async def _room(self) -> None:
        self._bind()
        while not self._machine.has_room and self._machine.ended is None:
            if self._machine.input_closed:
                break
            waiter = asyncio.get_running_loop().create_future()
            self._submitters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                with suppress(ValueError):
                    self._submitters.remove(waiter)
                self._wake_submitters()  # the free place may have been meant for this submitter
                raise

    def _made_room(self) -> None:
        loop = self._bind()
        self._do(self._machine.admit(loop.time(), self._clock.wall()), loop)
        self._set_timer()
        self._wake_submitters()

    async def _until_output(self) -> None:
        first, loop = self._loop is None, self._bind()
        if first:
            return  # restored inputs were taken in: an output may be there, or the end
        if self._consumer is not None:
            raise InvalidInputError("the output of an async operator has one consumer")
        self._consumer = loop.create_future()
        try:
            await self._consumer
        finally:
            self._consumer = None

    def _wake_consumer(self) -> None:
        if self._consumer is not None and not self._consumer.done():
            self._consumer.set_result(None)

    def _wake_submitters(self) -> None:
        while self._submitters:
            waiter = self._submitters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _wake_all(self) -> None:
        self._wake_consumer()
        self._wake_submitters()

    async def _feed(self, source: Iterable[T] | AsyncIterable[T]) -> None:
        try:
            if isinstance(source, AsyncIterable):
                async for value in source:
                    await self._put(value)
            else:
                for value in source:
                    await self._put(value)
            self.close_input()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # `map` has ended
            self._end(AbortedError("the source was cancelled by somebody else"))
        except Exception as error:  # noqa: BLE001 - the consumer raises it
            self._end(error)

    def _put(self, value: Any) -> Awaitable[None]:
        return self.submit_marker(value) if isinstance(value, Marker) else self.submit(value)
