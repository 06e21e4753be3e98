"""Clients of storages, one per process and storage, shared by its tasks, threads, stages and jobs.

A task gets its storage unpickled. If it made a client of its own, it would pay for it each time:
0.6 CPU seconds with s3fs. A client from before a fork is never used after it.
"""

import os
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class ProcessClients:
    """The clients of one process. Safe to call from several threads."""

    process_id: int
    inherited: "ProcessClients | None" = None
    """Those of the process from which this one was forked. They are kept alive, because the
    finalizer of a client may wait for threads that only the parent has."""
    _made: dict[bytes, Any] = field(default_factory=dict, repr=False)
    _libraries: set[str] = field(default_factory=set)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def get(self, library: str, what: object, make: Callable[[], Any]) -> Any:
        """Return the client for `what`, which `make` makes at the first call of this process.

        Args:
            library: what the client is made with.
            what: decides which client it is; may hold credentials. If it cannot be pickled, nobody
                shares the client.
        """
        key = _key(library, what)
        with self._lock:
            self._libraries.add(library)
            if key is None:
                return make()
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]

    def drop(self, library: str, what: object, client: Any) -> None:
        """Have the next `get` make a client anew, unless another one took the place of this one."""
        key = _key(library, what)
        with self._lock:
            if key is not None and self._made.get(key) == client:
                del self._made[key]

    def forked_after_use_of(self, library: str) -> bool:
        """Return whether this process was forked from one that had made a client with `library`."""
        older = self.inherited
        return older is not None and (
            library in older._libraries or older.forked_after_use_of(library)  # noqa: SLF001
        )


def process_clients() -> ProcessClients:
    """Return this process's clients."""
    if not _NEWEST or _NEWEST[-1].process_id != os.getpid():
        _NEWEST[:] = [ProcessClients(os.getpid(), _NEWEST[-1] if _NEWEST else None)]
    return _NEWEST[-1]


_NEWEST: list[ProcessClients] = []
"""Those of this process, or of the one from which it was forked; empty before first use."""


def _key(library: str, what: object) -> bytes | None:
    try:
        return pickle.dumps((library, what))
    except Exception:  # noqa: BLE001 - whatever a user's object in the options raises
        return None
