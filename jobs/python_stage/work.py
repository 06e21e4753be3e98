"""Makes a Python stage storable: implements `StageWork` for it."""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from durable_shuffle.jobs.deploy.ship import is_connect
from durable_shuffle.jobs.engine.arrow_schema import arrow_schema, named_arrow_schema
from durable_shuffle.jobs.engine.engine import Engine, Planned
from durable_shuffle.jobs.engine.frames import rows_of_tasks
from durable_shuffle.jobs.engine.tasks import ArrowFunction, MapResult
from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.functions.identity import FunctionIdentity, identify_function
from durable_shuffle.jobs.identity.functions.opaque import opaque_functions
from durable_shuffle.jobs.identity.functions.worker_pools import environment_of
from durable_shuffle.jobs.identity.plan.identity import PlanIdentity
from durable_shuffle.jobs.python_stage.map_side import (
    Feed,
    FromSpark,
    MapSide,
    python_map_function,
)
from durable_shuffle.jobs.python_stage.reading_tasks import reading_tasks
from durable_shuffle.jobs.python_stage.reduce_side import ReduceSide
from durable_shuffle.jobs.python_stage.spec import StageSpec
from durable_shuffle.jobs.stages.captured import captured_text
from durable_shuffle.jobs.stages.identity import StageIdentity, fingerprinted
from durable_shuffle.jobs.stages.work import Shape
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle

_NAME_CHARS = 60
"""Most characters of the stage's label in a consumer's name; the digest after it is unique."""


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
