"""What a driver says to its parent: one JSON object per line of a file."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class EventFile:
    """Appends whole lines. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()

    def emit(self, event: str, **values: Any) -> None:
        """Append one line."""
        line = json.dumps({"event": event, **values}) + "\n"
        with self._lock, self._path.open("ab", buffering=0) as file:
            file.write(line.encode())


@contextmanager
def failures_told(events: EventFile) -> Iterator[None]:
    """Add a `failed` line for an error that ends the driver, and pass the error on."""
    try:
        yield
    except Exception as error:
        events.emit("failed", error=in_short(error))
        raise


def in_short(error: BaseException) -> str:
    """Return an error in one line, without the stack of a JVM."""
    lines = str(error).splitlines()
    told = [x.strip() for x in lines if not x.lstrip().startswith(("at ", "..."))]
    return f"{type(error).__name__}: {' '.join(told)}"[:400]
