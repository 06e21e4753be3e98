"""What a stage holds for a stream reader: its end, its earliest row, what is between offsets.

Strategy: the logs of log producers are read slot by slot from where an offset says; the end alone
takes a few requests, however long the log is. A sealed stage is one record that never grows.
Pieces are whole extents with the rows of them that are wanted, so a task that reads them asks no
log. Nothing is listed.

The reading process keeps the newest records; everything else is read again when it is asked for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from durable_shuffle.serialization.errors import CorruptDataError, NotFoundError
from durable_shuffle.shuffle.log_producer_log import decode
from durable_shuffle.shuffle.log_producer_records import (
    Append,
    LogProducerRecord,
    parts_of,
)
from durable_shuffle.shuffle.records import Closed
from durable_shuffle.shuffle.release_upto import unpack_upto
from durable_shuffle.shuffle.run_log import newest_schema, read_tail
from durable_shuffle.shuffle.sealed_reader import read_extents
from durable_shuffle.shuffle.stage import StageHandle, read_state, stage_released
from durable_shuffle.shuffle.stream_offset import Arrival, LaneOffset, StreamOffset

_KEPT_RECORDS = 256


@dataclass(frozen=True, slots=True)
class Piece:
    """An extent, and the rows [skip, end) of it that are wanted."""

    subpartition: int
    producer: int
    key: str
    offset: int
    length: int
    seeded: int
    """Ordinal of its first row in its writer's count: what its frames' seeds start at."""
    rows: int
    schema: bytes
    skip: int
    end: int


class Lane(Protocol):
    """One growing sequence of rows per subpartition."""

    subpartitions: tuple[int, ...]

    def latest(self, hint: int) -> LaneOffset:
        """Return the end as it is now."""

    def earliest(self) -> LaneOffset:
        """Return where the first row that was not released stands."""

    def arrivals(self, slot: int) -> Iterator[Arrival]:
        """Yield what came from `slot` on, up to the end."""

    def pieces(self, start: LaneOffset, end: LaneOffset) -> Iterator[Piece]:
        """Yield the rows in [start, end), in order."""

    def schema(self) -> bytes:
        """Return the schema message of the newest rows."""


class StageScan:
    """All lanes of one stage. Not thread-safe; belongs to one reading process."""

    def __init__(self, stage: StageHandle) -> None:
        self.stage = stage
        state = read_state(stage)
        if state.release is not None:
            raise stage_released(stage, state.release)
        self.sealed = state.seal is not None
        describe = stage.describe
        if state.seal is not None:
            self.lanes: Sequence[Lane] = [_SealedLane(stage)]
        elif describe.writing == "log":
            upto = unpack_upto(state.upto, describe.producers)
            self.lanes = [_LogLane(stage, p, upto[p], n) for n, p in enumerate(range(len(upto)))]
        else:
            raise NotFoundError(
                f"the stage is still being written: {stage.path.prefix!r}; its producers have not "
                "all committed"
            )

    @property
    def widths(self) -> tuple[int, ...]:
        """How many subpartitions each lane has."""
        return tuple(len(lane.subpartitions) for lane in self.lanes)

    def earliest(self) -> StreamOffset:
        return self._offset([lane.earliest() for lane in self.lanes])

    def latest(self, start: StreamOffset | None = None) -> StreamOffset:
        """Return the end as it is now; `start` saves requests."""
        hints = [at.slot for at in start.lanes] if start else [0] * len(self.lanes)
        return self._offset([ln.latest(h) for ln, h in zip(self.lanes, hints, strict=True)])

    def arrivals(self, start: StreamOffset) -> Iterator[Arrival]:
        """Yield what came from `start` on; lanes take turns."""
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
        """Return the rows in [start, end), by subpartition, each one's in order."""
        found = [
            piece
            for lane, low, high in zip(self.lanes, start.lanes, end.lanes, strict=True)
            for piece in lane.pieces(low, high)
        ]
        return sorted(found, key=lambda piece: piece.subpartition)

    def check_not_released(self, start: StreamOffset) -> None:
        """Refuse to read rows that were released.

        Raises:
            NotFoundError: names the earliest offset that there is.
        """
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


