"""Telling the parent of a driver what changes while a step runs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
_POLL_SECONDS = 0.03


@contextmanager
def watched(look: Callable[[], T], tell: Callable[[T], None]) -> Iterator[None]:
    """Call `tell` in a thread of its own with what `look` gives, each time that has changed."""
    stop = threading.Event()

    def watch() -> None:
        last = None
        while not stop.wait(_POLL_SECONDS):
            if (now := look()) != last:
                tell(now)
                last = now

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
