"""A Python stage: the checks of its arguments, then how it is identified, written and read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from durable_shuffle.jobs.deploy.ship import is_connect
from durable_shuffle.jobs.engine.arrow_schema import arrow_schema, named_arrow_schema
from durable_shuffle.jobs.engine.checks import (
    NO_STREAM,
    as_schema,
    check_columns,
    check_frame,
    check_function,
    check_key,
)
from durable_shuffle.jobs.engine.engine import Engine, Planned, rows_of_tasks
from durable_shuffle.jobs.engine.tasks import ArrowFunction, MapResult
from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.functions.identity import (
    FunctionIdentity,
    identify_function,
    opaque_functions,
)
from durable_shuffle.jobs.identity.functions.user_code import environment_of
from durable_shuffle.jobs.identity.plan.identity import PlanIdentity
from durable_shuffle.jobs.python_stage.tasks import (
    BatchFunction,
    Feed,
    FromSpark,
    KeyFunction,
    MapSide,
    ReduceSide,
    python_map_function,
)
from durable_shuffle.jobs.stages.identity import StageIdentity, captured_text, fingerprinted
from durable_shuffle.jobs.stages.work import Shape
from durable_shuffle.recovery.resumable import is_resumable
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import check_name
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.rows.partitioner import check_partition_count
from durable_shuffle.shuffle.rows.reducers import Grouped
from durable_shuffle.shuffle.rows.row_order import SortKey, check_group_key, sort_keys

_NAME_CHARS = 60
"""Most characters of the stage's label in a consumer's name; the digest after it is unique."""


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


TASKS_PER_CORE = 2
"""With fewer tasks per core, cores would be idle while they wait for a slow task."""


def reading_tasks(
    partitions: int, memory_bytes: int, *, together_bytes: int, cores: int
) -> tuple[range, ...]:
    """Return the subpartitions of each task; small neighbours go to the same task.

    Args:
        memory_bytes: uncompressed size of all partitions together.
        together_bytes: about as much as one task should read; 0 for one partition per task.
        cores: tasks that run at once; 0 if unknown, which means one partition per task.
    """
    each = 1
    if together_bytes and cores:
        fitting = together_bytes * partitions // max(1, memory_bytes)
        most = -(-partitions // (TASKS_PER_CORE * cores))
        each = max(1, min(fitting, most))
    return tuple(range(k, min(k + each, partitions)) for k in range(0, partitions, each))


class PythonWork:
    """Implements `StageWork`: writing tasks run the map function, reading tasks the reducer."""

    def __init__(
        self,
        spec: StageSpec,
        engine: Engine,
        spark: SparkSession,
        *,
        below: ReduceSide | None = None,
        version: str | None,
        generation: int,
        ids: IdSource,
    ) -> None:
        """
        Args:
            below: the reduce side that makes `spec.df`, if that is the unchanged result of another
                stage. It then runs in the map tasks, and its rows never go to the JVM.
        """
        self._spec, self._engine, self._spark, self._below = spec, engine, spark, below
        self._version, self._generation, self._ids = version, generation, ids

    @property
    def name(self) -> str:
        return self._spec.name

    def shape(self) -> Shape:
        spec = self._spec
        return Shape(
            codec="arrow",
            schema=arrow_schema(spec.map_schema),
            columns=tuple(spec.map_schema.names),
            partitioner="function" if callable(spec.keys) else "hash",
            keys=spec.key_positions,
            partitions=spec.partitions,
        )

    def identify(self, version: str | None, ids: IdSource) -> StageIdentity:
        spec = self._spec
        if self._below is None:
            plan = self._engine.identify(spec.df)
        else:
            plan = PlanIdentity({"stages_below": self._below.identity}, (), ())
        functions = (spec.map, spec.keys, spec.combine)
        found = identify_function(functions)
        parts = [spec.map_schema.json(), str(spec.partitions)]
        components = {
            **plan.components,
            "map": hex_digest([found.digest, self._environment()]),
            "partitioning": hex_digest(parts),
        }
        unresolved = (*plan.unresolved, *_sentences("map, keys or combine", found))
        return fingerprinted(
            components,
            unresolved,
            version,
            ids,
            unstable=plan.unstable_below_exchange,
            opaque=(*plan.opaque, *opaque_functions(found, functions)),
            captured=captured_text({**plan.captured, **found.captured}, (*plan.code, *found.code)),
        )

    def _environment(self) -> str:
        if is_connect(self._spark):
            return ""
        return environment_of(self._spark.sparkContext.environment)

    def planning_settings(self) -> dict[str, str]:
        return self._engine.planning_settings()

    def plan(self, conf: Mapping[str, str], *, large_rows: bool = False) -> Planned:
        if self._below is None:
            return self._engine.plan(self._spec.df, (), None, conf, large_rows=large_rows)
        tasks = self._below.tasks
        numbers = self._spark.range(0, len(tasks), 1, len(tasks))
        return Planned(numbers, len(tasks), hex_digest(map(str, tasks)), 0, dict(conf))

    def writer(
        self,
        stage: StageHandle,
        *,
        producers: int,
        settings: Settings,
        max_batch_bytes: int | None,
    ) -> ArrowFunction:
        spec = self._spec
        feed: Feed = self._below or FromSpark(
            tuple(spec.df.columns), self._engine.arrow_schema(spec.df)
        )
        side = MapSide(
            feed=feed,
            map=spec.map,
            schema=named_arrow_schema(spec.map_schema),
            keys=spec.keys,
            partitions=spec.partitions,
            combine=spec.combine,
            combine_bytes=settings.writer_memory_bytes,
            from_spark=self._below is None,
            ends=self._engine.ends_partitions,
        )
        return python_map_function(
            side,
            stage,
            producers=producers,
            settings=settings,
            tries=self._engine.task_tries,
            code=self._engine.code_of(spec.map, spec.keys, spec.combine),
            max_batch_bytes=max_batch_bytes if self._below is None else None,
        )

    def run(
        self, planned: Planned, function: ArrowFunction, producers: Sequence[int], label: str
    ) -> list[MapResult]:
        return self._engine.run(planned, function, producers, label)

    def read(self, stage: StageHandle, seal: Seal, *, settings: Settings) -> ReduceSide:
        spec = self._spec
        found = identify_function((spec.reduce, spec.sort_by))
        parts = [found.digest, self._environment(), spec.schema.json()]
        if found.unresolved and self._version is None:
            parts.append(self._ids.new_id())
        reducer = hex_digest(parts)
        # without a reducer, or with the user's own partition ids, the user asked for the partitions
        may_join = spec.reduce is not None and not callable(spec.keys)
        return ReduceSide(
            stage=stage,
            seal=seal,
            names=tuple(spec.map_schema.names),
            reduce=spec.reduce,
            keys=spec.key_names,
            sort_by=spec.sort_by,
            schema=named_arrow_schema(spec.schema),
            tasks=reading_tasks(
                spec.partitions,
                seal.memory_bytes,
                together_bytes=settings.read_together_bytes if may_join else 0,
                cores=self._engine.cores(),
            ),
            settings=settings,
            code=self._engine.code_of(spec.reduce, spec.sort_by),
            identity=hex_digest([stage.path.prefix, reducer]),
            consumer=f"{spec.name[:_NAME_CHARS]}-{reducer}",
            generation=self._generation,
        )


def result_frame(spark: SparkSession, side: ReduceSide, schema: StructType) -> DataFrame:
    """Return the lazy DataFrame whose tasks run the reduce side."""
    count = len(side.tasks)
    return rows_of_tasks(spark, side, count, schema)


def _sentences(what: str, found: FunctionIdentity) -> tuple[str, ...]:
    return tuple(f"{what}: {reason}" for reason in found.unresolved)
