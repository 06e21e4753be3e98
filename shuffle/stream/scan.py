"""Find what a stage holds for a stream reader: its end, its earliest row, the rows between offsets.

Strategy: read the log of each producer slot by slot, from the slot in an offset on. Finding the end
alone takes a few requests, however long the log is. A reader that begins without an offset, or
restarts from one, lists what stands behind released rows once, so that a lost record does not look
like the end. A `RowRange` names an extent and its wanted rows, so a task that reads it needs no
log. A task checks the checksum of every frame, even of frames without wanted rows, and compares the
number of rows with what was committed.

The reading process keeps the records that it read last; others are read again when needed.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.serialization.arrow_codec import decode_frame
from durable_shuffle.serialization.arrow_schemas import later_schema
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    NotReadyError,
)
from durable_shuffle.serialization.frames import Frame
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.appender_log import (
    Append,
    AppenderRecord,
    AppenderTail,
    appender_log,
    state_behind,
)
from durable_shuffle.shuffle.log.appender_reads import (
    gone_below,
    loses_slots,
    newest_schema,
    read_tail,
    refuse_holes,
)
from durable_shuffle.shuffle.log.records import Closed
from durable_shuffle.shuffle.log.stage import StageHandle, StageState, live_state, require_seal
from durable_shuffle.shuffle.read.extents import Extent, appended_extents
from durable_shuffle.shuffle.read.sealed_reader import Pieces, fetch_extents, sealed_extents
from durable_shuffle.shuffle.stream.offset import Arrival, LaneOffset, StreamOffset

_KEPT_RECORDS, _KEPT_BYTES = 256, 16 << 20
"""How many records of a log a reader keeps, and bytes of their tables."""


@dataclass(frozen=True, slots=True)
class RowRange:
    """An extent and its wanted rows [skip, end), counted from the start of the extent."""

    extent: Extent
    skip: int
    end: int


def standing_rows(stage: StageHandle) -> list[RowRange]:
    """Return all rows that a stage, sealed or growing, holds now, ordered by subpartition.

    Raises:
        NotFoundError: the stage was released, or its producers have not all committed.
        CorruptDataError: a log of the stage lost a record; the message names the slot.
    """
    if stage.describe.writing == "log":
        scan = StageScan(stage)
        return scan.ranges(scan.earliest(), scan.latest())
    try:
        seal = require_seal(stage)
    except NotReadyError as e:
        raise NotFoundError(f"the stage is still being written: {e}") from None
    extents = sealed_extents(stage, seal, 0, stage.describe.partitions)
    return [RowRange(extent, 0, extent.rows) for extent in extents]


def newest_message(stage: StageHandle) -> bytes:
    """Return the Arrow schema message of the newest rows of a stage."""
    if stage.describe.writing != "log":
        return stage.describe.schema
    return max((lane.schema() for lane in StageScan(stage).lanes), key=len)


class StageScan:
    """A growing stage as a stream reader sees it. Not thread-safe; used by one reading process.

    Raises:
        InvalidInputError: the stage has no log producers. Such a stage is complete once it can be
            read, and an offset could not show that its rows were replaced.
        NotFoundError: the stage was released.
    """

    def __init__(self, stage: StageHandle) -> None:
        if stage.describe.writing != "log":
            raise InvalidInputError(
                f"stage {stage.describe.name!r} does not grow, so it is no stream: read it as a "
                f"table with spark.read.format('durable_shuffle'), or with consume(): "
                f"{stage.path.prefix!r}"
            )
        self.stage = stage
        self.lanes = [_Lane(stage, p) for p in range(stage.describe.producers)]
        live_state(stage)  # refuses a stage that was released

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of subpartitions of each lane."""
        return tuple(len(lane.subpartitions) for lane in self.lanes)

    def earliest(self) -> StreamOffset:
        """Return the offset of the first row that was not released.

        Raises:
            NotFoundError: the stage was released.
        """
        return self._earliest(live_state(self.stage))

    def _earliest(self, state: StageState) -> StreamOffset:
        slots = state.released_below(self.stage.describe.producers)
        ends = (lane.log.tail_at(slot) for lane, slot in zip(self.lanes, slots, strict=True))
        return self._offset(ends)

    def latest(self, start: StreamOffset | None = None) -> StreamOffset:
        """Return the current end.

        Args:
            start: an earlier offset, which saves requests: slots before it are not read. Without
                it the logs are listed once, behind released rows.

        Raises:
            CorruptDataError: a log lost a record; the message names the slot.
        """
        if start is None:
            refuse_holes(self.stage)
        hints = [at.slot for at in start.lanes] if start else [0] * len(self.lanes)
        return self._offset(read_tail(self.stage, p, hint) for p, hint in enumerate(hints))

    def arrivals(self, start: StreamOffset) -> Iterator[Arrival]:
        """Yield the records with rows from `start` on; the lanes take turns."""
        turns = [lane.arrivals(at.slot) for lane, at in zip(self.lanes, start.lanes, strict=True)]
        while turns:
            left = []
            for turn in turns:
                arrival = next(turn, None)
                if arrival is not None:
                    left.append(turn)
                    yield arrival
            turns = left

    def ranges(self, start: StreamOffset, end: StreamOffset) -> list[RowRange]:
        """Return the rows in [start, end), ordered by subpartition, then as in the logs."""
        ranges = [
            span
            for lane, low, high in zip(self.lanes, start.lanes, end.lanes, strict=True)
            for span in lane.ranges(low, high)
        ]
        return sorted(ranges, key=lambda span: span.extent.subpartition)

    def check_standing(self, start: StreamOffset) -> None:
        """Check that all rows from `start` on are still there and that no log lost a record.

        Lists what the logs have behind released rows.

        Raises:
            NotFoundError: rows were released; the message names the earliest available offset.
            CorruptDataError: a log lost a record; the message names the slot.
        """
        state = live_state(self.stage)
        refuse_holes(self.stage, state)
        earliest = self._earliest(state)
        for low, first in zip(start.lanes, earliest.lanes, strict=True):
            if any(at < least for at, least in zip(low.next, first.next, strict=True)):
                raise NotFoundError(
                    "rows were released that the reader asks for: "
                    f"stage={self.stage.path.folder!r} asked for {list(low.next)}, the earliest "
                    f"available is {list(first.next)} "
                    "(next row per subpartition): begin anew with a new checkpoint and "
                    "startingOffsets=earliest, and declare readers (consumers=) to hold rows back"
                )

    def _offset(self, ends: Iterable[AppenderTail]) -> StreamOffset:
        """Return the offset behind the records of each lane's log."""
        lanes = tuple(lane.offset(end) for lane, end in zip(self.lanes, ends, strict=True))
        return StreamOffset(self.stage.path.folder, lanes)


