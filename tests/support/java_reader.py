"""Reads a sealed stage in a folder twice with one Java decoder: as files, and as Python's blocks.

The frames of the blocks come through `shuffle/read`, which knows nothing of the Java code. So both
must give the same rows, or fail with an error of the same class.
"""

import random
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from plain_jvm import byte_arrays
from py4j.protocol import Py4JJavaError

from durable_shuffle.jobs.jvm_rows.blocks import blocks_of, frames_of
from durable_shuffle.jobs.jvm_rows.files import stored_files
from durable_shuffle.serialization.errors import DurableShuffleError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.extents import Extent
from durable_shuffle.shuffle.read.sealed_reader import group_extents, sealed_extents
from durable_shuffle.shuffle.seal.index import ENTRY_BYTES, INDEX_ENTRY, entry_offset

_OURS = re.compile(r"PythonException: durable_shuffle\.serialization\.errors\.(\w+): (.*)")

Group = tuple[int, int]


@dataclass(frozen=True)
class Failed:
    """A read that failed."""

    kind: str
    """Class of the error."""
    text: str


@dataclass
class Reader:
    """One stage, one decoder.

    Args:
        java: a `DecoderHarness` for the stage's schema.
    """

    jvm: Any
    java: Any
    stage: StageHandle
    seal: Seal
    settings: Settings

    def from_files(self, groups: Sequence[Group] | None, task: int) -> bytes | Failed:
        """Return the rows that Java reads from the files."""
        files = stored_files(self.stage, self.seal, self.settings, groups)
        assert files is not None
        try:
            return bytes(self.java.stored(dict(files.facts), task))
        except Py4JJavaError as error:
            return _failed(str(error.java_exception.toString()))

    def from_other(self, **facts: object) -> bytes | Failed:
        """Return what Java reads with other facts."""
        files = stored_files(self.stage, self.seal, self.settings)
        assert files is not None
        try:
            return bytes(self.java.stored({**files.facts, **facts}, 0))
        except Py4JJavaError as error:
            return _failed(str(error.java_exception.toString()))

    def from_blocks(self, groups: Sequence[Group] | None, task: int) -> bytes | Failed:
        """Return the rows of the frames that Python reads from the same files."""
        first, end = (task, task + 1) if groups is None else groups[task]
        try:
            extents = group_extents(self.stage, self.seal, first, end, self.settings)
            batches = list(blocks_of(frames_of(self.stage, extents, self.settings)))
        except DurableShuffleError as error:
            return Failed(type(error).__name__, str(error))
        blocks = [block for batch in batches for block in batch.column(0).to_pylist()]
        try:
            return bytes(self.java.rows(byte_arrays(self.jvm, blocks)))
        except Py4JJavaError as error:
            return Failed("CorruptDataError", str(error.java_exception.toString()))

    def same(self, groups: Sequence[Group] | None = None) -> list[bytes]:
        """Return the rows of each task, equal on both ways."""
        tasks = self.stage.describe.partitions if groups is None else len(groups)
        found = [self.from_files(groups, task) for task in range(tasks)]
        assert found == [self.from_blocks(groups, task) for task in range(tasks)]
        return [each for each in found if isinstance(each, bytes)]

    def extents(self) -> list[Extent]:
        return sealed_extents(self.stage, self.seal, 0, self.stage.describe.partitions)

    @property
    def index_key(self) -> str:
        return self.stage.path.index_key(self.seal.index)


def _failed(text: str) -> Failed:
    ours = _OURS.search(text)
    return Failed(ours[1], ours[2]) if ours else Failed("foreign", text)


@contextmanager
def changed(path: Path, data: bytes) -> Iterator[None]:
    """Give a file other bytes for a while."""
    before = path.read_bytes()
    path.write_bytes(data)
    try:
        yield
    finally:
        path.write_bytes(before)


NUMBERS = (0, 1, 2, 7, 8, 24, 56, 127, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)


def harmed_frame(reader: Reader, data: bytes, extent: Extent, rng: random.Random) -> bytes:
    """Change one frame of a segment; both of its checksums are right afterwards."""
    starts, at, ordinals = [], extent.offset, [extent.first_ordinal]
    while at < extent.offset + extent.length:
        starts.append(at)
        rows, size = struct.unpack_from("<II", data, at + 8)
        ordinals.append(ordinals[-1] + rows)
        at += 24 + (size + 7) // 8 * 8
    n = rng.randrange(len(starts))
    at = starts[n]
    (size,) = struct.unpack_from("<I", data, at + 12)
    found = bytearray(data)
    if rng.random() < 0.4:
        place, width = rng.choice(((4, 1), (5, 1), (6, 1), (8, 4), (12, 4)))
        number = rng.choice((*NUMBERS, size + rng.randint(-9, 9), rng.getrandbits(32)))
        found[at + place : at + place + width] = (number % (1 << 8 * width)).to_bytes(
            width, "little"
        )
    else:
        for _ in range(rng.choice((1, 1, 2, 5))):
            # most of what can go wrong is in the metadata at the body's start
            place = at + 24 + rng.randrange(min(size, rng.choice((400, size))))
            found[place] = rng.choice((0, 1, 255, found[place] ^ 1 << rng.randrange(8)))
    (length,) = struct.unpack_from("<I", found, at + 12)
    body = bytes(found[at + 24 : at + 24 + (length + 7) // 8 * 8])
    seed = extent.seed(reader.stage.path.incarnation, ordinals[n])
    struct.pack_into("<I", found, at + 16, zlib.crc32(body, seed))
    struct.pack_into("<I", found, at + 20, zlib.crc32(bytes(found[at : at + 20])))
    return bytes(found)


def harmed_index(reader: Reader, data: bytes, k: int, rng: random.Random) -> bytes:
    """Change what the index says of a subpartition; its checksums are right afterwards."""
    found, table = bytearray(data), entry_offset(k)
    start, length = struct.unpack_from("<QQ", found, table)
    if rng.random() < 0.7:
        entries = np.frombuffer(bytes(found[start : start + length]), dtype=INDEX_ENTRY).copy()
        n, name = rng.randrange(len(entries)), rng.choice(INDEX_ENTRY.names or ())
        if name == "attempt":
            entries[name][n] = np.frombuffer(rng.randbytes(16), "V16")[0]
        else:
            width = 8 * INDEX_ENTRY[name].itemsize
            near = int(entries[name][n]) + rng.choice((-24, -8, -1, 1, 8, 24))
            number = rng.choice((*NUMBERS, near, near, rng.getrandbits(64), 1 << 63, 1 << 62))
            entries[name][n] = number % (1 << width)
        found[start : start + length] = entries.tobytes()
        struct.pack_into("<I", found, table + 16, zlib.crc32(entries.tobytes()))
    else:
        place = rng.choice((0, 8))
        (now,) = struct.unpack_from("<Q", found, table + place)
        number = rng.choice((*NUMBERS, now + 56, now - 56, rng.getrandbits(64), 1 << 63))
        struct.pack_into("<Q", found, table + place, number % (1 << 64))
    names = f"{reader.index_key} {reader.stage.describe.partitions} {reader.seal.producers} {k}"
    crc = zlib.crc32(bytes(found[table : table + 20]), zlib.crc32(names.encode()))
    struct.pack_into("<I", found, table + 20, crc)
    assert len(found) >= table + ENTRY_BYTES
    return bytes(found)
