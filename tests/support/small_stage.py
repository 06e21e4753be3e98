"""Small stages for tests: make one, run its producers, seal it, read it, and what must come out.

Strategy: the expectation is a dictionary filled row by row in plain Python, and `records_below`
reads control records without this library's codecs. Neither may use the code under test.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgpack  # type: ignore[import-untyped]
import pyarrow as pa

from durable_shuffle.serialization.arrow_schemas import schema_to_bytes
from durable_shuffle.shuffle.base.clock import Clock, IdSource
from durable_shuffle.shuffle.base.retry import Backoff
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.producer_log import CommittedAttempt, read_producer
from durable_shuffle.shuffle.log.records import Describe, Seal
from durable_shuffle.shuffle.log.stage import StageHandle, describe_stage
from durable_shuffle.shuffle.read.sealed_reader import read_subpartition
from durable_shuffle.shuffle.seal.seal import seal_stage
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.retrying import RetryingStorage, StorageRetries
from durable_shuffle.shuffle.write.producer import ProducerResult, run_producer
from durable_shuffle.shuffle.write.segments import IdBatch

Row = dict[str, Any]
RowModel = dict[tuple[int, int], list[Row]]
"""(producer, subpartition) -> rows in order."""

SMALL = Settings(writer_memory_bytes=1 << 16, frame_bytes=1024)
"""The smallest settings: many segments, many frames."""

CONTROL_HEADER_BYTES = 16


@dataclass(slots=True)
class SeededIds:
    """Ids that repeat from run to run."""

    random: random.Random

    def new_id(self) -> str:
        return f"{self.random.getrandbits(128):032x}"


@dataclass(slots=True)
class ManualClock:
    """Time that passes only by `sleep`, at once; remembers the pauses."""

    now: float
    pauses: list[float]

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def patient(storage: Storage, clock: Clock | None = None, *, tries: int = 8) -> RetryingStorage:
    """The storage under the one layer that tries again, by default on a clock that never sleeps."""
    backoff = Backoff(tries - 1, 0.05, multiplier=2, cap_seconds=2)
    return RetryingStorage(storage, StorageRetries(backoff), clock=clock or ManualClock(0.0, []))


def new_stage(
    storage: Storage,
    ids: IdSource,
    schema: pa.Schema,
    *,
    partitions: int,
    producers: int = 1,
    writing: Literal["batch", "log"] = "batch",
    partitioner: str = "hash",
    compression: str = "lz4",
    job: str = "job",
) -> StageHandle:
    """Describe a stage at a path of its own."""
    path = StagePath(job, "stage", ids.new_id(), ids.new_id())
    describe = Describe(
        record_id=ids.new_id(),
        generation=1,
        name=path.name,
        fingerprint=path.fingerprint,
        incarnation=path.incarnation,
        schema=schema_to_bytes(schema),
        codec="arrow",
        compression=compression,
        columns=tuple(schema.names),
        producers=producers,
        partitions=partitions,
        writing=writing,
        partitioner=partitioner,
        keys=(0,) if schema.names else (),
        components={},
        splits="",
        planning={},
        created_wall_seconds=0.0,
    )
    return describe_stage(storage, path, describe)


def write(
    stage: StageHandle,
    producer: int,
    batches: Sequence[IdBatch],
    attempt: str,
    *,
    producers: int = 1,
    settings: Settings = SMALL,
) -> ProducerResult:
    """Run one attempt of one producer."""
    return run_producer(
        stage, producer, batches, attempt=attempt, producers=producers, settings=settings
    )


def commits_of(stage: StageHandle, producers: int) -> dict[int, CommittedAttempt]:
    """Return the COMMIT that counts of each producer that has one."""
    found = {p: read_producer(stage.producer_log(p)).counting() for p in range(producers)}
    return {p: committed for p, committed in found.items() if committed is not None}


def seal(stage: StageHandle, producers: int, record_id: str) -> Seal:
    """Seal the stage with what its producers committed."""
    return seal_stage(
        stage,
        commits_of(stage, producers),
        producers=producers,
        generation=1,
        record_id=record_id,
    )


def read_rows(
    stage: StageHandle, sealed: Seal, subpartition: int, settings: Settings = SMALL
) -> list[Row]:
    """Return the rows of partition k in the order in which they are delivered."""
    batches = read_subpartition(stage, sealed, subpartition, settings)
    return [row for batch in batches for row in batch.to_pylist()]


def model_of(inputs: Sequence[Sequence[IdBatch]]) -> RowModel:
    """Return what the producers' `inputs` must read back as."""
    model: RowModel = defaultdict(list)
    for producer, batches in enumerate(inputs):
        for batch, ids in batches:
            for row, k in zip(batch.to_pylist(), ids.tolist(), strict=True):
                model[producer, k].append(row)
    return model


def partition_of(model: RowModel, subpartition: int, producers: int) -> list[Row]:
    """Return the rows of partition k: all producers in order."""
    return [row for p in range(producers) for row in model.get((p, subpartition), [])]


def records_below(storage: Storage, prefix: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (key, kind, fields) of the control records below `prefix`, by key."""
    unpack: Callable[[bytes], dict[str, Any]] = msgpack.unpackb
    for key in sorted(info.key for info in storage.list(prefix)):
        record = unpack(storage.read(key)[CONTROL_HEADER_BYTES:])
        yield key, record["kind"], record["fields"]
