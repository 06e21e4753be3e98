"""Shows how far stages are: bars in a terminal, plain lines elsewhere.

Strategy: the code that runs stages reports when a stage starts and ends. In between, a thread of
the view counts the committed producers on storage, once a second.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol

from durable_shuffle.jobs.stages.report import StageReport
from durable_shuffle.jobs.text import size

_POLL_SECONDS = 1.0

Committed = Callable[[], tuple[int, int]]
"""Returns (producers committed, producers in total); called while a stage runs."""


class Progress(Protocol):
    """The events that a runner of stages reports."""

    def planned(self, name: str, exchanges: int, sealed: int, run: int) -> None:
        """The query was cut: it has this many exchanges; so many are sealed, so many will run."""

    def started(self, number: int, title: str, committed: Committed) -> None:
        """The map side of a stage begins."""

    def finished(self, number: int, title: str, report: StageReport) -> None:
        """A stage is sealed."""


class NoProgress:
    """Shows nothing."""

    def planned(self, name: str, exchanges: int, sealed: int, run: int) -> None: ...

    def started(self, number: int, title: str, committed: Committed) -> None: ...

    def finished(self, number: int, title: str, report: StageReport) -> None: ...


class PlainProgress:
    """One line per event.

    Args:
        write: is called with each line, without the newline.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def planned(self, name: str, exchanges: int, sealed: int, run: int) -> None:
        self._write(f"{name}: {exchanges} exchanges, {sealed} committed, {run} to run")

    def started(self, number: int, title: str, committed: Committed) -> None:
        self._write(f"{title}: started")

    def finished(self, number: int, title: str, report: StageReport) -> None:
        self._write(
            f"{title}: {report.decision}, producers run {report.producers_run}, reused "
            f"{report.producers_reused}, {size(report.data_bytes)}, {report.seconds:.1f} s"
        )


class LiveProgress:
    """One bar per stage, drawn by rich. A context manager; the bars stay on the screen."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        columns = (
            TextColumn("{task.description:<28}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
        )
        self._bars: Any = Bars(*columns, console=Console(stderr=True))
        self._running: dict[int, tuple[Any, Committed]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> "LiveProgress":
        self._bars.start()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._bars.stop()

    def planned(self, name: str, exchanges: int, sealed: int, run: int) -> None:
        self._bars.console.print(f"{name}: {exchanges} exchanges, {sealed} committed, {run} to run")

    def started(self, number: int, title: str, committed: Committed) -> None:
        with self._lock:
            bar = self._bars.add_task(title, total=None, note="")
            self._running[number] = bar, committed

    def finished(self, number: int, title: str, report: StageReport) -> None:
        with self._lock:
            bar = self._running.pop(number, (None, None))[0]
            if bar is None:
                bar = self._bars.add_task(title, note="")
            note = f"{report.decision}, {report.producers_reused} reused, {size(report.data_bytes)}"
            total = max(1, report.producers)
            self._bars.update(bar, total=total, completed=total, note=note)
            self._bars.stop_task(bar)

    def _poll(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            with self._lock:
                for bar, committed in self._running.values():
                    done, total = committed()
                    if total:
                        self._bars.update(bar, total=total, completed=done)


def choose_progress() -> LiveProgress | PlainProgress:
    """Return bars where standard error is a terminal and rich is installed, else lines."""
    if sys.stderr.isatty():
        try:
            return LiveProgress()
        except ModuleNotFoundError:
            pass
    return PlainProgress(lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201


@contextmanager
def show_progress(*, wanted: bool) -> Iterator[Progress]:
    """Yield the view to report to; it shows nothing unless `wanted`."""
    view = choose_progress() if wanted else NoProgress()
    if isinstance(view, LiveProgress):
        with view:
            yield view
    else:
        yield view
