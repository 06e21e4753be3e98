"""`durable-shuffle cat`: the rows of a sealed stage, without Spark."""

import itertools
import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

import pyarrow as pa
import typer

from durable_shuffle.jobs.cli.call import Call
from durable_shuffle.jobs.cli.names import find_job, find_stage
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
from durable_shuffle.serialization.decimals import logical_batch
from durable_shuffle.serialization.pair_codec import PAIR_CODEC
from durable_shuffle.shuffle.object_reader import read_pairs
from durable_shuffle.shuffle.sealed_reader import read_subpartition
from durable_shuffle.shuffle.settings import Settings
from durable_shuffle.shuffle.stage import StageHandle, open_stage, require_seal

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
        rows = _rows(handle, partition, limit)
        if as_json:
            seal = require_seal(handle)
            document = {
                "stage": handle.path.name,
                "rows_in_stage": seal.rows,
                "columns": names,
                "rows": [dict(zip(names, row, strict=True)) for row in rows],
            }
            call.emit(document, "")
        elif output_format is Format.TABLE:
            found = list(rows)
            typer.echo(row_table(names, found))
            of = f"of {require_seal(handle).rows} in the stage"
            call.note(f"{len(found)} rows {of}; --limit and --format jsonl show more")
        else:
            if output_format is Format.CSV:
                sys.stdout.write(csv_line(names))
            for row in rows:
                is_csv = output_format is Format.CSV
                sys.stdout.write(csv_line(row) if is_csv else json_line(names, row))


def _rows(stage: StageHandle, partition: int | None, limit: int | None) -> Iterator[list[object]]:
    """Yield rows; fails before the first one if the stage is not sealed."""
    seal = require_seal(stage)
    partitions = range(stage.describe.partitions) if partition is None else (partition,)

    def batches() -> Iterator[pa.RecordBatch]:
        for k in partitions:
            for batch in read_subpartition(stage, seal, k, Settings()):
                yield logical_batch(batch, stage.schema)

    left = limit
    if stage.describe.codec == PAIR_CODEC:
        pairs = (pair for k in partitions for pair in read_pairs(stage, seal, k, Settings()))
        for pair in itertools.islice(pairs, limit):
            yield [json_value(item) for item in pair]
        return
    for batch in batches() if left != 0 else ():
        if left is not None:
            batch = batch.slice(0, left)
            left -= batch.num_rows
        yield from batch_rows(batch)
        if left == 0:
            return
