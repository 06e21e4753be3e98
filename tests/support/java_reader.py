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
from changed_index import (
    ENTRY,
    HEADER,
    entries_of,
    entry_with,
    index_with,
    slices_of,
    with_entries,
)
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
            blocks = list(blocks_of(frames_of(self.stage, extents, self.settings)))
        except DurableShuffleError as error:
            return Failed(type(error).__name__, str(error))
        try:
            return bytes(self.java.rows(byte_arrays(self.jvm, blocks)))
        except Py4JJavaError as error:
            return _failed(str(error.java_exception.toString()))

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


FIELDS = ("segment", "offset", "length", "rows")


def stated(reader: Reader, data: bytes, k: int, n: int, field: str, number: int) -> bytes:
    """Let the index state a number for an extent of a subpartition."""
    entries = entries_of(data, k)
    entries[field][n] = number
    return with_entries(data, reader.index_key, k, entries)


def harmed_index(reader: Reader, data: bytes, k: int, rng: random.Random) -> bytes:
    """Change what the index says of a subpartition; its checksums are right afterwards."""
    kind = rng.random()
    if kind < 0.3:
        entries = entries_of(data, k)
        n, field = rng.choice(np.flatnonzero(entries["rows"]).tolist()), rng.choice(FIELDS)
        near = abs(int(entries[field][n]) + rng.choice((-24, -8, -1, 1, 8, 24)))
        number = rng.choice((*NUMBERS, near, near, rng.getrandbits(47))) or 1
        return stated(reader, data, k, n, field, number % (1 << (32 if field == "segment" else 48)))
    if kind < 0.7:
        slices = slices_of(data)
        found = bytearray(slices[k])
        for _ in range(rng.choice((1, 1, 2, 5))):
            found[rng.randrange(len(found))] = rng.choice((0, 1, 255, rng.randrange(256)))
        end = rng.choice((len(found), len(found), len(found), rng.randrange(len(found))))
        slices[k] = bytes(found[:end])
        return index_with(data, reader.index_key, slices)
    at = HEADER + k * 36
    fields = list(ENTRY.unpack_from(data, at))
    place = rng.randrange(4)
    near = fields[place] + rng.choice((-8, -1, 1, 8))
    number = rng.choice((*NUMBERS, near, rng.getrandbits(64), 1 << 63, 1 << 62, 1 << 30))
    fields[place] = number % (1 << (64 if place else 32))
    return data[:at] + entry_with(data, reader.index_key, k, fields) + data[at + 36 :]
