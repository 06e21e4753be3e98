"""Checks which Spark types can be stored, and which can be keys."""

from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    MapType,
    NullType,
    StringType,
    StructType,
    UserDefinedType,
    VariantType,
    YearMonthIntervalType,
)

from durable_shuffle.serialization.errors import InvalidInputError

_NOT_CARRIED = (CalendarIntervalType, YearMonthIntervalType, UserDefinedType, VariantType)
"""PySpark cannot pass these to a Python worker as Arrow."""

_BINARY_COLLATION = "UTF8_BINARY"


def check_columns(schema: StructType) -> None:
    """Refuse columns that Spark cannot pass to Python as Arrow.

    Raises:
        InvalidInputError: names the column and its type.
    """
    for field in schema:
        for part in _parts(field.dataType):
            if isinstance(part, _NOT_CARRIED) or _holds_required_void(part):
                raise InvalidInputError(
                    f"column {field.name!r} of type {part.simpleString()} cannot be stored: Spark "
                    "does not hand it to Python as Arrow; cast it first"
                )


def check_key(name: str, data_type: DataType) -> None:
    """Refuse a key type for which Spark has no hash, or for which equal keys can hash differently.

    Raises:
        InvalidInputError: names the column and its type.
    """
    for part in _parts(data_type):
        if isinstance(part, (MapType, VariantType, *_NOT_CARRIED)):
            raise InvalidInputError(
                f"column {name!r} of type {part.simpleString()} cannot be a key: it has no hash"
            )
        collation = getattr(part, "collation", _BINARY_COLLATION)
        if isinstance(part, StringType) and collation != _BINARY_COLLATION:
            raise InvalidInputError(
                f"column {name!r} has collation {collation}: only {_BINARY_COLLATION} strings can "
                "be keys, since others are equal without being the same bytes"
            )


def _holds_required_void(data_type: DataType) -> bool:
    """Return True for the types of `array()` and `map()`: their elements are void and not null."""
    if isinstance(data_type, ArrayType):
        return isinstance(data_type.elementType, NullType) and not data_type.containsNull
    return isinstance(data_type, MapType) and (
        isinstance(data_type.keyType, NullType)
        or (isinstance(data_type.valueType, NullType) and not data_type.valueContainsNull)
    )


def _parts(data_type: DataType) -> list[DataType]:
    """Return the type and every type inside it."""
    found = [data_type]
    if isinstance(data_type, ArrayType):
        found += _parts(data_type.elementType)
    elif isinstance(data_type, MapType):
        found += _parts(data_type.keyType) + _parts(data_type.valueType)
    elif isinstance(data_type, StructType):
        for field in data_type:
            found += _parts(field.dataType)
    return found
