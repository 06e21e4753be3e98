"""The layout of columns as a text that the Java code parses: how a value lies in a row and a frame.

The text is one kind per column, one after the other. A kind is a letter, followed by the kinds of
its children. There is nothing between them.

| kind | in Spark's row | in the frame |
|---|---|---|
| `b` | one byte, 0 or 1 | one bit |
| `1` `2` `4` `8` | that many bytes in little-endian order | the same bytes |
| `s` | bytes of a string or binary | offsets of four bytes, then the bytes |
| `d` | a decimal of up to 18 digits, as its unscaled long | 16 bytes, little-endian |
| `D` | a longer decimal, as big-endian bytes of its unscaled value | 16 bytes, little-endian |
| `n` | a null of type null | nothing, not even a validity buffer |
| `a` element | an array | offsets of four bytes; the elements are the child |
| `m` key value | a map | offsets of four bytes; the child is a struct of key and value |
| `(` fields `)` | a struct | the fields are the children |

Every kind but `n` has a validity buffer in the frame, which may be empty if there are no nulls.
A decimal that is stored as its unscaled long (`arrow_schemas.unscaled_field`) has the kind `8`.
Dates, times, timestamps, intervals and floating-point numbers are integers of their width here.
Variants and calendar intervals are bytes: in Spark's row they are a reference to bytes, too. The
elements of `array()`, of which there are none, are longs.

Example: `8s(4as)ms4` has four columns: a long; a string; a struct of an int and an array of
strings; a map from strings to ints.
"""

from types import MappingProxyType
from typing import cast

import pyarrow as pa
from pyspark.sql import types as spark_types
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StructField,
    StructType,
    UserDefinedType,
    YearMonthIntervalType,
)

from durable_shuffle.jobs.spark_versions import types_named

_LONG_DIGITS = 18
"""Spark keeps decimals of up to this many digits in a long."""

# by name, because not every version of PySpark has all of them
_FLAT = MappingProxyType(
    {
        "BooleanType": ("b", pa.bool_()),
        "ByteType": ("1", pa.int8()),
        "ShortType": ("2", pa.int16()),
        "IntegerType": ("4", pa.int32()),
        "LongType": ("8", pa.int64()),
        "FloatType": ("4", pa.float32()),
        "DoubleType": ("8", pa.float64()),
        "StringType": ("s", pa.string()),
        "CharType": ("s", pa.string()),
        "VarcharType": ("s", pa.string()),
        "BinaryType": ("s", pa.binary()),
        "DateType": ("4", pa.date32()),
        "TimestampType": ("8", pa.timestamp("us", "UTC")),
        "TimestampNTZType": ("8", pa.timestamp("us")),
        "DayTimeIntervalType": ("8", pa.duration("us")),
        "YearMonthIntervalType": ("4", pa.int32()),
        "CalendarIntervalType": ("s", pa.binary()),
        "VariantType": ("s", pa.binary()),
        "TimeType": ("8", pa.time64("ns")),
    }
)
_COVERED = MappingProxyType(
    {getattr(spark_types, name): kind for name, kind in _FLAT.items() if hasattr(spark_types, name)}
)


class UncoveredTypeError(Exception):
    """A column has a type that the Java code does not handle; the message names both."""


def column_kinds(schema: StructType, stored: pa.Schema) -> str:
    """Return the kinds of the columns of `schema`, as the module's docstring describes them.

    Args:
        schema: of the rows inside Spark.
        stored: the Arrow schema of the frames; columns are matched by position.

    Raises:
        UncoveredTypeError: a type is not handled, or is stored in another layout than expected.
    """
    if len(schema) != len(stored):
        raise UncoveredTypeError(f"{len(schema)} columns, stored are {len(stored)}")
    columns = zip(schema, stored, strict=True)
    return "".join(_column(field.name, field.dataType, kept.type) for field, kept in columns)


