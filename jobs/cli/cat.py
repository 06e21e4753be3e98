"""`durable-shuffle cat`: the rows of a stage, without Spark, as a table, JSON lines or CSV."""

import base64
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated

import pyarrow as pa
import typer

from durable_shuffle.jobs.cli.call import (
    Call,
    Job,
    Stage,
    command,
)
from durable_shuffle.jobs.inspect.names import find_job, find_stage
from durable_shuffle.jobs.inspect.producer_logs import LogRows
from durable_shuffle.jobs.text import table
from durable_shuffle.serialization.arrow_schemas import logical_batch
from durable_shuffle.serialization.msgpack_codec import PAIR_CODEC
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage, require_seal
from durable_shuffle.shuffle.read.sealed_reader import read_pairs, read_subpartition

_TABLE_ROWS = 20
"""What `--format table` shows without `--limit`: a table is laid out as a whole."""


class Format(StrEnum):
    """How rows are written."""

    TABLE = "table"
    JSONL = "jsonl"
    CSV = "csv"


@command
def cat(
    call: Call,
    job: Job,
    stage: Stage,
    *,
    partition: Annotated[
        int | None, typer.Option(min=0, metavar="K", help="Only this partition; default: all.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Stop after N rows. Default: 20 for table, else all."
        ),
    ] = None,
    output_format: Annotated[Format, typer.Option("--format", help="How to write rows.")] = (
        Format.TABLE
    ),
) -> None:
    """Write rows of a stored stage, partition by partition, in stored order.

    For a stage that grows: the rows that its logs hold now, each producer's rows in order.
    Standard error says if producers have not ended or rows were released.

    Bytes are written in base64, nested values as JSON. In CSV an empty field is null and "" is an
    empty text. --json holds all rows in one document: give it a limit, or use --format jsonl.

    \b
    Examples:
      durable-shuffle cat /data/shuffle nightly orders
      durable-shuffle cat /data/shuffle nightly orders --partition 3 --format jsonl > orders-3.jsonl
    """
    copy = find_job(call.storage, job)
    call.warn_of_damage(copy)
    handle = open_stage(call.storage, find_stage(copy, stage))
    if limit is None and output_format is Format.TABLE and not call.as_json:
        limit = _TABLE_ROWS
    names = column_names(handle.describe.columns)
    source = _open(handle)
    partitions = range(handle.describe.partitions) if partition is None else (partition,)
    rows = itertools.islice((row for k in partitions for row in source.rows(k)), limit)
    if source.note is not None:
        call.note(source.note)
    if call.as_json:
        head = {"stage": handle.path.name, "rows_in_stage": source.count, "columns": names}
        call.emit(head | {"rows": [dict(zip(names, row, strict=True)) for row in rows]}, "")
    elif output_format is Format.TABLE:
        text, count = row_table(names, rows)
        typer.echo(text)
        call.note(
            f"{count} rows of {source.count} in the stage; --limit and --format jsonl show more"
        )
    elif output_format is Format.CSV:
        sys.stdout.write(csv_line(names))
        sys.stdout.writelines(map(csv_line, rows))
    else:
        sys.stdout.writelines(json_line(names, row) for row in rows)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the rows of a stage come from."""

    count: int
    """Of the whole stage."""
    rows: Callable[[int], Iterator[list[object]]]
    """The rows of one partition, as values that JSON can hold."""
    note: str | None = None
    """Says why rows may be missing."""


def _open(stage: StageHandle) -> _Source:
    """Return the source; fails if the stage is released, or neither sealed nor a log."""
    if stage.describe.writing == "log":
        log = LogRows(stage)
        open_ = log.producers - log.ended
        notes = [f"{open_} of {log.producers} producers have not ended"] if open_ else []
        notes += [f"{log.released} rows were released"] if log.released else []
        note = f"note: {', '.join(notes)}; these are the rows that are stored now"
        return _Source(
            log.rows, lambda k: _batch_rows(stage, log.batches(k)), note if notes else None
        )
    seal, settings = require_seal(stage), Settings()
    if stage.describe.codec == PAIR_CODEC:
        return _Source(
            seal.rows,
            lambda k: (list(map(json_value, p)) for p in read_pairs(stage, seal, k, settings)),
        )
    return _Source(
        seal.rows, lambda k: _batch_rows(stage, read_subpartition(stage, seal, k, settings))
    )


_ROWS = 100
"""How many rows are Python values at the same time."""

_CELL_CHARS = 60
"""Longest cell of a table; what is cut ends in an ellipsis."""


def column_names(columns: Sequence[str]) -> list[str]:
    """Return the column names; a name that was there before gets its column's number."""
    names: list[str] = []
    for number, name in enumerate(columns):
        names.append(f"{name}#{number}" if name in names else name)
    return names


def _batch_rows(stage: StageHandle, batches: Iterator[pa.RecordBatch]) -> Iterator[list[object]]:
    for stored in batches:
        batch = logical_batch(stored, stage.schema)
        for start in range(0, batch.num_rows, _ROWS):
            part = batch.slice(start, _ROWS)
            columns = [list(map(json_value, column.to_pylist())) for column in part.columns]
            for row in range(part.num_rows):  # also where there are no columns
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
