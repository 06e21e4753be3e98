"""Find what a stage holds for a stream reader: its end, its earliest row, the rows between offsets.

Strategy: read the log of each producer slot by slot, from the slot in an offset on. Finding the end
alone takes a few requests, however long the log is. A reader that begins without an offset, or
restarts from one, lists the logs once, so that a lost record does not look like the end. A piece
names an extent and its wanted rows, so a task that reads pieces needs no log.

The reading process keeps the records that it read last; others are read again when needed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    NotReadyError,
)
from durable_shuffle.shuffle.log.appender_log import (
    Append,
    AppenderRecord,
    appender_log,
    newest_schema,
    read_tail,
    refuse_holes,
)
from durable_shuffle.shuffle.log.records import Closed, Seal
from durable_shuffle.shuffle.log.stage import StageHandle, read_state, require_seal, stage_released
from durable_shuffle.shuffle.read.extents import Extent, appended_extents, indexed_extent
from durable_shuffle.shuffle.read.sealed_reader import read_extents
from durable_shuffle.shuffle.stream.offset import Arrival, LaneOffset, StreamOffset

_KEPT_RECORDS = 256


@dataclass(frozen=True, slots=True)
class Piece:
    """An extent and its wanted rows [skip, end), counted from the start of the extent."""

    extent: Extent
    skip: int
    end: int


def standing_pieces(stage: StageHandle) -> list[Piece]:
    """Return all rows that a stage, sealed or growing, holds now, ordered by subpartition.

    Raises:
        NotFoundError: the stage was released, or its producers have not all committed.
        CorruptDataError: a log of the stage lost a record; the message names the slot.
    """
    if stage.describe.writing == "log":
        scan = StageScan(stage)
        return scan.pieces(scan.earliest(), scan.latest())
    try:
        seal = require_seal(stage)
    except NotReadyError as e:
        raise NotFoundError(f"the stage is still being written: {e}") from None
    return [piece for k in range(stage.describe.partitions) for piece in _sealed(stage, seal, k)]


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
        state = read_state(stage)
        if state.release is not None:
            raise stage_released(stage, state.release)
        upto = state.released_below(stage.describe.producers)
        self.lanes = [_Lane(stage, p, at) for p, at in enumerate(upto)]

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of subpartitions of each lane."""
        return tuple(len(lane.subpartitions) for lane in self.lanes)

    def earliest(self) -> StreamOffset:
        return self._offset([lane.earliest() for lane in self.lanes])

    def latest(self, start: StreamOffset | None = None) -> StreamOffset:
        """Return the current end.

        Args:
            start: an earlier offset, which saves requests: slots before it are not read. Without
                it all logs are listed once.

        Raises:
            CorruptDataError: a log lost a record; the message names the slot.
        """
        if start is None:
            refuse_holes(self.stage)
        hints = [at.slot for at in start.lanes] if start else [0] * len(self.lanes)
        return self._offset([ln.latest(h) for ln, h in zip(self.lanes, hints, strict=True)])

    def arrivals(self, start: StreamOffset) -> Iterator[Arrival]:
        """Yield the records with rows from `start` on; the lanes take turns."""
        turns = [lane.arrivals(at.slot) for lane, at in zip(self.lanes, start.lanes, strict=True)]
        while turns:
            left = []
            for turn in turns:
                found = next(turn, None)
                if found is not None:
                    left.append(turn)
                    yield found
            turns = left

    def pieces(self, start: StreamOffset, end: StreamOffset) -> list[Piece]:
        """Return the rows in [start, end), ordered by subpartition, then as in the logs."""
        found = [
            piece
            for lane, low, high in zip(self.lanes, start.lanes, end.lanes, strict=True)
            for piece in lane.pieces(low, high)
        ]
        return sorted(found, key=lambda piece: piece.extent.subpartition)

    def check_standing(self, start: StreamOffset) -> None:
        """Check that all rows from `start` on are still there and that no log lost a record.

        Lists the logs.

        Raises:
            NotFoundError: rows were released; the message names the earliest available offset.
            CorruptDataError: a log lost a record; the message names the slot.
        """
        refuse_holes(self.stage)
        earliest = self.earliest()
        for low, first in zip(start.lanes, earliest.lanes, strict=True):
            if any(at < least for at, least in zip(low.next, first.next, strict=True)):
                raise NotFoundError(
                    "rows were released that the reader asks for: "
                    f"stage={self.stage.path.folder!r} asked for {list(low.next)}, the earliest "
                    f"available is {list(first.next)} "
                    "(next row per subpartition): begin anew with a new checkpoint and "
                    "startingOffsets=earliest, and declare readers (consumers=) to hold rows back"
                )

    def _offset(self, lanes: list[LaneOffset]) -> StreamOffset:
        return StreamOffset(self.stage.path.folder, tuple(lanes))


