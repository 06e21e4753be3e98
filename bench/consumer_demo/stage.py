"""The stored stage of the consumer demo, written without Spark."""

import numpy as np
import pyarrow as pa

from durable_shuffle.serialization.arrow_schemas import schema_to_bytes
from durable_shuffle.shuffle.base.clock import Clock, IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.records import Describe, StageUse
from durable_shuffle.shuffle.log.stage import StageHandle, describe_stage
from durable_shuffle.shuffle.seal.seal import seal_stage
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.write.producer import run_producer

JOB, PRODUCERS, PARTITIONS = "demo-consume", 4, 2
_SCHEMA = pa.schema([("id", pa.int64())])
_FRAME_BYTES = 64 * 1024
"""Small, so that a partition has several frames and acknowledgements fall inside of them."""


def store_stage(storage: Storage, rows: int, ids: IdSource, clock: Clock) -> StageHandle:
    """Store ids [0, rows) in partition 0 and [rows, 2 * rows) in partition 1, dealt to producers.

    Returns:
        The sealed stage.
    """
    settings = Settings(frame_bytes=_FRAME_BYTES)
    log = JobLog.claim(storage, JOB, ids.new_id())
    path = StagePath(JOB, "numbers", f"{rows:032x}", ids.new_id())
    describe = Describe(
        record_id=ids.new_id(),
        generation=log.generation,
        name=path.name,
        fingerprint=path.fingerprint,
        incarnation=path.incarnation,
        schema=schema_to_bytes(_SCHEMA),
        codec="arrow",
        compression=settings.compression,
        columns=tuple(_SCHEMA.names),
        producers=PRODUCERS,
        partitions=PARTITIONS,
        partitioner="round_robin",
        keys=(),
        components={},
        splits="",
        planning={},
        writing="batch",
        created_wall_seconds=clock.wall(),
    )
    stage = describe_stage(storage, path, describe)
    log.append(
        StageUse(ids.new_id(), log.generation, path.name, path.fingerprint, path.incarnation)
    )
    commits = {}
    for producer in range(PRODUCERS):
        values = np.arange(producer, 2 * rows, PRODUCERS, dtype=np.int64)
        batch = pa.RecordBatch.from_arrays([pa.array(values)], schema=_SCHEMA)
        to = (values >= rows).astype(np.uint16)
        commits[producer] = run_producer(
            stage,
            producer,
            [(batch, to)],
            attempt=ids.new_id(),
            producers=PRODUCERS,
            settings=settings,
        ).committed
    seal_stage(
        stage, commits, producers=PRODUCERS, generation=log.generation, record_id=ids.new_id()
    )
    return stage
