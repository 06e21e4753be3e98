"""Whatever bit flips in bytes that the logs commit, verification names the object.

The oracle is the disk: the test walks the files of a fresh root itself, knows the frame header from
its own struct, and changes bytes behind the storage's back.
"""

import hashlib
import random
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from stored_on_disk import Stored, changed, flip

from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.extent_table import EXTENT
from durable_shuffle.shuffle.log.records import SegmentInfo
from durable_shuffle.shuffle.repair.compaction import compact_stage
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.verify.segment import SegmentTask, check_segment

FLIPS = 200
FLIPS_PER_KIND = 5


@pytest.fixture(params=["lz4", "none", "compacted"])
def stored(tmp_path: Path, request: pytest.FixtureRequest) -> Stored:
    """The stage in both compressions, and compacted."""
    if request.param == "compacted":
        return compacted(Stored.store(tmp_path, "lz4"))
    return Stored.store(tmp_path, request.param)


def compacted(stored: Stored) -> Stored:
    """Have all extents moved."""
    done = compact_stage(stored.stage, ids=RandomIds(), generation=1, settings=Settings())
    assert done.won
    return stored


def frame_bytes(segment: bytes) -> Iterator[tuple[str, range]]:
    """Yield the places of headers, bodies and paddings of a segment."""
    at = 0
    while at < len(segment):
        magic, _, _, _, _, length, _, _ = struct.unpack_from("<IBBHIIII", segment, at)
        assert magic == 0x46534489
        yield "frame header", range(at, at + 24)
        yield "frame body", range(at + 24, at + 24 + length)
        end = at + 24 + (length + 7) // 8 * 8
        yield "frame padding", range(at + 24 + length, end)
        at = end


def places(stored: Stored) -> dict[str, list[tuple[Path, int]]]:
    """Return every committed byte as (file, offset), by kind of place."""
    found: dict[str, list[tuple[Path, int]]] = {}
    for path in stored.files():
        data = path.read_bytes()
        if path.suffix == ".seg":
            for kind, where in frame_bytes(data):
                found.setdefault(kind, []).extend((path, at) for at in where)
            continue
        parts = stored.key(path).split("/")
        kind = "job log" if parts[1] == "log" else parts[2]
        found.setdefault(kind, []).extend((path, at) for at in range(len(data)))
    return found


@pytest.mark.sampled(1)
@pytest.mark.requirement("R-F135-22")
def test_each_of_200_random_bit_flips_is_found(stored: Stored, seed: int) -> None:
    """One flipped bit, anywhere in what the logs commit, gives a finding that names the object."""
    kinds = places(stored)
    assert set(kinds) >= {"job log", "log", "producers", "index", "frame header", "frame body"}
    assert len(stored.files("p000000", ".seg")) > 2, "several segments are wanted"
    clean = stored.verify()
    assert clean.ok, clean.findings
    assert clean.checked_bytes == sum(len(bytes_) for bytes_ in kinds.values())
    draw = random.Random(seed)
    everything = [place for kind in kinds.values() for place in kind]
    chosen = [p for kind in kinds.values() if kind for p in draw.choices(kind, k=FLIPS_PER_KIND)]
    chosen += draw.choices(everything, k=FLIPS - len(chosen))
    assert len(chosen) == FLIPS
    for path, at in chosen:
        bit = draw.randrange(8)
        with changed(path, flip(at, bit)):
            where = f"{stored.key(path)} byte {at} bit {bit}; DURABLE_SHUFFLE_SEED={seed}"
            assert stored.key(path) in stored.named(), where
    assert stored.verify().ok


def test_frame_padding_is_checked(tmp_path: Path) -> None:
    """Flipped bits in the zeros behind a body that is no multiple of 8 are found in their frame."""
    incarnation = "5a" * 16
    address = struct.pack("<16sIIQ", bytes.fromhex(incarnation), 3, 1, 0)
    body = b"thirteen byte"
    head = struct.pack(
        "<IBBHIII", 0x46534489, 1, 0, 0, 2, 13, zlib.crc32(body + b"\0\0\0", zlib.crc32(address))
    )
    frame = head + struct.pack("<I", zlib.crc32(head)) + body + b"\0\0\0"
    extents = np.zeros(1, dtype=EXTENT)
    extents[0] = (1, 0, 0, len(frame), 0, 2)
    info = SegmentInfo(0, len(frame), hashlib.sha256(frame).digest())
    task = SegmentTask("a.seg", incarnation, 3, info, extents, None, 1 << 20)
    storage = LocalStorage(tmp_path)
    storage.put("a.seg", [frame])
    assert check_segment(storage, task).findings == ()
    for at in range(24 + 13, 40):
        with changed(tmp_path / "a.seg", flip(at, 3)):
            findings = check_segment(storage, task).findings
            assert [(f.start, f.length) for f in findings] == [(0, 40), (0, 40)]
            assert "body CRC" in findings[1].found


def test_two_damaged_frames_of_one_subpartition(tmp_path: Path) -> None:
    """A damaged body does not hide the next damaged frame of the same extent."""
    stored = Stored.store(tmp_path, rows=(1000,), partitions=1, used_partitions=1)
    (path,) = stored.files(".seg")
    bodies = [where for kind, where in frame_bytes(path.read_bytes()) if kind == "frame body"]
    data = bytearray(path.read_bytes())
    for body in (bodies[0], bodies[2]):
        data[body[5]] ^= 1
    path.write_bytes(data)
    starts = [f.start for f in stored.verify().findings if f.length != len(data)]
    assert starts == [bodies[0][0] - 24, bodies[2][0] - 24]


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("compact", [False, True], ids=["sealed", "compacted"])
def test_every_byte_of_a_tiny_stage(tmp_path: Path, seed: int, *, compact: bool) -> None:
    """A flipped bit in any byte of a tiny stage is found."""
    stored = Stored.store(tmp_path, rows=(20, 0, 9), partitions=3, used_partitions=2)
    if compact:
        compacted(stored)
    draw = random.Random(seed)
    for path in stored.files():
        for at in range(path.stat().st_size):
            with changed(path, flip(at, draw.randrange(8))):
                assert stored.key(path) in stored.named(), (stored.key(path), at, seed)
