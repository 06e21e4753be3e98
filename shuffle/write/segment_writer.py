"""What both kinds of producer share: gather batches, write segments, remember where all stands.

Strategy: gather up to `writer_memory_bytes`, then write one segment. Keys hold the attempt's random
id, so attempts never touch each other's objects. Nothing written here counts until a record in the
producer's log names it.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.serialization.arrow_checks import bare_bytes
from durable_shuffle.serialization.arrow_codec import arrow_of
from durable_shuffle.serialization.arrow_schemas import storable_batch
from durable_shuffle.serialization.errors import DurableShuffleError, InvalidInputError
from durable_shuffle.serialization.markers import Marker
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.appender_log import Begun, Part
from durable_shuffle.shuffle.log.records import EXTENT, SegmentInfo
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.rows.partitioner import counting_sort
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.write.segments import Segment, build_segment

IdBatch = tuple[pa.RecordBatch, npt.NDArray[np.unsignedinteger]]
"""A record batch and the partition id of each of its rows."""


class SegmentWriter:
    """Segments of one attempt. Not thread-safe.

    Args:
        next_ordinals: per subpartition, the ordinal of the next record; advanced in place.
        first_number: of the first segment.
    """

    def __init__(
        self,
        stage: StageHandle,
        producer: int,
        attempt: str,
        settings: Settings,
        *,
        next_ordinals: npt.NDArray[np.uint64],
        first_number: int = 0,
    ) -> None:
        self._stage, self._producer, self._attempt = stage, producer, attempt
        self._settings = settings
        self._held: list[IdBatch] = []
        self._held_bytes = 0
        self._number = first_number
        self.next_ordinals = next_ordinals
        self.memory_bytes = 0
        """Uncompressed Arrow bytes of all rows so far."""
        self.segments: list[SegmentInfo] = []
        self.extents: list[npt.NDArray[np.void]] = []
        self.written_keys: list[str] = []
        """Of all segments that may have reached the storage."""

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

    def finish(self, markers: Sequence[Marker] = ()) -> None:
        """Write what is held, and the markers behind it in every subpartition."""
        if self._held or markers:
            self._write(markers)

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
        """Return the held rows by partition, and hold them no more.

        They are taken out of their pieces, so that they are in memory twice at most.
        """
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
        self.written_keys.append(key)
        self._stage.storage.put(key, segment.parts)
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
    """Delete segments that can never count, as far as the storage lets us."""
    # orphans cost space, not correctness, and must not hide why we stop; a cleaner finds them
    with suppress(DurableShuffleError):
        storage.delete(keys)
