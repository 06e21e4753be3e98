"""Rows as text: JSON values, CSV fields, table cells. Pure."""

import base64
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal

import pyarrow as pa

from durable_shuffle.jobs.text import table

_ROWS = 1000
"""Made Python values of at a time."""

_CELL_CHARS = 60
"""Longest cell of a table; what is cut ends in an ellipsis."""


def column_names(columns: Sequence[str]) -> list[str]:
    """Return the column names; a name that was there before gets its column's number."""
    names: list[str] = []
    for number, name in enumerate(columns):
        names.append(f"{name}#{number}" if name in names else name)
    return names


def batch_rows(batch: pa.RecordBatch) -> Iterator[list[object]]:
    """Yield rows of values that JSON can hold; few of them are in memory at a time."""
    for start in range(0, batch.num_rows, _ROWS):
        part = batch.slice(start, _ROWS)
        columns = [[json_value(v) for v in column.to_pylist()] for column in part.columns]
        for row in range(part.num_rows):
            yield [column[row] for column in columns]


def json_value(value: object) -> object:
    """Return `value` as JSON can hold it: bytes in base64, times in ISO 8601, others as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta | Decimal):
        return str(value)
    if isinstance(value, dict):
        return {str(name): json_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):  # an entry of a map is a tuple
        return [json_value(inner) for inner in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def json_line(names: Sequence[str], row: Sequence[object]) -> str:
    """Return one line of JSON lines."""
    return json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) + "\n"


def csv_line(row: Sequence[object]) -> str:
    """Return one line of CSV: null is nothing at all, the empty text is two quotes."""
    return ",".join(map(_csv_field, row)) + "\n"


def row_table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> tuple[str, int]:
    """Return aligned columns with cells of bounded length, and how many rows there are."""
    cells = [[_cell(value) for value in row] for row in rows]
    return table(names, cells), len(cells)


def _csv_field(value: object) -> str:
    if value is None:
        return ""
    text = _plain(value)
    if not text or any(c in text for c in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _cell(value: object) -> str:
    text = "NULL" if value is None else _plain(value)
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= _CELL_CHARS else text[: _CELL_CHARS - 1] + "…"


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
