"""The durable peer's storage: every call is counted, over all processes, and some fail on purpose.

Strategy: as for the tests of whole programs, storages that are opened by URL are wrapped while the
peer opens its own; copies that travel to tasks bring the rules along. Counts are single letters
appended to one file, so that the calls of a killed process count too.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from durable_shuffle.shuffle.storage import open as open_storage
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.testing.faulty_storage import FaultyStorage, Rule, chance_rules

T = TypeVar("T")

_LETTERS = {
    "put": "P", "put_if_absent": "P", "read": "G", "read_range": "G", "read_ranges": "G",
    "list": "L", "delete": "D",
}  # fmt: skip
OPERATIONS = {"P": "PUT", "G": "GET", "L": "LIST", "D": "DELETE", "!": "faults"}
_COUNTS = "storage-calls"
_CHANCE = 0.1


class WatchedStorage(FaultyStorage):
    """A storage whose calls are counted in a file. Safe to call from several threads."""

    def __init__(
        self,
        storage: Storage,
        counts: str,
        rules: Sequence[Rule],
        seed: int,
        *,
        task_rules: Sequence[Rule] = (),
        copy: bool = False,
    ) -> None:
        super().__init__(storage, rules, seed=seed, copy=copy)
        self._counts, self._task_rules = counts, tuple(task_rules)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return _copied, (self._storage, self._counts, self._task_rules, self._seed)

    def _call(self, verb: str, keys: tuple[str, ...], request: Callable[[], T]) -> T:
        before = self.fired
        self._count(_LETTERS[verb])
        try:
            return super()._call(verb, keys, request)
        finally:
            if self.fired > before:
                self._count("!")

    def _count(self, letter: str) -> None:
        handle = os.open(self._counts, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(handle, letter.encode())
        finally:
            os.close(handle)


def _copied(storage: Storage, counts: str, rules: Sequence[Rule], seed: int) -> WatchedStorage:
    return WatchedStorage(storage, counts, rules, seed, task_rules=rules, copy=True)


def rules_for(fault: str, job: str, token: Path) -> tuple[Sequence[Rule], Sequence[Rule]]:
    """Return the rules for the driver's calls and for those of tasks.

    Args:
        token: made by the one task that a fault of which there is one happens to.
    """
    once = str(token)
    if fault == "F3":  # OPEN and the first acknowledgement pass
        consumers = f"{job}/consumers/"
        return (), [Rule("put_if_absent", consumers, nth=3, fault="kill", once=once)]
    if fault == "F5":
        return (), [Rule("put_if_absent", f"{job}/", fault="kill", once=once)]
    if fault == "F7":
        rules = [
            *chance_rules(_CHANCE),
            Rule("*", fault="latency", probability=_CHANCE, seconds=0.02),
        ]
        short = Rule("read_range", f"{job}/", "after", fault="short_read", once=once)
        return rules, [*rules, short]
    if fault == "F9":
        return (), [Rule("put", f"{job}/", fault="disk_full", once=once)]
    return (), ()


@contextmanager
def watched(folder: Path, fault: str, job: str, token: Path, seed: int) -> Iterator[None]:
    """Have storages that are opened within be watched, with the fault's rules."""
    plain = open_storage.open_backend
    rules, task_rules = rules_for(fault, job, token)

    def open_watched(url: str, options: Mapping[str, object]) -> Storage:
        counts = str(folder / _COUNTS)
        return WatchedStorage(plain(url, options), counts, rules, seed, task_rules=task_rules)

    open_storage.open_backend = open_watched
    try:
        yield
    finally:
        open_storage.open_backend = plain


def operations(folder: Path) -> dict[str, int]:
    """Return how many calls of each kind there were, and how many faults."""
    try:
        found = Counter((folder / _COUNTS).read_bytes().decode())
    except FileNotFoundError:
        found = Counter()
    return {name: found[letter] for letter, name in OPERATIONS.items()}
