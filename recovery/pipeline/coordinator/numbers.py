"""Progress and lag of a running pipeline as numbers, for monitoring; and who is told of them."""

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PartNumbers:
    """One source or consumer."""

    part: str
    tasks: int
    running: int
    """How many of them have started and not ended."""
    records: int
    """Records read or made so far; does not go back over a restart."""
    lag_records: int | None
    """Records of this pipeline's sources that it has not read; None for what reads no source."""
    lag_seconds: float | None
    """How long the oldest of them has been there."""


@dataclass(frozen=True, slots=True)
class PipelineNumbers:
    """A pipeline as its coordinator sees it now. Counts begin anew with a coordinator."""

    name: str
    phase: str
    generation: int
    restarts: int
    parts: tuple[PartNumbers, ...]


Tell = Callable[[PipelineNumbers], object]


class Listener:
    """Calls a function of the user, in a thread of its own. Numbers that come while it is busy are
    left out, so it never holds anything up; its errors are logged.

    Args:
        tell: None: there is nobody.
        every_seconds: the shortest time between two calls.
    """

    def __init__(self, tell: Tell | None, every_seconds: float) -> None:
        self._tell, self._every_seconds = tell, every_seconds
        self._next_at = 0.0
        self._next: queue.Queue[PipelineNumbers | None] = queue.Queue(1)
        self._thread: threading.Thread | None = None

    def turn(self, now: float, numbers: Callable[[], PipelineNumbers]) -> None:
        """Tell the numbers of now, if that is due and the last ones are not still being told."""
        if self._tell is None or now < self._next_at or not self._next.empty():
            return
        self._next_at = now + self._every_seconds
        self._start()
        self._next.put(numbers())

    def close(self, last: PipelineNumbers | None, timeout_seconds: float) -> None:
        """Tell what waits and the last numbers, then no more; waits a bounded time."""
        if self._tell is None:
            return
        thread = self._start()
        try:
            if last is not None:
                self._next.put(last, timeout=timeout_seconds)
            self._next.put(None, timeout=timeout_seconds)
        except queue.Full:
            return  # the function hangs, and its thread is left behind
        thread.join(timeout_seconds)

    def _start(self) -> threading.Thread:
        if self._thread is None:
            name = "durable-shuffle-numbers"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        return self._thread

    def _run(self) -> None:
        assert self._tell is not None
        while (numbers := self._next.get()) is not None:
            try:
                self._tell(numbers)
            except Exception:  # noqa: BLE001 - of user code
                _log.warning("the function that is told of progress failed", exc_info=True)
