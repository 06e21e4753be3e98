"""A run of a pipeline in progress, in a thread of this process: stop it, wait for it, see it."""

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.job.phases import JobPhase, JobResult
from durable_shuffle.recovery.pipeline.coordinator.supervisor import Supervisor
from durable_shuffle.recovery.pipeline.lines.launcher import Launcher
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import SystemClock

_TURN_SECONDS = 0.5
"""How late a Ctrl-C may be noticed."""


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Take a first SIGTERM for a Ctrl-C, in the main thread of a program without a handler for it.

    Later ones are ignored: one stop may send it to a process and to its group.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def once(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, once)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class RunningPipeline:
    """A run in progress."""

    def __init__(
        self,
        supervisor: Supervisor,
        stand_by: Callable[[Callable[[float], bool]], JobResult | None] | None = None,
    ) -> None:
        self._supervisor, self._clock = supervisor, SystemClock()
        self._stand_by, self._leave = stand_by, threading.Event()
        self._result: JobResult | None = None
        self._error: BaseException | None = None
        # not `join`: in Python 3.11, a Ctrl-C during `join` marks the thread as ended
        self._over = threading.Event()
        threading.Thread(target=self._run, name="durable-shuffle-supervisor", daemon=True).start()

    @property
    def phase(self) -> JobPhase:
        """The current phase."""
        return self._supervisor.machine.phase

    @property
    def ended(self) -> bool:
        """Whether `wait` returns at once."""
        return self._over.is_set()

    @property
    def launcher(self) -> Launcher | None:
        """The launcher of the tasks; None before the first start."""
        return self._supervisor.launcher

    def stop(self, mode: StopMode | str) -> None:
        """Ask the pipeline to end: "DRAIN", "SUSPEND" or "CANCEL". `wait` then returns the result.

        Raises:
            InvalidInputError: another stop came first and this is not a CANCEL, or the run has
                ended.
        """
        try:
            wanted = StopMode(mode)
        except ValueError:
            raise InvalidInputError(f"a stop is DRAIN, SUSPEND or CANCEL, found={mode!r}") from None
        if self._stand_by is None:
            self._supervisor.ask_stop(wanted)
        elif wanted is StopMode.DRAIN:
            raise InvalidInputError("this instance stands by: drain the one that runs the pipeline")
        else:
            self._leave.set()

    def wait(self, timeout_seconds: float | None = None) -> JobResult:
        """Wait for the end; return how the run ended.

        Raises:
            TimeoutError: the run has not ended in time.
        """
        deadline = None if timeout_seconds is None else self._clock.monotonic() + timeout_seconds
        # in turns: a Ctrl-C that comes just before a wait, or to another thread, is noticed only
        # behind it
        while not self._over.is_set():
            left = math.inf if deadline is None else deadline - self._clock.monotonic()
            if left <= 0:
                break
            self._over.wait(min(left, _TURN_SECONDS))
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise TimeoutError(f"the pipeline is {self.phase} after {timeout_seconds} s")
        return self._result

    def progress(self) -> dict[str, tuple[str, int]]:
        """Return the phase and the number of processed records that each task reported last."""
        tasks = self._supervisor.machine.tasks
        return {name: (str(state.phase), state.records) for name, state in tasks.items()}

    def _run(self) -> None:
        try:
            if self._stand_by is not None:
                self._result = self._stand_by(self._leave.wait)
                self._stand_by = None
            self._result = self._result or self._supervisor.run()
        except BaseException as error:  # noqa: BLE001 - raised by `wait`
            self._error = error
        finally:
            self._over.set()
