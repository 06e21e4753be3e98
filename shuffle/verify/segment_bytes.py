"""Read a long segment piece by piece, so that its check needs little memory.

The COMMIT states a segment's length, which may be forged: a sparse file of any length takes no
space. Only large rows or a large `writer_memory_bytes` make a segment longer than WHOLE_BYTES. Such
a segment is read twice, once for its SHA-256 and once for its frames.
"""

import hashlib
from collections.abc import Iterator

from durable_shuffle.shuffle.storage.contract import Storage

WHOLE_BYTES = 256 << 20
"""A segment of at most this many bytes is read with one request and held whole."""

PIECE_BYTES = 16 << 20
"""Bytes of a longer segment that are read and held at a time."""


class LongSegment:
    """Bytes [0, length) of an object, of which one piece at a time is held in memory.

    A slice that is longer than a piece is read and held whole.
    """

    def __init__(self, storage: Storage, key: str, length: int) -> None:
        self._storage, self._key, self._length = storage, key, length
        self._start, self._held = 0, memoryview(b"")

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, wanted: slice) -> memoryview:
        start, end, _ = wanted.indices(self._length)
        if not self._start <= start <= end <= self._start + len(self._held):
            length = max(end - start, min(PIECE_BYTES, self._length - start))
            self._held = memoryview(b"")
            self._held = self._storage.read_range(self._key, start, length)
            self._start = start
        return self._held[start - self._start : end - self._start]

    def digest(self) -> bytes:
        """Return the SHA-256 of all bytes."""
        found = hashlib.sha256()
        for piece in pieces(self, 0, self._length):
            found.update(piece)
        return found.digest()


def pieces(data: memoryview | LongSegment, start: int, end: int) -> Iterator[memoryview]:
    """Yield bytes [start, end) in pieces of at most PIECE_BYTES."""
    for at in range(start, end, PIECE_BYTES):
        yield data[at : min(at + PIECE_BYTES, end)]
