"""A view: the exclusive handle by which a consumer reads one partition.

Strategy: a feed gives extents from the position on, a buffer queue fetches them within a budget, a
frame source decodes and reconciles them. The view remembers what it handed out; the consumer task
(`task.py`) writes down what was acknowledged. Opening is in `open_view`.

It must not decide who owns the consumer's log, nor guess: damaged or missing data is an error.
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
from durable_shuffle.shuffle.consume.delivered import Delivered
from durable_shuffle.shuffle.consume.resume_set import InputKey
from durable_shuffle.shuffle.consume.statistics import ViewStatistics
from durable_shuffle.shuffle.consume.task import KEEP, ConsumerTask
from durable_shuffle.shuffle.log.consumer_records import OutputRef
from durable_shuffle.shuffle.log.stage import StageHandle, require_not_released
from durable_shuffle.shuffle.read.batch_source import BatchSource, PlacedBatch, PlacedMarker
from durable_shuffle.shuffle.read.buffer_queue import BufferQueue, Piece
from durable_shuffle.shuffle.read.extent_feed import EndOfInput
from durable_shuffle.shuffle.read.extents import Extent
from durable_shuffle.shuffle.read.frame_source import NOTHING_YET, FrameSource, PlacedFrame
from durable_shuffle.shuffle.read.position import (
    Position,
    ProducerPosition,
    ordinal_of,
    records_between,
)
from durable_shuffle.shuffle.read.read_ahead import ReadAhead


class View:
    """Made by `open_view`; a context manager and an iterator over record batches.

    One of iteration, `records` and `buffers` may be used on one view. Not thread-safe. Rows come in
    order within a producer; across producers in no promised order.

    Not guaranteed: that a superseded view in another process learns of it before its next `ack`.

    Every method but `release` raises FencedError once another view of this consumer was opened in
    this process, or was found to be.

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
            lambda found: isinstance(found, PlacedBatch),
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
        """Random id of this view: that of its OPEN record."""
        return self._task.held.state.owner

    @property
    def epoch(self) -> int:
        """Number of this view among the consumer's, from 1."""
        return self._task.held.state.epoch

    @property
    def task(self) -> ConsumerTask:
        """What holds the consumer's log."""
        return self._task

    @property
    def queue(self) -> BufferQueue:
        """Where its buffers come from."""
        return self._queue

    @property
    def way(self) -> str:
        """How it is read: "batches", "records", "buffers", or "" so far."""
        return self._way

    @property
    def position(self) -> Position:
        """Behind the last record that was handed out."""
        return self._delivered.position

    @property
    def acknowledged(self) -> Position:
        """Behind the last record that was acknowledged, by this view or an earlier one."""
        return Position(*self._key, dict(self._task.acked(self._key)))

    @property
    def state(self) -> bytes | None:
        """The consumer's state as of the last acknowledgement, None if it never gave any."""
        return self._task.state

    @property
    def outputs(self) -> tuple[OutputRef, ...]:
        """Everything the consumer published so far, oldest first."""
        return self._task.held.state.outputs

    @property
    def finished(self) -> bool:
        """Whether the consumer has finished, in this view or an earlier one."""
        return self._task.held.state.finished

    @property
    def at_end(self) -> bool:
        """Whether the end of the input was met."""
        return self._ended is not None or self.finished

    def position_after(self, rows: int) -> Position:
        """Return the position behind the first `rows` rows of the batch handed out last.

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
        """Return what this view did so far."""
        found = self._task.held.state
        return ViewStatistics(
            epoch=found.epoch,
            records_delivered=records_between(self._start, self._delivered.producers),
            records_acknowledged=records_between(self._start, self._task.acked(self._key)),
            records_dropped=found.dropped,
            dropped_exact=found.dropped_exact,
            bytes_trimmed=self._queue.trimmed_bytes,
            in_flight_bytes=self._queue.in_flight_bytes,
        )

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches until the end; markers are passed silently.

        Raises:
            CorruptDataError: a frame fails its check, or rows do not add up.
            NotFoundError: data is missing; says so if it was released.
        """
        for item in self.items():
            if not isinstance(item, PlacedMarker):
                yield item

    def items(self) -> Iterator[pa.RecordBatch | PlacedMarker]:
        """Yield record batches and the markers between them, each in its place.

        Checkpoints up to the marker floor are left out. An `ack` without a position raises the
        floor to the highest checkpoint that was passed.
        """
        if not self._read_as("batches"):
            return
        while (found := self._next_item()) is not None:
            if isinstance(found, PlacedMarker):
                yield found
                continue
            placed, batch = found
            self._delivered.rows(placed.extent.producer, placed.after(placed.frame.rows))
            yield batch

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield single rows as dictionaries; `position` is exact after each."""
        if not self._read_as("records"):
            return
        while (found := self._next_item()) is not None:
            if isinstance(found, PlacedMarker):
                continue
            placed, batch = found
            first = placed.frame.rows - batch.num_rows + 1
            for n, row in enumerate(batch.to_pylist(), first):
                self._task.check()
                self._delivered.rows(placed.extent.producer, placed.after(n))
                yield row

    def buffers(self) -> Iterator[Buffer]:
        """Yield the stored bytes as they are fetched, for who passes frames on undecoded.

        A buffer may end inside a record. `position` then is behind that record, although only a
        part of it was handed out: an approximate successor begins with the record after it. An
        acknowledgement never covers it before its rest was handed out.

        Raises:
            InvalidInputError: the position lies inside a frame, where `records` acknowledged it.
        """
        if not self._read_as("buffers"):
            return
        while True:
            self._task.check()
            with self._explained():
                piece = self._queue.poll(self.id)
            if piece is None:
                self._wait()
            elif isinstance(piece, Piece):
                extent, buffer = piece.extent, piece.buffer
                try:
                    self._delivered.check_begins(extent, buffer)
                except DurableShuffleError as error:
                    self._queue.fail(error)
                    raise
                begin = self._delivered.frame(extent, buffer, piece.offset)
                self._reserve(extent, buffer.end_ordinal, begin)
                self._delivered.buffer(extent, buffer, piece.offset)
                yield buffer
            else:
                self._delivered.check_complete(piece)
                self._ended = piece
                return

    def ack(
        self,
        position: Position | None = None,
        *,
        outputs: Sequence[OutputRef] = (),
        state: object = KEEP,
        effect: bytes | None = None,
    ) -> None:
        """Commit in one record: the position, what was published, the state; then the effect.

        Args:
            position: records before it are done; default all that were handed out whole.
            outputs: objects written before, see `outputs.write_output`.
            state: bytes that the next view finds in `state`; default unchanged.
            effect: payload of an effect outside the storage, see `open_view(on_effect=)`.

        Raises:
            FencedError: another view is the consumer's now. Nothing of this call counts.
            InvalidInputError: a position never handed out, backwards, or of another partition; or
                the view was released. Nothing was written.
            OutcomeUnknownError: it may count now or later: call again with the same arguments.
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

        Of a consumer that has finished, nothing is written again.

        Raises:
            InvalidInputError: not every record was handed out; or there is something to write and
                the consumer has finished.
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
        """Give the partition back: what was not acknowledged comes again to the next view.

        Idempotent; of a superseded view it has no effect on the one that came after.
        """
        self._source.stop()
        if not self._task.held.fenced:
            # raw buffers that were fetched may go to the next view of this process
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
        """Release; never an acknowledgement."""
        if error is None:
            self.release()
            return
        with suppress(DurableShuffleError):  # must not hide why we stop
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
        """Return the next frame with records to hand out, and these; or the next marker."""
        if self._last is not None:  # a loop over records may have been left in the middle of it
            self._task.check()
            if (rest := self._rest(self._last[0])) is not None:
                return rest
        self._last = None
        while True:
            self._task.check()
            with self._explained():
                found = self._source.next()
            if found is NOTHING_YET:
                self._wait()
                continue
            if isinstance(found, EndOfInput):
                self._delivered.check_complete(found)
                self._ended = found
                return None
            if found.marker is not None:
                if isinstance(found.marker, Checkpoint):
                    if found.marker.id <= self._task.held.state.marker_floor:
                        continue
                    self._passed = max(self._passed, found.marker.id)
                return PlacedMarker(found.placed.extent.producer, found.marker)
            if (rest := self._rest(found)) is not None:
                return rest

    def _rest(self, found: PlacedBatch) -> tuple[PlacedFrame, pa.RecordBatch] | None:
        """Return what of a batch was not handed out yet."""
        placed, batch = found.placed, found.batch
        skipped = self._delivered.skipped(placed.extent, placed.first_ordinal)
        if batch is None or skipped >= placed.frame.rows:
            return None
        end = placed.first_ordinal + placed.frame.rows
        self._reserve(placed.extent, end, placed.after(0))
        self._task.check()
        self._last = found, skipped
        return placed, batch.slice(skipped)

    def _wanted(self, placed: PlacedFrame) -> bool:
        last = placed.first_ordinal + placed.frame.rows
        return last > ordinal_of(self._start, placed.extent.producer)

    def _reserve(self, extent: Extent, upto: int, begin: ProducerPosition) -> None:
        """In approximate mode, write down that records below `upto` may be delivered."""
        end = extent.first_ordinal + extent.rows
        self._task.reserve(self._key, extent.producer, upto, end, begin)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Before anything is called missing or damaged, look whether this view may say so."""
        try:
            yield
        except (NotFoundError, CorruptDataError):
            self._task.held.look()
            require_not_released(self._stage)
            raise
