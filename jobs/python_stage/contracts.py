"""Checks the batches that user functions yield against the declared schema. Runs in workers.

Columns must have the declared names, order and types. Other layouts of the same values
(dictionaries, views, large offsets, another time zone of the same instants) are converted.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from durable_shuffle.serialization.arrow_schemas import storable_batch, storable_schema
from durable_shuffle.serialization.errors import InvalidInputError


def checked_batches(produced: Any, schema: pa.Schema, what: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches that a user function yields, in `schema`.

    Args:
        produced: what the function returned: a RecordBatch, a Table or an iterable of these.
        schema: the declared schema, in storable types.
        what: the function's role, for messages.

    Raises:
        InvalidInputError: not an iterable of batches; a batch with other columns; or nulls in a
            column that is declared not null. Names the column, the expected and the found type.
    """
    if isinstance(produced, (pa.RecordBatch, pa.Table)):
        produced = [produced]
    try:
        batches = iter(produced)
    except TypeError:
        raise InvalidInputError(
            f"{what} must return an iterator of pyarrow.RecordBatch, found "
            f"{type(produced).__name__}"
        ) from None
    known: pa.Schema | None = None
    for item in batches:
        if not isinstance(item, (pa.RecordBatch, pa.Table)):
            raise InvalidInputError(
                f"{what} must yield pyarrow.RecordBatch, found {type(item).__name__}"
            )
        if known is None or not item.schema.equals(known):
            check_schema(item.schema, schema, what)
            known = item.schema
        for batch in item.to_batches() if isinstance(item, pa.Table) else (item,):
            yield _without_nulls(storable_batch(batch, schema), schema, what)


def check_schema(yielded: pa.Schema, expected: pa.Schema, what: str) -> None:
    """Refuse columns that are not the declared ones.

    Raises:
        InvalidInputError: names the first column that differs, the expected and the found type.
    """
    for i, field in enumerate(expected):
        if i >= len(yielded):
            raise InvalidInputError(
                f"{what} must yield column {field.name!r} of type {field.type}, found no such "
                f"column; found columns are {', '.join(yielded.names) or 'none'}"
            )
        other = yielded.field(i)
        if other.name != field.name:
            raise InvalidInputError(
                f"{what} must yield column {field.name!r} of type {field.type} at position {i}, "
                f"found column {other.name!r} of type {other.type}"
            )
        if _meaning(other.type) != _meaning(field.type):
            raise InvalidInputError(
                f"{what} must yield column {field.name!r} of type {field.type}, found type "
                f"{other.type}"
            )
    if len(yielded) > len(expected):
        extra = yielded.field(len(expected))
        raise InvalidInputError(
            f"{what} yields column {extra.name!r} of type {extra.type}, which is not declared; "
            f"declared are {', '.join(expected.names) or 'none'}"
        )


def _without_nulls(batch: pa.RecordBatch, schema: pa.Schema, what: str) -> pa.RecordBatch:
    for column, field in zip(batch.columns, schema, strict=True):
        if not field.nullable and column.null_count:
            raise InvalidInputError(
                f"{what} yields {column.null_count} nulls in column {field.name!r}, which is "
                f"declared as {field.type} not null"
            )
    return batch


def _meaning(kind: pa.DataType) -> object:
    """Return a value that is equal for two types if their values convert without loss."""
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        return _meaning(kind.value_type)
    if pt.is_large_string(kind) or pt.is_string_view(kind):
        return pa.string()
    if pt.is_large_binary(kind) or pt.is_binary_view(kind):
        return pa.binary()
    if pt.is_timestamp(kind):
        return ("timestamp", kind.unit, kind.tz is not None)
    if pt.is_map(kind):
        return ("map", _meaning(kind.key_type), _meaning(kind.item_type))
    if (
        pt.is_list(kind)
        or pt.is_large_list(kind)
        or pt.is_list_view(kind)
        or pt.is_large_list_view(kind)
    ):
        return ("list", _meaning(kind.value_type))
    if pt.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return ("struct", *((field.name, _meaning(field.type)) for field in fields))
    return storable_schema(pa.schema([("x", kind)])).field(0).type
