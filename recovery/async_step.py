"""The async operator as a resumable reducer: `stage(reduce=...)` and `consume(process=...)`.

Strategy: rows go into one operator on a loop in a thread of its own, so that calls go on while the
caller reads and writes; results leave it only when the caller asks. So the state, asked for after
that, holds exactly the rows whose results were not handed over, with their attempts and time if
these are kept. Whoever runs the step commits position, results and state in one record: after a
crash the rows in the state are called before those behind the position.
"""

import asyncio
import logging
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar, Unpack, cast

import pyarrow as pa

from durable_shuffle.recovery.async_map import RowFunction, checked_maker, rows_of
from durable_shuffle.recovery.async_operator import AsyncOperator
from durable_shuffle.recovery.async_settings import AsyncOptions
from durable_shuffle.recovery.async_snapshot import Snapshot, decode_snapshot, encode_snapshot
from durable_shuffle.recovery.output_queues import Marker, Output
from durable_shuffle.serialization.errors import AbortedError

T = TypeVar("T")
Row = dict[str, Any]

_JOIN_SECONDS = 10.0
"""How long `close` waits for the loop's thread; fn may be blocking it."""

_log = logging.getLogger(__name__)


class AsyncStep:
    """Calls `fn` for every row of a partition, and goes on inside of it after a crash.

    Implements `ResumableReducer`. The loop starts with the first row; `close` ends it.

    Args:
        fn: is given a row as a dictionary; comes to a row, a list of rows, or None.
        schema: of the rows that come out.
        capacity: most rows inside at a time.
        options: of `AsyncOperator`: mode, retry, timeout_seconds, on_timeout, threads,
            keep_retry_state, on_expired, clock, jitter.

    Values of unfinished rows are kept in the state, so they must be what msgpack holds here: plain
    values, dates and times, decimals, bytes, nested.

    Not guaranteed: that fn runs once per row. A call whose result was not acknowledged before a
    crash is made again; its result counts once.

    Raises:
        InvalidInputError: a bad option or value; at once, not in the task.
    """

    def __init__(
        self, fn: RowFunction, schema: pa.Schema, *, capacity: int, **options: Unpack[AsyncOptions]
    ) -> None:
        self._make = checked_maker(fn, schema, capacity, options)
        self._schema = schema
        self._operator: AsyncOperator[Row, Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def process(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Take rows in; return what is done by now."""
        return self._batches(self._run(self._give(batch.to_pylist())))

    def poll(self) -> list[pa.RecordBatch]:
        """Return what is done by now, without new rows."""
        return self._batches(self._run(self._give([])))

    def finish(self) -> list[pa.RecordBatch]:
        """Wait for what is inside, retries included, and return it."""
        return self._batches(self._run(self._rest()))

    def snapshot(self) -> bytes:
        """Return the rows whose results were not returned, and what is known of their retries."""
        return encode_snapshot(self._run(self._snapshot()))

    def restore(self, state: bytes) -> None:
        """Call the rows of a snapshot before all new ones."""
        self._start(decode_snapshot(state))

    def close(self) -> None:
        """Stop calls under way, the loop and its thread; bounded."""
        if self._loop is None or self._thread is None:
            return
        loop, thread, operator = self._loop, self._thread, self._operator
        if operator is not None:
            asyncio.run_coroutine_threadsafe(operator.aclose(), loop).add_done_callback(
                lambda _: loop.call_soon_threadsafe(loop.stop)
            )
        thread.join(_JOIN_SECONDS)
        if thread.is_alive():
            _log.warning("the async loop did not stop: fn blocks it; its thread is left behind")
        self._operator = self._loop = self._thread = None

    # -- in the caller's thread

    def _start(self, snapshot: Snapshot | None) -> AsyncOperator[Row, Any]:
        self._operator = self._make(snapshot=snapshot)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=_run_loop, args=(self._loop,), name="durable-shuffle-async-loop", daemon=True
        )
        self._thread.start()
        return self._operator

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._operator is None:
            self._start(None)
        return asyncio.run_coroutine_threadsafe(work, cast("Any", self._loop)).result()

    def _batches(self, outputs: list[Output | Marker]) -> list[pa.RecordBatch]:
        rows = [row for output in outputs for row in rows_of(output.value)]
        return [pa.RecordBatch.from_pylist(rows, schema=self._schema)] if rows else []

    # -- on the loop

    async def _give(self, rows: list[Row]) -> list[Output | Marker]:
        operator = self._running()
        left: list[Output | Marker] = []
        for row in rows:
            while not operator.has_room:
                left.append(await anext(operator))
            try:
                await operator.submit(row)
            except AbortedError as error:  # what ended it says more
                raise error.__cause__ or error from None
        return left + operator.take_ready()

    async def _rest(self) -> list[Output | Marker]:
        operator = self._running()
        operator.close_input()
        return [output async for output in operator]

    async def _snapshot(self) -> Snapshot:
        return self._running().snapshot()

    def _running(self) -> AsyncOperator[Row, Any]:
        assert self._operator is not None
        return self._operator


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        while True:
            try:
                loop.run_forever()
                break
            except (SystemExit, KeyboardInterrupt):
                continue  # raised by fn: it is its caller's to see, who waits for this loop
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
