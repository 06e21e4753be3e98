"""The async operator as a resumable reducer: `stage(reduce=...)` and `consume(process=...)`.

Strategy: rows go into one operator on a loop in a thread of its own, so that calls go on while the
caller reads and writes; results leave it only when the caller asks. So the state, asked for after
that, holds exactly the rows whose results were not handed over, with their attempts and time if
these are kept. Whoever runs the step commits position, results and state in one record: after a
crash the rows in the state are called before those behind the position.
"""

from typing import Unpack

import pyarrow as pa

from durable_shuffle.recovery.async_map import RowFunction, checked_maker, rows_of
from durable_shuffle.recovery.async_settings import AsyncOptions
from durable_shuffle.recovery.async_snapshot import decode_snapshot, encode_snapshot
from durable_shuffle.recovery.async_thread import OperatorThread
from durable_shuffle.recovery.output_queues import Marker, Output


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
        self._thread: OperatorThread | None = None

    def process(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Take rows in; return what is done by now."""
        return self._batches(self._started().give(batch.to_pylist()))

    def poll(self) -> list[pa.RecordBatch]:
        """Return what is done by now, without new rows."""
        return self._batches(self._started().give(()))

    def finish(self) -> list[pa.RecordBatch]:
        """Wait for what is inside, retries included, and return it."""
        thread, outputs = self._started(), []
        while more := thread.rest():
            outputs += more
        return self._batches(outputs)

    def snapshot(self) -> bytes:
        """Return the rows whose results were not returned, and what is known of their retries."""
        return encode_snapshot(self._started().snapshot())

    def restore(self, state: bytes) -> None:
        """Call the rows of a snapshot before all new ones."""
        self._thread = OperatorThread(self._make(snapshot=decode_snapshot(state)))

    def close(self) -> None:
        """Stop calls under way, the loop and its thread; bounded."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()

    def _started(self) -> OperatorThread:
        if self._thread is None:
            self._thread = OperatorThread(self._make())
        return self._thread

    def _batches(self, outputs: list[Output | Marker]) -> list[pa.RecordBatch]:
        rows = [row for output in outputs for row in rows_of(output.value)]
        return [pa.RecordBatch.from_pylist(rows, schema=self._schema)] if rows else []
