"""Check that a segment holds what its COMMIT states: length, SHA-256, every frame of every extent.

Strategy: read the object whole, or piece by piece if it is long, then walk each extent frame by
frame. A damaged body costs one finding, because its header still says where the next frame
starts. A damaged header ends the walk of its extent; the next extent is walked all the same.

A record states an object's length, which may be forged: a sparse file of any length takes no space.
So an object over WHOLE_BYTES is read twice, a piece at a time: for its SHA-256 and for its frames.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.serialization.arrow_codec import decode_frame
from durable_shuffle.serialization.checksum import frame_seed
from durable_shuffle.serialization.errors import CorruptDataError, DurableShuffleError
from durable_shuffle.serialization.frame_decoder import NEED_DATA, FrameDecoder, NeedData
from durable_shuffle.serialization.frames import (
    FLAG_CONTINUES,
    FRAME_HEADER_BYTES,
    Frame,
    FrameKind,
    decode_frame_header,
    frame_size,
)
from durable_shuffle.serialization.markers import decode_marker
from durable_shuffle.serialization.msgpack_codec import unpack_pairs
from durable_shuffle.shuffle.log.records import SegmentInfo
from durable_shuffle.shuffle.read.extents import shifted
from durable_shuffle.shuffle.storage.contract import MOST_BYTES, Storage
from durable_shuffle.shuffle.storage.range_plan import PIECE_BYTES
from durable_shuffle.shuffle.verify.report import Finding, damage, finding_of

WHOLE_BYTES = 256 << 20
"""An object of at most this many bytes is read with one request and held whole."""
_SEGMENTS_AT_ONCE = 4
"""A segment of up to WHOLE_BYTES is held whole in memory: with default settings these are at most
about 256 MiB together."""


class StoredBytes:
    """Bytes [0, length) of an object: held whole if they are few, else one piece at a time.

    A slice that is longer than a piece is read and held whole.

    Raises:
        DurableShuffleError: what reading the object raises, also later.
    """

    def __init__(self, storage: Storage, key: str, length: int) -> None:
        self.key = key
        self._storage, self._length = storage, length
        self._start, self._held = 0, memoryview(b"")
        self.size = length
        """Length of the object. Of a longer one than WHOLE_BYTES it is not known, and it counts as
        as long as stated."""
        if length <= WHOLE_BYTES:
            self._held = memoryview(storage.read(key, max(length, MOST_BYTES)))
            self.size = len(self._held)
            self._length = min(length, self.size)

    def __len__(self) -> int:
        """Return the stated length, or that of the object if the object is short and shorter."""
        return self._length

    def __getitem__(self, wanted: slice) -> memoryview:
        start, end, _ = wanted.indices(self._length)
        if not self._start <= start <= end <= self._start + len(self._held):
            length = max(end - start, min(PIECE_BYTES, self._length - start))
            self._held = memoryview(b"")
            self._held = self._storage.read_range(self.key, start, length)
            self._start = start
        return self._held[start - self._start : end - self._start]

    def pieces(self, start: int, end: int) -> Iterator[memoryview]:
        """Yield bytes [start, end) in pieces of at most PIECE_BYTES."""
        for offset in range(start, end, PIECE_BYTES):
            yield self[offset : min(offset + PIECE_BYTES, end)]

    def goes_on(self) -> bool:
        """Return whether the object is longer than stated."""
        if self.size > self._length or self._length <= WHOLE_BYTES:
            return self.size > self._length
        try:
            self._storage.read_range(self.key, self._length, 1)
        except CorruptDataError:
            return False
        return True

    def digest(self) -> bytes:
        """Return the SHA-256 of all bytes."""
        digest = hashlib.sha256()
        for piece in self.pieces(0, self._length):
            digest.update(piece)
        return digest.digest()


def check_bytes(data: StoredBytes, length: int, sha256: bytes) -> list[Finding]:
    """Return what differs between the object and the length and SHA-256 that a record states.

    Raises:
        DurableShuffleError: what reading the object raises.
    """
    findings = list[Finding]()
    size = data.size
    if size == length and data.goes_on():
        expected, actual = f"{length} bytes", f"at least {length + 1} bytes"
        findings.append(damage(data.key, expected, actual, length, 1))
    if size != length:
        start, end = sorted((size, length))
        expected, actual = f"{length} bytes", f"{size} bytes"
        findings.append(damage(data.key, expected, actual, start, end - start))
    if size >= length and (digest := data.digest()) != sha256:
        expected, actual = f"SHA-256 {sha256.hex()}", digest.hex()
        findings.append(damage(data.key, expected, actual, 0, length))
    return findings


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """One segment to check. If `schema` is None, rows are not decoded."""

    key: str
    incarnation: str
    producer: int
    info: SegmentInfo
    extents: npt.NDArray[np.void]
    """The EXTENT entries of this segment that are not empty."""
    schema: pa.Schema | None
    max_frame_bytes: int
    kind: FrameKind = FrameKind.ARROW
    shifts: tuple[int, ...] = ()
    """`Extent.shift` of each entry; () if all are 0."""


@dataclass(frozen=True, slots=True)
class SegmentCheck:
    """The result of checking one segment."""

    rows: int
    """Rows of intact frames."""
    objects: int
    checked_bytes: int
    findings: tuple[Finding, ...]


def check_segments(
    storage: Storage, tasks: Iterable[SegmentTask]
) -> Iterator[tuple[SegmentTask, SegmentCheck]]:
    """Check segments, a few at a time, and yield each with its result, in order."""
    waiting = deque[tuple[SegmentTask, Future[SegmentCheck]]]()
    with ThreadPoolExecutor(_SEGMENTS_AT_ONCE) as pool:
        try:
            for task in tasks:
                waiting.append((task, pool.submit(check_segment, storage, task)))
                if len(waiting) > 2 * _SEGMENTS_AT_ONCE:
                    task, future = waiting.popleft()
                    yield task, future.result()
            for task, future in waiting:
                yield task, future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def check_segment(storage: Storage, task: SegmentTask) -> SegmentCheck:
    """Read one segment and check every byte of it."""
    key, length = task.key, task.info.length
    try:
        data = StoredBytes(storage, key, length)
        findings = check_bytes(data, length, task.info.sha256)
        rows = _check_extents(task, data, findings)
    except DurableShuffleError as error:
        return SegmentCheck(0, 0, 0, (finding_of(error, key, f"a segment of {length} bytes"),))
    return SegmentCheck(rows, 1, data.size, tuple(findings))


def _check_extents(task: SegmentTask, data: StoredBytes, findings: list[Finding]) -> int:
    """Check all extents, add to `findings`, and return the number of rows of intact frames."""
    rows = 0
    shifts = task.shifts or (0,) * len(task.extents)
    for extent, shift in zip(task.extents, shifts, strict=True):
        good, bad = _check_extent(task, extent, shift, data)
        rows += good
        findings.extend(bad)
    return rows


def _check_extent(
    task: SegmentTask, extent: np.void, shift: int, data: StoredBytes
) -> tuple[int, list[Finding]]:
    """Return (rows of intact frames, findings) of one extent."""
    start, length = int(extent["offset"]), int(extent["length"])
    ordinal, rows = int(extent["first_ordinal"]), int(extent["rows"])
    last = ordinal + rows
    if start + length > len(data):
        return 0, []  # the length of the segment is a finding already
    findings: list[Finding] = []
    good, end = 0, start + length
    while start < end:
        try:
            size, frame_rows = _measure(task, data, start, end)
        except DurableShuffleError as error:
            expected = f"a frame of subpartition {int(extent['subpartition'])}"
            findings.append(finding_of(error, task.key, expected, start=start, length=end - start))
            return good, findings
        try:
            seeded = shifted(ordinal, shift)
            parts = data.pieces(start, min(start + size, end))
            good += _check_frame(task, int(extent["subpartition"]), seeded, parts)
        except DurableShuffleError as error:
            expected = f"a frame with first ordinal {ordinal}"
            size = min(size, end - start)
            findings.append(finding_of(error, task.key, expected, start=start, length=size))
        start, ordinal = start + size, ordinal + frame_rows
    if ordinal != last:
        expected, actual = f"ordinals up to {last}, exclusive", f"up to {ordinal}"
        begin = int(extent["offset"])
        findings.append(damage(task.key, expected, actual, begin, length))
    return good, findings


def _measure(task: SegmentTask, data: StoredBytes, start: int, end: int) -> tuple[int, int]:
    """Return (bytes, rows) of the frame at `start`, including the frames that continue it."""
    position = start
    while True:  # ends: every turn passes a header
        header = decode_frame_header(
            _header_bytes(data[position : min(position + FRAME_HEADER_BYTES, end)]),
            position,
            task.max_frame_bytes,
        )
        position += frame_size(header.body_length)
        if not header.flags & FLAG_CONTINUES:
            return position - start, header.rows


def _header_bytes(data: memoryview) -> memoryview:
    if len(data) < FRAME_HEADER_BYTES:
        raise CorruptDataError(
            f"a frame header of {FRAME_HEADER_BYTES} bytes: {len(data)} bytes are left"
        )
    return data[:FRAME_HEADER_BYTES]


def _check_frame(
    task: SegmentTask, subpartition: int, ordinal: int, parts: Iterator[memoryview]
) -> int:
    """Check the frame whose bytes are `parts` and return its number of rows.

    Offsets in error messages count from the start of the frame.
    """

    def seed(first: int) -> int:
        return frame_seed(task.incarnation, task.producer, subpartition, first)

    decoder = FrameDecoder(seed, first_ordinal=ordinal, max_body_bytes=task.max_frame_bytes)
    frame: Frame | NeedData = NEED_DATA
    for part in parts:
        decoder.feed(part)
        if (frame := decoder.next_record()) is not NEED_DATA:
            break
    if frame is NEED_DATA:
        decoder.end()
    assert isinstance(frame, Frame)  # `end` raises while bytes are left
    if frame.kind is FrameKind.MARKER and frame.rows == 0:
        decode_marker(frame.body, name=task.key)
        return 0
    if frame.kind is not task.kind:
        raise CorruptDataError(
            f"a frame of kind {frame.kind.name} flags={frame.flags} in a stage of {task.kind.name} "
            "frames"
        )
    if task.kind is FrameKind.MSGPACK:
        unpack_pairs(frame.body, frame.rows)
    elif task.schema is not None:
        decode_frame(frame, task.schema, position=0)
    return frame.rows
