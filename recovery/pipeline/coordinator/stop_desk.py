"""Stops that other threads of the same process ask for, answered by the one that runs the job."""

import queue
from collections.abc import Callable
from dataclasses import dataclass, field

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.job.machine import Job
from durable_shuffle.serialization.errors import InvalidInputError

_LOOK_SECONDS = 0.1
_Answer = queue.SimpleQueue[Exception | None]


@dataclass(slots=True)
class StopDesk:
    """The stops that one supervisor was asked for."""

    _asked: "queue.SimpleQueue[tuple[StopMode, _Answer]]" = field(default_factory=queue.SimpleQueue)
    ended: bool = False
    """Nobody answers any more."""

    @property
    def waiting(self) -> bool:
        """Whether somebody asks."""
        return not self._asked.empty()

    def ask(self, mode: StopMode, machine: Callable[[], Job], wake: Callable[[], None]) -> None:
        """Ask for an end, from any thread; return when the job has taken it in.

        Raises:
            InvalidInputError: see `Job.stop`.
        """
        answer: _Answer = queue.SimpleQueue()
        self._asked.put((mode, answer))
        wake()
        while True:
            try:
                error = answer.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if not self.ended:
                    continue
                if mode is machine().mode:
                    return
                raise InvalidInputError(f"the job has ended: {machine().phase}") from None
            if error is not None:
                raise error
            return

    def answer(self, stop: Callable[[StopMode], None]) -> None:
        """Answer every request with what `stop` does or raises."""
        while self.waiting:
            mode, answer = self._asked.get()
            try:
                stop(mode)
            except InvalidInputError as error:
                answer.put(error)
            else:
                answer.put(None)
