"""The async operator for synchronous callers: a function from an iterator to an iterator.

Strategy: a loop of its own in a thread of its own, started with the first input and gone with the
iterator, so that calls go on while the caller reads its source or works on a result. The caller's
thread hands an input over only while fewer than `capacity` are on their way, so nothing on either
side grows. No module-level state: a reused worker process starts the next task from nothing.

`async_map` makes a function for Spark's `mapInArrow` from this; it is sent to executors, so what it
holds must be picklable.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar, Unpack, cast

import pyarrow as pa

from durable_shuffle.recovery.async_calls import CallbackFunction
from durable_shuffle.recovery.async_operator import AsyncOperator
from durable_shuffle.recovery.async_settings import AsyncOptions
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.limits import check_count

T = TypeVar("T")
R = TypeVar("R")
Row = dict[str, Any]
RowFunction = Callable[[Row], Any] | CallbackFunction[Row]
MapFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_JOIN_SECONDS = 10.0
"""How long a caller waits for the loop's thread to end; fn may be blocking it."""

_log = logging.getLogger(__name__)


class _Result:
    """An output, the end, or the error that ended it."""

    __slots__ = ("_error", "_value", "ended")

    def __init__(
        self, value: Any = None, *, ended: bool = False, error: BaseException | None = None
    ) -> None:
        self._value, self.ended, self._error = value, ended, error

    def get(self) -> Any:
        """Return the output, or raise the error in its place."""
        if self._error is not None:
            raise self._error
        return self._value


class _LoopThread:
    """One operator on a loop in a thread. Its methods are for the caller's thread."""

    def __init__(self, make: Callable[[], AsyncOperator[Any, Any]]) -> None:
        self._make = make
        self._inputs: deque[Any] = deque()
        self._outputs: SimpleQueue[_Result] = SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._arrived = asyncio.Event()
        self._input_closed = self._closing = self._idle = False
        self._main: asyncio.Task[None] | None = None
        self._thread = threading.Thread(
            target=self._run, name="durable-shuffle-async-loop", daemon=True
        )
        self._thread.start()

    def give(self, value: Any) -> None:
        """Hand an input over."""
        self._inputs.append(value)
        if self._idle:  # set before it looks for inputs a last time: none is overlooked
            self._idle = False
            self._wake()

    def close_input(self) -> None:
        """No more inputs come."""
        self._input_closed = True
        self._wake()

    @property
    def ready(self) -> bool:
        """Whether `take` returns at once."""
        return not self._outputs.empty()

    def take(self) -> _Result:
        """Return the next output; waits for it."""
        return self._outputs.get()

    def close(self) -> None:
        """Stop everything and wait, a bounded time, until the thread is gone."""
        self._closing = True
        with suppress(RuntimeError):  # the loop is closed: it ended by itself
            self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join(_JOIN_SECONDS)
        if self._thread.is_alive():
            _log.warning("the async loop did not stop: fn blocks it; its thread is left behind")

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop ended; what ended it waits among the outputs
            self._loop.call_soon_threadsafe(self._arrived.set)

    # -- in the loop's thread

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._pump())
            end = _Result(ended=True)
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            end = _Result(ended=True, error=error)
        self._outputs.put(end)

    def _cancel(self) -> None:
        if self._main is not None:
            self._main.cancel()

    async def _pump(self) -> None:
        self._main = asyncio.current_task()
        if self._closing:
            return
        results = self._make().map(self._source())
        try:
            async for result in results:
                self._outputs.put(_Result(result))
        finally:
            await cast("Any", results).aclose()

    async def _source(self) -> AsyncIterator[Any]:
        while True:
            while self._inputs:
                yield self._inputs.popleft()
            self._arrived.clear()
            self._idle = True
            if self._inputs:
                continue
            if self._input_closed:
                return
            await self._arrived.wait()


def iterate(
    make: Callable[[], AsyncOperator[T, R]], source: Iterable[T], *, capacity: int
) -> Iterator[R]:
    """Yield what the operator that `make` makes gives for `source`.

    Results come as soon as they are there and the caller asks, while the source is read by the
    caller's own thread. Closing the iterator cancels everything under way.

    Args:
        capacity: most inputs handed over whose results were not yielded, from 1.

    Raises:
        Exception: what ended the operator, or the source.
    """
    check_count("capacity", capacity, at_least=1)
    worker: _LoopThread | None = None
    on_their_way = 0
    try:
        for value in source:
            if worker is None:
                worker = _LoopThread(make)
            worker.give(value)
            on_their_way += 1
            while on_their_way >= capacity or worker.ready:
                yield worker.take().get()
                on_their_way -= 1
        if worker is not None:
            worker.close_input()
            while not (result := worker.take()).ended:
                yield result.get()
            result.get()
    finally:
        if worker is not None:
            worker.close()


def async_map(
    fn: Callable[[Row], Awaitable[Any]] | RowFunction,
    schema: pa.Schema,
    *,
    capacity: int,
    batch_rows: int = 1024,
    **options: Unpack[AsyncOptions],
) -> MapFunction:
    """Return a map function over record batches that calls `fn` for every row.

    For `mapInArrow` and for the map side of stages: the rows of one partition go through one
    `AsyncOperator`, on one event loop per running task, which ends with the task.

    Args:
        fn: is given a row as a dictionary; comes to a row, a list of rows (none drops the input),
            or None (likewise).
        schema: of the rows that come out.
        capacity: most rows on their way at a time.
        batch_rows: most rows of a batch that comes out, from 1.
        options: of `AsyncOperator`: mode, retry, timeout_seconds, on_timeout, threads.

    Raises:
        InvalidInputError: a bad option or value; at once, not in the task.
    """
    check_count("batch_rows", batch_rows, at_least=1)
    make = checked_maker(fn, schema, capacity, options)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in batch.to_pylist())
        held: list[Mapping[str, Any]] = []
        for result in iterate(make, rows, capacity=capacity):
            held.extend(rows_of(result))
            while len(held) >= batch_rows:
                yield pa.RecordBatch.from_pylist(held[:batch_rows], schema=schema)
                del held[:batch_rows]
        if held:
            yield pa.RecordBatch.from_pylist(held, schema=schema)

    return run


def checked_maker(
    fn: RowFunction, schema: pa.Schema, capacity: int, options: Mapping[str, Any]
) -> Callable[..., AsyncOperator[Row, Any]]:
    """Return what makes the operator of one task; it takes more options, and can be pickled.

    Raises:
        InvalidInputError: a bad option or value; at once, not in the task.
    """
    if not isinstance(schema, pa.Schema):
        raise InvalidInputError(f"schema must be a pyarrow schema, found={schema!r}")

    make: Callable[..., AsyncOperator[Row, Any]] = partial(
        AsyncOperator, cast("Any", fn), capacity, **options
    )
    try:
        make()
    except TypeError as error:
        raise InvalidInputError(f"the async operator was given a bad option: {error}") from error
    return make


def rows_of(result: Any) -> Sequence[Mapping[str, Any]]:
    """Return the rows that fn came to.

    Raises:
        InvalidInputError: it is neither a row, a list of rows nor None.
    """
    if result is None:
        return ()
    found = result if isinstance(result, list | tuple) else (result,)
    for row in found:
        if not isinstance(row, Mapping):
            raise InvalidInputError(
                f"fn must come to a row as a dictionary, a list of rows or None, found={row!r:.80}"
            )
    return found
