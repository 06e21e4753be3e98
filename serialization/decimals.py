"""Decimals stored as unscaled longs: the field's metadata keeps the decimal type.

A decimal of up to 18 digits is a long inside Spark. Storing that long avoids conversions to big
decimals on both sides. Readers in Python convert such columns back here, to 16 bytes per value.
"""

import re

import numpy as np
import pyarrow as pa

from durable_shuffle.serialization.errors import CorruptDataError

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
    if match is None or not pa.types.is_int64(field.type):
        raise CorruptDataError(f"column {field.name!r}: not an unscaled decimal: {text!r}")
    return pa.field(field.name, pa.decimal128(int(match[1]), int(match[2])), field.nullable)


def _scaled(column: pa.Array, decimal: pa.DataType) -> pa.Array:
    values = column.fill_null(0).to_numpy()
    wide = np.empty((len(values), 2), dtype="<i8")
    wide[:, 0] = values
    wide[:, 1] = values >> 63  # two's complement in 128 bits
    valid = column.is_valid() if column.null_count else None
    bits = valid.buffers()[1] if valid is not None else None
    return pa.Array.from_buffers(decimal, len(column), [bits, pa.py_buffer(wide)])
