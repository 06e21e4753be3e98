"""Spark schema to the Arrow schema of stored rows.

Columns of types that Spark does not hand to Python are stored as `carried_schema` says.
"""

import inspect
from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    LongType,
    MapType,
    StructField,
    StructType,
)

from durable_shuffle.jobs.jvm_rows.kinds import carried_schema
from durable_shuffle.serialization.arrow_schemas import storable_schema, unscaled_field

_LONG_DIGITS = 18
"""Decimals of up to this many digits fit into a long; Spark stores them as a long."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Python workers see: times in UTC, columns named c0, c1, …

    Columns are named by position, because the user's names may repeat.
    """
    positional = carried_schema(positional_schema(schema))
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


def with_unique_fields(kind: DataType) -> DataType:
    """Return the type with another name for each field of a struct whose name an earlier one has.

    Spark does not hand a struct with two fields of one name to Python.
    """
    if isinstance(kind, ArrayType):
        return ArrayType(with_unique_fields(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        key, value = with_unique_fields(kind.keyType), with_unique_fields(kind.valueType)
        return MapType(key, value, kind.valueContainsNull)
    if not isinstance(kind, StructType):
        return kind
    names = _unique([field.name for field in kind])
    fields = zip(names, kind, strict=True)
    return StructType(
        [StructField(n, with_unique_fields(f.dataType), f.nullable) for n, f in fields]
    )


def _unique(names: Sequence[str]) -> list[str]:
    if len({name.lower() for name in names}) == len(names):
        return list(names)
    return [f"f{i}" for i in range(len(names))]


def _positional(schema: StructType, longs: tuple[int, ...]) -> StructType:
    types = [
        LongType() if i in longs else with_unique_fields(field.dataType)
        for i, field in enumerate(schema)
    ]
    fields = zip(schema, types, strict=True)
    return StructType([StructField(f"c{i}", t, f.nullable) for i, (f, t) in enumerate(fields)])


def narrow_positions(schema: StructType) -> tuple[int, ...]:
    """Return the positions of top-level decimals that fit into a long."""
    return tuple(
        i
        for i, field in enumerate(schema)
        if isinstance(field.dataType, DecimalType) and field.dataType.precision <= _LONG_DIGITS
    )
