"""Checks of arguments that several calls take."""

from typing import Any

from pyspark.cloudpickle import dumps
from pyspark.errors import PySparkException
from pyspark.sql.types import DataType, StructType

from durable_shuffle.serialization.errors import InvalidInputError


def as_schema(what: str, schema: StructType | str) -> StructType:
    """Return a schema that is given as a value or as DDL text.

    Raises:
        InvalidInputError: the text is no schema, or does not name its columns.
    """
    if isinstance(schema, StructType):
        return schema
    try:
        found = DataType.fromDDL(schema)
    except (PySparkException, TypeError, AttributeError) as error:
        raise InvalidInputError(f"{what} is no schema: {schema!r} ({error})") from error
    if not isinstance(found, StructType):
        raise InvalidInputError(f"{what} must name its columns, found={schema!r}")
    return found


def check_function(what: str, function: Any) -> None:
    """Refuse a function that cannot be pickled for the workers.

    Raises:
        InvalidInputError: names the argument and what could not be pickled.
    """
    if function is None or isinstance(function, str):
        return
    try:
        dumps(function)  # type: ignore[no-untyped-call]
    except Exception as error:  # any object may raise its own error
        named = getattr(function, "__qualname__", type(function).__qualname__)
        raise InvalidInputError(
            f"{what}={named} cannot be sent to workers: {error}; open connections, locks and files "
            "inside the function, not outside of it"
        ) from error


def is_column(value: Any) -> bool:
    """Return True for a column of either kind of session."""
    return type(value).__name__ == "Column" and type(value).__module__.startswith("pyspark.sql")


def check_option(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse a word that is not one of `allowed`."""
    if value not in allowed:
        raise InvalidInputError(f"{name} must be one of {', '.join(allowed)}, found={value!r}")


def check_version(version: object) -> None:
    """Refuse a version that is neither a str nor None."""
    if version is not None and not isinstance(version, str):
        raise InvalidInputError(f"version must be a text, found={version!r}")
