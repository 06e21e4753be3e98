"""Values as text for people: tables, sizes, times. Nothing is cut to a terminal's width."""

from collections.abc import Sequence
from datetime import UTC, datetime


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return aligned columns; None is shown as '-'."""
    cells = [list(head)] + [["-" if v is None else str(v) for v in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in cells]
    return "\n".join(line.rstrip() for line in lines)


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
