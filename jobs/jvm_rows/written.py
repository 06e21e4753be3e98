"""What the encoder in the JVM wrote, as it reaches a Python worker: checked, segment by segment.

The encoder yields pieces of bytes. Each begins with the number of its segment and its kind, two
int32.
- Pieces of kind 0 hold the bytes of a segment's frames, in order, cut anywhere.
- Behind them, one piece of kind 1 has eight bytes, the uncompressed Arrow bytes of the segment's
  columns, and then the packed EXTENT entries, ordered by subpartition.
- The last piece of a task has the kind 2 and the number of segments. Behind that are eight-byte
  numbers: how many rows the task read, and how many of them each subpartition got.

All numbers are little-endian. So a piece that is lost or doubled on the way, or a stream that ends
too soon, is an error before anything is committed.
"""

import hashlib
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.checksum import crc32, frame_seed
from durable_shuffle.serialization.errors import CorruptDataError, DurableShuffleError
from durable_shuffle.serialization.frames import (
    FRAME_HEADER_BYTES,
    FrameKind,
    decode_frame_header,
    padded_length,
)
from durable_shuffle.shuffle.log.extent_table import unpack_extents
from durable_shuffle.shuffle.log.records import SegmentInfo
from durable_shuffle.shuffle.write.segments import Segment

_HEAD = struct.Struct("<ii")
_DATA, _EXTENTS, _TOTALS = range(3)
_NUMBER_BYTES = 8