def _table_bytes(record: AppenderRecord) -> int:
    return len(record.extents) + len(record.shifts) if isinstance(record, Append) else 0


class _Lane:
    """One producer's log: a growing sequence of rows per subpartition."""

    def __init__(self, stage: StageHandle, producer: int) -> None:
        self._stage, self._producer = stage, producer
        self.log = appender_log(stage.producer_log(producer))
        self._owned = stage.subpartitions_of(producer)
        self.subpartitions = tuple(self._owned.tolist())
        self._kept: dict[int, AppenderRecord] = {}
        self._kept_bytes = 0
        self._loses_slots = True
        """Whether slots of the log may be gone, as far as known."""

    def schema(self) -> bytes:
        """Return the schema message of the newest rows."""
        return newest_schema(self._stage, self._producer, read_tail(self._stage, self._producer))

    def offset(self, end: AppenderTail) -> LaneOffset:
        """Return the offset behind the last record of `end`."""
        key = self.log.key(end.next_slot - 1)
        if isinstance(end.last, Closed):
            live_state(self._stage)
            raise NotFoundError(f"a log was closed before its producer ended: {key!r}")
        self._loses_slots = end.last is None or loses_slots(end.last)
        state = state_behind(self._stage, self._producer, end)
        ordinals = state.ordinals(len(self._owned), key)
        return LaneOffset(end.next_slot, tuple(ordinals.tolist()))

    def arrivals(self, slot: int) -> Iterator[Arrival]:
        """Yield the records with rows from `slot` to the end."""
        for at, record in self._standing(slot):
            if isinstance(record, Append):
                yield self._arrival(record, at)
            elif isinstance(record, Closed):
                return

    def _standing(self, slot: int, last: float = math.inf) -> Iterator[tuple[int, AppenderRecord]]:
        """Yield (slot, record) from one slot to another or the end, over slots that are gone."""
        while slot <= last:
            if (record := self._record(slot)) is not None:
                yield slot, record
                slot += 1
            elif self._loses_slots and (gone := gone_below(self._stage)[self._producer]) > slot:
                slot = gone
            else:
                return

    def ranges(self, start: LaneOffset, end: LaneOffset) -> Iterator[RowRange]:
        """Yield the rows in [start, end), in order.

        A subpartition may end before it starts, and then has none: Spark may take the end of a
        batch before it asks where the stream begins.

        Raises:
            CorruptDataError: a record is lost, or the records do not hold just these rows.
        """
        if start.next == end.next:
            return
        low = np.zeros(self._stage.describe.partitions, dtype=np.uint64)
        high = low.copy()
        low[self._owned], high[self._owned] = start.next, end.next
        high = np.maximum(low, high)
        reached = low.copy()
        behind = start.slot
        for slot, record in self._standing(start.slot, end.slot):
            behind = slot + 1
            if isinstance(record, Append):
                for span in self._ranges_of(record, slot, low, high):
                    k, first = span.extent.subpartition, span.extent.first_ordinal
                    self._check_joins(k, int(reached[k]), first + span.skip, slot)
                    reached[k] = first + span.end
                    yield span
        if behind < end.slot:
            raise CorruptDataError(
                f"a slot lost its record: {self.log.key(behind)!r} was read before, or stands "
                "before one that was; run `durable-shuffle verify`"
            )
        for k in self.subpartitions:
            self._check_joins(k, int(reached[k]), int(high[k]), end.slot)

    def _check_joins(self, subpartition: int, reached: int, found: int, slot: int) -> None:
        if reached != found:
            raise CorruptDataError(
                f"records do not join up: {self.log.key(slot)!r} subpartition={subpartition} "
                f"expected first ordinal {reached}, found {found}; run `durable-shuffle verify`"
            )

    def _ranges_of(
        self, record: Append, slot: int, low: np.ndarray, high: np.ndarray
    ) -> Iterator[RowRange]:
        def wanted(entries: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
            k, first, rows = (entries[n] for n in ("subpartition", "first_ordinal", "rows"))
            mask: npt.NDArray[np.bool_] = (first + rows > low[k]) & (first < high[k])
            mask &= (rows > 0) & (low[k] < high[k])  # no markers
            return mask

        where = self.log.key(slot)
        record.extent_array(where, self._stage.describe.partitions)  # checked
        path = self._stage.path
        for extent in appended_extents(path, self._producer, slot, record, wanted, where):
            k, first = extent.subpartition, extent.first_ordinal
            skip, end = max(0, int(low[k]) - first), min(extent.rows, int(high[k]) - first)
            yield RowRange(extent, skip, end)

    def _arrival(self, record: Append, slot: int) -> Arrival:
        where = self.log.key(slot)
        partitions = self._stage.describe.partitions
        entries = record.extent_array(where, partitions)
        rows = np.zeros(partitions, dtype=np.uint64)
        size = rows.copy()
        np.add.at(rows, entries["subpartition"], entries["rows"])
        np.add.at(size, entries["subpartition"], entries["length"])
        ends = record.after.ordinals(len(self._owned), where)
        return Arrival(self._producer, slot, ends, rows[self._owned], size[self._owned])

    def _record(self, slot: int) -> AppenderRecord | None:
        record = self._kept.get(slot)
        if record is None:
            record = self.log.record(slot)
            if record is None:
                return None
            self._kept[slot] = record
            self._kept_bytes += _table_bytes(record)
            while len(self._kept) > _KEPT_RECORDS or self._kept_bytes > _KEPT_BYTES:
                self._kept_bytes -= _table_bytes(self._kept.pop(next(iter(self._kept))))
        return record


def read_row_ranges(
    stage: StageHandle, ranges: Sequence[RowRange], settings: Settings
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of each range, in order, in the schema in which they were stored.

    Raises:
        CorruptDataError: a frame fails its check, or the number of rows is not the committed one;
            the message names the segment.
        NotFoundError: a segment is missing; the message says if the stage was released.
    """
    extents = [span.extent for span in ranges]
    places = {extent.schema: extent.place for extent in extents if extent.schema}
    schemas = {b"": stage.schema} | {
        data: later_schema(data, stage.schema, name=place) for data, place in places.items()
    }
    fetched = fetch_extents(stage, extents, settings)
    for span, (_, pieces) in zip(ranges, fetched, strict=True):
        yield from _rows(stage, span, pieces, schemas[span.extent.schema], settings)


def _rows(
    stage: StageHandle, span: RowRange, pieces: Pieces, schema: pa.Schema, settings: Settings
) -> Iterator[pa.RecordBatch]:
    def wanted(frame: Frame, begin: int, before: int) -> Iterator[pa.RecordBatch]:
        skip, end = max(0, span.skip - before), min(frame.rows, span.end - before)
        if skip < end:
            batch = decode_frame(
                frame, schema, position=begin, check_offsets=settings.check_offsets
            )
            yield batch.slice(skip, end - skip)

    limit = settings.max_frame_bytes
    return span.extent.frames(pieces, stage.path.incarnation, wanted, max_body_bytes=limit)
