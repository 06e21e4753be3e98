"""The arguments of a Python stage, and the checks they must pass before anything is written."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from durable_shuffle.jobs.engine.arguments import as_schema, check_function
from durable_shuffle.jobs.engine.arrow_schema import named_arrow_schema
from durable_shuffle.jobs.engine.column_types import check_columns, check_key
from durable_shuffle.jobs.engine.frame_checks import NO_STREAM, check_frame
from durable_shuffle.recovery.resumable import is_resumable
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.log.layout import check_name
from durable_shuffle.shuffle.rows.partitioner import check_partition_count
from durable_shuffle.shuffle.rows.reducers import Grouped
from durable_shuffle.shuffle.rows.row_order import SortKey, check_group_key, sort_keys

Batches: TypeAlias = Iterator[pa.RecordBatch]
BatchFunction: TypeAlias = Callable[[Batches], Iterable[pa.RecordBatch]]
KeyFunction: TypeAlias = Callable[[pa.RecordBatch], Any]


@dataclass(frozen=True, slots=True)
class StageSpec:
    """A Python stage whose arguments passed all checks."""

    df: DataFrame
    name: str
    map: BatchFunction | None
    keys: tuple[str, ...] | KeyFunction
    partitions: int
    reduce: Any
    combine: BatchFunction | None
    sort_by: tuple[SortKey, ...]
    map_schema: StructType
    """Schema of the shuffled rows."""
    schema: StructType
    """Schema of the rows that the reducer yields."""

    @property
    def key_names(self) -> tuple[str, ...]:
        """The key columns; empty for a key function."""
        return () if callable(self.keys) else self.keys

    @property
    def key_positions(self) -> tuple[int, ...]:
        """Positions of the key columns in `map_schema`; empty for a key function."""
        return tuple(self.map_schema.names.index(key) for key in self.key_names)


def check_spec(
    df: DataFrame,
    *,
    name: str,
    map: BatchFunction | None,
    keys: str | Sequence[str] | KeyFunction,
    partitions: int,
    reduce: Any,
    combine: BatchFunction | None,
    sort_by: Any,
    schema: StructType | str | None,
    map_schema: StructType | str | None,
) -> StageSpec:
    """Return the checked spec.

    Raises:
        InvalidInputError: names what is wrong: an argument, a column, a type, a function that
            cannot be sent to workers.
    """
    check_name("name", name)
    check_frame(df, streaming=NO_STREAM)
    check_partition_count(partitions)
    check_columns(df.schema)
    if map is None and map_schema is not None:
        raise InvalidInputError("map_schema is of what map yields: without a map leave it out")
    between = df.schema if map_schema is None else as_schema("map_schema", map_schema)
    result = between if schema is None else as_schema("schema", schema)
    for what, checked in (("map_schema", between), ("schema", result)):
        _check_names(what, checked)
        check_columns(checked)
    if reduce is None and result != between:
        raise InvalidInputError(
            "without a reducer the stage yields the rows that were shuffled: leave schema out"
        )
    functions = {"map": map, "reduce": reduce, "keys": keys, "combine": combine}
    for what, function in functions.items():
        check_function(what, function)
    arrow = named_arrow_schema(between)
    spec = StageSpec(
        df=df,
        name=name,
        map=map,
        keys=_checked_keys(keys, between),
        partitions=partitions,
        reduce=reduce,
        combine=combine,
        sort_by=sort_keys(sort_by, arrow),
        map_schema=between,
        schema=result,
    )
    if isinstance(reduce, Grouped):
        _check_groups(spec, reduce, arrow)
    elif is_resumable(reduce):
        if spec.sort_by:
            raise InvalidInputError(
                "sort_by and a resumable reducer exclude each other: its position is in the "
                "stored order"
            )
    elif reduce is not None and not callable(reduce):
        raise InvalidInputError(
            "reduce must be a function, Grouped or an object with process, snapshot, restore and "
            f"finish, found {type(reduce).__name__}"
        )
    return spec


def _checked_keys(
    keys: str | Sequence[object] | KeyFunction, schema: StructType
) -> tuple[str, ...] | KeyFunction:
    if callable(keys):
        return keys
    given = (keys,) if isinstance(keys, str) else tuple(keys)
    if not given:
        raise InvalidInputError("keys must name at least one column, or be a function")
    names = []
    for key in given:
        if not isinstance(key, str) or key not in schema.names:
            raise InvalidInputError(
                f"keys: no such column: found={key!r}; columns are {', '.join(schema.names)}"
            )
        check_key(key, schema[key].dataType)
        names.append(key)
    return tuple(names)


def _check_groups(spec: StageSpec, reduce: Grouped, schema: pa.Schema) -> None:
    columns = reduce.columns(spec.key_names)
    if not columns:
        raise InvalidInputError("Grouped needs by= where the keys are a function")
    for column in columns:
        if column not in schema.names:
            raise InvalidInputError(
                f"Grouped: no such column: found={column!r}; columns are {', '.join(schema.names)}"
            )
        check_group_key(column, schema.field(column).type)
    if not set(spec.key_names) <= set(columns):
        raise InvalidInputError(
            f"Grouped by {', '.join(columns)} needs all keys of the stage among them "
            f"({', '.join(spec.key_names)}): a group would be spread over partitions"
        )


def _check_names(what: str, schema: StructType) -> None:
    seen: set[str] = set()
    for name in schema.names:
        if name in seen:
            raise InvalidInputError(
                f"{what} names column {name!r} twice: Python functions take columns by name"
            )
        seen.add(name)
