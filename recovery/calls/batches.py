"""The async operator over rows of record batches: `async_map` and `AsyncStep`.

`async_map` returns a function for `mapInArrow`. Each task has one operator, and gets rows in
slices, so at most the capacity and one slice of results wait for the caller. The function is sent
to executors, so everything it holds must be picklable.

`AsyncStep` is a resumable reducer, for `stage(reduce=...)` and `consume(process=...)`. Results
leave its operator only when the caller asks for them. So a state that is taken afterwards holds
exactly the rows whose results were not returned, with their attempts and times if these are kept.
The caller commits position, results and state in one record. After a crash the rows in the state
are called before the rows after the position.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, Unpack, cast

import pyarrow as pa

from durable_shuffle.recovery.calls.callers import CallbackFunction
from durable_shuffle.recovery.calls.elements import Marker, Output
from durable_shuffle.recovery.calls.operator import AsyncOperator
from durable_shuffle.recovery.calls.settings import (
    AsyncOptions,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
)
from durable_shuffle.serialization.errors import AbortedError, InvalidInputError
from durable_shuffle.shuffle.base.settings import check_count, check_number

T = TypeVar("T")

_JOIN_SECONDS = 10.0
"""How long `close` waits for the loop's thread, which fn may block."""
_REST = 1024
"""How many outputs are returned at a time after the end of the input."""

_log = logging.getLogger(__name__)


class OperatorThread:
    """Runs one unused operator. Its methods block, and are for one caller."""

    def __init__(self, operator: AsyncOperator[Any, Any]) -> None:
        self._operator = operator
        self._loop = asyncio.new_event_loop()
        self._closing = False
        self._thread = threading.Thread(
            target=self._run, name="durable-shuffle-async-loop", daemon=True
        )
        self._thread.start()

    def give(self, values: Iterable[Any]) -> list[Output | Marker]:
        """Submit inputs as there is room; return the outputs that are ready.

        Raises:
            Exception: the error that ended the operator.
        """
        return self._call(self._give(values))

    def rest(self) -> list[Output | Marker]:
        """Close the input and return the next outputs, several together; empty at the end.

        Raises:
            Exception: the error that ended the operator.
        """
        return self._call(self._rest())

    def drain(self, seconds: float) -> None:
        """Close the input; after so many seconds end all retries, with a last call for each."""
        self._call(self._drain(seconds))

    def snapshot(self) -> Snapshot:
        """Return the inputs whose outputs were not returned."""
        return self._call(self._snapshot())

    def close(self) -> None:
        """Stop running calls, the loop and its thread; waits a bounded time."""
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
                    continue  # fn raised it: the operator has ended with it, and tells its caller

    async def _give(self, values: Iterable[Any]) -> list[Output | Marker]:
        operator = self._operator
        left: list[Output | Marker] = []
        for value in values:
            while not operator.has_room:
                left += operator.take_ready() or [await anext(operator)]
            try:
                await operator.submit(value)
            except AbortedError as error:  # its cause says more
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

    async def _drain(self, seconds: float) -> None:
        self._operator.close_input()
        self._loop.call_later(seconds, self._operator.drain)

    async def _snapshot(self) -> Snapshot:
        return self._operator.snapshot()


def iterate(
    make: Callable[[], AsyncOperator[Any, Any]], batches: Iterable[Iterable[Any]]
) -> Iterator[Output | Marker]:
    """Yield the outputs of the operator that `make` returns, for the inputs in `batches`.

    An output comes with the batch during which it became ready. The caller's own thread reads
    `batches`. Closing the iterator cancels all running calls.

    Raises:
        Exception: the error that ended the operator, or an error of `batches`.
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


Row = dict[str, Any]
RowFunction = Callable[[Row], Any] | CallbackFunction[Row]
MapFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_SLICE_ROWS = 256
"""Rows submitted at a time: at most so many further results wait for the caller."""


def async_map(
    fn: Callable[[Row], Awaitable[Any]] | RowFunction,
    schema: pa.Schema,
    *,
    capacity: int,
    batch_rows: int = 1024,
    **options: Unpack[AsyncOptions],
) -> MapFunction:
    """Return a map function over record batches that calls `fn` for every row.

    For `mapInArrow` and for the map side of stages. The rows of one partition go through one
    `AsyncOperator`, on one event loop per running task, which ends with the task.

    Args:
        fn: takes a row as a dictionary; returns a row, a list of rows, or None. An empty list or
            None drops the input.
        schema: of the output rows.
        capacity: most rows inside at a time; results of 256 more may wait for the caller.
        batch_rows: most rows of an output batch, from 1.
        options: of `AsyncOperator`: mode, retry, timeout_seconds, on_timeout, threads.

    Raises:
        InvalidInputError: an option or value is wrong; raised at once, not in the task.
    """
    check_count("batch_rows", batch_rows, at_least=1)
    make = checked_maker(fn, schema, capacity, options)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        slices = (
            batch.slice(start, _SLICE_ROWS).to_pylist()
            for batch in batches
            for start in range(0, batch.num_rows, _SLICE_ROWS)
        )
        held: list[Mapping[str, Any]] = []
        for output in iterate(make, slices):
            held.extend(result_rows(output.value))
            while len(held) >= batch_rows:
                yield pa.RecordBatch.from_pylist(held[:batch_rows], schema=schema)
                del held[:batch_rows]
        if held:
            yield pa.RecordBatch.from_pylist(held, schema=schema)

    return run


def checked_maker(
    fn: RowFunction, schema: pa.Schema, capacity: int, options: Mapping[str, Any]
) -> Callable[..., AsyncOperator[Row, Any]]:
    """Return a picklable function that makes the operator of one task and takes more options.

    Raises:
        InvalidInputError: an option or value is wrong; raised at once, not in the task.
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


