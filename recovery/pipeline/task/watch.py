"""Notices a call of user code that does not return.

A heartbeat shows only that a process is alive. A step may wait for ever for an answer that was
lost, and so may the `close()` that follows a failure. A thread beside the attempt looks at how long
the present call lasts. Reading a source is not watched: a source may be quiet for days.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from durable_shuffle.shuffle.base.clock import Clock
from durable_shuffle.shuffle.base.user_code import own_error

_LONGEST_PAUSE_SECONDS = 1.0
_SHARE = 0.1
"""Of the time that a call may take: how late a hang may be noticed."""


class HungError(Exception):
    """A call of user code did not return in time."""

    kind: ClassVar[str] = "no_progress"


class CallWatch:
    """The watch of one attempt.

    Args:
        hung: called once, in the watch's thread, with the error; nothing is watched afterwards.
    """

    def __init__(self, hung: Callable[[BaseException], None], clock: Clock) -> None:
        self._hung, self._clock = hung, clock
        self._call: tuple[float, str, float, BaseException | None] | None = None
        """When the present call is late, its name, how long it may take, what failed before it."""
        self._over = threading.Event()
        self._pause_seconds = _LONGEST_PAUSE_SECONDS
        self._thread: threading.Thread | None = None

    @contextmanager
    def call(self, what: str, seconds: float, error: BaseException | None = None) -> Iterator[None]:
        """Watch a call; calls are not nested.

        Args:
            seconds: how long it may take; 0: for ever.
            error: failed before the call, and stays the cause if the call hangs.
        """
        if not seconds or self._over.is_set():
            yield
            return
        self._pause_seconds = min(self._pause_seconds, seconds * _SHARE)
        self._call = self._clock.monotonic() + seconds, what, seconds, error
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="durable-shuffle-watch", daemon=True
            )
            self._thread.start()
        try:
            yield
        finally:
            self._call = None

    def close(self) -> None:
        """Watch no more."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._pause_seconds):
            call = self._call
            if call is None or self._clock.monotonic() < call[0]:
                continue
            _, what, seconds, error = call
            text = f"{what} did not return within {seconds:g} s"
            if error is None:
                error = HungError(text)
            else:
                own_error(error).add_note(f"{text} after that")
            self._over.set()
            self._hung(error)
