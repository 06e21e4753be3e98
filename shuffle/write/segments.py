"""Segments: a writer gathers batches, and each flush becomes one immutable object.

Strategy: gather up to `writer_memory_bytes`, then stable counting sort by partition id, one `take`,
and slices per subpartition, each cut into frames of about `frame_bytes`; a row over the limit of a
frame continues in the next ones. A segment is built in memory and written as one object, so it is
either complete or absent. Where requests take long, it is on its way while the next one is built.
Keys hold the attempt's random id, so attempts never touch each other's objects. Nothing written
here counts until a record in the producer's log names it.
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.serialization.arrow_checks import MAX_INFLATED_BYTES, bare_bytes, full_bytes
from durable_shuffle.serialization.arrow_codec import arrow_of, iter_slices
from durable_shuffle.serialization.arrow_schemas import storable_batch
from durable_shuffle.serialization.checksum import frame_seed
from durable_shuffle.serialization.errors import DurableShuffleError, InvalidInputError
from durable_shuffle.serialization.frames import MAX_FRAME_BODY_BYTES, FrameKind, record_parts
from durable_shuffle.serialization.markers import Marker, marker_frame
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.base.side_by_side import OneBeside
from durable_shuffle.shuffle.log.appender_log import Begun, Part
from durable_shuffle.shuffle.log.extent_table import EXTENT
from durable_shuffle.shuffle.log.records import SegmentInfo
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.rows.partitioner import counting_sort
from durable_shuffle.shuffle.storage.contract import Bytes, Storage
from durable_shuffle.shuffle.storage.local import is_far


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment ready to be written: its bytes in parts, and where each subpartition is."""

    info: SegmentInfo
    parts: tuple[Bytes, ...]
    extents: npt.NDArray[np.void]
    """EXTENT entries of the subpartitions that have rows or markers here, ordered by subpartition;
    markers have an entry of their own, with rows 0, behind that of the rows."""


class SegmentBuilder:
    """Puts frames one after the other, subpartition by subpartition, ascending.

    Args:
        next_ordinals: per subpartition, the ordinal of its next record; advanced in place.
    """

    def __init__(
        self,
        stage_id: str,
        producer: int,
        number: int,
        next_ordinals: npt.NDArray[np.uint64],
        max_frame_bytes: int,
    ) -> None:
        self._stage_id, self._producer, self._number = stage_id, producer, number
        self._next_ordinals, self._max_frame_bytes = next_ordinals, max_frame_bytes
        self._parts: list[Bytes] = []
        self._extents: list[tuple[int, int, int, int, int, int]] = []
        self._digest = hashlib.sha256()
        self._offset = 0

    def add_records(self, k: int, kind: FrameKind, bodies: Iterable[tuple[Bytes, int]]) -> None:
        """Add frames of subpartition `k`, given each one's body and how many records it holds."""
        begin = self._offset
        first = ordinal = int(self._next_ordinals[k])
        for body, records in bodies:
            seed, most = self._seed(k, ordinal), self._max_frame_bytes
            self._put(record_parts(kind, records, body, seed, max_body_bytes=most))
            ordinal += records
        self._next_ordinals[k] = ordinal
        self._add_extent(k, begin, first, ordinal - first)

    def add_markers(self, k: int, markers: Sequence[Marker]) -> None:
        """Add markers behind the records of subpartition `k`; they take no ordinal."""
        begin, ordinal = self._offset, int(self._next_ordinals[k])
        for marker in markers:
            self._put(marker_frame(marker, self._seed(k, ordinal)))
        self._add_extent(k, begin, ordinal, 0)

    def finish(self) -> Segment:
        info = SegmentInfo(self._number, self._offset, self._digest.digest())
        return Segment(info, tuple(self._parts), np.array(self._extents, dtype=EXTENT))

    def _seed(self, k: int, ordinal: int) -> int:
        return frame_seed(self._stage_id, self._producer, k, ordinal)

    def _put(self, frame: Iterable[Bytes]) -> None:
        for part in frame:
            self._parts.append(part)
            self._digest.update(part)
            self._offset += memoryview(part).nbytes

    def _add_extent(self, k: int, begin: int, first: int, records: int) -> None:
        if length := self._offset - begin:
            self._extents.append((k, self._number, begin, length, first, records))