def result_rows(result: Any) -> Sequence[Mapping[str, Any]]:
    """Return the rows of a result of fn.

    Raises:
        InvalidInputError: the result is neither a row, a list of rows, nor None.
    """
    if result is None:
        return ()
    rows = result if isinstance(result, list | tuple) else (result,)
    for row in rows:
        if not isinstance(row, Mapping):
            raise InvalidInputError(
                f"fn must come to a row as a dictionary, a list of rows or None, found={row!r:.80}"
            )
    return rows


class AsyncStep:
    """Calls `fn` for every row of a partition, and resumes inside the partition after a crash.

    Implements `ResumableReducer`. The loop starts with the first row and ends with `close`.

    Args:
        fn: takes a row as a dictionary; returns a row, a list of rows, or None.
        schema: of the output rows.
        capacity: most rows inside at a time.
        drain_seconds: how long rows may still be retried after a drain.
        options: of `AsyncOperator`: mode, retry, timeout_seconds, on_timeout, threads,
            keep_retry_state, on_expired, clock, jitter.

    Values of unfinished rows are stored in the state, so they must be types that msgpack holds
    here: plain values, dates and times, decimals, bytes, nested values.

    Not guaranteed: that fn runs once per row. If a crash comes before the acknowledgement of a
    result, the call is made again; its result counts once.

    Raises:
        InvalidInputError: an option or value is wrong; raised at once, not in the task.
    """

    def __init__(
        self,
        fn: RowFunction,
        schema: pa.Schema,
        *,
        capacity: int,
        drain_seconds: float = 5.0,
        **options: Unpack[AsyncOptions],
    ) -> None:
        check_number("drain_seconds", drain_seconds, at_least=0)
        self._make = checked_maker(fn, schema, capacity, options)
        self._drain_seconds = drain_seconds
        self._schema = schema
        self._thread: OperatorThread | None = None

    def process(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Take rows in; return the results that are ready."""
        return self._batches(self._started().give(batch.to_pylist()))

    def poll(self) -> list[pa.RecordBatch]:
        """Return the results that are ready, without new rows."""
        return self._batches(self._started().give(()))

    def drain(self) -> None:
        """Retry for `drain_seconds` more; rows that wait then are called a last time, at once.

        A pipeline calls this before `finish` if it is drained. Without these seconds one failed
        call of the many that run at a drain would fail the task, and those of its restarts, too.
        """
        self._started().drain(self._drain_seconds)

    def finish(self) -> list[pa.RecordBatch]:
        """Wait for all rows inside, including retries; return their results."""
        thread, outputs = self._started(), []
        while more := thread.rest():
            outputs += more
        return self._batches(outputs)

    def snapshot(self) -> bytes:
        """Return the rows whose results were not returned, and the state of their retries."""
        return encode_snapshot(self._started().snapshot())

    def restore(self, state: bytes) -> None:
        """Call the rows of a snapshot before all new rows."""
        self.close()
        self._thread = OperatorThread(self._make(snapshot=decode_snapshot(state)))

    def close(self) -> None:
        """Stop running calls, the loop and its thread; waits a bounded time."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()

    def _started(self) -> OperatorThread:
        if self._thread is None:
            self._thread = OperatorThread(self._make())
        return self._thread

    def _batches(self, outputs: list[Output | Marker]) -> list[pa.RecordBatch]:
        rows = [row for output in outputs for row in result_rows(output.value)]
        return [pa.RecordBatch.from_pylist(rows, schema=self._schema)] if rows else []
