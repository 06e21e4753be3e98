"""What a driver says to its parent: one JSON object per line of a file."""

import json
import threading
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
