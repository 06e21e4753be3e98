"""Stages of Python objects: store an RDD of key-value pairs, return it partitioned by key."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import RDD

from durable_shuffle.jobs.deploy.running_code import running_code
from durable_shuffle.jobs.engine.checks import check_function
from durable_shuffle.jobs.engine.engine import Engine, Planned
from durable_shuffle.jobs.engine.starting import starting
from durable_shuffle.jobs.engine.tasks import (
    MapJob,
    MapResult,
    MapTasks,
    check_code,
    checked_to_the_end,
    map_result,
)
from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.functions.identity import identify_function, opaque_functions
from durable_shuffle.jobs.identity.functions.user_code import environment_of
from durable_shuffle.jobs.identity.jvm.calls import Jvm
from durable_shuffle.jobs.identity.plan.identity import PlanIdentity, identify_rdd
from durable_shuffle.jobs.identity.plan.mixing import why_rdd_not_mixed
from durable_shuffle.jobs.spark_versions import Partitioner, PipelinedRDD, portable_hash
from durable_shuffle.jobs.stages.work import Shape, StageWork
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.serialization.msgpack_codec import PAIR_CODEC, Pair
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import check_name
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.sealed_reader import read_pairs
from durable_shuffle.shuffle.rows.partitioner import check_partition_count, narrow_ids
from durable_shuffle.shuffle.seal.suspect import noting
from durable_shuffle.shuffle.write.producer import ProducerResult, run_pair_producer

_HASHED_IN_C = {int, str, bytes, float, bool}
"""Types for which `portable_hash` is Python's own hash."""

PartitionFunction = Callable[[Any], int]


def key_partitions(
    keys: list[Any], partition_function: PartitionFunction, partitions: int
) -> npt.NDArray[np.unsignedinteger]:
    """Return the partition of each key, as `RDD.partitionBy` places it."""
    if partition_function is portable_hash and _HASHED_IN_C.issuperset(map(type, keys)):
        portable_hash("")  # raises if workers could hash strings differently
        ids = np.fromiter(map(hash, keys), dtype=np.int64, count=len(keys)) % partitions
    else:
        computed = [partition_function(key) % partitions for key in keys]
        ids = np.fromiter(computed, dtype=np.int64, count=len(keys))
    return narrow_ids(ids, partitions)


class ObjectWork(StageWork[RDD[Pair]]):
    """Pairs, from an RDD and back to one; classic Spark only.

    Raises:
        InvalidInputError: names what is wrong.
    """

    def __init__(
        self,
        rdd: RDD[Any],
        engine: Engine,
        *,
        name: str,
        partitions: int,
        partition_function: PartitionFunction,
    ) -> None:
        check_name("name", name)
        if not isinstance(rdd, RDD):
            raise InvalidInputError(
                f"an RDD of (key, value) pairs is needed, found={type(rdd).__name__}; Spark "
                "Connect has none"
            )
        check_partition_count(partitions)
        if not callable(partition_function):
            raise InvalidInputError(f"partition_function={partition_function!r} is no function")
        check_function("partition_function", partition_function)
        self.name, self.engine = name, engine
        self._rdd, self._partitions, self._function = rdd, partitions, partition_function

    def shape(self) -> Shape:
        return Shape(
            codec=PAIR_CODEC,
            schema=pa.schema([]),
            columns=("key", "value"),
            partitioner="function",
            keys=(0,),
            partitions=self._partitions,
        )

    def identify(self) -> PlanIdentity:
        function = (self._function,)
        python = identify_function(function)
        environment = environment_of(self._rdd.context.environment)
        rdd = identify_rdd(self._rdd)
        shape = [PAIR_CODEC, str(self._partitions), python.digest, environment]
        return replace(
            rdd,
            components={**rdd.components, "partitioning": hex_digest(shape)},
            unresolved=(*rdd.unresolved, *python.unresolved),
            opaque=(*rdd.opaque, *opaque_functions(python, function)),
        )

    def planning_settings(self) -> dict[str, str]:
        return {}

    def plan(self, conf: Mapping[str, str], *, large_rows: bool = False) -> Planned:
        del large_rows  # pairs come pickled
        rdd = cast("Any", self._rdd)
        return Planned(
            *(rdd, self._rdd.getNumPartitions(), "", 0, dict(conf)),
            unproven=lambda _: why_rdd_not_mixed(Jvm(self._rdd.context), rdd._jrdd.rdd()),  # noqa: SLF001
        )

    def write(self, planned: Planned, tasks: MapTasks, job: MapJob) -> list[MapResult]:
        function, partitions, rdd = self._function, self._partitions, self._rdd
        functions = (function, _function_of(rdd))
        tasks = replace(tasks, code=self.engine.code_of(*functions))
        tasks = replace(tasks, watch=tasks.watch and identify_function(functions).watched)

        def write(pairs: Iterable[Pair]) -> Iterator[dict[str, object]]:
            def produce(stage: StageHandle, producer: int, attempt: str) -> ProducerResult:
                return run_pair_producer(
                    stage,
                    producer,
                    checked_to_the_end(iter(pairs), tasks.code),
                    lambda keys: key_partitions(keys, function, partitions),
                    attempt=attempt,
                    producers=tasks.producers,
                    settings=tasks.settings,
                    watch=tasks.watch,
                )

            yield tasks.run(produce)

        written = rdd.mapPartitions(write)
        with starting(rdd.context, job), self.engine.described(job.label):
            rows = rdd.context.runJob(written, list, list(job.producers))
        return [map_result(row) for row in rows]

    def read(self, stage: StageHandle, seal: Seal, *, settings: Settings) -> RDD[Pair]:
        code, context = running_code(), self._rdd.context

        def read(numbers: Iterable[int]) -> Iterator[Pair]:
            check_code(code)
            for number in numbers:
                pairs = read_pairs(stage, seal, number, settings)
                yield from noting(stage, pairs, RandomIds(), seal)

        # a list, because for a range Spark makes an RDD that does not keep the partitioning
        numbered = context.parallelize(list(range(self._partitions)), self._partitions)
        rows = numbered.mapPartitions(read, preservesPartitioning=True)
        # so groupByKey and others with the same function need no exchange
        rows.partitioner = Partitioner(self._partitions, self._function)
        return rows


def _function_of(rdd: RDD[Any]) -> object:
    """Return the user's function that runs in the writer's process, None if there is none."""
    return rdd.func if isinstance(rdd, PipelinedRDD) else None
