"""Spark schema to the Arrow schema of stored rows."""

import inspect

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DecimalType, LongType, StructField, StructType

from durable_shuffle.serialization.arrow_schemas import storable_schema, unscaled_field

_LONG_DIGITS = 18
"""Decimals of up to this many digits fit into a long; Spark stores them as a long."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Python workers see: times in UTC, columns named c0, c1, …

    Columns are named by position, because the user's names may repeat.
    """
    positional = positional_schema(schema)
    if "timezone" in inspect.signature(to_arrow_schema).parameters:  # from PySpark 4.2 on
        return to_arrow_schema(positional, timezone="UTC")
    return to_arrow_schema(positional)


def named_arrow_schema(schema: StructType) -> pa.Schema:
    """Return `arrow_schema` in plain layouts, under the user's column names."""
    plain = storable_schema(arrow_schema(schema))
    return pa.schema([f.with_name(n) for f, n in zip(plain, schema.names, strict=True)])


def narrow_arrow_schema(schema: StructType) -> pa.Schema:
    """Return `arrow_schema` with decimals of up to 18 digits as unscaled longs.

    Each such field keeps its decimal type in its metadata.
    """
    narrow = narrow_positions(schema)
    fields = enumerate(arrow_schema(schema))
    return pa.schema([unscaled_field(field) if i in narrow else field for i, field in fields])


def positional_schema(schema: StructType) -> StructType:
    """Return the same columns named c0, c1, …"""
    return _positional(schema, ())


def narrow_schema(schema: StructType) -> StructType:
    """Return the columns named c0, c1, … with decimals of up to 18 digits as longs."""
    return _positional(schema, narrow_positions(schema))


def _positional(schema: StructType, longs: tuple[int, ...]) -> StructType:
    types = [LongType() if i in longs else field.dataType for i, field in enumerate(schema)]
    fields = zip(schema, types, strict=True)
    return StructType([StructField(f"c{i}", t, f.nullable) for i, (f, t) in enumerate(fields)])


def narrow_positions(schema: StructType) -> tuple[int, ...]:
    """Return the positions of top-level decimals that fit into a long."""
    return tuple(
        i
        for i, field in enumerate(schema)
        if isinstance(field.dataType, DecimalType) and field.dataType.precision <= _LONG_DIGITS
    )
