"""`durable-shuffle cat`: the rows of a stage, without Spark."""

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import pyarrow as pa
import typer

from durable_shuffle.jobs.cli.call import Call
from durable_shuffle.jobs.cli.params import (
    AsJson,
    Debug,
    Job,
    Stage,
    StorageOption,
    StorageOptionsEnv,
    Url,
)
from durable_shuffle.jobs.cli.rows import (
    batch_rows,
    column_names,
    csv_line,
    json_line,
    json_value,
    row_table,
)
from durable_shuffle.jobs.inspect.log_rows import LogRows
from durable_shuffle.jobs.inspect.names import find_job, find_stage
from durable_shuffle.serialization.decimals import logical_batch
from durable_shuffle.serialization.pair_codec import PAIR_CODEC, Pair
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage, require_seal
from durable_shuffle.shuffle.read.object_reader import read_pairs
from durable_shuffle.shuffle.read.sealed_reader import read_subpartition

_TABLE_ROWS = 20
"""What `--format table` shows without `--limit`: a table is laid out as a whole."""


class Format(StrEnum):
    """How rows are written."""

    TABLE = "table"
    JSONL = "jsonl"
    CSV = "csv"


def cat(
    url: Url,
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
    as_json: AsJson = False,
    storage_option: StorageOption = None,
    storage_options_env: StorageOptionsEnv = None,
    debug: Debug = False,
) -> None:
    """Write rows of a sealed stage, partition by partition, in stored order.

    Of a stage of log producers: what its logs hold at the moment, each producer's rows in order.
    Standard error says whether producers have not ended, or rows were released.

    Bytes are written in base64, nested values as JSON; in CSV an empty field is null and "" is an
    empty text. --json gathers all rows into one document: give it a limit, or use --format jsonl.

    \b
    Examples:
      durable-shuffle cat /data/shuffle nightly orders
      durable-shuffle cat /data/shuffle nightly orders --partition 3 --format jsonl > orders-3.jsonl
    """
    with Call(url, storage_option, storage_options_env, as_json=as_json, debug=debug) as call:
        copy = find_job(call.storage, job)
        call.warn_of_damage(copy)
        handle = open_stage(call.storage, find_stage(copy, stage))
        if limit is None and output_format is Format.TABLE and not as_json:
            limit = _TABLE_ROWS
        names = column_names(handle.describe.columns)
        source = _open(handle)
        rows = _rows(handle, source, partition, limit)
        if source.note is not None:
            call.note(source.note)
        if as_json:
            document = {
                "stage": handle.path.name,
                "rows_in_stage": source.rows,
                "columns": names,
                "rows": [dict(zip(names, row, strict=True)) for row in rows],
            }
            call.emit(document, "")
        elif output_format is Format.TABLE:
            text, count = row_table(names, rows)
            typer.echo(text)
            of = f"of {source.rows} in the stage"
            call.note(f"{count} rows {of}; --limit and --format jsonl show more")
        else:
            if output_format is Format.CSV:
                sys.stdout.write(csv_line(names))
            for row in rows:
                is_csv = output_format is Format.CSV
                sys.stdout.write(csv_line(row) if is_csv else json_line(names, row))


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the rows of a stage come from."""

    rows: int
    """In the whole stage."""
    batches: Callable[[int], Iterator[pa.RecordBatch]]
    pairs: Callable[[int], Iterator[Pair]] | None = None
    """Of a stage of pairs, instead; log producers write none."""
    note: str | None = None
    """What the reader must know of the rows that there are not."""


def _open(stage: StageHandle) -> _Source:
    """Return the source; fails if the stage is released, or neither sealed nor a log."""
    if stage.describe.writing == "log":
        log = LogRows(stage)
        open_ = log.producers - log.ended
        notes = [f"{open_} of {log.producers} producers have not ended"] if open_ else []
        notes += [f"{log.released} rows were released"] if log.released else []
        note = f"note: {', '.join(notes)}; these are the rows that are stored now"
        return _Source(log.rows, log.batches, note=note if notes else None)
    seal, settings = require_seal(stage), Settings()
    return _Source(
        seal.rows,
        lambda k: read_subpartition(stage, seal, k, settings),
        lambda k: read_pairs(stage, seal, k, settings),
    )


def _rows(
    stage: StageHandle, source: _Source, partition: int | None, limit: int | None
) -> Iterator[list[object]]:
    partitions = range(stage.describe.partitions) if partition is None else (partition,)
    read = source.pairs
    if read is not None and stage.describe.codec == PAIR_CODEC:
        pairs = (pair for k in partitions for pair in read(k))
        for pair in itertools.islice(pairs, limit):
            yield [json_value(item) for item in pair]
        return
    left = limit
    batches = (batch for k in partitions for batch in source.batches(k))
    for stored in batches if left != 0 else ():
        batch = logical_batch(stored, stage.schema)
        if left is not None:
            batch = batch.slice(0, left)
            left -= batch.num_rows
        yield from batch_rows(batch)
        if left == 0:
            return
