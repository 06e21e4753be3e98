"""The inbox of a coordinator's control loop: one queue, and a thread that works for the loop.

Reports of tasks, answers of the companion and stop requests of other threads all go through one
inbox, as functions that the loop calls. So the loop waits in only one place, and only these events
wake it.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any

Event = Callable[[], object]
"""A function by which the loop handles an event."""
_Work = tuple[Callable[[], Any], Callable[[Any], object], Callable[[Exception], object]]


class Inbox:
    """The queue of one control loop."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def put(self, event: Event) -> None:
        """Have the loop call `event` after all earlier events. Callable from any thread."""
        self._events.put(event)

    def take(self, timeout_seconds: float) -> list[Event]:
        """Return the waiting events in order; wait for the first one. Only for the loop."""
        try:
            events = [self._events.get(timeout=timeout_seconds)]
        except queue.Empty:
            return []
        return events + [self._events.get() for _ in range(self._events.qsize())]


class Companion:
    """A thread that does a coordinator's storage work, so that the loop never waits for storage.

    Work is done in the order of submission, so a drop cannot overtake the run that it ends. The
    companion lives as long as its coordinator, even if clients connect and leave in the meantime.

    Args:
        inbox: receives the answers.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(
        self,
        work: Callable[[], Any],
        done: Callable[[Any], object],
        failed: Callable[[Exception], object],
    ) -> None:
        """Do `work` after everything that was submitted before.

        Args:
            done: called by the loop, with what `work` returned.
            failed: likewise, with what it raised.
        """
        if self._thread is None:
            name = "durable-shuffle-companion"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        self._work.put((work, done, failed))

    def close(self, timeout_seconds: float) -> None:
        """Finish the submitted work and end; abandon work that takes longer than the timeout."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while (job := self._work.get()) is not None:
            self._inbox.put(_outcome(*job))


def _outcome(
    work: Callable[[], Any],
    done: Callable[[Any], object],
    failed: Callable[[Exception], object],
) -> Event:
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - the answer holds it; user code may call exit
        failure = error if isinstance(error, Exception) else RuntimeError(repr(error))
        return lambda: failed(failure)
    return lambda: done(result)
