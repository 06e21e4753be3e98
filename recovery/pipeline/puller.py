"""Reading a source in a thread of its own, so that a quiet source keeps nobody from his orders."""

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from durable_shuffle.recovery.pipeline.sources import Pulled

_AHEAD = 16
"""Items that wait at most."""
_IDLE_SECONDS = 0.05
"""Pause after a source said that nothing is new."""
_JOIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class End:
    """The source has no more, or ended with an error."""

    error: BaseException | None


class Puller:
    """Args:
    start: makes the iterator; called in the thread.
    """

    def __init__(self, start: Callable[[], Iterator[Pulled]]) -> None:
        self._start = start
        self._items: queue.Queue[tuple[object, object] | End] = queue.Queue(_AHEAD)
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="durable-shuffle-source", daemon=True
        )
        self._thread.start()

    def take(self, timeout_seconds: float) -> tuple[object, object] | End | None:
        """Return what comes next, None if nothing came in time."""
        try:
            return self._items.get(timeout=max(0.0, timeout_seconds))
        except queue.Empty:
            return None

    def close(self) -> None:
        """Read no more; waits a bounded time for the source to notice."""
        self._over.set()
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        end = End(None)
        items: Iterator[Pulled] | None = None
        try:
            items = self._start()
            for item in items:
                if item is None:
                    self._over.wait(_IDLE_SECONDS)
                elif not self._put(item):
                    return
                if self._over.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - raised by whoever takes it
            end = End(error)
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()
        self._put(end)

    def _put(self, item: tuple[object, object] | End) -> bool:
        while not self._over.is_set():
            try:
                self._items.put(item, timeout=_IDLE_SECONDS)
            except queue.Full:
                continue
            return True
        return False
