"""Converts the results of user functions to record batches, and finds the partition of each row."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.serialization.arrow_schemas import (
    logical_batch,
    logical_schema,
    storable_batch,
    under_schema,
)
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.user_code import guarded
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.rows.partitioner import hash_partition_ids, round_robin_ids


def batches_of(made: Any, schema: pa.Schema, *, what: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a result: None, a batch, a table, a row, or an iterable of these.

    Args:
        schema: of the batches, storable; rows are dictionaries with its columns.
        what: names the function, for messages.

    Raises:
        InvalidInputError: the result is something else, or does not fit the schema.
    """
    rows: list[Mapping[str, Any]] = []
    for item in _items(made):
        if isinstance(item, Mapping):
            rows.append(item)
            continue
        if rows:
            yield _from_rows(rows, schema, what)
            rows = []
        if isinstance(item, pa.Table):
            for batch in item.to_batches():
                yield _fitting(batch, schema, what)
        elif isinstance(item, pa.RecordBatch):
            yield _fitting(item, schema, what)
        else:
            raise InvalidInputError(
                f"{what} must give record batches, tables or rows as dictionaries, "
                f"found {type(item).__name__}"
            )
    if rows:
        yield _from_rows(rows, schema, what)


def users_schema(stage: StageHandle) -> pa.Schema:
    """Return the user's column names and types."""
    logical = logical_schema(stage.schema)
    names = stage.describe.columns
    return pa.schema([f.with_name(n) for f, n in zip(logical, names, strict=True)])


def users_batch(batch: pa.RecordBatch, stage: StageHandle) -> pa.RecordBatch:
    """Return a stored batch with the user's column names and types."""
    return under_schema(logical_batch(batch, stage.schema), users_schema(stage))


def partition_ids(
    stage: StageHandle, batch: pa.RecordBatch, start: int
) -> npt.NDArray[np.unsignedinteger]:
    """Return the partition of each row: by the stage's key, or in turn, beginning with `start`."""
    keys, partitions = stage.describe.keys, stage.describe.partitions
    if keys:
        return hash_partition_ids([batch.column(k) for k in keys], partitions)
    return round_robin_ids(start, batch.num_rows, partitions)


def _items(made: Any) -> Iterable[Any]:
    if made is None:
        return ()
    if isinstance(made, pa.RecordBatch | pa.Table | Mapping):
        return (made,)
    if isinstance(made, Iterable) and not isinstance(made, str | bytes):
        return made if isinstance(made, list | tuple) else guarded(made)
    return (made,)


def _from_rows(rows: list[Mapping[str, Any]], schema: pa.Schema, what: str) -> pa.RecordBatch:
    strange = {str(key) for row in rows for key in row} - set(schema.names)
    if strange:
        raise InvalidInputError(
            f"{what} gave a column that the schema does not have: {sorted(strange)[0]!r}, expected "
            f"{', '.join(schema.names)}"
        )
    try:
        return pa.RecordBatch.from_pylist(rows, schema=schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(
            f"{what} gave a row that does not fit the schema: {error}"
        ) from error


def _fitting(batch: pa.RecordBatch, schema: pa.Schema, what: str) -> pa.RecordBatch:
    if batch.schema.names != schema.names:
        raise InvalidInputError(
            f"{what}: expected columns {', '.join(schema.names)}, found "
            f"{', '.join(batch.schema.names)}"
        )
    return storable_batch(batch, schema)
