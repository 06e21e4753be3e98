"""Read an object of a stated length so that its check needs little memory, and compare its SHA-256.

A record states the length, which may be forged: a sparse file of any length takes no space. An
object over WHOLE_BYTES is read twice, piece by piece, once for its SHA-256 and once for its frames.
"""

import hashlib
from collections.abc import Iterator

from durable_shuffle.serialization.errors import CorruptDataError, ErrorKind
from durable_shuffle.shuffle.storage.contract import MOST_BYTES, Storage
from durable_shuffle.shuffle.storage.range_plan import PIECE_BYTES
from durable_shuffle.shuffle.verify.report import Finding

WHOLE_BYTES = 256 << 20
"""An object of at most this many bytes is read with one request and held whole."""


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
        for at in range(start, end, PIECE_BYTES):
            yield self[at : min(at + PIECE_BYTES, end)]

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
        found = hashlib.sha256()
        for piece in self.pieces(0, self._length):
            found.update(piece)
        return found.digest()


def check_bytes(data: StoredBytes, length: int, sha256: bytes) -> list[Finding]:
    """Return what differs between the object and the length and SHA-256 that a record states.

    Raises:
        DurableShuffleError: what reading the object raises.
    """
    findings, kind = list[Finding](), ErrorKind.CORRUPT_DATA
    size = data.size
    if size == length and data.goes_on():
        expected, found = f"{length} bytes", f"at least {length + 1} bytes"
        findings.append(Finding(data.key, kind, expected, found, length, 1))
    if size != length:
        start, end = sorted((size, length))
        expected, found = f"{length} bytes", f"{size} bytes"
        findings.append(Finding(data.key, kind, expected, found, start, end - start))
    if size >= length and (digest := data.digest()) != sha256:
        expected, found = f"SHA-256 {sha256.hex()}", digest.hex()
        findings.append(Finding(data.key, kind, expected, found, 0, length))
    return findings
