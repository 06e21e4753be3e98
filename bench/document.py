"""Benchmarks write their own lines of docs/benchmarks.md, and nobody else does.

A block stands between `<!-- begin NAME ... -->` and `<!-- end NAME -->` and holds one table; a
benchmark replaces the row that begins with its own case, or adds it.
"""

import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def record(block: str, head: tuple[str, ...], cells: tuple[str, ...]) -> None:
    """Put one row into the table of a block of the document.

    Args:
        head: the table's columns.
        cells: as many as `head`; the first names the row.
    """
    DOCUMENT.write_text(with_row(DOCUMENT.read_text(), block, head, cells))


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
    table = [_line(head), "|" + "---|" * len(head), *rows.values()]
    return text[: found.start(1)] + "\n".join(table) + "\n" + text[found.end(1) :]


def _block(text: str, block: str) -> re.Match[str]:
    found = re.search(rf"<!-- begin {block};.*?-->\n(.*?)<!-- end {block} -->", text, re.DOTALL)
    if found is None:
        raise ValueError(f"the document has no block {block!r}")
    return found


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
