"""A storage that counts requests, for reports and for tests that expect an exact count."""

from collections import Counter
from collections.abc import Iterator, Sequence

from durable_shuffle.shuffle.storage.contract import (
    MOST_BYTES,
    ByteRange,
    Bytes,
    Created,
    Exists,
    ObjectInfo,
    Storage,
)
from durable_shuffle.shuffle.storage.retrying import RetryCounts, retry_counts


class CountingStorage:
    """Count calls by verb, one per range or deleted object, and pass them to another storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.counts: Counter[str] = Counter()

    @property
    def description(self) -> str:
        return self._storage.description

    @property
    def retry_counts(self) -> RetryCounts:
        """The retries of the wrapped storage; all 0 if it is no `RetryingStorage`."""
        return retry_counts(self._storage)

    @property
    def total(self) -> int:
        """All requests so far."""
        return self.counts.total()

    def read(self, key: str, most_bytes: int = MOST_BYTES) -> bytes:
        self.counts["read"] += 1
        return self._storage.read(key, most_bytes)

    def read_range(self, key: str, start: int, length: int) -> memoryview:
        self.counts["read_range"] += 1
        return self._storage.read_range(key, start, length)

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        self.counts["read_range"] += len(ranges)
        return self._storage.read_ranges(ranges)

    def put(self, key: str, parts: Sequence[Bytes]) -> None:
        self.counts["put"] += 1
        self._storage.put(key, parts)

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        self.counts["put_if_absent"] += 1
        return self._storage.put_if_absent(key, data)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self.counts["list"] += 1
        return self._storage.list(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        self.counts["delete"] += len(keys)
        self._storage.delete(keys)
