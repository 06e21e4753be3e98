"""Small stages of log producers for tests: rows to append, and all that a follower is given.

Strategy: as `small_stage`: expectations are lists that the test fills row by row; reading back goes
through the feed and the storage, never through what the producer remembers.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa
from small_stage import SMALL, ManualClock

from durable_shuffle.serialization.arrow_codec import decode_batch
from durable_shuffle.serialization.frame_decoder import NEED_DATA, FrameDecoder
from durable_shuffle.serialization.frames import FrameKind
from durable_shuffle.serialization.markers import Marker, decode_marker
from durable_shuffle.shuffle.base.clock import Clock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.extents import Extent
from durable_shuffle.shuffle.read.feed import EndOfInput
from durable_shuffle.shuffle.read.log_feed import FeedWait, LogFeed
from durable_shuffle.shuffle.read.position import ProducerPosition
from durable_shuffle.shuffle.write.segments import IdBatch

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])

Event = tuple[int, int, int | Marker]
"""(producer, ordinal, the row's number or a marker); a marker has the next record's ordinal."""


def numbered_rows(start: int, end: int, partitions: int, chars: int = 20) -> list[IdBatch]:
    """Return rows numbered [start, end) as one batch, row n for subpartition (n * 7) % R."""
    if start == end:
        return []
    numbers = range(start, end)
    values = [f"{n}:".ljust(chars, "x") for n in numbers]
    ids = np.array([(n * 7) % partitions for n in numbers], np.uint16)
    return [(pa.record_batch([list(numbers), values], schema=SCHEMA), ids)]


def rows_for(subpartition: int, start: int, end: int, partitions: int) -> list[int]:
    """Return the numbers of those rows that belong to one subpartition."""
    return [n for n in range(start, end) if n * 7 % partitions == subpartition]


def read_extent(stage: StageHandle, subpartition: int, extent: Extent) -> Iterator[Event]:
    """Yield what an extent holds; every frame's checksum is checked."""

    def seed(ordinal: int) -> int:
        return extent.seed(stage.path.incarnation, ordinal)

    decoder = FrameDecoder(seed, first_ordinal=extent.first_ordinal)
    decoder.feed(stage.storage.read_range(extent.key, extent.offset, extent.length))
    ordinal = extent.first_ordinal
    while (frame := decoder.next_record()) is not NEED_DATA:
        if frame.kind is FrameKind.MARKER:
            yield extent.producer, ordinal, decode_marker(frame.body, name=extent.key)
            continue
        for number in decode_batch(frame.body, stage.schema).column(0).to_pylist():
            yield extent.producer, ordinal, number
            ordinal += 1
    decoder.end()
    if ordinal != extent.first_ordinal + extent.rows:
        raise AssertionError(f"{extent} holds records up to {ordinal}")


def new_feed(
    stage: StageHandle,
    subpartition: int,
    positions: Mapping[int, ProducerPosition] | None = None,
    *,
    clock: ManualClock | None = None,
    settings: Settings = SMALL,
) -> LogFeed:
    """Return a feed with a clock that only the test moves."""
    clock = clock or ManualClock(0.0, [])
    return LogFeed(stage, subpartition, positions or {}, settings=settings, clock=clock)


def poll_all(
    feed: LogFeed, stage: StageHandle, subpartition: int
) -> tuple[list[Event], EndOfInput | None]:
    """Return all that the feed has now, and the end if it was reached."""
    events: list[Event] = []
    while True:  # ends: the log is finite
        found = feed.poll()
        if found is None or isinstance(found, EndOfInput):
            return events, found
        events.extend(read_extent(stage, subpartition, found))


def read_log_rows(
    stage: StageHandle,
    subpartition: int,
    positions: Mapping[int, ProducerPosition] | None = None,
) -> tuple[list[Event], EndOfInput | None]:
    """Return what a new follower is given now."""
    return poll_all(new_feed(stage, subpartition, positions), stage, subpartition)


def wait_for(
    feed: LogFeed,
    *,
    clock: Clock,
    timeout_seconds: float,
    cancelled: Callable[[], bool] = lambda: False,
    what: str = "the next records",
) -> Extent | EndOfInput:
    """Return the feed's next extent or its end, within the time given. Arguments as `FeedWait`."""
    wait = FeedWait(
        feed, clock=clock, timeout_seconds=timeout_seconds, cancelled=cancelled, what=what
    )
    while (found := feed.poll()) is None:
        wait()
    return found
