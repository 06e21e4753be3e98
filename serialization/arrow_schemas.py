"""Schemas of stored rows: plain layouts, added columns, and decimals stored as longs. Pure.

Columns are stored only in plain layouts. Dictionaries would need their own messages, views would
put all their data into every slice, and `take` supports neither views nor run-end encoding.

A stage's schema may get nullable columns; nothing else in it may change.

A decimal of up to 18 digits is a long inside Spark. Storing that long avoids conversions to big
decimals on both sides; the field's metadata keeps the decimal type. Readers in Python convert such
columns back here, to 16 bytes per value.
"""

import re
import struct

import numpy as np
import pyarrow as pa

from durable_shuffle.serialization.checksum import Bytes
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
)

# what pyarrow raises for bad bytes: ArrowException, and plain OSError, EOFError, KeyError,
# TypeError and NotImplementedError from its readers. MemoryError is not here: it is no damage.
ARROW_ERRORS = (
    pa.ArrowException,
    OSError,
    EOFError,
    KeyError,
    TypeError,
    ValueError,
    OverflowError,
    NotImplementedError,
    struct.error,
)


def storable_schema(schema: pa.Schema) -> pa.Schema:
    """Return `schema` with plain layouts instead of dictionaries, views and run-end encoding.

    Names, order, nullability and metadata stay. A schema that is storable is returned unchanged.

    Raises:
        InvalidInputError: an extension type is built on such a layout.
    """
    fields = [field.with_type(_storable_type(field.type, field.name)) for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def storable_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return `batch` converted to `schema`, which comes from `storable_schema`.

    Raises:
        InvalidInputError: a column cannot be converted; it is named.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    if batch.num_columns != len(schema):
        raise InvalidInputError(f"batch: expected {len(schema)} columns, found {batch.num_columns}")
    if not batch.num_columns:
        return batch.replace_schema_metadata(schema.metadata)
    columns = [_convert(column, field) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def under_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the same rows under another schema of the same types; nothing is converted.

    A batch without columns keeps its number of rows, which `RecordBatch.from_arrays` would lose.
    """
    if not batch.num_columns and not len(schema):
        return batch.replace_schema_metadata(schema.metadata)
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def schema_to_bytes(schema: pa.Schema) -> bytes:
    """Return `schema` as one Arrow IPC schema message."""
    raw: bytes = schema.serialize().to_pybytes()
    return raw


def schema_from_bytes(data: Bytes, *, name: str) -> pa.Schema:
    """Return the schema in `data`.

    Args:
        name: where the bytes stand, for messages.

    Raises:
        CorruptDataError: the bytes are not an Arrow IPC schema message; or the schema has layouts
            that are never stored, in which a few bytes can stand for any number of values.
    """
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
        storable = storable_schema(schema) == schema
    except (*ARROW_ERRORS, InvalidInputError) as error:
        raise CorruptDataError(
            f"arrow schema of {memoryview(data).nbytes} bytes: {error}: {name}"
        ) from error
    if not storable:
        raise CorruptDataError(f"columns are not stored plain: {schema.types}: {name}")
    return schema


def _convert(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    import pyarrow.compute as pc  # 30 ms that tasks which only read do not need

    try:
        if pa.types.is_run_end_encoded(column.type):
            column = pc.run_end_decode(column)
        elif pa.types.is_dictionary(column.type):
            column = column.dictionary.take(column.indices)
        elif isinstance(column, pa.ListViewArray | pa.LargeListViewArray):
            column = _plain_list(column)
        column = column.cast(field.type)
        column.validate()
    except ARROW_ERRORS as error:
        raise InvalidInputError(
            f"column {field.name!r}: cannot store {column.type} as {field.type}: {error}"
        ) from error
    return column


def _plain_list(column: pa.Array) -> pa.Array:
    """Return a list view as a list. Arrow's own cast leaves the last offset out (26.0.1)."""
    import pyarrow.compute as pc

    wide = isinstance(column, pa.LargeListViewArray)
    lengths = pc.fill_null(column.value_lengths(), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int64()))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    plain = pa.LargeListArray if wide else pa.ListArray
    return plain.from_arrays(
        offsets.cast(pa.int64() if wide else pa.int32()), column.flatten(), mask=column.is_null()
    )


def _storable_type(kind: pa.DataType, column: str) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _storable_type(kind.value_type, column)
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if isinstance(kind, pa.BaseExtensionType):
        if _storable_type(kind.storage_type, column) != kind.storage_type:
            raise InvalidInputError(f"column {column!r}: extension type {kind} is not stored plain")
        return kind
    if not types.is_nested(kind):
        return kind
    children = [kind.field(i) for i in range(kind.num_fields)]
    plain = [child.with_type(_storable_type(child.type, column)) for child in children]
    return _rebuilt(kind, children, plain)


def _rebuilt(kind: pa.DataType, children: list[pa.Field], plain: list[pa.Field]) -> pa.DataType:
    types = pa.types
    if types.is_list_view(kind):
        return pa.list_(plain[0])
    if types.is_large_list_view(kind):
        return pa.large_list(plain[0])
    if plain == children:
        return kind
    if types.is_list(kind):
        return pa.list_(plain[0])
    if types.is_large_list(kind):
        return pa.large_list(plain[0])
    if types.is_fixed_size_list(kind):
        return pa.list_(plain[0], kind.list_size)
    if types.is_struct(kind):
        return pa.struct(plain)
    if types.is_map(kind):
        entries = plain[0].type
        return pa.map_(entries.field(0), entries.field(1), keys_sorted=kind.keys_sorted)
    return pa.union(plain, mode=kind.mode, type_codes=kind.type_codes)


def widened(stored: pa.Schema, wanted: pa.Schema, *, stage: str) -> pa.Schema:
    """Return the schema in which rows of `wanted` are stored after rows of `stored`.

    Stored columns keep their positions; new columns follow. The order of columns in `wanted` does
    not matter, and a stored column keeps its own nullability.

    Raises:
        IncompatibleError: a stored column is missing or has another type, or a new column is not
            nullable; names both schemas.
    """
    names = {field.name: field for field in wanted}
    reasons = [
        f"column {field.name!r} is gone"
        if field.name not in names
        else f"column {field.name!r} was {field.type} and is {names[field.name].type}"
        for field in stored
        if field.name not in names or names[field.name].type != field.type
    ]
    known = set(stored.names)
    added = [field for field in wanted if field.name not in known]
    reasons += [
        f"new column {field.name!r} is not nullable" for field in added if not field.nullable
    ]
    if reasons:
        raise IncompatibleError(
            f"rows do not fit the stage {stage!r}, {'; '.join(reasons)}: only nullable columns can "
            f"be added; stored schema ({shown(stored)}), found ({shown(wanted)})"
        )
    return pa.schema([*stored, *added], metadata=stored.metadata)


def only_adds(now: pa.Schema, stored: pa.Schema) -> bool:
    """Return whether a schema is `stored` with more columns behind it, or the same."""
    return list(now)[: len(stored)] == list(stored)


def later_schema(data: Bytes, stored: pa.Schema, *, name: str) -> pa.Schema:
    """Return the schema in `data`, in which rows were stored after rows of `stored`.

    Args:
        name: where the bytes stand, for messages.

    Raises:
        CorruptDataError: no schema, or one that does not just add columns.
    """
    schema = schema_from_bytes(data, name=name)
    if not only_adds(schema, stored):
        raise CorruptDataError(
            f"rows in a schema that does not begin with that of their stage: {name}: stage "
            f"({shown(stored)}), rows ({shown(schema)})"
        )
    return schema


def fit_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of `schema`, by name: missing ones are null, others are left out.

    Raises:
        CorruptDataError: a column has another type, or its name is that of two.
    """
    columns = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index < 0 and field.name in batch.schema.names:
            raise CorruptDataError(f"two columns of a stored batch are named {field.name!r}")
        if index < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(index)
        if column.type != field.type:
            raise CorruptDataError(
                f"column {field.name!r} of a stored batch is {column.type}, expected {field.type}"
            )
        columns.append(column)
    if not columns:
        return batch.select([])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def shown(schema: pa.Schema) -> str:
    """Return a schema in one line, for people."""
    return ", ".join(
        f"{field.name} {field.type}{'' if field.nullable else ' not null'}" for field in schema
    )


_KEY = b"unscaled_decimal"
_TYPE = re.compile(rb"(\d{1,2}),(\d{1,2})")


def unscaled_field(field: pa.Field) -> pa.Field:
    """Return the int64 field that stores a decimal128 field of up to 18 digits."""
    decimal = field.type
    text = f"{decimal.precision},{decimal.scale}".encode()
    return pa.field(field.name, pa.int64(), field.nullable, {_KEY: text})


def logical_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with the decimal types of unscaled longs restored.

    Raises:
        CorruptDataError: a field's metadata name no valid decimal type.
    """
    return pa.schema([_logical_field(field) for field in schema])


def logical_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a stored batch with its decimals as decimal128; other columns are not copied.

    Args:
        schema: the stored schema, with the metadata of `unscaled_field`.
    """
    wanted = logical_schema(schema)
    if not batch.num_columns and not len(wanted):
        return batch.replace_schema_metadata(None)  # rows without columns
    columns = [
        _scaled(column, field.type) if field.type != stored.type else column
        for column, stored, field in zip(batch.columns, schema, wanted, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _logical_field(field: pa.Field) -> pa.Field:
    text = (field.metadata or {}).get(_KEY)
    if text is None:
        return field
    match = _TYPE.fullmatch(text)
    digits, scale = (int(match[1]), int(match[2])) if match else (0, 0)
    if not (0 < digits <= 38 and scale <= digits and pa.types.is_int64(field.type)):
        raise CorruptDataError(f"column {field.name!r}: not an unscaled decimal: {text!r}")
    return pa.field(field.name, pa.decimal128(digits, scale), field.nullable)


def _scaled(column: pa.Array, decimal: pa.DataType) -> pa.Array:
    values = column.fill_null(0).to_numpy()
    wide = np.empty((len(values), 2), dtype="<i8")
    wide[:, 0] = values
    wide[:, 1] = values >> 63  # two's complement in 128 bits
    valid = column.is_valid() if column.null_count else None
    bits = valid.buffers()[1] if valid is not None else None
    return pa.Array.from_buffers(decimal, len(column), [bits, pa.py_buffer(wide)])
