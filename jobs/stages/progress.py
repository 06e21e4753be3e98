"""Shows how far stages are: bars in a terminal, plain lines elsewhere.

Strategy: the code that runs stages reports when a stage starts and ends. In between, a thread of
the view counts the committed producers on storage, once a second.
"""

import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from durable_shuffle.jobs.stages.report import StageReport
from durable_shuffle.jobs.text import size

_POLL_SECONDS = 1.0

CountCommitted = Callable[[], tuple[int, int]]
"""Returns (producers committed, producers in total); called while a stage runs."""


class ProgressView:
    """Takes the events of stages that run. This base class shows nothing."""

    def __enter__(self) -> "ProgressView":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the view."""

    def planned(self, name: str, exchanges: int, sealed: int, run: int) -> None:
        """The query was cut: it has this many exchanges; so many are sealed, so many will run."""

    def started(self, number: int, title: str, committed: CountCommitted) -> None:
        """The map side of a stage begins."""

    def finished(self, number: int, title: str, report: StageReport) -> None:
        """A stage is sealed."""


class PlainProgress(ProgressView):
    """One line per event, on standard error."""

    def planned(self, name: str, exchanges: int, sealed: int, run: int) -> None:
        _print(f"{name}: {exchanges} exchanges, {sealed} committed, {run} to run")

    def started(self, number: int, title: str, committed: CountCommitted) -> None:
        _print(f"{title}: started")

    def finished(self, number: int, title: str, report: StageReport) -> None:
        _print(
            f"{title}: {report.decision}, producers run {report.producers_run}, reused "
            f"{report.producers_reused}, {size(report.data_bytes)}, {report.seconds:.1f} s"
        )


class LiveProgress(ProgressView):
    """One bar per stage, drawn by rich; the bars stay on the screen."""

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
        self._running: dict[int, tuple[Any, CountCommitted]] = {}
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

    def started(self, number: int, title: str, committed: CountCommitted) -> None:
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


def show_progress(*, wanted: bool) -> ProgressView:
    """Return the view to report to, a context manager; it shows nothing unless `wanted`.

    It shows bars if standard error is a terminal and rich is installed, else lines.
    """
    if not wanted:
        return ProgressView()
    if sys.stderr.isatty():
        try:
            return LiveProgress()
        except ModuleNotFoundError:
            pass
    return PlainProgress()


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201
