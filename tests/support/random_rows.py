"""Random schemas of every type that the Java code handles, and random rows of them."""

import datetime
import random
from collections.abc import Callable
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyspark.sql import types as spark_types
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from durable_shuffle.serialization.arrow_schemas import logical_schema

_FLAT: tuple[Callable[[random.Random], DataType], ...] = (
    *(lambda _, kind=kind: kind() for kind in (BooleanType, ByteType, ShortType, IntegerType)),
    *(lambda _, kind=kind: kind() for kind in (LongType, FloatType, DoubleType, DateType)),
    *(lambda _, kind=kind: kind() for kind in (TimestampType, TimestampNTZType, BinaryType)),
    *(lambda _: StringType(), lambda _: StringType(), lambda _: StringType("UNICODE_CI")),
    *((lambda _: spark_types.TimeType(6),) if hasattr(spark_types, "TimeType") else ()),
    lambda _: DayTimeIntervalType(),
    lambda rng: DecimalType(rng.randint(1, 18), 0),
    lambda rng: DecimalType(rng.randint(19, 38), rng.randint(0, 19)),
)
_ALPHABET = "abc é€ 🙂\0"
_YEARS = 1_000_000 * 86_400 * 365
"""A year in microseconds."""
_WIDTHS = MappingProxyType({pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64})


def random_schema(
    rng: random.Random, *, columns: int, depth: int = 2, nullable: float = 0.8
) -> StructType:
    """Return a schema with columns named k0, k1, …

    Args:
        depth: most levels of arrays, maps and structs.
        nullable: share of the columns, fields and elements that may be null.
    """
    fields = []
    for i in range(columns):
        kind = NullType() if rng.random() < 0.02 else random_type(rng, depth, nullable)
        may_be_null = isinstance(kind, NullType) or rng.random() < nullable
        fields.append(StructField(f"k{i}", kind, may_be_null))
    return StructType(fields)


def random_type(rng: random.Random, depth: int, nullable: float) -> DataType:
    """Return a type with at most `depth` levels of arrays, maps and structs."""
    if not depth or rng.random() < 0.6:
        return rng.choice(_FLAT)(rng)
    match rng.randrange(3):
        case 0:
            return ArrayType(
                random_type(rng, depth - 1, nullable), containsNull=rng.random() < nullable
            )
        case 1:
            key = rng.choice((StringType(), LongType(), DecimalType(20, 1)))
            return MapType(
                key,
                random_type(rng, depth - 1, nullable),
                valueContainsNull=rng.random() < nullable,
            )
        case _:
            inner = (random_type(rng, depth - 1, nullable) for _ in range(rng.randint(1, 3)))
            fields = [
                StructField(f"f{i}", kind, rng.random() < nullable) for i, kind in enumerate(inner)
            ]
            return StructType(fields)


def random_batch(rng: random.Random, schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Return random rows of an Arrow schema. A column is sometimes all null."""
    columns = []
    for field in schema:
        nulls = rng.choice((0.0, 0.2, 0.2, 1.0))
        values = [_value(rng, field, nulls) for _ in range(rows)]
        columns.append(pa.array(values, field.type))
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _value(rng: random.Random, field: pa.Field, nulls: float) -> Any:
    kind, types = field.type, pa.types
    if types.is_null(kind) or (field.nullable and rng.random() < nulls):
        return None
    if types.is_list(kind):
        return [_value(rng, kind.value_field, nulls) for _ in range(_length(rng))]
    if types.is_map(kind):
        keys = {_value(rng, kind.key_field, 0) for _ in range(_length(rng))}
        return [(key, _value(rng, kind.item_field, nulls)) for key in keys]
    if types.is_struct(kind):
        return {kind.field(i).name: _value(rng, kind.field(i), nulls) for i in range(len(kind))}
    decimal = logical_schema(pa.schema([field])).field(0).type
    if decimal != kind:
        return _digits(rng, decimal.precision)  # as its unscaled long
    return _flat_value(rng, kind)


def _flat_value(rng: random.Random, kind: pa.DataType) -> Any:
    types = pa.types
    if types.is_boolean(kind):
        return rng.random() < 0.5
    if kind in _WIDTHS:
        edge = 1 << (_WIDTHS[kind] - 1)
        return rng.choice((0, -1, 1, edge - 1, -edge, rng.randrange(-edge, edge)))
    if types.is_floating(kind):
        number = rng.choice((0.0, -0.0, float("nan"), float("inf"), 1.5, rng.gauss(0, 1e6)))
        return round(number * 4) / 4 if abs(number) < 1e9 and number else number
    if types.is_decimal(kind):
        return Decimal(f"{_digits(rng, kind.precision)}E-{kind.scale}")  # arithmetic would round
    if types.is_string(kind) or types.is_binary(kind):
        text = "".join(rng.choices(_ALPHABET, k=_length(rng) * rng.choice((1, 1, 9))))
        return text if types.is_string(kind) else text.encode()
    if types.is_time64(kind):
        return rng.randrange(86_400_000_000) * 1000  # nanoseconds
    if types.is_date32(kind):
        return datetime.date(rng.randint(1, 9999), 1, 1)
    return rng.randrange(-1900 * _YEARS, 7900 * _YEARS)  # microseconds


def _digits(rng: random.Random, precision: int) -> int:
    edge = 10**precision
    return rng.choice((0, 1, edge - 1, 1 - edge, rng.randrange(1 - edge, edge)))


def _length(rng: random.Random) -> int:
    return rng.choice((0, 0, 1, 2, 3, 7))
