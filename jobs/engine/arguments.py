"""Arguments of users that several calls take: schemas and functions."""

from typing import Any

from pyspark.cloudpickle import dumps
from pyspark.errors import PySparkException
from pyspark.sql.types import DataType, StructType

from durable_shuffle.serialization.errors import InvalidInputError


def as_schema(what: str, schema: StructType | str) -> StructType:
    """Return a schema given as a value or as DDL text."""
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
    """Refuse a function that cannot travel to a worker.

    Raises:
        InvalidInputError: names the argument and what could not be pickled.
    """
    if function is None or isinstance(function, str):
        return
    try:
        dumps(function)  # type: ignore[no-untyped-call]
    except Exception as error:  # any object may refuse in its own way
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
    """Refuse a version that is no text; None is none."""
    if version is not None and not isinstance(version, str):
        raise InvalidInputError(f"version must be a text, found={version!r}")
