"""A Python stage: the checks of its arguments, then how it is identified, written and read."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from durable_shuffle.jobs.engine.engine import Engine, Planned
from durable_shuffle.jobs.engine.tasks import MapJob, MapResult, MapTasks
from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.functions.identity import identify_function, opaque_functions
from durable_shuffle.jobs.identity.functions.user_code import environment_of
from durable_shuffle.jobs.identity.plan.identity import PlanIdentity
from durable_shuffle.jobs.python_stage.tasks import (
    BatchFunction,
    FromSpark,
    KeyFunction,
    MapSide,
    ReduceSide,
    python_map_function,
)
from durable_shuffle.jobs.stages.work import Shape, StageWork
from durable_shuffle.recovery.resumable import is_resumable
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import check_name
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.rows.partitioner import check_partition_count
from durable_shuffle.shuffle.rows.reducers import Grouped
from durable_shuffle.shuffle.rows.row_order import check_group_key, sort_keys

_NAME_CHARS = 60
"""Most characters of the stage's label in a consumer's name; the digest after it is unique."""


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


class PythonWork(StageWork[ReduceSide]):
    """A Python stage: its map tasks run the map function, its reading tasks the reducer.

    Args:
        below: the reduce side that makes `df`, if that is the unchanged result of another stage. It
            then runs in the map tasks, and its rows never go to the JVM.
        version: vouches for the reducer, too, if another run cannot recognise it.
        generation: the driver's fencing number.

    Raises:
        InvalidInputError: names what is wrong: an argument, a column, a type, a function that
            cannot be sent to workers.
    """

    def __init__(
        self,
        df: DataFrame,
        engine: Engine,
        spark: SparkSession,
        *,
        name: str,
        keys: str | Sequence[str] | KeyFunction,
        partitions: int,
        map: BatchFunction | None = None,
        reduce: Any = None,
        combine: BatchFunction | None = None,
        sort_by: Any = (),
        schema: StructType | str | None = None,
        map_schema: StructType | str | None = None,
        below: ReduceSide | None,
        version: str | None,
        generation: int,
        ids: IdSource,
    ) -> None:
        check_name("name", name)
        check_frame(df, streaming=NO_STREAM)
        check_partition_count(partitions)
        check_columns(df.schema)
        if map is None and map_schema is not None:
            raise InvalidInputError("map_schema is of what map yields: without a map leave it out")
        self.name, self.engine = name, engine
        self._df, self._spark, self._below = engine.fixed(df), spark, below
        self._version, self._generation, self._ids = version, generation, ids
        self._shuffled = df.schema if map_schema is None else as_schema("map_schema", map_schema)
        self.schema = self._shuffled if schema is None else as_schema("schema", schema)
        """Of what the reducer yields."""
        for what, checked in (("map_schema", self._shuffled), ("schema", self.schema)):
            _check_names(what, checked)
            check_columns(checked)
        if reduce is None and self.schema != self._shuffled:
            raise InvalidInputError(
                "without a reducer the stage yields the rows that were shuffled: leave schema out"
            )
        functions = {"map": map, "reduce": reduce, "keys": keys, "combine": combine}
        for what, function in functions.items():
            check_function(what, function)
        arrow = named_arrow_schema(self._shuffled)
        self._map, self._combine, self._reduce, self._partitions = map, combine, reduce, partitions
        self._keys = _checked_keys(keys, self._shuffled)
        self._key_names = () if callable(self._keys) else self._keys
        self._sort_by = sort_keys(sort_by, arrow)
        if isinstance(reduce, Grouped):
            _check_groups(reduce, self._key_names, arrow)
        elif is_resumable(reduce):
            if self._sort_by:
                raise InvalidInputError(
                    "sort_by does not work with a resumable reducer: its position is in the "
                    "stored order"
                )
        elif reduce is not None and not callable(reduce):
            raise InvalidInputError(
                "reduce must be a function, Grouped or an object with process, snapshot, restore "
                f"and finish, found {type(reduce).__name__}"
            )

    def shape(self) -> Shape:
        names = self._shuffled.names
        return Shape(
            codec="arrow",
            schema=arrow_schema(self._shuffled),
            columns=tuple(names),
            partitioner="function" if callable(self._keys) else "hash",
            keys=tuple(names.index(key) for key in self._key_names),
            partitions=self._partitions,
        )

    def identify(self) -> PlanIdentity:
        if self._below is None:
            plan = self.engine.identify(self._df)
        else:
            plan = PlanIdentity({"stages_below": self._below.identity})
        functions = (self._map, self._keys, self._combine)
        python = identify_function(functions)
        components = {
            **plan.components,
            "map": hex_digest([python.digest, self._environment()]),
            "partitioning": hex_digest([self._shuffled.json(), str(self._partitions)]),
        }
        reasons = tuple(f"map, keys or combine: {reason}" for reason in python.unresolved)
        return replace(
            plan,
            components=components,
            unresolved=(*plan.unresolved, *reasons),
            functions=plan.functions | set(reasons),
            opaque=(*plan.opaque, *opaque_functions(python, functions)),
            captured={**plan.captured, **python.captured},
            code=(*plan.code, *python.code),
        )

    def _environment(self) -> str:
        if is_connect(self._spark):
            return ""
        return environment_of(self._spark.sparkContext.environment)

    def plan(self, conf: Mapping[str, str], *, large_rows: bool = False) -> Planned:
        if self._below is None:
            return self.engine.plan(self._df, (), None, conf, large_rows=large_rows, to_python=True)
        tasks = self._below.tasks
        numbers = self._spark.range(0, len(tasks), 1, len(tasks))
        return Planned(
            *(numbers, len(tasks), hex_digest(map(str, tasks)), 0, dict(conf)),
            unproven=lambda _: (),  # a stored stage, read in a fixed order
        )

    def write(self, planned: Planned, tasks: MapTasks, job: MapJob) -> list[MapResult]:
        columns = tuple(self._df.columns)
        side = MapSide(
            feed=self._below or FromSpark(columns, self.engine.arrow_schema(self._df)),
            map=self._map,
            schema=named_arrow_schema(self._shuffled),
            keys=self._keys,
            combine=self._combine,
        )
        functions = (self._map, self._keys, self._combine)
        tasks = replace(tasks, code=self.engine.code_of(*functions))
        tasks = replace(tasks, watch=tasks.watch and identify_function(functions).watched)
        if self._below is not None:  # its batches may have any size
            tasks = replace(tasks, max_batch_bytes=None)
        return self.engine.run(planned, python_map_function(side, tasks), job)

    def read(self, stage: StageHandle, seal: Seal, *, settings: Settings) -> ReduceSide:
        python = identify_function((self._reduce, self._sort_by))
        parts = [python.digest, self._environment(), self.schema.json()]
        if python.unresolved and self._version is None:
            parts.append(self._ids.new_id())
        reducer = hex_digest(parts)
        # without a reducer, or with the user's own partition ids, the user asked for the partitions
        may_join = self._reduce is not None and not callable(self._keys)
        return ReduceSide(
            stage=stage,
            seal=seal,
            names=tuple(self._shuffled.names),
            reduce=self._reduce,
            keys=self._key_names,
            sort_by=self._sort_by,
            schema=named_arrow_schema(self.schema),
            tasks=reading_tasks(
                self._partitions,
                seal.memory_bytes,
                together_bytes=settings.read_together_bytes if may_join else 0,
                cores=self.engine.cores(),
            ),
            settings=settings,
            code=self.engine.code_of(self._reduce, self._sort_by),
            identity=hex_digest([stage.path.prefix, reducer]),
            consumer=f"{self.name[:_NAME_CHARS]}-{reducer}",
            generation=self._generation,
        )


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


def _check_groups(reduce: Grouped, keys: tuple[str, ...], schema: pa.Schema) -> None:
    columns = reduce.columns(keys)
    if not columns:
        raise InvalidInputError("Grouped needs by= where the keys are a function")
    for column in columns:
        if column not in schema.names:
            raise InvalidInputError(
                f"Grouped: no such column: found={column!r}; columns are {', '.join(schema.names)}"
            )
        check_group_key(column, schema.field(column).type)
    if not set(keys) <= set(columns):
        raise InvalidInputError(
            f"Grouped by {', '.join(columns)} needs all keys of the stage among them "
            f"({', '.join(keys)}): a group would be spread over partitions"
        )


def _check_names(what: str, schema: StructType) -> None:
    seen: set[str] = set()
    for name in schema.names:
        if name in seen:
            raise InvalidInputError(
                f"{what} names column {name!r} twice: Python functions take columns by name"
            )
        seen.add(name)
