"""A producer of key-value pairs: Python objects in, one COMMIT out.

Strategy: pairs are taken in chunks, put in order by partition in numpy, and packed slice by slice,
so that the cost in Python is per chunk and partition, not per pair. The size of a chunk follows the
size of its pairs. Packed bytes are held up to `writer_memory_bytes`, then written as one segment.
"""

import hashlib
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.checksum import frame_seed
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.serialization.frames import FrameKind, record_parts
from durable_shuffle.serialization.markers import Marker
from durable_shuffle.serialization.msgpack_codec import Pair, pack_pairs, pairs_body
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.records import EXTENT, SegmentInfo
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.rows.partitioner import counting_sort
from durable_shuffle.shuffle.storage.contract import Bytes
from durable_shuffle.shuffle.write.producer import ProducerResult, run_writer
from durable_shuffle.shuffle.write.segment_writer import SegmentWriter
from durable_shuffle.shuffle.write.segments import Segment

OBJECT_FRAME_BYTES = 1 << 20
"""A frame of objects is cut near this many bytes: a reader holds a frame's objects all at once."""

_FIRST_CHUNK = 256
_MOST_PAIRS = 65_536
_CHUNK_BYTES = 4 << 20

KeyPartitions = Callable[[list[Any]], npt.NDArray[np.unsignedinteger]]
"""Partition ids, uint16 or uint32, of a list of keys."""


class PairWriter(SegmentWriter):
    """Packed pairs of one attempt, by subpartition."""

    def __init__(
        self,
        stage: StageHandle,
        producer: int,
        attempt: str,
        settings: Settings,
        *,
        next_ordinals: npt.NDArray[np.uint64],
    ) -> None:
        super().__init__(stage, producer, attempt, settings, next_ordinals=next_ordinals)
        self._packed: dict[int, list[tuple[bytes, int]]] = {}

    def add_pairs(self, pairs: list[Pair], ids: npt.NDArray[np.unsignedinteger]) -> int:
        """Take pairs with their partition ids; return how many bytes they took."""
        order, counts = counting_sort(ids, self._stage.describe.partitions)
        ordered = np.fromiter(pairs, dtype=object, count=len(pairs))[order].tolist()
        start, size = 0, 0
        for k in np.flatnonzero(counts).tolist():
            end = start + int(counts[k])
            packed = list(_packed(ordered[start:end]))
            self._packed.setdefault(k, []).extend(packed)
            size += sum(len(data) for data, _ in packed)
            start = end
        self.memory_bytes += size
        self._held_bytes += size
        if self._held_bytes >= self._settings.writer_memory_bytes:
            self._write(())
        return size

    def finish(self, markers: Sequence[Marker] = ()) -> None:
        """Write what is held."""
        if self._packed:
            self._write(markers)

    def _write(self, markers: Sequence[Marker]) -> None:
        assert not markers  # only producers that are followed write them
        parts: list[Bytes] = []
        extents = []
        digest = hashlib.sha256()
        offset = 0
        for k in sorted(self._packed):
            begin, ordinal = offset, int(self.next_ordinals[k])
            first = ordinal
            for body, pairs in _bodies(self._packed[k]):
                seed = frame_seed(self._stage.path.incarnation, self._producer, k, ordinal)
                limit = self._settings.max_frame_bytes
                for part in record_parts(
                    FrameKind.MSGPACK, pairs, body, seed, max_body_bytes=limit
                ):
                    parts.append(part)
                    digest.update(part)
                    offset += memoryview(part).nbytes
                ordinal += pairs
            extents.append((k, self._number, begin, offset - begin, first, ordinal - first))
            self.next_ordinals[k] = ordinal
        self._packed, self._held_bytes = {}, 0
        info = SegmentInfo(self._number, offset, digest.digest())
        self._store(Segment(info, tuple(parts), np.array(extents, dtype=EXTENT)))


def _packed(pairs: list[Pair]) -> Iterator[tuple[bytes, int]]:
    """Pack pairs, in halves as long as they are too many for one frame."""
    data = pack_pairs(pairs)
    if len(data) <= 4 * _CHUNK_BYTES or len(pairs) == 1:
        yield data, len(pairs)
        return
    del data
    middle = len(pairs) // 2
    yield from _packed(pairs[:middle])
    yield from _packed(pairs[middle:])


def _bodies(parts: list[tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
    """Join packed slices to bodies of about OBJECT_FRAME_BYTES, each with its pairs."""
    held: list[bytes] = []
    size = pairs = 0
    for packed, count in parts:
        held.append(packed)
        size, pairs = size + len(packed), pairs + count
        if size >= OBJECT_FRAME_BYTES:
            yield pairs_body(held, pairs), pairs
            held, size, pairs = [], 0, 0
    if held:
        yield pairs_body(held, pairs), pairs


def run_pair_producer(
    stage: StageHandle,
    producer: int,
    pairs: Iterable[Pair],
    key_partitions: KeyPartitions,
    *,
    attempt: str,
    producers: int,
    settings: Settings,
) -> ProducerResult:
    """Write one producer's pairs and commit them, unless it is committed already.

    Args:
        pairs: read only if no COMMIT counts.

    Raises:
        InvalidInputError: an item is no pair, or holds what cannot be stored.
        and what `producer.run_producer` raises.
    """

    def begin(ordinals: npt.NDArray[np.uint64]) -> PairWriter:
        return PairWriter(stage, producer, attempt, settings, next_ordinals=ordinals)

    def fill(writer: PairWriter) -> None:
        left, size = iter(pairs), _FIRST_CHUNK
        while chunk := list(itertools.islice(left, size)):
            _check_pairs(chunk)
            ids = key_partitions(list(map(operator.itemgetter(0), chunk)))
            taken = writer.add_pairs(chunk, ids)
            wanted = int(_CHUNK_BYTES * len(chunk) / max(1, taken))
            size = max(1, min(_MOST_PAIRS, 4 * size, wanted))

    return run_writer(stage, producer, begin, fill, attempt=attempt, producers=producers)


def _check_pairs(chunk: list[Any]) -> None:
    kinds = set(map(type, chunk))
    if kinds == {tuple} and set(map(len, chunk)) == {2}:
        return
    for item in chunk:
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise InvalidInputError(
                f"items must be (key, value) pairs, found {type(item).__name__}: make them pairs "
                "with a map() first"
            )
