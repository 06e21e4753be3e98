"""Stages of Python objects: store an RDD of key-value pairs, return it partitioned by key."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import RDD, SparkContext
from pyspark.core.rdd import Partitioner, PipelinedRDD, portable_hash

from durable_shuffle.jobs.deploy.running_code import running_code
from durable_shuffle.jobs.engine.checks import check_function
from durable_shuffle.jobs.engine.classic import storing
from durable_shuffle.jobs.engine.engine import Planned
from durable_shuffle.jobs.engine.tasks import (
    MapResult,
    check_code,
    checked_to_the_end,
    code_with,
    map_result,
    run_map_task,
)
from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.functions.identity import identify_function, opaque_functions
from durable_shuffle.jobs.identity.functions.user_code import environment_of, note_code
from durable_shuffle.jobs.identity.plan.identity import identify_rdd
from durable_shuffle.jobs.stages.identity import StageIdentity, fingerprinted
from durable_shuffle.jobs.stages.work import Shape
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.serialization.msgpack_codec import PAIR_CODEC, Pair
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import check_name
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.object_reader import read_pairs
from durable_shuffle.shuffle.rows.partitioner import check_partition_count
from durable_shuffle.shuffle.write.object_producer import run_pair_producer
from durable_shuffle.shuffle.write.producer import ProducerResult

_HASHED_IN_C = {int, str, bytes, float, bool}
"""Types for which `portable_hash` is Python's own hash."""

PartitionFunction = Callable[[Any], int]
PairFunction = Callable[[Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True, slots=True)
class ObjectSpec:
    """An object stage whose arguments passed all checks."""

    rdd: RDD[Any]
    name: str
    partitions: int
    partition_function: PartitionFunction


def check_objects(
    rdd: RDD[Any], *, name: str, partitions: int, partition_function: PartitionFunction
) -> ObjectSpec:
    """Return the checked spec.

    Raises:
        InvalidInputError: names what is wrong.
    """
    check_name("name", name)
    if not isinstance(rdd, RDD):
        raise InvalidInputError(
            f"an RDD of (key, value) pairs is needed, found={type(rdd).__name__}; Spark Connect "
            "has none"
        )
    check_partition_count(partitions)
    if not callable(partition_function):
        raise InvalidInputError(f"partition_function={partition_function!r} is no function")
    check_function("partition_function", partition_function)
    return ObjectSpec(rdd, name, partitions, partition_function)


def key_partitions(
    keys: list[Any], partition_function: PartitionFunction, partitions: int
) -> npt.NDArray[np.unsignedinteger]:
    """Return the partition of each key, as `RDD.partitionBy` places it."""
    if partition_function is portable_hash and _HASHED_IN_C.issuperset(map(type, keys)):
        portable_hash("")  # raises if workers could hash strings differently
        ids = np.fromiter(map(hash, keys), dtype=np.int64, count=len(keys)) % partitions
    else:
        found = [partition_function(key) % partitions for key in keys]
        ids = np.fromiter(found, dtype=np.int64, count=len(keys))
    narrow: npt.DTypeLike = np.uint16 if partitions <= 1 << 16 else np.uint32
    return ids.astype(narrow)


class ObjectWork:
    """Implements `StageWork` for pairs; classic Spark only."""

    def __init__(self, spec: ObjectSpec, tries: int) -> None:
        self._spec, self._tries = spec, tries

    @property
    def name(self) -> str:
        return self._spec.name

    def shape(self) -> Shape:
        return Shape(
            codec=PAIR_CODEC,
            schema=pa.schema([]),
            columns=("key", "value"),
            partitioner="function",
            keys=(0,),
            partitions=self._spec.partitions,
        )

    def identify(self, version: str | None, ids: IdSource) -> StageIdentity:
        spec = self._spec
        function = (spec.partition_function,)
        found = identify_function(function)
        environment = environment_of(spec.rdd.context.environment)
        rdd = identify_rdd(spec.rdd)
        shape = [PAIR_CODEC, str(spec.partitions), found.digest, environment]
        return fingerprinted(
            {**rdd.components, "partitioning": hex_digest(shape)},
            (*rdd.unresolved, *found.unresolved),
            version,
            ids,
            opaque=(*rdd.opaque, *opaque_functions(found, function)),
        )

    def planning_settings(self) -> dict[str, str]:
        return {}

    def plan(self, conf: Mapping[str, str], *, large_rows: bool = False) -> Planned:
        del large_rows  # pairs come pickled
        rdd = self._spec.rdd
        return Planned(cast("Any", rdd), rdd.getNumPartitions(), "", 0, dict(conf))

    def writer(
        self,
        stage: StageHandle,
        *,
        producers: int,
        settings: Settings,
        max_batch_bytes: int | None,
    ) -> PairFunction:
        del max_batch_bytes  # pairs come pickled
        spec, tries = self._spec, self._tries
        function, partitions = spec.partition_function, spec.partitions
        found = identify_function((spec.partition_function, _function_of(spec.rdd)))
        note_code(spec.rdd.context, found)
        code = code_with(found)

        def write(pairs: Iterable[Pair]) -> Iterator[dict[str, object]]:
            def produce(counted: StageHandle, producer: int, attempt: str) -> ProducerResult:
                return run_pair_producer(
                    counted,
                    producer,
                    checked_to_the_end(iter(pairs), code),
                    lambda keys: key_partitions(keys, function, partitions),
                    attempt=attempt,
                    producers=producers,
                    settings=settings,
                )

            yield from run_map_task(stage, produce, tries, code).to_pylist()

        return write

    def run(
        self, planned: Planned, function: PairFunction, producers: Sequence[int], label: str
    ) -> list[MapResult]:
        rdd: RDD[Any] = cast("Any", planned.df)
        context = rdd.context
        with storing(context, label):
            rows = context.runJob(rdd.mapPartitions(function), list, list(producers))
        return [map_result(row) for row in rows]

    def read(self, stage: StageHandle, seal: Seal, *, settings: Settings) -> RDD[Pair]:
        spec, code = self._spec, running_code()

        def read(numbers: Iterable[int]) -> Iterator[Pair]:
            check_code(code)
            for number in numbers:
                yield from read_pairs(stage, seal, number, settings)

        context: SparkContext = spec.rdd.context
        # a list, because for a range Spark makes an RDD that does not keep the partitioning
        numbered = context.parallelize(list(range(spec.partitions)), spec.partitions)
        rows = numbered.mapPartitions(read, preservesPartitioning=True)
        # so groupByKey and others with the same function need no exchange
        rows.partitioner = Partitioner(spec.partitions, spec.partition_function)
        return rows


def _function_of(rdd: RDD[Any]) -> object:
    """Return the user's function that runs in the writer's process, None if there is none."""
    return rdd.func if isinstance(rdd, PipelinedRDD) else None
