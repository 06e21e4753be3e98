"""Benchmarks write their own parts of docs/benchmarks.md, and nobody else does.

A block stands between `<!-- begin NAME ... -->` and `<!-- end NAME -->`. It holds one table, of
which a benchmark replaces the row that begins with its own case, or adds it; or it is written
whole. Every row says when and on what it was measured, so that rows of different days can stand
together.
"""

import re
from datetime import UTC, datetime
from pathlib import Path

from places import STORAGE

from durable_shuffle.bench.machine import short_machine_text

DOCUMENT = Path(__file__).parents[2] / "docs" / "benchmarks.md"
PICTURES = DOCUMENT.parent / "pictures"
MEASURED = "measured"


def record(block: str, head: tuple[str, ...], cells: tuple[str, ...]) -> None:
    """Put one row into the table of a block of the document, with the day and the machine.

    Args:
        head: the table's columns.
        cells: as many as `head`; the first names the row. The storage is added to it.
    """
    name = cells[0] if STORAGE == "folder" else f"{cells[0]}, {STORAGE}"
    row = (name, *cells[1:], measured())
    DOCUMENT.write_text(with_row(DOCUMENT.read_text(), block, (*head, MEASURED), row))


def write_block(block: str, text: str, document: Path = DOCUMENT) -> None:
    """Replace all of a block of the document."""
    before = document.read_text()
    found = _block(before, block)
    document.write_text(before[: found.start(1)] + text.rstrip() + "\n" + before[found.end(1) :])


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table as text."""
    return "\n".join([_line(head), "|" + "---|" * len(head), *map(_line, rows)])


def measured() -> str:
    """Return the day and the machine in a few words."""
    return f"{datetime.now(UTC):%Y-%m-%d}, {short_machine_text()}"


def cells_of(block: str) -> list[list[str]]:
    """Return the cells of all rows of a block of the document."""
    found = _block(DOCUMENT.read_text(), block)[1].splitlines()[2:]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in found]


def with_row(text: str, block: str, head: tuple[str, ...], cells: tuple[str, ...]) -> str:
    """Return the document with the row in its block."""
    if len(head) != len(cells):
        raise ValueError(f"expected {len(head)} cells, found {len(cells)}")
    found = _block(text, block)
    rows = {line.split("|")[1].strip(): line for line in found[1].splitlines()[2:]}
    rows[cells[0]] = _line(cells)
    whole = [_line(head), "|" + "---|" * len(head), *rows.values()]
    return text[: found.start(1)] + "\n".join(whole) + "\n" + text[found.end(1) :]


def _block(text: str, block: str) -> re.Match[str]:
    found = re.search(rf"<!-- begin {block};.*?-->\n(.*?)<!-- end {block} -->", text, re.DOTALL)
    if found is None:
        raise ValueError(f"the document has no block {block!r}")
    return found


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