def build_segment(
    batch: pa.RecordBatch,
    ids: npt.NDArray[np.unsignedinteger],
    *,
    partitions: int,
    number: int,
    stage_id: str,
    producer: int,
    next_ordinals: npt.NDArray[np.uint64],
    compression: str,
    frame_bytes: int,
    max_frame_bytes: int = MAX_FRAME_BODY_BYTES,
    markers: Sequence[Marker] = (),
    marked: Iterable[int] = (),
) -> Segment:
    """Sort `batch` by partition id, if it is not, and encode it; advances `next_ordinals` in place.

    Args:
        ids: one partition id per row, in [0, partitions).
        next_ordinals: per subpartition, the ordinal of its next record.
        markers: stand behind all rows, in this order, in each subpartition of `marked`.
    """
    order, counts = counting_sort(ids, partitions)
    present = np.flatnonzero(counts)
    if len(present) > 1 and (ids[1:] < ids[:-1]).any():
        batch = batch.take(arrow_of(order))
    ends = np.cumsum(counts[present]).tolist()
    slices = list(zip([0, *ends], ends, strict=False))
    cuts = list(_cut(batch, slices, wanted_bytes(frame_bytes, max_frame_bytes)))
    frames_of = dict(zip(present.tolist(), map(len, cuts), strict=True))
    bounds = list(itertools.chain.from_iterable(cuts))
    bodies = zip(iter_slices(batch, bounds, compression), bounds, strict=True)

    builder = SegmentBuilder(stage_id, producer, number, next_ordinals, max_frame_bytes)
    for k in sorted({*frames_of, *marked}) if markers else frames_of:
        mine = itertools.islice(bodies, frames_of.get(k, 0))
        builder.add_records(k, FrameKind.ARROW, ((body, rows) for body, (_, rows) in mine))
        builder.add_markers(k, markers)
    return builder.finish()


