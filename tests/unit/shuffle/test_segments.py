"""One flush: rows sorted stably by subpartition, cut into frames, described by extents."""

import hashlib
import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.log.extent_table import EXTENT
from durable_shuffle.shuffle.write.segments import Segment, build_segment, complete_extents

STAGE = "5" * 32


def build(
    values: list[int],
    ids: list[int],
    *,
    partitions: int = 4,
    compression: str = "none",
    frame_bytes: int = 1 << 20,
    ordinals: np.ndarray | None = None,
    dtype: type = np.uint16,
) -> Segment:
    """Build segment 2 of producer 7 from a column of integers."""
    return build_segment(
        pa.record_batch([pa.array(values, pa.int64())], names=["x"]),
        np.array(ids, dtype),
        partitions=partitions,
        number=2,
        stage_id=STAGE,
        producer=7,
        next_ordinals=np.zeros(partitions, np.uint64) if ordinals is None else ordinals,
        compression=compression,
        frame_bytes=frame_bytes,
    )


def frames_in(data: bytes, subpartition: int, ordinal: int) -> list[list[int]]:
    """Values per frame, decoded by hand: header, CRCs with their seed, an Arrow message."""
    frames, at = [], 0
    schema = pa.schema([("x", pa.int64())])
    while at < len(data):
        header = data[at : at + 24]
        _, kind, _, _, rows, length, body_crc = struct.unpack("<IBBHIII", header[:20])
        assert struct.unpack("<I", header[20:]) == (zlib.crc32(header[:20]),)
        padded = data[at + 24 : at + 24 + length + -length % 8]
        address = struct.pack("<16sIIQ", bytes.fromhex(STAGE), 7, subpartition, ordinal)
        assert zlib.crc32(padded, zlib.crc32(address)) == body_crc
        message = pa.ipc.read_message(pa.py_buffer(padded[:length]))
        batch = pa.ipc.read_record_batch(message, schema)
        assert (kind, batch.num_rows) == (1, rows)
        frames.append(batch.column(0).to_pylist())
        ordinal += rows
        at += 24 + len(padded)
    return frames


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_rows_are_grouped_in_order_and_addressed(compression: str, dtype: type) -> None:
    """Each extent holds exactly its subpartition's rows, in order, under their own checksum."""
    ordinals = np.array([10, 0, 5, 0], np.uint64)
    ids = [2, 0, 2, 0, 3, 2]
    segment = build(
        [10, 11, 12, 13, 14, 15], ids, compression=compression, ordinals=ordinals, dtype=dtype
    )
    data = b"".join(bytes(p) for p in segment.parts)
    expected = {0: ([11, 13], 10), 2: ([10, 12, 15], 5), 3: ([14], 0)}
    assert segment.extents["subpartition"].tolist() == [0, 2, 3]
    end = 0
    for k, _, offset, length, first, rows in segment.extents.tolist():
        assert offset == end
        assert (rows, first) == (len(expected[k][0]), expected[k][1])
        found = frames_in(data[offset : offset + length], k, first)
        assert [v for frame in found for v in frame] == expected[k][0]
        end = offset + length
    assert end == len(data) == segment.info.length
    assert segment.info.sha256 == hashlib.sha256(data).digest()
    assert segment.info.number == 2
    assert set(segment.extents["segment"].tolist()) == {2}
    assert ordinals.tolist() == [12, 0, 8, 1]


def test_a_slice_is_cut_into_frames_near_the_limit() -> None:
    """1,000 rows of 8 bytes, frames of 1,024 bytes: 128 rows per frame, the rest in the last."""
    segment = build(list(range(1000)), [1] * 1000, frame_bytes=1024)
    data = b"".join(bytes(p) for p in segment.parts)
    frames = frames_in(data, 1, 0)
    assert [len(f) for f in frames] == [128] * 7 + [104]
    assert [v for f in frames for v in f] == list(range(1000))


def test_one_large_row_still_makes_a_frame() -> None:
    """The limit is an aim: a frame holds at least one row."""
    segment = build_segment(
        pa.record_batch([["x" * 5000] * 3], names=["x"]),
        np.zeros(3, np.uint16),
        partitions=1,
        number=0,
        stage_id=STAGE,
        producer=0,
        next_ordinals=np.zeros(1, np.uint64),
        compression="none",
        frame_bytes=1024,
    )
    headers = [bytes(p) for p in segment.parts if bytes(p[:4]) == b"\x89DSF"]
    assert [struct.unpack_from("<I", h, 8)[0] for h in headers] == [1, 1, 1]


@pytest.mark.parametrize(
    ("ids", "dtype", "compression"),
    [([4], np.uint16, "none"), ([0], np.int64, "none"), ([0], np.uint16, "gzip")],
)
def test_bad_input_is_refused(ids: list[int], dtype: type, compression: str) -> None:
    """An id out of range, signed ids, an unknown compression."""
    with pytest.raises(InvalidInputError):
        build([1], ids, dtype=dtype, compression=compression)


def test_subpartitions_without_rows_get_an_explicit_entry() -> None:
    """One entry with 0 rows and 0 bytes each, and all are in order of (subpartition, ordinal)."""
    first = np.array([(2, 0, 0, 8, 0, 3), (5, 0, 8, 8, 0, 1)], dtype=EXTENT)
    second = np.array([(2, 1, 0, 8, 3, 2)], dtype=EXTENT)
    expected = np.arange(7, dtype=np.uint32)
    found = complete_extents([second, first], expected)
    assert found.tolist() == [
        (0, 0, 0, 0, 0, 0),
        (1, 0, 0, 0, 0, 0),
        (2, 0, 0, 8, 0, 3),
        (2, 1, 0, 8, 3, 2),
        (3, 0, 0, 0, 0, 0),
        (4, 0, 0, 0, 0, 0),
        (5, 0, 8, 8, 0, 1),
        (6, 0, 0, 0, 0, 0),
    ]


def test_no_segments_give_empty_entries_only() -> None:
    """A producer without rows states all its subpartitions."""
    found = complete_extents([], np.array([3, 4], np.uint32))
    assert found["subpartition"].tolist() == [3, 4]
    assert found["rows"].tolist() == found["length"].tolist() == [0, 0]
