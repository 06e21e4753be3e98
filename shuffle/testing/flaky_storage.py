"""A storage that fails at random: some share of all calls, half of those after they took effect.

Strategy: as `FaultyStorage`, but by chance, for runs of whole programs. It can be pickled: every
process, and every copy within one, draws from a seed of its own, derived from the given one and the
process id, so that the tries of different tasks fail independently.

It must not break the contract that it wraps: a write that took effect, or may have, says that its
outcome is unknown.
"""

import itertools
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, TypeVar

from durable_shuffle.serialization.errors import OutcomeUnknownError, UnavailableError
from durable_shuffle.shuffle import open_storage
from durable_shuffle.shuffle.limits import check_number
from durable_shuffle.shuffle.storage import ByteRange, Bytes, Created, Exists, ObjectInfo, Storage

T = TypeVar("T")


class FlakyStorage:
    """The wrapped storage with faults by chance. Safe to call from several threads."""

    _copies: ClassVar[Iterator[int]] = itertools.count()

    def __init__(self, storage: Storage, rate: float, seed: int) -> None:
        """Fail a share `rate` of all calls, 0 to 1."""
        check_number("rate", rate, at_least=0, at_most=1)
        self._storage, self._rate, self._seed = storage, rate, seed
        self._random = random.Random(f"{seed}/{os.getpid()}/{next(self._copies)}")
        self._lock = threading.Lock()
        self.calls = 0
        """Calls so far, in this process."""
        self.fired = 0
        """How many of them failed."""

    @property
    def description(self) -> str:
        return self._storage.description

    def read(self, key: str) -> bytes:
        return self._call(key, lambda: self._storage.read(key))

    def read_range(self, key: str, start: int, length: int) -> memoryview:
        return self._call(key, lambda: self._storage.read_range(key, start, length))

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        return self._call("ranges", lambda: self._storage.read_ranges(ranges))

    def put(self, key: str, parts: Sequence[Bytes]) -> None:
        self._call(key, lambda: self._storage.put(key, parts), write=True)

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        return self._call(key, lambda: self._storage.put_if_absent(key, data), write=True)

    def delete(self, keys: Sequence[str]) -> None:
        self._call(f"{len(keys)} keys", lambda: self._storage.delete(keys), write=True)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._call(prefix, lambda: iter(tuple(self._storage.list(prefix))))

    def __reduce__(self) -> tuple[type["FlakyStorage"], tuple[Storage, float, int]]:
        return FlakyStorage, (self._storage, self._rate, self._seed)

    def _call(self, key: str, request: Callable[[], T], *, write: bool = False) -> T:
        with self._lock:
            self.calls += 1
            fails = self._random.random() < self._rate
            takes_effect, says_so = self._random.random() < 0.5, self._random.random() < 0.5
            self.fired += fails
        if not fails:
            return request()
        if takes_effect:
            request()
        where = f"{self.description}: {key}: simulated at random"
        if write and (takes_effect or not says_so):
            raise OutcomeUnknownError(f"{where} lost reply")
        raise UnavailableError(f"{where} outage")


def install(rate: float, seed: int) -> list[FlakyStorage]:
    """Have every storage that this process opens by its URL from now on fail; for tests.

    Returns:
        Those storages, as they are opened.
    """
    opened: list[FlakyStorage] = []
    plain = open_storage.open_backend

    def open_flaky(url: str, options: Mapping[str, object]) -> Storage:
        opened.append(FlakyStorage(plain(url, options), rate, seed))
        return opened[-1]

    open_storage.open_backend = open_flaky
    return opened
