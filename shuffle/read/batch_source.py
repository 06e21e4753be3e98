"""From buffers to frames to record batches: the decoding half of a view.

Strategy: one decoder per extent, since a frame's checksum is seeded with its address. At the end of
an extent the rows of its frames are reconciled with the rows that were committed. While the caller
uses a batch, a thread of the view decodes the next one.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Literal, TypeVar

import pyarrow as pa

from durable_shuffle.serialization.arrow_codec import decode_frame
from durable_shuffle.serialization.arrow_schemas import fit_batch, later_schema
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.serialization.frame_decoder import NEED_DATA, FrameDecoder
from durable_shuffle.serialization.frames import Frame, FrameKind
from durable_shuffle.serialization.markers import Marker, decode_marker
from durable_shuffle.shuffle.read.buffer_queue import BufferQueue, QueuedBuffer
from durable_shuffle.shuffle.read.extents import Extent, refuse_other_rows
from durable_shuffle.shuffle.read.feed import EndOfInput
from durable_shuffle.shuffle.read.position import ProducerPosition

T = TypeVar("T")


class _Sentinel(Enum):
    NOTHING_YET = "nothing yet"


NothingYet = Literal[_Sentinel.NOTHING_YET]
NOTHING_YET: NothingYet = _Sentinel.NOTHING_YET
"""The producers still write and have committed nothing new."""


@dataclass(frozen=True, slots=True)
class PlacedFrame:
    """A frame whose checksum was right, and where it stands."""

    extent: Extent
    frame: Frame
    first_ordinal: int
    offset: int
    """Of the frame in its segment, in bytes."""
    next_offset: int
    """Of the frame behind it."""

    def after(self, rows: int) -> ProducerPosition:
        """Return the position behind the first `rows` records of this frame."""
        segment, slot = self.extent.segment, self.extent.slot
        ordinal = self.first_ordinal + rows
        if rows == self.frame.rows:
            return ProducerPosition(ordinal, segment, slot, self.next_offset)
        return ProducerPosition(ordinal, segment, slot, self.offset, rows)


class FrameSource:
    """Frames of one partition, in order, for one view of a queue. Not thread-safe.

    Args:
        incarnation: of the stage, part of every frame's address.
        owner: id of the view; see `BufferQueue.attach`.
    """

    def __init__(
        self,
        queue: BufferQueue,
        *,
        owner: str,
        incarnation: str,
        max_body_bytes: int,
    ) -> None:
        self._queue, self._owner = queue, owner
        self._incarnation = incarnation
        self._max_body_bytes = max_body_bytes
        self._queued: QueuedBuffer | None = None
        self._decoder: FrameDecoder | None = None
        self._start = 0
        self._rows = 0

    def next(self) -> PlacedFrame | EndOfInput | NothingYet:
        """Return the next frame, records or marker.

        Raises:
            CorruptDataError: a frame fails its check, or rows delivered are not rows committed.
        """
        while True:
            if self._decoder is None or self._queued is None:
                found = self._queue.poll(self._owner)
                if found is None:
                    return NOTHING_YET
                if isinstance(found, EndOfInput):
                    return found
                self._begin(found)
                continue
            extent, decoder = self._queued.extent, self._decoder
            try:
                first, offset = decoder.next_ordinal, self._start + decoder.record_position
                frame = decoder.next_record()
                if frame is not NEED_DATA:
                    self._rows += frame.rows
                    end = self._start + decoder.record_position
                    return PlacedFrame(extent, frame, first, offset, end)
                if self._queued.last:
                    self._end(extent, decoder)
                    continue
            except CorruptDataError as e:
                raise CorruptDataError(f"{e}: {extent.place}") from e
            following = self._queue.poll(self._owner)
            if not isinstance(following, QueuedBuffer) or following.extent is not extent:
                raise CorruptDataError(f"an extent breaks off: {extent.place}")
            decoder.feed(following.buffer.data)
            self._queued = following

    def _begin(self, queued: QueuedBuffer) -> None:
        extent, first = queued.extent, queued.buffer.first_ordinal
        incarnation = self._incarnation

        def seed(ordinal: int) -> int:
            return extent.seed(incarnation, ordinal)

        self._decoder = FrameDecoder(seed, first_ordinal=first, max_body_bytes=self._max_body_bytes)
        self._decoder.feed(queued.buffer.data)
        self._queued = queued
        self._rows = first - extent.first_ordinal
        self._start = queued.offset

    def _end(self, extent: Extent, decoder: FrameDecoder) -> None:
        decoder.end()
        refuse_other_rows(self._rows, committed=extent.rows)
        self._decoder = self._queued = None


@dataclass(frozen=True, slots=True)
class PlacedBatch:
    """A frame and the records in it."""

    placed: PlacedFrame
    batch: pa.RecordBatch | None
    """None for a marker, and for a frame of which nothing is wanted."""
    marker: Marker | None = None


@dataclass(frozen=True, slots=True)
class PlacedMarker:
    """A marker as a view hands it out."""

    producer: int
    marker: Marker


@dataclass(frozen=True, slots=True)
class BatchSource:
    """Decodes frames of Arrow records. Not thread-safe.

    Args:
        schema: the stage's; columns that were added to it later are left out.
        wanted: returns whether any record of a frame will be handed out.
        check_offsets: see `Settings`.
    """

    frames: FrameSource
    schema: pa.Schema
    wanted: Callable[[PlacedFrame], bool]
    check_offsets: bool = True

    def next(self) -> PlacedBatch | EndOfInput | NothingYet:
        """Return the next frame, decoded.

        Raises:
            CorruptDataError: the frame is damaged or holds other rows than it states.
            IncompatibleError: it holds no Arrow records.
        """
        placed = self.frames.next()
        if not isinstance(placed, PlacedFrame):
            return placed
        frame = placed.frame
        if frame.kind is FrameKind.MARKER:
            return PlacedBatch(placed, None, decode_marker(frame.body, name=placed.extent.key))
        if not self.wanted(placed):
            return PlacedBatch(placed, None)
        own = placed.extent.schema
        schema = self.schema
        if own:
            schema = later_schema(own, schema, name=placed.extent.place)
        try:
            batch = decode_frame(
                frame, schema, position=placed.offset, check_offsets=self.check_offsets
            )
            batch = fit_batch(batch, self.schema) if own else batch
        except CorruptDataError as e:
            raise CorruptDataError(f"{e}: segment={placed.extent.key!r}") from e
        return PlacedBatch(placed, batch)


class ReadAhead(Generic[T]):
    """Makes the next item in a thread of its own while the caller uses the last. Not thread-safe.

    Args:
        produce: makes the next item. At most one call runs at a time.
        more: returns whether to make the item behind a given one before it is asked for.
        threads: False calls `produce` only when asked, in the caller's thread.
    """

    def __init__(
        self, produce: Callable[[], T], more: Callable[[T], bool], *, threads: bool
    ) -> None:
        self._produce, self._more, self._threads = produce, more, threads
        self._pool: ThreadPoolExecutor | None = None
        self._next: Future[T] | None = None

    def next(self) -> T:
        """Return the next item, or raise what `produce` raised, again and again.

        An item is not lost by an interrupt while it is waited for.
        """
        if not self._threads:
            return self._produce()
        self._next = self._next or self._submit()
        item = self._next.result()
        self._next = self._submit() if self._more(item) else None
        return item

    def stop(self) -> None:
        """Forget what is under way and let the thread end."""
        self._next = None
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)

    def _submit(self) -> Future[T]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "view-decode")
        return self._pool.submit(self._produce)