def _column(name: str, kind: DataType, stored: pa.DataType) -> str:
    kind = _plain(kind)
    if isinstance(kind, NullType) and pa.types.is_null(stored):
        return "n"
    if _is_long_decimal(kind) and pa.types.is_int64(stored):
        return "8"
    return _kind(name, kind, stored)


def _kind(name: str, kind: DataType, stored: pa.DataType) -> str:
    """Return the kind of a column, element or field. `name` is its path, for messages.

    Nulls of type null and structs without fields take no bytes. Inside arrays their number has no
    bound, so there they are not covered.
    """
    kind = _plain(kind)
    if isinstance(kind, NullType) and pa.types.is_int64(stored):
        return "8"
    if type(kind) in _COVERED:
        letter, expected = _COVERED[type(kind)]
        if stored == expected:
            return letter
    elif isinstance(kind, DecimalType):
        if stored == pa.decimal128(kind.precision, kind.scale):
            return "d" if _is_long_decimal(kind) else "D"
    elif isinstance(kind, ArrayType):
        if pa.types.is_list(stored):
            return "a" + _kind(f"{name}.element", kind.elementType, stored.value_type)
    elif isinstance(kind, MapType):
        if pa.types.is_map(stored):
            key = _kind(f"{name}.key", kind.keyType, stored.key_type)
            return "m" + key + _kind(f"{name}.value", kind.valueType, stored.item_type)
    elif isinstance(kind, StructType) and pa.types.is_struct(stored):
        children = [stored.field(i) for i in range(stored.num_fields)]
        if kind.fields and len(kind.fields) == len(children):
            pairs = zip(kind.fields, children, strict=True)
            fields = [_kind(f"{name}.{f.name}", f.dataType, child.type) for f, child in pairs]
            return f"({''.join(fields)})"
    raise UncoveredTypeError(f"column {name}: {kind.simpleString()}, stored as {stored}")


def carried_schema(schema: StructType) -> StructType:
    """Return the schema with each type that Python cannot get replaced by the one it is stored as.

    That type has the same bytes inside Spark's rows, so only the JVM can write and read it. There,
    a year-month interval is an int, and the parts of a variant or of a calendar interval lie one
    after the other in the bytes of one value. A user-defined type is its SQL type.
    """
    return cast("StructType", _carried(schema))


def _carried(kind: DataType) -> DataType:
    if isinstance(kind, UserDefinedType):
        return _carried(kind.sqlType())
    if isinstance(kind, YearMonthIntervalType):
        return IntegerType()
    if isinstance(kind, types_named("CalendarIntervalType", "VariantType")):
        return BinaryType()
    if isinstance(kind, ArrayType):
        inner, nullable = _element(kind.elementType, nullable=kind.containsNull)
        return ArrayType(inner, nullable)
    if isinstance(kind, MapType):
        key, _ = _element(kind.keyType, nullable=False)
        value, nullable = _element(kind.valueType, nullable=kind.valueContainsNull)
        return MapType(key, value, nullable)
    if isinstance(kind, StructType):
        types = [_carried(field.dataType) for field in kind]
        fields = zip(kind, types, strict=True)
        return StructType([StructField(f.name, t, f.nullable, f.metadata) for f, t in fields])
    return kind


def _element(kind: DataType, *, nullable: bool) -> tuple[DataType, bool]:
    """Return the stored type of elements. Those of `array()` are void and never null, as none are.

    Void takes no bytes in a frame, so a few bytes could claim any number of elements.
    """
    if isinstance(kind, NullType) and not nullable:
        return LongType(), True
    return _carried(kind), nullable


def _plain(kind: DataType) -> DataType:
    """Return the type of the rows of a user-defined type; other types as they are."""
    while isinstance(kind, UserDefinedType):
        kind = kind.sqlType()
    return kind


def _is_long_decimal(kind: DataType) -> bool:
    return isinstance(kind, DecimalType) and kind.precision <= _LONG_DIGITS