class _LogLane:
    """One log producer."""

    def __init__(self, stage: StageHandle, producer: int, upto: int, number: int) -> None:
        self._stage, self._producer, self._number = stage, producer, number
        self._log = stage.producer_log(producer)
        owned = stage.subpartitions_of(producer)
        self.subpartitions = tuple(owned.tolist())
        self._owned = owned
        self._upto = upto
        self._kept: dict[int, LogProducerRecord] = {}

    def schema(self) -> bytes:
        return newest_schema(self._stage, self._producer, read_tail(self._log))

    def latest(self, hint: int) -> LaneOffset:
        tail = read_tail(self._log, hint)
        if tail.last is None:
            return LaneOffset(0, (0,) * len(self.subpartitions))
        return LaneOffset(tail.next_slot, self._ordinals(tail.last, tail.next_slot - 1))

    def earliest(self) -> LaneOffset:
        state = read_state(self._stage)
        if state.release is not None:
            raise stage_released(self._stage, state.release)
        self._upto = unpack_upto(state.upto, self._stage.describe.producers)[self._producer]
        if not self._upto:
            return LaneOffset(0, (0,) * len(self.subpartitions))
        record = self._record(self._upto - 1)
        if record is None:
            raise CorruptDataError(f"a slot lost its record: {self._log.key(self._upto - 1)!r}")
        return LaneOffset(self._upto, self._ordinals(record, self._upto - 1))

    def arrivals(self, slot: int) -> Iterator[Arrival]:
        while (record := self._record(slot)) is not None:
            if isinstance(record, Append):
                yield self._arrival(record, slot)
            elif isinstance(record, Closed):
                return
            slot += 1

    def pieces(self, start: LaneOffset, end: LaneOffset) -> Iterator[Piece]:
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
                raise NotFoundError(
                    f"records were read of a log that is gone: {self._log.prefix!r}"
                )

    def _pieces_of(
        self, record: Append, slot: int, low: np.ndarray, high: np.ndarray
    ) -> Iterator[Piece]:
        where = self._log.key(slot)
        entries = record.extent_array(where)
        shifts, schema = parts_of(record, len(entries), where)
        k = entries["subpartition"]
        wanted = (entries["first_ordinal"] + entries["rows"] > low[k]) & (
            entries["first_ordinal"] < high[k]
        )
        for (k, number, offset, length, first, rows), shift in zip(
            entries[wanted].tolist(), shifts[wanted].tolist(), strict=True
        ):
            if rows == 0:
                continue  # a marker
            key = self._stage.path.segment_key(self._producer, record.record_id, number)
            yield Piece(
                k,
                self._producer,
                key,
                offset,
                length,
                (first + shift) % 2**64,
                rows,
                schema or self._stage.describe.schema,
                max(0, int(low[k]) - first),
                min(rows, int(high[k]) - first),
            )

    def _arrival(self, record: Append, slot: int) -> Arrival:
        where = self._log.key(slot)
        entries = record.extent_array(where)
        partitions = self._stage.describe.partitions
        rows = np.zeros(partitions, dtype=np.uint64)
        size = rows.copy()
        np.add.at(rows, entries["subpartition"], entries["rows"])
        np.add.at(size, entries["subpartition"], entries["length"])
        ends = record.progress.ordinals(len(self._owned), where)
        return Arrival(self._number, slot, ends, rows[self._owned], size[self._owned])

    def _ordinals(self, record: LogProducerRecord, slot: int) -> tuple[int, ...]:
        if isinstance(record, Closed):
            state = read_state(self._stage)
            if state.release is not None:
                raise stage_released(self._stage, state.release)
            raise NotFoundError(
                f"a log was closed before its producer ended: {self._log.key(slot)!r}"
            )
        return tuple(record.progress.ordinals(len(self._owned), self._log.key(slot)).tolist())

    def _record(self, slot: int) -> LogProducerRecord | None:
        found = self._kept.get(slot)
        if found is None:
            data = self._log.read(slot)
            if data is None:
                return None
            found = self._kept[slot] = decode(self._log, slot, data)
            while len(self._kept) > _KEPT_RECORDS:
                del self._kept[next(iter(self._kept))]
        return found


class _SealedLane:
    """A sealed stage: its rows in the order of producers, as one record in slot 0."""

    def __init__(self, stage: StageHandle) -> None:
        self._stage = stage
        self.subpartitions = tuple(range(stage.describe.partitions))
        self._entries: list[np.ndarray] | None = None
        self._seal = read_state(stage).seal

    def schema(self) -> bytes:
        return self._stage.describe.schema

    def latest(self, hint: int) -> LaneOffset:
        del hint
        return LaneOffset(1, tuple(int(e["rows"].sum()) for e in self._loaded()))

    def earliest(self) -> LaneOffset:
        return LaneOffset(0, (0,) * len(self.subpartitions))

    def arrivals(self, slot: int) -> Iterator[Arrival]:
        if slot:
            return
        rows = np.array([e["rows"].sum() for e in self._loaded()], dtype=np.uint64)
        size = np.array([e["length"].sum() for e in self._loaded()], dtype=np.uint64)
        yield Arrival(0, 0, rows, rows, size)

    def pieces(self, start: LaneOffset, end: LaneOffset) -> Iterator[Piece]:
        for k, entries in enumerate(self._loaded()):
            at = 0
            for entry in entries:
                rows = int(entry["rows"])
                first, at = at, at + rows
                skip, last = max(0, start.next[k] - first), min(rows, end.next[k] - first)
                if skip >= last:
                    continue
                producer = int(entry["producer"])
                key = self._stage.path.extent_key(
                    producer, bytes(entry["attempt"]).hex(), int(entry["segment"])
                )
                yield Piece(
                    k,
                    producer,
                    key,
                    int(entry["offset"]),
                    int(entry["length"]),
                    int(entry["first_ordinal"]),
                    rows,
                    self._stage.describe.schema,
                    skip,
                    last,
                )

    def _loaded(self) -> list[np.ndarray]:
        if self._entries is None:
            seal = self._seal
            assert seal is not None
            self._entries = [read_extents(self._stage, seal, k) for k in self.subpartitions]
        return self._entries
