"""The async companion of a coordinator: a thread that does its storage work, in order.

One queue goes in, one comes out. Work is done in the order in which it was decided, so a drop
cannot overtake the run that it ends. The companion lives as long as its coordinator, whichever
clients connect meanwhile. Answers wake the control loop, which never waits for storage.
"""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class _Job:
    work: Callable[[], Any]
    done: Callable[[Any], None]
    failed: Callable[[Exception], None]


class Companion:
    """A thread with a queue of work.

    Args:
        wake: called from the companion's thread when an answer is there.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(
        self,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Do `work` behind everything submitted before.

        Args:
            done: called with what it returned, by `answer`, in the thread that calls that.
            failed: likewise, with what it raised.
        """
        if self._thread is None:
            name = "durable-shuffle-companion"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        self._jobs.put(_Job(work, done, failed))

    def answer(self) -> bool:
        """Handle the answers that are there; return whether there were any."""
        found = False
        while True:
            try:
                handle = self._answers.get_nowait()
            except queue.Empty:
                return found
            found = True
            handle()

    @property
    def has_answer(self) -> bool:
        """Whether `answer` has something to do."""
        return not self._answers.empty()

    def close(self, timeout_seconds: float) -> None:
        """Finish what was submitted, and end; what takes longer is left to itself."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._answers.put(_outcome(job))
            self._wake()


def _outcome(job: _Job) -> Callable[[], None]:
    try:
        result = job.work()
    except BaseException as error:  # noqa: BLE001 - the answer says so; user code may even exit
        failure = error if isinstance(error, Exception) else RuntimeError(repr(error))
        return lambda: job.failed(failure)
    return lambda: job.done(result)