class JvmSegments:
    """The segments of one map task, in order. Iterate once, to the end.

    Args:
        pieces: see above.
        producer: number of the producer, which is the number of Spark's partition.
        stage_id: 32 hexadecimal digits, for the CRC of each frame.
        partitions: how many subpartitions there are.
        max_frame_bytes: longest frame body.
    """

    def __init__(
        self,
        pieces: Iterable[bytes],
        producer: int,
        stage_id: str,
        partitions: int,
        max_frame_bytes: int,
    ) -> None:
        self._pieces, self._producer, self._stage_id = pieces, producer, stage_id
        self._partitions, self._max_frame_bytes = partitions, max_frame_bytes
        self._number = 0
        self._ended = False
        self.next_ordinals = np.zeros(partitions, dtype=np.uint64)
        """Per subpartition, the ordinal of its next record, which is its number of rows so far."""

    @property
    def rows(self) -> int | None:
        """How many rows the JVM wrote, None before all of them arrived and were checked."""
        return int(self.next_ordinals.sum()) if self._ended else None

    def __iter__(self) -> Iterator[tuple[Segment, int]]:
        """Yield each segment with the uncompressed Arrow bytes of its rows.

        Raises:
            CorruptDataError: rows or bytes are missing, doubled or damaged; nothing may be
                committed.
        """
        parts: list[memoryview] = []
        for piece in self._pieces:
            if self._ended:
                self._lost("more follows the last piece")
            if len(piece) < _HEAD.size:
                self._lost(f"a piece of {len(piece)} bytes")
            number, kind = _HEAD.unpack_from(piece)
            data = memoryview(piece)[_HEAD.size :]
            if number != self._number or kind not in (_DATA, _EXTENTS, _TOTALS):
                self._lost(f"expected segment {self._number}, found {number} of kind {kind}")
            if kind == _DATA:
                parts.append(data)
            elif kind == _EXTENTS:
                yield self._segment(tuple(parts), data)
                parts = []
                self._number += 1
            elif parts:
                self._lost("a segment has no extents")
            else:
                self._check_totals(data)
        if not self._ended:
            self._lost("the last piece is missing")

    def _segment(self, parts: tuple[memoryview, ...], end: memoryview) -> tuple[Segment, int]:
        if end.nbytes < _NUMBER_BYTES:
            self._lost(f"a segment ends in {end.nbytes} bytes")
        memory_bytes = int.from_bytes(end[:_NUMBER_BYTES], "little")
        reader = _Reader(parts)
        length = reader.left
        try:
            packed, name = bytes(end[_NUMBER_BYTES:]), "extents from the JVM"
            extents = unpack_extents(packed, name, partitions=self._partitions)
            self._check_extents(extents, length)
            for entry in extents:
                self._check_frames(entry, reader)
        except DurableShuffleError as error:
            self._lost(str(error), cause=error)
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        info = SegmentInfo(self._number, length, digest.digest())
        return Segment(info, parts, extents), memory_bytes

    def _check_extents(self, extents: npt.NDArray[np.void], size: int) -> None:
        """Check that they cover a segment of `size` bytes, and that the ordinals continue."""
        ks, lengths = extents["subpartition"].astype(np.int64), extents["length"]
        ends = np.cumsum(lengths)
        if (
            not len(extents)
            or int(ends[-1]) != size
            or not np.array_equal(extents["offset"], ends - lengths)
            or (np.diff(ks) <= 0).any()
            or (extents["segment"] != self._number).any()
            or not np.array_equal(extents["first_ordinal"], self.next_ordinals[ks])
        ):
            self._lost(f"the extents do not fit {size} bytes of data")

    def _check_frames(self, entry: np.void, reader: "_Reader") -> None:
        """Check header and CRC of all frames of one extent, and count their rows."""
        k, rows, behind = int(entry["subpartition"]), 0, reader.left - int(entry["length"])
        first, continues = int(entry["first_ordinal"]), False
        while reader.left > behind:
            position = reader.position
            header = decode_frame_header(
                reader.take(FRAME_HEADER_BYTES), position, self._max_frame_bytes
            )
            crc = frame_seed(self._stage_id, self._producer, k, first + rows)
            for piece in reader.pieces(padded_length(header.body_length)):
                crc = crc32(piece, crc)
            continues = bool(header.flags)
            if crc != header.body_crc or header.kind is not FrameKind.ARROW:
                self._lost(f"frame at byte {position} of segment {self._number} is damaged")
            rows += header.rows
        if reader.left != behind or rows != int(entry["rows"]) or continues:
            self._lost(f"subpartition={k} expected={int(entry['rows'])} found={rows}")
        self.next_ordinals[k] += np.uint64(rows)

    def _check_totals(self, data: memoryview) -> None:
        whole = data.nbytes - data.nbytes % _NUMBER_BYTES
        expected = np.frombuffer(data[:whole], dtype="<u8")
        found = [self.next_ordinals.sum(dtype=np.uint64), *self.next_ordinals]
        if not np.array_equal(expected, found):
            counted = int(expected[0]) if len(expected) else None
            self._lost(f"counted={counted} arrived={int(found[0])}")
        self._ended = True

    def _lost(self, what: str, cause: Exception | None = None) -> NoReturn:
        if isinstance(cause, CorruptDataError) and str(cause).startswith(_LOST):
            raise cause
        raise CorruptDataError(
            f"{_LOST}: producer={self._producer} {what}; nothing was committed, run it again"
        ) from cause


_LOST = "rows were lost between Spark's JVM and this worker"


class _Reader:
    """Reads bytes that are given in parts; copies only what lies in several parts."""

    def __init__(self, parts: Iterable[memoryview]) -> None:
        self._parts = deque(parts)
        self.left = sum(part.nbytes for part in self._parts)
        """Bytes not read yet."""
        self.position = 0

    def take(self, size: int) -> bytes | memoryview:
        """Return the next `size` bytes.

        Raises:
            CorruptDataError: fewer are left.
        """
        pieces = list(self.pieces(size))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def pieces(self, size: int) -> Iterator[memoryview]:
        """Yield the next `size` bytes as they lie in the parts."""
        if size > self.left:
            raise CorruptDataError(f"expected {size} bytes at {self.position}, found {self.left}")
        self.left -= size
        self.position += size
        while size:
            part = self._parts.popleft()
            if part.nbytes > size:
                self._parts.appendleft(part[size:])
                part = part[:size]
            size -= part.nbytes
            yield part