class _Lane:
    """One producer's log: a growing sequence of rows per subpartition."""

    def __init__(self, stage: StageHandle, producer: int, upto: int) -> None:
        self._stage, self._producer = stage, producer
        self._log = stage.producer_log(producer)
        owned = stage.subpartitions_of(producer)
        self.subpartitions = tuple(owned.tolist())
        self._owned = owned
        self._upto = upto
        self._kept: dict[int, AppenderRecord] = {}

    def schema(self) -> bytes:
        """Return the schema message of the newest rows."""
        return newest_schema(self._stage, self._producer, read_tail(self._log))

    def latest(self, hint: int) -> LaneOffset:
        """Return the current end."""
        tail = read_tail(self._log, hint)
        if tail.last is None:
            return LaneOffset(0, (0,) * len(self.subpartitions))
        return LaneOffset(tail.next_slot, self._ordinals(tail.last, tail.next_slot - 1))

    def earliest(self) -> LaneOffset:
        """Return the offset of the first row that was not released."""
        state = read_state(self._stage)
        if state.release is not None:
            raise stage_released(self._stage, state.release)
        self._upto = state.released_below(self._stage.describe.producers)[self._producer]
        if not self._upto:
            return LaneOffset(0, (0,) * len(self.subpartitions))
        record = self._record(self._upto - 1)
        if record is None:
            raise CorruptDataError(f"a slot lost its record: {self._log.key(self._upto - 1)!r}")
        return LaneOffset(self._upto, self._ordinals(record, self._upto - 1))

    def arrivals(self, slot: int) -> Iterator[Arrival]:
        """Yield the records with rows from `slot` to the end."""
        while (record := self._record(slot)) is not None:
            if isinstance(record, Append):
                yield self._arrival(record, slot)
            elif isinstance(record, Closed):
                return
            slot += 1

    def pieces(self, start: LaneOffset, end: LaneOffset) -> Iterator[Piece]:
        """Yield the rows in [start, end), in order."""
        if start.next == end.next:
            return
        low = np.zeros(self._stage.describe.partitions, dtype=np.uint64)
        high = low.copy()
        low[self._owned], high[self._owned] = start.next, end.next
        for slot in range(start.slot, end.slot + 1):
            record = self._record(slot)
            if isinstance(record, Append):
                yield from self._pieces_of(record, slot, low, high)
            elif record is None and slot < end.slot:
                raise CorruptDataError(
                    f"a slot lost its record: {self._log.key(slot)!r} was read before, or stands "
                    "before one that was; run `durable-shuffle verify`"
                )

    def _pieces_of(
        self, record: Append, slot: int, low: np.ndarray, high: np.ndarray
    ) -> Iterator[Piece]:
        def wanted(entries: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
            k, first, rows = (entries[n] for n in ("subpartition", "first_ordinal", "rows"))
            mask: npt.NDArray[np.bool_] = (first + rows > low[k]) & (first < high[k])
            return mask & (rows > 0)  # no markers

        where = self._log.key(slot)
        record.extent_array(where, self._stage.describe.partitions)  # checked
        path = self._stage.path
        for extent in appended_extents(path, self._producer, slot, record, wanted, where):
            k, first = extent.subpartition, extent.first_ordinal
            skip, end = max(0, int(low[k]) - first), min(extent.rows, int(high[k]) - first)
            yield Piece(extent, skip, end)

    def _arrival(self, record: Append, slot: int) -> Arrival:
        where = self._log.key(slot)
        partitions = self._stage.describe.partitions
        entries = record.extent_array(where, partitions)
        rows = np.zeros(partitions, dtype=np.uint64)
        size = rows.copy()
        np.add.at(rows, entries["subpartition"], entries["rows"])
        np.add.at(size, entries["subpartition"], entries["length"])
        ends = record.after.ordinals(len(self._owned), where)
        return Arrival(self._producer, slot, ends, rows[self._owned], size[self._owned])

    def _ordinals(self, record: AppenderRecord, slot: int) -> tuple[int, ...]:
        if isinstance(record, Closed):
            state = read_state(self._stage)
            if state.release is not None:
                raise stage_released(self._stage, state.release)
            raise NotFoundError(
                f"a log was closed before its producer ended: {self._log.key(slot)!r}"
            )
        return tuple(record.after.ordinals(len(self._owned), self._log.key(slot)).tolist())

    def _record(self, slot: int) -> AppenderRecord | None:
        found = self._kept.get(slot)
        if found is None:
            found = appender_log(self._log).record(slot)
            if found is None:
                return None
            self._kept[slot] = found
            while len(self._kept) > _KEPT_RECORDS:
                del self._kept[next(iter(self._kept))]
        return found


def _sealed(stage: StageHandle, seal: Seal, k: int) -> Iterator[Piece]:
    """Yield the rows of one subpartition of a sealed stage, ordered by producer."""
    for entry in read_extents(stage, seal, k):
        extent = indexed_extent(stage.path, k, entry)
        if extent.rows:
            yield Piece(extent, 0, extent.rows)