def wanted_bytes(frame_bytes: int, max_frame_bytes: int) -> int:
    """Return the size near which frames are cut, so that only a single row is over a limit."""
    return min(frame_bytes, max_frame_bytes // 4, MAX_INFLATED_BYTES // 4)


def _cut(
    batch: pa.RecordBatch, slices: list[tuple[int, int]], wanted: int
) -> Iterator[list[tuple[int, int]]]:
    """Yield the frames of each slice. Small neighbouring slices are measured together."""
    start, end = slices[0][0] if slices else 0, slices[-1][1] if slices else 0
    if full_bytes(batch.slice(start, end - start)) <= wanted:
        yield from ([(low, high - low)] for low, high in slices)
    elif len(slices) == 1:
        yield list(frame_bounds(batch, start, end, wanted))
    else:
        middle = len(slices) // 2
        yield from _cut(batch, slices[:middle], wanted)
        yield from _cut(batch, slices[middle:], wanted)


def frame_bounds(
    batch: pa.RecordBatch, start: int, end: int, wanted: int
) -> Iterator[tuple[int, int]]:
    """Yield (first row, number of rows) of the frames of rows [start, end).

    A frame has at most twice the wanted bytes, unless it is one row, and at least half of them if
    the rows that follow are of about the same size. The first frame is cut by the mean row, later
    ones by the rows at hand.
    """
    rows = end - start
    size = full_bytes(batch.slice(start, rows))
    if size > wanted:
        rows = max(1, int(wanted * rows / size))
    while start < end:
        rows = min(rows, end - start)
        size = full_bytes(batch.slice(start, rows))
        while size > 2 * wanted and rows > 1:
            rows = rows // 2
            size = full_bytes(batch.slice(start, rows))
        while size < wanted // 2 and rows < end - start:
            more = min(2 * rows, end - start)
            size = full_bytes(batch.slice(start, more))
            if size > 2 * wanted:
                break
            rows = more
        yield start, rows
        start += rows


def complete_extents(
    found: list[npt.NDArray[np.void]], expected: npt.NDArray[np.uint32]
) -> npt.NDArray[np.void]:
    """Join the extents of all segments; subpartitions without rows get an explicit empty entry.

    Args:
        expected: the subpartitions that this producer must state, ascending.

    Returns:
        EXTENT entries ordered by (subpartition, first ordinal).
    """
    joined = np.concatenate([*found, np.zeros(0, dtype=EXTENT)])
    missing = np.setdiff1d(expected, joined["subpartition"])
    empty = np.zeros(len(missing), dtype=EXTENT)
    empty["subpartition"] = missing
    everything = np.concatenate([joined, empty])
    return everything[np.lexsort((everything["first_ordinal"], everything["subpartition"]))]


IdBatch = tuple[pa.RecordBatch, npt.NDArray[np.unsignedinteger]]
"""A record batch and the partition id of each of its rows."""


class SegmentWriter:
    """Segments of one attempt. Not thread-safe.

    Args:
        next_ordinals: per subpartition, the ordinal of the next record; advanced in place. None:
            all are 0.
        first_number: of the first segment.
    """

    def __init__(
        self,
        stage: StageHandle,
        producer: int,
        attempt: str,
        settings: Settings,
        *,
        next_ordinals: npt.NDArray[np.uint64] | None = None,
        first_number: int = 0,
    ) -> None:
        self._stage, self._producer, self._attempt = stage, producer, attempt
        self._settings = settings
        self._held: list[IdBatch] = []
        self._held_bytes = 0
        self._number = first_number
        if next_ordinals is None:
            next_ordinals = np.zeros(stage.describe.partitions, dtype=np.uint64)
        self.next_ordinals = next_ordinals
        self.memory_bytes = 0
        """Uncompressed Arrow bytes of all rows so far."""
        self.segments: list[SegmentInfo] = []
        self.extents: list[npt.NDArray[np.void]] = []
        self._keys: list[str] = []
        self._sending = OneBeside() if is_far(stage.storage) else None

    def add(self, batch: pa.RecordBatch, ids: npt.NDArray[np.unsignedinteger]) -> None:
        """Take rows; writes a segment when enough are held."""
        if batch.num_rows == 0:
            return
        self._held.append((batch, ids))
        size = batch.nbytes
        self._held_bytes += max(size + bare_bytes(batch), ids.nbytes)
        self.memory_bytes += size
        if self._held_bytes >= self._settings.writer_memory_bytes:
            self._write(())

    def add_segment(self, segment: Segment, memory_bytes: int) -> None:
        """Write a segment that is encoded already; its ordinals go on from `next_ordinals`.

        Args:
            memory_bytes: uncompressed Arrow bytes of its rows.
        """
        extents = segment.extents
        np.add.at(self.next_ordinals, extents["subpartition"], extents["rows"])
        self.memory_bytes += memory_bytes
        self._store(segment)

    def finish(self, markers: Sequence[Marker] = ()) -> None:
        """Write what is held, and the markers behind it in every subpartition. All is stored."""
        if self._held or markers:
            self._write(markers)
        self._wait()

    def written_keys(self) -> list[str]:
        """Return the keys of all segments that may have reached the storage; none is on its way."""
        with suppress(Exception):  # it may have arrived
            self._wait()
        return self._keys

    def _wait(self) -> None:
        if self._sending is not None:
            self._sending.wait()

    def _write(self, markers: Sequence[Marker]) -> None:
        batch, ids = self._ordered()
        segment = build_segment(
            batch,
            ids,
            partitions=self._stage.describe.partitions,
            number=self._number,
            stage_id=self._stage.path.incarnation,
            producer=self._producer,
            next_ordinals=self.next_ordinals,
            compression=self._stage.describe.compression,
            frame_bytes=self._settings.frame_bytes,
            max_frame_bytes=self._settings.max_frame_bytes,
            markers=markers,
            marked=self._stage.subpartitions_of(self._producer).tolist(),
        )
        self._store(segment)

    def part(self, begun: Begun, number: int = 0) -> Part:
        """Return all that was written, for a record of an appender's log."""
        extents = np.concatenate([*self.extents, np.zeros(0, dtype=EXTENT)])
        rows = int(extents["rows"].sum())
        segments = tuple(self.segments)
        return Part(begun, number, rows, self.memory_bytes, segments, extents.tobytes())

    def _ordered(self) -> IdBatch:
        """Return the held rows by partition, and hold them no more: in memory twice at most."""
        if not self._held:
            return pa.RecordBatch.from_pylist([], self._stage.schema), np.zeros(0, dtype=np.uint16)
        parts = [batch for batch, _ in self._held]
        ids = np.concatenate([ids for _, ids in self._held])
        self._held, self._held_bytes = [], 0
        order, _ = counting_sort(ids, self._stage.describe.partitions)
        if not parts[0].num_columns:  # rows that are nothing but a number
            return pa.concat_batches(parts), ids[order]
        (batch,) = pa.Table.from_batches(parts).take(arrow_of(order)).combine_chunks().to_batches()
        del parts
        pa.default_memory_pool().release_unused()
        return batch, ids[order]

    def _store(self, segment: Segment) -> None:
        key = self._stage.path.segment_key(self._producer, self._attempt, self._number)
        self._wait()  # if that fails, the last key is the one that it was about
        self._keys.append(key)
        put = partial(self._stage.storage.put, key, segment.parts)
        if self._sending is None:
            put()
        else:
            self._sending(put)
        self._number += 1
        self.segments.append(segment.info)
        self.extents.append(segment.extents)


def checked_batches(stage: StageHandle, batches: Iterable[IdBatch]) -> Iterator[IdBatch]:
    """Yield the batches as they can be stored.

    Raises:
        InvalidInputError: not one partition id per row, one out of range, or another schema.
    """
    for batch, ids in batches:
        if len(ids) != batch.num_rows:
            raise InvalidInputError(
                f"one partition id per row is needed: rows={batch.num_rows} ids={len(ids)} "
                f"stage={stage.path.name!r}"
            )
        if len(ids) and int(ids.max()) >= stage.describe.partitions:
            raise InvalidInputError(
                f"partition id out of range: found={int(ids.max())} "
                f"partitions={stage.describe.partitions} stage={stage.path.name!r}"
            )
        yield storable_batch(batch, stage.schema), ids


def give_back(storage: Storage, keys: list[str]) -> None:
    """Delete segments that can never count, as far as the storage allows."""
    # orphans cost space, not correctness, and must not hide why the caller stops; gc finds them
    with suppress(DurableShuffleError):
        storage.delete(keys)
