"""Shows how far stages are: bars in a terminal or a notebook, plain lines elsewhere.

Strategy: the code that runs stages reports when a stage starts and ends. In between, a thread of
the view counts the committed map tasks on storage, once a second.
"""

import importlib
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable
from html import escape
from types import TracebackType
from typing import Any

from durable_shuffle.jobs.stages.report import StageReport
from durable_shuffle.jobs.text import plural, size

_POLL_SECONDS = 1.0

CountCommitted = Callable[[], tuple[int, int]]
"""Returns (map tasks committed, map tasks in total); called while a stage runs."""


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

    def left(self, number: int, title: str, seconds: float) -> None:
        """Spark has run the map side of an exchange that is not stored."""


class PlainProgress(ProgressView):
    """One line per event, on standard error."""

    def planned(self, name: str, exchanges: int, sealed: int, run: int) -> None:
        _print(_planned(name, exchanges, sealed, run))

    def started(self, number: int, title: str, committed: CountCommitted) -> None:
        _print(f"{title}: started")

    def finished(self, number: int, title: str, report: StageReport) -> None:
        _print(
            f"{title}: {report.action}, map tasks run {report.map_tasks_run}, reused "
            f"{report.map_tasks_reused}, {size(report.data_bytes)}, {report.seconds:.1f} s"
        )

    def left(self, number: int, title: str, seconds: float) -> None:
        _print(f"{title}: left to Spark, {seconds:.1f} s")


class PolledProgress(ProgressView):
    """A view with bars: asks how far the running stages are."""

    def __init__(self) -> None:
        self._running: dict[int, CountCommitted] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> "PolledProgress":
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

    def started(self, number: int, title: str, committed: CountCommitted) -> None:
        with self._lock:
            if number not in self._running:
                self._begin(number, title)
            self._running[number] = committed

    def finished(self, number: int, title: str, report: StageReport) -> None:
        note = f"{report.action}, {report.map_tasks_reused} reused, {size(report.data_bytes)}"
        self._ended(number, title, note, max(1, report.map_tasks))

    def left(self, number: int, title: str, seconds: float) -> None:
        self._ended(number, title, "left to Spark", 1)

    def _ended(self, number: int, title: str, note: str, total: int) -> None:
        with self._lock:
            if self._running.pop(number, None) is None:
                self._begin(number, title)
            self._move(number, total, total, note)

    def _poll(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            with self._lock:
                for number, committed in self._running.items():
                    done, total = committed()
                    if total:
                        self._move(number, done, total, "")

    @abstractmethod
    def _begin(self, number: int, title: str) -> None:
        """Show a bar of unknown length."""

    @abstractmethod
    def _move(self, number: int, done: int, total: int, note: str) -> None:
        """Show how far it is; the note comes with its end."""


class LiveProgress(PolledProgress):
    """One bar per stage, drawn by rich; the bars stay on the screen."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        super().__init__()
        columns = (
            TextColumn("{task.description:<28}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
        )
        self._bars: Any = Bars(*columns, console=Console(stderr=True))
        self._shown: dict[int, Any] = {}

    def __enter__(self) -> "LiveProgress":
        self._bars.start()
        super().__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        self._bars.stop()

    def planned(self, name: str, exchanges: int, sealed: int, run: int) -> None:
        self._bars.console.print(_planned(name, exchanges, sealed, run))

    def _begin(self, number: int, title: str) -> None:
        self._shown[number] = self._bars.add_task(title, total=None, note="")

    def _move(self, number: int, done: int, total: int, note: str) -> None:
        bar = self._shown[number]
        self._bars.update(bar, total=total, completed=done, note=note)
        if note:
            self._bars.stop_task(bar)


class NotebookProgress(PolledProgress):
    """One bar per stage in the output of a notebook's cell, as HTML that is replaced in place."""

    def __init__(self, display: Callable[..., Any], html: Callable[[str], object]) -> None:
        """Take `IPython.display.display` and `HTML`."""
        super().__init__()
        self._html = html
        self._head = ""
        self._bars: dict[int, tuple[str, int, int, str]] = {}
        self._handle = display(html(""), display_id=True)

    def planned(self, name: str, exchanges: int, sealed: int, run: int) -> None:
        with self._lock:
            self._head = _planned(name, exchanges, sealed, run)
            self._draw()

    def _begin(self, number: int, title: str) -> None:
        self._bars[number] = title, 0, 0, ""
        self._draw()

    def _move(self, number: int, done: int, total: int, note: str) -> None:
        now = self._bars[number][0], done, total, note
        if now != self._bars[number]:
            self._bars[number] = now
            self._draw()

    def _draw(self) -> None:
        rows = "".join(_bar(*bar) for bar in self._bars.values())
        text = f"<div>{escape(self._head)}</div><table>{rows}</table>"
        if self._handle is not None:
            self._handle.update(self._html(text))


def _bar(title: str, done: int, total: int, note: str) -> str:
    length = f' value="{done}" max="{total}"' if total else ""  # without: of unknown length
    count = f"{done}/{total}" if total else ""
    bar = f"<progress{length}></progress>"
    return f"<tr><td>{escape(title)}</td><td>{bar}</td><td>{count}</td><td>{escape(note)}</td></tr>"


def _planned(name: str, exchanges: int, sealed: int, run: int) -> str:
    return f"{name}: {plural(exchanges, 'exchange')}, {sealed} stored, {run} to run"


def show_progress(*, wanted: bool) -> ProgressView:
    """Return the view to report to, a context manager; it shows nothing unless `wanted`.

    It shows bars in a notebook, or if standard error is a terminal and rich is installed, else
    lines.
    """
    if not wanted:
        return ProgressView()
    if _in_notebook():
        shown: Any = importlib.import_module("IPython.display")
        return NotebookProgress(shown.display, shown.HTML)
    if sys.stderr.isatty():
        try:
            return LiveProgress()
        except ModuleNotFoundError:
            pass
    return PlainProgress()


def _in_notebook() -> bool:
    """Return whether this is the kernel of a notebook; IPython in a terminal has none."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201
