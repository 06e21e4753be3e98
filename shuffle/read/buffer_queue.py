"""Buffers of one partition on their way to one view at a time: fetching, credit, trimming.

Strategy: extents are fetched in groups of ranges that fit into the credit. Adjacent ranges take one
request. While one group is handed out, a thread of the view fetches the next. Another view of the
same process may take the queue over: it starts with full credit and sequence 0, and the rest of a
record of which the previous view got a part is trimmed.

It must not know what the bytes mean beyond frame headers, nor where a consumer's log is.
"""

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from durable_shuffle.serialization.buffers import Buffer, BufferCutter, trim
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    DurableShuffleError,
    FencedError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.read.extents import Extent
from durable_shuffle.shuffle.read.feed import EndOfInput, ExtentFeed
from durable_shuffle.shuffle.read.position import Positions, ordinal_of
from durable_shuffle.shuffle.storage.contract import ByteRange, Storage
from durable_shuffle.shuffle.storage.range_plan import (
    REQUESTS_AT_ONCE,
    RUN_BYTES,
    can_join,
    join_near,
    read_runs,
)


@dataclass(frozen=True, slots=True)
class QueuedBuffer:
    """A buffer as it is handed to a view."""

    extent: Extent
    buffer: Buffer
    offset: int
    """Of the buffer's first byte in its segment."""
    sequence: int
    """From 0 in each view, without gaps, given when the buffer is handed out; a buffer that was
    trimmed to nothing takes a number."""
    last: bool
    """Whether the extent ends here."""


@dataclass(frozen=True, slots=True)
class _Fetch:
    extent: Extent
    where: ByteRange
    last: bool


