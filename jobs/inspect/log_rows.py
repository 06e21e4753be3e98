"""The rows that log producers have appended so far, without a consumer identity.

Strategy: the logs are copied into memory, each slot read once, so that every partition shows the
same moment and nothing is waited for. The feed that followers use reads the copy; data come through
a view's queue and decoder, which check every frame.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from durable_shuffle.jobs.inspect.producer_logs import read_producer_logs
from durable_shuffle.serialization.errors import NotFoundError
from durable_shuffle.shuffle.base.clock import SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.appender_log import refuse_holes
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle, read_state, require_not_released
from durable_shuffle.shuffle.read.batch_source import BatchSource, PlacedBatch
from durable_shuffle.shuffle.read.buffer_queue import BufferQueue
from durable_shuffle.shuffle.read.extent_feed import EndOfInput
from durable_shuffle.shuffle.read.extents import Extent
from durable_shuffle.shuffle.read.frame_source import FrameSource
from durable_shuffle.shuffle.read.log_feed import LogFeed
from durable_shuffle.shuffle.storage.memory import MemoryStorage

_SETTINGS = Settings(view_memory_bytes=16 << 20, view_buffer_bytes=8 << 20, view_prefetch=False)
"""Little is fetched ahead: mostly the first rows are asked for."""

_READER = "cat"


class LogRows:
    """What the logs of a stage of log producers hold at the moment that this is made.

    Raises:
        NotFoundError: the stage was released.
        CorruptDataError, IncompatibleError: a record is damaged, lost, or not of this version.
    """

    def __init__(self, stage: StageHandle) -> None:
        refuse_holes(stage)
        memory = MemoryStorage()

        def copy(log: SlotLog) -> None:
            copied = SlotLog(memory, log.prefix)
            for slot, data in log.read_from():
                copied.append(slot, data)

        producers = [stage.producer_log(p) for p in range(stage.describe.producers)]
        with ThreadPoolExecutor(_SETTINGS.control_threads) as pool:
            list(pool.map(copy, producers))
        copy(stage.log())  # last: whoever closed a producer's log wrote to this one before
        self._stage, self._copy = stage, StageHandle(memory, stage.path, stage.describe)
        require_not_released(self._copy)
        state = read_state(self._copy)
        self._upto = state.released_below(len(producers))
        logs = read_producer_logs(self._copy, state)
        self.producers = len(logs)
        self.ended = sum(log.ended for log in logs)
        """Producers that will never append again."""
        self.rows = sum(int(log.stored.sum()) for log in logs)
        """Rows that were appended and not released."""
        self.released = sum(int(log.appended.sum()) for log in logs) - self.rows
        """Rows that were released."""

    def batches(self, k: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of partition k, each producer's in order, the producers by turns.

        Raises:
            InvalidInputError: no such partition.
            CorruptDataError: a frame fails its check or rows do not add up; names the segment.
            NotFoundError: a segment is gone; says so if the stage was released meanwhile.
        """
        stage, settings = self._stage, _SETTINGS
        feed = LogFeed(self._copy, k, {}, settings=settings, clock=SystemClock())
        queue = BufferQueue(stage.storage, _Unreleased(feed, self._upto), settings, {})
        queue.attach(_READER)
        frames = FrameSource(
            queue,
            owner=_READER,
            incarnation=stage.path.incarnation,
            max_body_bytes=settings.max_frame_bytes,
        )
        source = BatchSource(frames, stage.schema, lambda _: True)
        try:
            while isinstance(found := source.next(), PlacedBatch):
                if found.batch is not None:
                    yield found.batch
        except NotFoundError:
            require_not_released(stage)  # says so if that is why
            raise
        finally:
            queue.close(keep=False)


class _Unreleased:
    """A feed without what was released. See `ExtentFeed`."""

    def __init__(self, feed: LogFeed, upto: tuple[int, ...]) -> None:
        self._feed, self._upto = feed, upto

    @property
    def producers(self) -> int:
        return self._feed.producers

    def poll(self) -> Extent | EndOfInput | None:
        while True:  # ends: the log is finite
            found = self._feed.poll()
            if not isinstance(found, Extent) or found.slot >= self._upto[found.producer]:
                return found
