"""How the demo looks in a terminal: bars while it runs, a table at the end."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from durable_shuffle.bench.recovery_demo import steps as recovery_steps
from durable_shuffle.bench.recovery_demo.runner import Listener
from durable_shuffle.bench.recovery_demo.steps import Step
from durable_shuffle.bench.recovery_demo.verdict import Figures


@contextmanager
def progress_bars(console: Console) -> Iterator[Listener]:
    """Show one bar per step; yield the function that moves them.

    Where the output is no terminal, one line is printed per step instead when it is over.
    """
    bars: dict[int, TaskID] = {}
    columns = (
        TextColumn("{task.description:<32}"),
        BarColumn(bar_width=8),
        TextColumn("map {task.fields[maps]:>5} reduce {task.fields[reduces]:>5}"),
        TextColumn("{task.fields[note]:<8}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as view:

        def listen(step: Step, at: recovery_steps.Progress, note: str) -> None:
            if step.number not in bars:
                total = at.map_total + at.reduce_total
                bars[step.number] = view.add_task(
                    step.title, total=total, maps="", reduces="", note=""
                )
            view.update(
                bars[step.number],
                completed=at.map_done + at.reduce_done,
                maps=f"{at.map_done}/{at.map_total}",
                reduces=f"{at.reduce_done}/{at.reduce_total}",
                note=note,
            )
            over = note == "done" or (note == "killed" and step.fault == "driver")
            if over:
                view.stop_task(bars[step.number])
            if over and not console.is_terminal:
                console.print(f"{step.title}: {note}")

        yield listen


def figures_table(figures: Sequence[Figures], title: str) -> Table:
    """Return the table of the end, at most 80 columns wide."""
    table = Table(
        title=title, title_justify="left", box=None, pad_edge=False, collapse_padding=True
    )
    for name in ("map tasks", "SIGKILL", "shuffle"):
        table.add_column(name, no_wrap=True)
    for name in ("rows equal", "maps", "reused", "again", "sec", "lost"):
        table.add_column(name, no_wrap=True, justify="right")
    for f in figures:
        again = f"[{'red' if f.map_tasks_again else 'green'}]{f.map_tasks_again}[/]"
        lost = f"{f.seconds_lost:+.1f}" if f.fault != "none" else ""
        run, reused = str(f.map_tasks_run), str(f.map_tasks_reused)
        table.add_row(
            *(f.producers, _killed(f), f.shuffle, _rows(f)),
            *(run, reused, again, f"{f.seconds:.1f}", lost),
            end_section=f.shuffle == "spark",
        )
    return table


CAPTION = """\
maps, reused, again: map tasks that ran, whose stored output was taken instead,
and whose finished work was done once more. Where the driver was killed they are
those of the second run, and sec is both runs, without Spark's start.
sec: wall seconds. lost: against the run without a kill."""


def _rows(f: Figures) -> str:
    if f.rows_differing == 0 and f.rows_found == f.rows_expected:
        return f"{f.rows_found:,}"
    return f"[red]{f.rows_differing:,} differ[/]"


def _killed(f: Figures) -> str:
    if f.fault == "none":
        return "none"
    if not f.fault_fired:
        return f"{f.fault}: [red]not fired[/]"
    if f.fault == "executor":
        return f"executor reduce {f.reduced_at_kill}/{f.reduce_tasks}"
    return f"driver map {f.committed_at_kill}/{f.map_tasks}"