class BufferQueue:
    """Safe to call from several threads; only the newest owner gets anything.

    Args:
        feed: the extents to read, from the start position on.
        settings: view_memory_bytes, view_buffer_bytes, view_prefetch, max_frame_bytes.
        start: frames that hold only records before it are left out.
    """

    def __init__(
        self, storage: Storage, feed: ExtentFeed, settings: Settings, start: Positions
    ) -> None:
        self._storage, self._feed, self._settings = storage, feed, settings
        self._start = start
        self._lock = threading.Lock()
        self._owner = ""
        self._sequence = 0
        self._needs_trim = False
        self._inside_record = False
        self._extent: Extent | None = None
        self._at = 0
        self._cutter: BufferCutter | None = None
        self._ready: deque[QueuedBuffer] = deque()
        self._pending: tuple[list[_Fetch], Future[list[memoryview]]] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._failure: DurableShuffleError | None = None
        self._handed_bytes = 0
        self.trimmed_bytes = 0
        """Bytes cut off for the present owner."""

    @property
    def in_flight_bytes(self) -> int:
        """Bytes fetched, or being fetched, and not yet given back: at most `view_memory_bytes`, and
        the beginning of one frame header or marker that was held back."""
        pending = sum(f.where.length for f in self._pending[0]) if self._pending else 0
        return self._handed_bytes + pending + sum(c.buffer.data.nbytes for c in self._ready)

    @property
    def feed(self) -> ExtentFeed:
        """Where the extents come from."""
        return self._feed

    @property
    def failed(self) -> bool:
        """Whether reading failed; then no view gets anything more."""
        return self._failure is not None

    def fail(self, error: DurableShuffleError) -> None:
        """Give nothing more, because what was polled last could not be used."""
        with self._lock:
            self._failure = error

    def attach(self, owner: str) -> None:
        """Serve the view `owner` alone; the previous one gets FencedError from now on."""
        with self._lock:
            self._owner = owner
            self._needs_trim = self._inside_record
            self._sequence = self._handed_bytes = self.trimmed_bytes = 0

    def poll(self, owner: str) -> QueuedBuffer | EndOfInput | None:
        """Return the next buffer with bytes in it, the end, or None if there is nothing new yet.

        The call gives back the credit of the previous buffer.

        Raises:
            FencedError: another view took over.
            NotFoundError, CorruptDataError, UnavailableError: as the storage and the feed say.
        """
        with self._lock:
            while True:
                if owner != self._owner:
                    raise FencedError(
                        f"another view of this process took over: mine={owner} "
                        f"newest={self._owner}; stop"
                    )
                self._handed_bytes = 0
                queued = self._next_ready()
                if not isinstance(queued, QueuedBuffer):
                    return queued
                buffer, offset = queued.buffer, queued.offset
                sequence, self._sequence = self._sequence, self._sequence + 1
                if not buffer.marker:
                    self._inside_record = buffer.cut
                if self._needs_trim:
                    trimmed = trim(buffer)
                    cut_off = buffer.data.nbytes - trimmed.data.nbytes
                    offset += cut_off
                    self.trimmed_bytes += cut_off
                    self._needs_trim = not trimmed.done
                    buffer = replace(buffer, data=trimmed.data, carry_bytes=0, carry_ends=True)
                    if not buffer.data.nbytes and not queued.last:
                        continue
                self._handed_bytes = buffer.data.nbytes
                return replace(queued, buffer=buffer, offset=offset, sequence=sequence)

    def _next_ready(self) -> QueuedBuffer | EndOfInput | None:
        if self._failure is not None:
            raise self._failure
        try:
            return self._fill()
        except BaseException as error:
            # what was planned is gone from the feed: going on would leave a gap, also after Ctrl-C
            broken = UnavailableError("reading was interrupted; open the view again")
            self._failure = error if isinstance(error, DurableShuffleError) else broken
            raise

    def _fill(self) -> QueuedBuffer | EndOfInput | None:
        while not self._ready:
            if self._pending is None:
                end = self._start_fetch()
                if self._pending is None:
                    return end
            fetches, future = self._pending
            self._pending = None
            pieces = future.result()
            for fetch, data in zip(fetches, pieces, strict=True):
                self._cut(fetch, data)
            if self._settings.view_prefetch:
                self._start_fetch()
        return self._ready.popleft()

    def _start_fetch(self) -> EndOfInput | None:
        """Plan the next group and fetch it; return the end if there is nothing left to plan."""
        fetches, end = self._plan()
        if not fetches:
            return end
        runs = list(join_near((fetch.where for fetch in fetches), near_bytes=0))
        if self._settings.view_prefetch:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, "view-prefetch")
            self._pending = fetches, self._pool.submit(read_runs, self._storage, runs)
        else:
            done: Future[list[memoryview]] = Future()
            done.set_result(read_runs(self._storage, runs))
            self._pending = fetches, done
        return None

    def _plan(self) -> tuple[list[_Fetch], EndOfInput | None]:
        limit = self._settings.view_memory_bytes // 2
        fetches: list[_Fetch] = []
        size = 0
        requests, first = 0, None
        while True:
            if self._extent is None:
                found = self._feed.poll()
                if not isinstance(found, Extent):
                    return fetches, found
                self._extent, self._at = found, found.offset
            extent = self._extent
            end = extent.offset + extent.length
            length = min(self._settings.view_buffer_bytes, end - self._at)
            if fetches and size + length > limit:
                return fetches, None
            where = ByteRange(extent.key, self._at, length)
            if first is None or not can_join(
                first, fetches[-1].where, where, near_bytes=0, run_bytes=RUN_BYTES
            ):
                if requests == REQUESTS_AT_ONCE:
                    return fetches, None
                requests, first = requests + 1, where
            self._at += length
            fetches.append(_Fetch(extent, where, self._at == end))
            size += length
            if self._at == end:
                self._extent = None

    def _cut(self, fetch: _Fetch, data: memoryview) -> None:
        extent = fetch.extent
        if self._cutter is None:
            self._cutter = BufferCutter(
                extent.first_ordinal,
                self._settings.max_frame_bytes,
                start_ordinal=ordinal_of(self._start, extent.producer),
            )
        try:
            buffers = list(self._cutter.cut(data))
            held = self._cutter.held_bytes
            if fetch.last:
                self._cutter.end()
                self._cutter = None
        except CorruptDataError as e:
            raise CorruptDataError(
                f"{e}: segment={extent.key!r} bytes=[{extent.offset}, "
                f"{extent.offset + extent.length}) producer={extent.producer}"
            ) from e
        end = fetch.where.start + fetch.where.length - held
        offset = end - sum(buffer.data.nbytes for buffer in buffers)
        for n, buffer in enumerate(buffers, 1):
            last = fetch.last and n == len(buffers)
            self._ready.append(QueuedBuffer(extent, buffer, offset, 0, last))
            offset += buffer.data.nbytes

    def close(self, *, keep: bool) -> None:
        """End the thread; with `keep` a view that takes over gets what was fetched."""
        with self._lock:
            pool, self._pool = self._pool, None
            if not keep:
                self._ready.clear()
                self._pending = None
                self._owner = ""
        if pool is not None:
            pool.shutdown(wait=False)
