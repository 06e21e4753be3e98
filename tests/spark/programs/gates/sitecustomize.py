"""Stops a process at a storage call of a stream. On PYTHONPATH, every Python process of a driver
loads it, including Spark's planners and workers.

`$DURABLE_SHUFFLE_GATE/gate` names the call as `PHASE WHEN`. The first process that reaches it
writes `reached` beside it and waits: the test kills it.
"""

import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PHASES = {
    "open": ("put_if_absent", r"/producers/p\d+/\d+$", b"OPEN"),
    "segment": ("put", r"/segments/", b""),
    "record": ("put_if_absent", r"/producers/p\d+/\d+$", b"APPEND"),
    "rows": ("read_ranges", r"/segments/", b""),
    "cursor": ("put_if_absent", r"/consumers/", b""),
}
"""Storage call, pattern of its key, and the content of the record."""


class Gated:
    """A storage that waits forever before or after one call."""

    def __init__(self, storage: Any, folder: Path) -> None:
        self._storage, self._folder = storage, folder

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._storage, name)
        if name not in {verb for verb, _, _ in PHASES.values()}:
            return found

        def call(*args: Any) -> Any:
            when = self._when(name, args)
            if when == "before":
                self._stop()
            answer = found(*args)
            if when == "after":
                self._stop()
            return answer

        return call

    def __reduce__(self) -> Any:
        return Gated, (self._storage, self._folder)

    def _when(self, name: str, args: Any) -> str:
        phase, _, when = (self._folder / "gate").read_text().partition(" ")
        if phase not in PHASES:
            return ""
        verb, pattern, holds = PHASES[phase]
        key = args[0][0].key if name == "read_ranges" else args[0]
        data = bytes(args[1]) if name == "put_if_absent" else b""
        return when if verb == name and re.search(pattern, key) and holds in data else ""

    def _stop(self) -> None:
        (self._folder / "reached").touch()
        while True:
            time.sleep(60)


def install(folder: Path) -> None:
    """Put the gate around every storage that is opened by its URL from now on."""
    from durable_shuffle.shuffle.storage import open as open_storage

    plain: Callable[[str, Mapping[str, object]], Any] = open_storage.open_backend
    open_storage.open_backend = lambda url, options: Gated(plain(url, options), folder)


if os.environ.get("DURABLE_SHUFFLE_GATE"):
    install(Path(os.environ["DURABLE_SHUFFLE_GATE"]))
