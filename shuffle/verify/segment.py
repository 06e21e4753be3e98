"""Check that a segment holds what its COMMIT states: length, SHA-256, every frame of every extent.

Strategy: read the object whole, or piece by piece if it is long, then walk each extent frame by
frame. A damaged body costs one finding, because its header still says where the next frame
starts. A damaged header ends the walk of its extent; the next extent is walked all the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.serialization.arrow_codec import decode_frame
from durable_shuffle.serialization.checksum import frame_seed
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    DurableShuffleError,
    ErrorKind,
)
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
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.verify.report import Finding, finding_of
from durable_shuffle.shuffle.verify.segment_bytes import StoredBytes, check_bytes


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
        expected, found = f"ordinals up to {last}, exclusive", f"up to {ordinal}"
        at = int(extent["offset"])
        findings.append(Finding(task.key, ErrorKind.CORRUPT_DATA, expected, found, at, length))
    return good, findings


def _measure(task: SegmentTask, data: StoredBytes, start: int, end: int) -> tuple[int, int]:
    """Return (bytes, rows) of the frame at `start`, including the frames that continue it."""
    at = start
    while True:  # ends: every turn passes a header
        header = decode_frame_header(
            _header_bytes(data[at : min(at + FRAME_HEADER_BYTES, end)]), at, task.max_frame_bytes
        )
        at += frame_size(header.body_length)
        if not header.flags & FLAG_CONTINUES:
            return at - start, header.rows


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
