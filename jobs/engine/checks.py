"""Checks of what users give: schemas, functions, options, column types, keys, DataFrames."""

from typing import Any

from pyspark.cloudpickle import dumps
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    NullType,
    StringType,
    StructType,
    UserDefinedType,
    YearMonthIntervalType,
)

from durable_shuffle.jobs.identity.jvm.calls import (
    Jvm,
    every_with_subqueries,
    plan_of,
    simple_name,
)
from durable_shuffle.jobs.identity.jvm.document import TREE_ALONE
from durable_shuffle.jobs.spark_versions import type_of_ddl, types_named
from durable_shuffle.serialization.errors import InvalidInputError

_NEWER = types_named("CalendarIntervalType", "VariantType")
_NOT_CARRIED = (YearMonthIntervalType, UserDefinedType, *_NEWER)
"""PySpark cannot pass these to a Python worker as Arrow."""
_OBSERVED = "CollectMetrics"
"""Name of the operator that `df.observe()` makes."""
_BINARY_COLLATION = "UTF8_BINARY"
NO_STREAM = (
    "a streaming DataFrame cannot be stored as one stage: wrap the batch inside foreachBatch"
)


def as_schema(what: str, schema: StructType | str) -> StructType:
    """Return a schema that is given as a value or as DDL text.

    Raises:
        InvalidInputError: the text is no schema, or does not name its columns.
    """
    if isinstance(schema, StructType):
        return schema
    try:
        parsed = type_of_ddl(schema)
    except (PySparkException, TypeError, AttributeError) as error:
        raise InvalidInputError(f"{what} is no schema: {schema!r} ({error})") from error
    if not isinstance(parsed, StructType):
        raise InvalidInputError(f"{what} must name its columns, found={schema!r}")
    return parsed


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


def check_columns(schema: StructType) -> None:
    """Refuse columns that Spark cannot pass to Python as Arrow.

    Raises:
        InvalidInputError: names the column and its type.
    """
    for field in schema:
        for part in _parts(field.dataType):
            if isinstance(part, _NOT_CARRIED) or _holds_required_void(part):
                raise InvalidInputError(
                    f"column {field.name!r} of type {part.simpleString()} cannot be stored by a "
                    "Python worker: Spark does not hand it to Python as Arrow; cast it first, or "
                    "use checkpoint(), repartition() or query() of a classic session with "
                    "rows_in='auto'"
                )


def check_key(name: str, data_type: DataType) -> None:
    """Refuse a key type for which Spark has no hash, or for which equal keys can hash differently.

    Raises:
        InvalidInputError: names the column and its type.
    """
    for part in _parts(data_type):
        if isinstance(part, (MapType, *_NOT_CARRIED)):
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
    inside: list[DataType] = []
    if isinstance(data_type, ArrayType):
        inside = [data_type.elementType]
    elif isinstance(data_type, MapType):
        inside = [data_type.keyType, data_type.valueType]
    elif isinstance(data_type, StructType):
        inside = [field.dataType for field in data_type]
    return [data_type, *(part for nested in inside for part in _parts(nested))]


def check_frame(df: Any, *, streaming: str) -> None:
    """Refuse a DataFrame that cannot be stored.

    An observed DataFrame is refused because its observation would never get a value: a reused
    stage runs nothing, and a stage that is written does not run as an action on `df`.

    Args:
        streaming: the error message for a streaming DataFrame.

    Raises:
        InvalidInputError: not a DataFrame, a streaming one, or an observed one.
    """
    if not hasattr(df, "mapInArrow"):
        raise InvalidInputError(f"a DataFrame is needed, found={type(df).__name__}")
    plan = _plan(df)
    if df.isStreaming if plan is None else plan.isStreaming():
        raise InvalidInputError(streaming)
    observed = _observed(df, plan)
    if observed:
        raise InvalidInputError(
            f"df.observe() would never get its value here: observation={observed!r}; observe the "
            "DataFrame that this call returns instead"
        )


def _plan(df: Any) -> Any | None:
    """Return the analyzed plan of a classic DataFrame."""
    if not hasattr(df, "_jdf"):
        return None
    jvm = Jvm(df.sparkSession.sparkContext)
    return jvm.seen_of(lambda _, frame: plan_of(frame), df._jdf, asked=TREE_ALONE)  # noqa: SLF001


def _observed(df: Any, plan: Any | None) -> str:
    """Return the name of an observation inside the plan, "" if there is none."""
    if plan is not None:
        jvm = Jvm(df.sparkSession.sparkContext)
        nodes = every_with_subqueries(plan)
        names = (
            str(node.name()) for node in nodes if simple_name(jvm.class_name(node)) == _OBSERVED
        )
    else:
        from durable_shuffle.jobs.identity.connect.message import every_message

        messages = every_message(df._plan.to_proto(df.sparkSession.client))  # noqa: SLF001
        names = (str(message.name) for message in messages if message.DESCRIPTOR.name == _OBSERVED)
    return next(names, "")
