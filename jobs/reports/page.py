"""Pages: one file each, no script, nothing fetched from anywhere. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from durable_shuffle.jobs.reports.style import STYLE

_ICON = "data:,"
"""Without it browsers ask for a favicon."""


@dataclass(frozen=True, slots=True)
class Value:
    """A table's cell with a verdict on it."""

    text: str
    verdict: Literal["good", "bad", "wrap"]


Cell = str | Value | None


def page(title: str, body: Sequence[str]) -> str:
    """Return a whole HTML document."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="{_ICON}">\n<title>{escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<main>\n" + "\n".join(body) + "\n</main>\n"
        "</body>\n</html>\n"
    )


def heading(title: str, soft: str, failures: Sequence[str] | None, good: str = "") -> str:
    """Return the top of a page; `failures` None means that nothing was judged."""
    badge = ""
    if failures is not None:
        text = good if not failures else f"{len(failures)} checks failed"
        badge = f'<div class="verdict{" bad" if failures else ""}">{escape(text)}</div>'
        badge += plain_list(failures)
    return f'<h1>{escape(title)}</h1><p class="soft">{escape(soft)}</p>{badge}'


def tiles(entries: Sequence[tuple[str, str, str]]) -> str:
    """Return (label, value, what stands beside it) as large figures."""
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile"><div class="label">{escape(label)}</div>'
            f'<div class="value">{escape(value)}</div>'
            f'<div class="beside">{escape(beside)}</div></div>'
            for label, value, beside in entries
        )
        + "</div>"
    )


def section(title: str, text: str = "") -> str:
    """Return a heading with a sentence below it."""
    return f"<h2>{escape(title)}</h2>" + (f'<p class="soft">{escape(text)}</p>' if text else "")


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]], *, left: int) -> str:
    """Return a table; columns from `left` on hold numbers. A row whose first cell is not empty
    begins a group."""
    heads = "".join(
        f"<th{' class=n' if i >= left else ''}>{escape(name)}</th>" for i, name in enumerate(head)
    )
    lines = []
    for row in rows:
        cells = "".join(_cell(cell, number=i >= left) for i, cell in enumerate(row))
        first = ' class="first"' if row and row[0] else ""
        lines.append(f"<tr{first}>{cells}</tr>")
    body = f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<div class="card scroll"><table>{body}</table></div>'


def plain_list(lines: Sequence[str]) -> str:
    """Return lines one below the other."""
    if not lines:
        return ""
    entries = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="plain">{entries}</ul>'


def code(text: str) -> str:
    """Return text as typed."""
    return f"<code>{escape(text)}</code>"


def _cell(cell: Cell, *, number: bool) -> str:
    classes = ["n"] if number else []
    if isinstance(cell, Value):
        classes.append(cell.verdict)
        cell = cell.text
    marked = f' class="{" ".join(classes)}"' if classes else ""
    return f"<td{marked}>{escape(cell or '')}</td>"
