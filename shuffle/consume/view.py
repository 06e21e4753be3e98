"""A view: the exclusive handle by which a consumer reads one partition.

Strategy: a feed yields extents from the start position on, a buffer queue fetches them within a
memory budget, and a frame source decodes and checks them. The view remembers what it handed out;
the consumer task (`task.py`) records what was acknowledged. `open_view.py` opens views.

It never decides who owns the consumer's log. Damaged or missing data is an error, never a guess.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

import pyarrow as pa

from durable_shuffle.serialization.buffers import Buffer
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    DurableShuffleError,
    InvalidInputError,
    NotFoundError,
)
from durable_shuffle.serialization.markers import Checkpoint
from durable_shuffle.shuffle.consume.delivered import Delivered, ViewStatistics
from durable_shuffle.shuffle.consume.resume_set import InputKey
from durable_shuffle.shuffle.consume.task import KEEP, ConsumerTask
from durable_shuffle.shuffle.log.consumer_records import OutputRef
from durable_shuffle.shuffle.log.stage import StageHandle, live_state
from durable_shuffle.shuffle.read.batch_source import (
    NOTHING_YET,
    BatchSource,
    FrameSource,
    PlacedBatch,
    PlacedFrame,
    PlacedMarker,
    ReadAhead,
)
from durable_shuffle.shuffle.read.buffer_queue import BufferQueue, QueuedBuffer
from durable_shuffle.shuffle.read.extents import Extent
from durable_shuffle.shuffle.read.feed import EndOfInput
from durable_shuffle.shuffle.read.position import (
    Position,
    ProducerPosition,
    ordinal_of,
    records_between,
)
from durable_shuffle.shuffle.seal.suspect import note_suspect


class View:
    """Made by `open_view`; a context manager and an iterable of record batches.

    Read a view in one way only: by iteration, `records` or `buffers`. Not thread-safe. Rows of one
    producer come in order; the order across producers is not defined.

    Reading and acknowledging raise FencedError once this view knows that a newer view of the
    consumer task was opened. It knows at once of a view in this process. Not guaranteed: that it
    learns of a view in another process before its next `ack`.

    Args:
        wait: called when there is nothing new; returns when it is worth looking again.
    """

    def __init__(
        self,
        stage: StageHandle,
        key: InputKey,
        task: ConsumerTask,
        queue: BufferQueue,
        wait: Callable[[], None],
    ) -> None:
        self._stage, self._key, self._task, self._queue = stage, key, task, queue
        self._wait = wait
        frames = FrameSource(
            queue,
            owner=task.held.state.owner,
            incarnation=stage.path.incarnation,
            max_body_bytes=task.settings.max_frame_bytes,
        )
        self._source = ReadAhead(
            BatchSource(frames, stage.schema, self._wanted, task.settings.check_offsets).next,
            lambda item: isinstance(item, PlacedBatch),
            threads=task.settings.view_prefetch,
        )
        self._start = dict(task.acked(key))
        self._delivered = Delivered(key, dict(self._start))
        self._last: tuple[PlacedBatch, int] | None = None
        self._passed = -1
        self._ended: EndOfInput | None = None
        self._way = ""

    @property
    def id(self) -> str:
        """Random id of this view, which is the id of its OPEN record."""
        return self._task.held.state.owner

    @property
    def epoch(self) -> int:
        """Number of this view among the views of the consumer task, from 1."""
        return self._task.held.state.epoch

    @property
    def task(self) -> ConsumerTask:
        """The consumer task, which holds the log."""
        return self._task

    @property
    def queue(self) -> BufferQueue:
        """The queue that fetches its buffers."""
        return self._queue

    @property
    def way(self) -> str:
        """How it is read: "batches", "records" or "buffers"; "" before the first read."""
        return self._way

    @property
    def position(self) -> Position:
        """The position after the last record that was handed out."""
        return self._delivered.position

    @property
    def acknowledged(self) -> Position:
        """The position after the last record that this or an earlier view acknowledged."""
        return Position(*self._key, dict(self._task.acked(self._key)))

    @property
    def state(self) -> bytes | None:
        """The consumer's state after the last acknowledgement; None if it never had one."""
        return self._task.state

    @property
    def outputs(self) -> tuple[OutputRef, ...]:
        """All outputs that the consumer has published so far, oldest first."""
        return self._task.held.state.outputs

    @property
    def finished(self) -> bool:
        """Whether the consumer has finished, in this view or an earlier one."""
        return self._task.held.state.finished

    @property
    def at_end(self) -> bool:
        """Whether the end of the input was reached."""
        return self._ended is not None or self.finished

    def position_after(self, rows: int) -> Position:
        """Return the position after the first `rows` rows of the batch that was handed out last.

        Raises:
            InvalidInputError: no batch was handed out, or it has fewer rows.
        """
        if self._last is None or not 0 <= rows <= self._last[0].placed.frame.rows - self._last[1]:
            raise InvalidInputError(f"the batch handed out last does not have rows={rows}")
        placed, skipped = self._last[0].placed, self._last[1]
        producers = dict(self._delivered.producers)
        producers[placed.extent.producer] = placed.after(skipped + rows)
        return Position(*self._key, producers)

    def statistics(self) -> ViewStatistics:
        """Return the figures of this view so far."""
        state = self._task.held.state
        return ViewStatistics(
            epoch=state.epoch,
            records_delivered=records_between(self._start, self._delivered.producers),
            records_acknowledged=records_between(self._start, self._task.acked(self._key)),
            records_dropped=state.dropped,
            dropped_exact=state.dropped_exact,
            bytes_trimmed=self._queue.trimmed_bytes,
            in_flight_bytes=self._queue.in_flight_bytes,
        )

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches until the end of the input; skip markers.

        Raises:
            CorruptDataError: a frame fails its check, or the number of rows is not the committed
                one.
            NotFoundError: data is missing; the message says if the stage was released.
        """
        for item in self.items():
            if not isinstance(item, PlacedMarker):
                yield item

    def items(self) -> Iterator[pa.RecordBatch | PlacedMarker]:
        """Yield record batches and the markers between them, in order.

        Checkpoints up to the marker floor are skipped. An `ack` without a position raises the floor
        to the highest checkpoint that was passed.
        """
        if not self._read_as("batches"):
            return
        while (item := self._next_item()) is not None:
            if isinstance(item, PlacedMarker):
                yield item
                continue
            placed, batch = item
            self._delivered.rows(placed.extent.producer, placed.after(placed.frame.rows))
            yield batch

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield single rows as dictionaries; `position` is exact after each."""
        if not self._read_as("records"):
            return
        while (item := self._next_item()) is not None:
            if isinstance(item, PlacedMarker):
                continue
            placed, batch = item
            first = placed.frame.rows - batch.num_rows + 1
            for n, row in enumerate(batch.to_pylist(), first):
                self._task.check()
                self._delivered.rows(placed.extent.producer, placed.after(n))
                yield row

    def buffers(self) -> Iterator[Buffer]:
        """Yield the stored bytes as they are fetched, for callers that forward undecoded frames.

        A buffer may end inside a record. Then `position` is after that record, although only a part
        of it was handed out, and the next view in approximate mode starts after it. An
        acknowledgement covers the record only once all of it was handed out.

        Raises:
            InvalidInputError: the start position lies inside a frame, because an earlier view
                acknowledged rows and not whole frames.
        """
        if not self._read_as("buffers"):
            return
        while True:
            self._task.check()
            with self._explained():
                queued = self._queue.poll(self.id)
            if queued is None:
                self._wait()
            elif isinstance(queued, QueuedBuffer):
                extent, buffer = queued.extent, queued.buffer
                try:
                    self._delivered.check_begins(extent, buffer)
                except DurableShuffleError as error:
                    self._queue.fail(error)
                    raise
                begin = self._delivered.frame(extent, buffer, queued.offset)
                self._reserve(extent, buffer.end_ordinal, begin)
                self._delivered.buffer(extent, buffer, queued.offset)
                yield buffer
            else:
                self._delivered.check_complete(queued)
                self._ended = queued
                return

    def ack(
        self,
        position: Position | None = None,
        *,
        outputs: Sequence[OutputRef] = (),
        state: object = KEEP,
        effect: bytes | None = None,
    ) -> None:
        """Commit position, outputs and state in one record, then perform the effect.

        Args:
            position: records before it are acknowledged; default: all that were handed out whole.
            outputs: objects from `outputs.write_output` that were never published.
            state: bytes that the next view finds in `state`; unchanged by default.
            effect: payload of an effect outside the storage, see `open_view(on_effect=)`.

        Raises:
            FencedError: another view has taken over; nothing of this call counts.
            InvalidInputError: the position was never handed out, goes back, or belongs to another
                partition; or the view was released. Nothing was written.
            OutcomeUnknownError: the record may take effect now or later; call again with the same
                arguments.
        """
        moved = {self._key: self._delivered.checked(position)}
        self._task.ack(
            moved,
            outputs=outputs,
            state=state,
            marker_floor=self._passed if position is None else -1,
            effect=effect,
        )

    def finish(
        self,
        *,
        outputs: Sequence[OutputRef] = (),
        state: object = KEEP,
        effect: bytes | None = None,
    ) -> None:
        """Acknowledge everything and end this consumer for good; the view is released.

        If the consumer has finished already, a call without arguments does nothing.

        Raises:
            InvalidInputError: the end of the input was not reached; or the consumer has finished
                already and there are arguments.
        """
        if self.finished and not outputs and state is KEEP and effect is None:
            return
        if self._ended is None:
            raise InvalidInputError(
                "a consumer finishes at the end of its input, which this view has not reached: "
                f"stage={self._key[0]!r} subpartition={self._key[1]}"
            )
        moved = {self._key: self.position}
        self._task.finish(moved, outputs=outputs, state=state, effect=effect)
        self._source.stop()
        self._queue.close(keep=False)

    def release(self) -> None:
        """Release the partition without acknowledging anything.

        The next view gets unacknowledged records again (in approximate mode it drops them).
        Idempotent; releasing a superseded view does not affect newer views.
        """
        self._source.stop()
        if not self._task.held.fenced:
            # the next view of this process may use raw buffers that were fetched
            self._queue.close(keep=self._way == "buffers")
        self._task.release({self._key: self._delivered.producers})

    def __enter__(self) -> "View":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the view. Never acknowledges."""
        if error is None:
            self.release()
            return
        with suppress(DurableShuffleError):  # must not hide `error`
            self.release()

    def _read_as(self, way: str) -> bool:
        """Get ready to hand out records; return False if the consumer has finished."""
        if self.finished or self._task.held.state.ending is not None:
            self._task.perform_effects()
            return False
        self._task.check()
        self._task.perform_effects()
        if self._way not in ("", way):
            raise InvalidInputError(f"this view is read as {self._way}, not as {way}")
        self._way = way
        return True

    def _next_item(self) -> tuple[PlacedFrame, pa.RecordBatch] | PlacedMarker | None:
        """Return the next frame and its records to hand out, or the next marker, or None."""
        if self._last is not None:  # a loop over records may have stopped inside this batch
            self._task.check()
            if (rest := self._rest(self._last[0])) is not None:
                return rest
        self._last = None
        while True:
            self._task.check()
            with self._explained():
                item = self._source.next()
            if item is NOTHING_YET:
                self._wait()
                continue
            if isinstance(item, EndOfInput):
                self._delivered.check_complete(item)
                self._ended = item
                return None
            if item.marker is not None:
                if isinstance(item.marker, Checkpoint):
                    if item.marker.id <= self._task.held.state.marker_floor:
                        continue
                    self._passed = max(self._passed, item.marker.id)
                return PlacedMarker(item.placed.extent.producer, item.marker)
            if (rest := self._rest(item)) is not None:
                return rest

    def _rest(self, item: PlacedBatch) -> tuple[PlacedFrame, pa.RecordBatch] | None:
        """Return the part of a batch that was not handed out yet, or None if there is none."""
        placed, batch = item.placed, item.batch
        skipped = self._delivered.skipped(placed.extent, placed.first_ordinal)
        if batch is None or skipped >= placed.frame.rows:
            return None
        end = placed.first_ordinal + placed.frame.rows
        self._reserve(placed.extent, end, placed.after(0))
        self._task.check()
        self._last = item, skipped
        return placed, batch.slice(skipped)

    def _wanted(self, placed: PlacedFrame) -> bool:
        last = placed.first_ordinal + placed.frame.rows
        return last > ordinal_of(self._start, placed.extent.producer)

    def _reserve(self, extent: Extent, upto: int, begin: ProducerPosition) -> None:
        """In approximate mode, record that records below `upto` may be delivered."""
        end = extent.first_ordinal + extent.rows
        self._task.reserve(self._key, extent.producer, upto, end, begin)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """On missing or damaged data, first raise if this view is fenced or the stage released.

        If a part of the stage was released, the error says so. Else the stage's log is told, so
        that the next driver of its job checks the data.
        """
        try:
            yield
        except (NotFoundError, CorruptDataError) as error:
            self._task.held.look()
            upto = live_state(self._stage).upto
            if upto is None or not isinstance(error, NotFoundError):
                note_suspect(self._stage, error, self._task.ids)
                raise
            raise NotFoundError(
                f"{error}; the first rows of {self._stage.path.prefix!r} were released: "
                f"{upto.cause}; a consumer that registers before keeps what it has not read"
            ) from error
