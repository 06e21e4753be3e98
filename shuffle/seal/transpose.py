"""Extents by producer in, extents by subpartition out, in memory that does not grow with both.

Strategy: subpartitions are cut into runs of about RUN_EXTENTS extents, if producers are alike. The
extents that a COMMIT has in a run go to the file of that run, behind those of the producers before,
in the form in which COMMITs hold them. Then one run after the other is sorted in memory. Files up
to HELD_BYTES in all stay in memory; longer ones take about as many bytes of the temporary folder as
the COMMITs have.
"""

import itertools
import math
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from tempfile import SpooledTemporaryFile, gettempdir
from typing import IO

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.errors import CorruptDataError, UnavailableError
from durable_shuffle.shuffle.log.extent_table import EXTENT, PLACE, pack_block, unpack_block
from durable_shuffle.shuffle.log.records import Commit
from durable_shuffle.shuffle.seal.index import INDEX_ENTRY

RUN_EXTENTS = 4_000_000
"""A run is sorted in memory: about 80 bytes per extent."""
HELD_BYTES = 64 << 20
_MOST_RUNS = 200
"""Each may take a file descriptor."""

_CHUNK = struct.Struct("<III")  # producer, entries, bytes of the block behind it


def by_subpartition(
    commits: Iterable[Commit], *, partitions: int, producers: int, folder: str | None = None
) -> Iterator[npt.NDArray[np.void]]:
    """Yield the INDEX_ENTRY items of each subpartition, by producer; attempts are not filled in.

    Args:
        commits: of producers 0 to M-1, in this order; each is let go before the next is taken.
        folder: for temporary files; None for the system's.

    Raises:
        CorruptDataError: a COMMIT names a subpartition that does not exist.
        UnavailableError: the folder cannot be written or is full.
    """
    try:
        yield from _by_subpartition(commits, partitions, producers, folder)
    except OSError as error:
        raise UnavailableError(
            f"scratch space for an index of {producers} x {partitions} extents cannot be written: "
            f"folder={folder or gettempdir()!r} {error.strerror}; name another one with "
            "settings.scratch_folder"
        ) from error


def _by_subpartition(
    commits: Iterable[Commit], partitions: int, producers: int, folder: str | None
) -> Iterator[npt.NDArray[np.void]]:
    ahead = iter(commits)
    first = list(itertools.islice(ahead, 1))
    expected = producers * sum(len(commit.extent_array(partitions)) for commit in first)
    runs = min(math.ceil(expected / RUN_EXTENTS), partitions, _MOST_RUNS)
    width = math.ceil(partitions / max(1, runs))
    starts = range(0, partitions, width)
    with ExitStack() as stack:
        held = HELD_BYTES // len(starts)
        files = [stack.enter_context(SpooledTemporaryFile(held, dir=folder)) for _ in starts]
        sizes = [0] * len(starts)
        for commit in itertools.chain(first, ahead):
            extents = commit.extent_array(partitions)
            cuts = np.searchsorted(extents["subpartition"], starts[1:])
            for n, part in enumerate(np.split(extents, cuts)):
                if len(part):
                    block = commit.extents if len(starts) == 1 else pack_block(part, "subpartition")
                    files[n].write(_CHUNK.pack(commit.producer, len(part), len(block)) + block)
                    sizes[n] += len(part)
        for n, start in enumerate(starts):
            files[n].seek(0)
            end = min(start + width, partitions)
            yield from _sorted(files[n], sizes[n], start, end)
            files[n].close()


def _sorted(file: IO[bytes], size: int, start: int, end: int) -> Iterator[npt.NDArray[np.void]]:
    """Yield the entries of each subpartition in [start, end) of `size` entries in a file."""
    entries = np.zeros(size, dtype=INDEX_ENTRY)
    subpartitions = np.zeros(size, dtype=np.uint32)
    at = 0
    while head := file.read(_CHUNK.size):
        producer, count, length = _CHUNK.unpack(head)
        found = unpack_block(file.read(length), "subpartition", EXTENT, "spooled", groups=end)
        inside = slice(at, at + count)
        subpartitions[inside] = found["subpartition"]
        for field in PLACE:
            entries[field][inside] = found[field]
        entries["producer"][inside] = producer
        at += count
    if at != size:
        raise CorruptDataError(f"a temporary file lost bytes: expected={size} entries found={at}")
    # extents are ordered within a producer and producers ascend: stable by k keeps both orders
    order = np.argsort(subpartitions, kind="stable")
    ends = np.cumsum(np.bincount(subpartitions - np.uint32(start), minlength=end - start))
    for first, last in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        yield entries[order[first:last]]
