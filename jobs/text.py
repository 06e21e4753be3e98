"""Values as text for people: tables, sizes, times. Nothing is cut to a terminal's width.

In a notebook a table is HTML; every cell is escaped.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return aligned columns; None is shown as '-'."""
    cells = [list(head)] + [[_cell(value) for value in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in cells]
    return "\n".join(line.rstrip() for line in lines)


def html_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return the same as HTML, for `_repr_html_`."""
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = ["".join(f"<td>{escape(_cell(value))}</td>" for value in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"


def html_lines(lines: Sequence[str]) -> str:
    """Return a paragraph of lines, "" for none."""
    return f"<p>{'<br>'.join(map(escape, lines))}</p>" if lines else ""


def _cell(value: object) -> str:
    return "-" if value is None else str(value)


def fields(values: Sequence[tuple[str, object]]) -> str:
    """Return one 'name  value' line per pair."""
    width = max(len(name) for name, _ in values)
    return "\n".join(f"{name.ljust(width)}  {'-' if v is None else v}" for name, v in values)


def size(count: int | None) -> str | None:
    """Return bytes in a unit that reads well."""
    if count is None:
        return None
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{count} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, which takes an s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def when(wall_seconds: float | None) -> str | None:
    """Return a time since 1970 as UTC."""
    if wall_seconds is None:
        return None
    return datetime.fromtimestamp(wall_seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def assigned(how: str, keys: Sequence[str], columns: Sequence[str] = ()) -> str:
    """Return how rows are assigned to partitions, with the columns that decide it.

    Args:
        columns: of the rows; the first ones are shown where no key has a name.
    """
    if keys:
        return f"{how} by {', '.join(keys)}"
    names = ", ".join(columns[:4]) + (", …" if len(columns) > 4 else "")
    return f"{how} [{names}]" if columns else how
