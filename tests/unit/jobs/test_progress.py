"""The live view: what it shows of each stage."""

import sys
import threading
from types import SimpleNamespace

import pytest

from durable_shuffle.jobs.stages import progress as shown
from durable_shuffle.jobs.stages.report import StageReport
from durable_shuffle.shuffle.base.words import StageAction


def report(producers: int, reused: int) -> StageReport:
    """A stage's report with these numbers; all others are not looked at."""
    values: dict[str, object] = dict.fromkeys(StageReport.__dataclass_fields__, 0)
    values |= {"action": StageAction.RESUMED, "map_tasks": producers, "map_tasks_reused": reused}
    return StageReport(**{**values, "data_bytes": 3 << 20})  # type: ignore[arg-type]


def test_bars_move_while_an_exchange_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers that committed are asked for while it runs; at its end: what it came to."""
    monkeypatch.setattr(shown, "_POLL_SECONDS", 0.01)
    asked = threading.Event()

    def committed() -> tuple[int, int]:
        asked.set()
        return 3, 8

    with shown.LiveProgress() as view:
        view.planned("query", 2, 1, 1)
        view.started(0, "exchange 0 hash(8)", committed)
        assert asked.wait(60)
        view.finished(0, "exchange 0 hash(8)", report(8, 5))
        view.started(1, "exchange 1 single(1)", lambda: (0, 0))
    text = capsys.readouterr().err
    assert "query: 2 exchanges, 1 stored, 1 to run" in text
    assert "8/8" in text
    assert "resumed, 5 reused, 3.0 MiB" in text
    assert "exchange 1 single(1)" in text


class Cell:
    """The output of a notebook's cell: what `IPython.display.display` shows and replaces."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, page: str, *, display_id: bool) -> "Cell":
        assert display_id
        self.shown.append(page)
        return self

    def update(self, page: str) -> None:
        self.shown.append(page)


def test_a_notebook_shows_bars_that_are_replaced_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """One element of progress per stage; a title is escaped; the end says what it came to."""
    monkeypatch.setattr(shown, "_POLL_SECONDS", 0.01)
    cell, asked = Cell(), threading.Event()

    def committed() -> tuple[int, int]:
        asked.set()
        return 3, 8

    with shown.NotebookProgress(cell.display, str) as view:
        view.planned("query", 2, 1, 1)
        view.started(0, "hash <id>", committed)
        assert asked.wait(60)
        view.finished(0, "hash <id>", report(8, 5))
        view.finished(1, "another", report(2, 2))
    assert "query: 2 exchanges, 1 stored, 1 to run" in cell.shown[1]
    assert "<progress></progress>" in cell.shown[2], "its length is not known yet"
    last = cell.shown[-1]
    assert "<id>" not in last
    assert last.count("<progress") == 2
    assert '<progress value="8" max="8"></progress></td><td>8/8</td>' in last
    assert "resumed, 5 reused, 3.0 MiB" in last


@pytest.mark.parametrize(("kernel", "expected"), [(object(), "NotebookProgress"), (None, "Plain")])
def test_only_a_kernel_is_a_notebook(
    kernel: object, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IPython in a terminal has no kernel; there, and in plain Python, it is lines or bars."""
    cell = Cell()
    shell = SimpleNamespace(kernel=kernel)
    display = SimpleNamespace(display=cell.display, HTML=str)
    ipython = SimpleNamespace(get_ipython=lambda: shell, display=display)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    assert type(shown.show_progress(wanted=True)).__name__.startswith(expected)
    assert type(shown.show_progress(wanted=False)) is shown.ProgressView
