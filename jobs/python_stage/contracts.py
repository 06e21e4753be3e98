"""Checks the batches that user functions yield against the declared schema. Runs in workers.

Columns must have the declared names, order and types. Other layouts of the same values
(dictionaries, views, large offsets, another time zone of the same instants, a column without any
value) are converted.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from durable_shuffle.serialization.arrow_schemas import storable_batch
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
        if not _fits(other.type, field.type):
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


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether values of one type convert to the other without loss, as Spark takes them.

    A timestamp keeps its microseconds, with a zone or without. A decimal may have another
    precision and scale: a value that would lose digits is refused when it is converted.
    """
    if pt.is_dictionary(found) or pt.is_run_end_encoded(found):
        return _fits(found.value_type, wanted)
    if pt.is_null(found):
        return True
    if pt.is_timestamp(found) and pt.is_timestamp(wanted):
        return bool(found.unit == wanted.unit)
    if pt.is_decimal(found) and pt.is_decimal(wanted):
        return True
    if pt.is_map(found) and pt.is_map(wanted):
        keys = _fits(found.key_type, wanted.key_type)
        return keys and _fits(found.item_type, wanted.item_type)
    if _is_list(found) and _is_list(wanted):
        return _fits(found.value_type, wanted.value_type)
    if pt.is_struct(found) and pt.is_struct(wanted):
        pairs = zip(_fields(found), _fields(wanted), strict=False)
        same = all(a.name == b.name and _fits(a.type, b.type) for a, b in pairs)
        return same and bool(found.num_fields == wanted.num_fields)
    return bool(_plain(found) == _plain(wanted))


def _is_list(kind: pa.DataType) -> bool:
    """Return whether a type is a list of any length, in any layout."""
    kinds = (pt.is_list, pt.is_large_list, pt.is_list_view, pt.is_large_list_view)
    return any(is_kind(kind) for is_kind in kinds)


def _fields(kind: pa.StructType) -> list[pa.Field]:
    return [kind.field(i) for i in range(kind.num_fields)]


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type with 32-bit offsets, of texts and bytes in any layout."""
    if pt.is_large_string(kind) or pt.is_string_view(kind):
        return pa.string()
    if pt.is_large_binary(kind) or pt.is_binary_view(kind):
        return pa.binary()
    return kind
