"""The storage contract in a dictionary: the reference meaning, for tests in one process.

Strategy: one lock around one dictionary. It cannot be pickled: another process would get a separate
store, and then two writers could both be told that they created the same key.
"""

import sys
import threading
from collections.abc import Iterator, Sequence
from typing import NoReturn

from durable_shuffle.serialization.errors import (
    InvalidInputError,
    NotFoundError,
)
from durable_shuffle.shuffle.base.clock import Clock, SystemClock
from durable_shuffle.shuffle.storage.contract import (
    MOST_BYTES,
    ByteRange,
    Bytes,
    Created,
    Exists,
    ObjectInfo,
    check_key,
    check_prefix,
    check_range,
    put_joined,
    too_long,
    too_short,
)


class MemoryStorage:
    """Objects of this process. Nothing survives the instance."""

    own_create = True
    """See `exclusive_create.prove_create`."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        """Start empty; `clock` gives the objects their time of the last write."""
        self._clock = SystemClock() if clock is None else clock
        self._objects: dict[str, bytes] = {}
        self._written: dict[str, float] = {}
        self._lock = threading.Lock()

    @property
    def description(self) -> str:
        return f"memory of one process, {id(self):#x}"

    def read(self, key: str, most_bytes: int = MOST_BYTES) -> bytes:
        check_key(key)
        with self._lock:
            content = self._objects.get(key)
        if content is None:
            raise NotFoundError(f"{self.description}: object {key} does not exist")
        if len(content) > most_bytes:
            raise too_long(self.description, key, len(content), most_bytes)
        return content

    def read_range(self, key: str, start: int, length: int) -> memoryview:
        check_range(key, start, length)
        content = self.read(key, sys.maxsize)
        if start + length > len(content):
            raise too_short(self.description, key, len(content), start + length)
        return memoryview(content)[start : start + length]

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        return [self.read_range(r.key, r.start, r.length) for r in ranges]

    def put(self, key: str, parts: Sequence[Bytes]) -> None:
        put_joined(self, key, parts)

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        check_key(key)
        with self._lock:
            if key in self._objects:
                return Exists(self._objects[key])
            self._objects[key] = bytes(data)
            self._written[key] = self._clock.wall()
        return Created()

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        with self._lock:
            listed = [
                ObjectInfo(key, len(content), self._written[key])
                for key, content in sorted(self._objects.items())
                if key.startswith(prefix)
            ]
        return iter(listed)

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        with self._lock:
            for key in keys:
                self._objects.pop(key, None)
                self._written.pop(key, None)

    def __reduce__(self) -> NoReturn:
        raise InvalidInputError(
            "a MemoryStorage lives in one process and cannot be sent to another; "
            "use a folder or an object store"
        )
