"""A small stored job without Spark, for tests of whatever reads one.

Strategy: the real producer and the real seal, on rows that depend on (producer, row) alone, so that
a test knows every value without asking the code under test. Keys are chosen by the test's own rule,
row number modulo the partitions in use, so that some partitions can stay empty.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from durable_shuffle.serialization.arrow_schemas import schema_to_bytes
from durable_shuffle.shuffle.base.clock import IdSource, RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.producer_log import CommittedAttempt
from durable_shuffle.shuffle.log.records import Describe, Lasts, StageUse
from durable_shuffle.shuffle.log.stage import StageHandle, describe_stage
from durable_shuffle.shuffle.seal.seal import seal_stage
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.write.producer import run_producer

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("value", pa.float64())])
"""Of the rows that `stored_stage` writes."""

ROWS_PER_BATCH = 500


def stored_rows(producer: int, rows: int) -> pa.RecordBatch:
    """Return the rows of one producer: `id` is producer * 1,000,000 + row number."""
    ids = np.arange(rows, dtype=np.int64) + producer * 1_000_000
    texts = [None if i % 7 == 0 else f"row {i} of producer {producer}" for i in range(rows)]
    columns = [pa.array(ids), pa.array(texts, pa.string()), pa.array(ids / 8)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def stored_stage(
    log: JobLog,
    storage: Storage,
    *,
    job: str,
    name: str = "stage",
    fingerprint: str = "0" * 32,
    rows: Sequence[int] = (2000, 0, 1500),
    partitions: int = 5,
    used_partitions: int = 4,
    commit: Sequence[int] | None = None,
    seal: bool = True,
    settings: Settings | None = None,
    created_wall_seconds: float = 0.0,
    ids: IdSource | None = None,
    lasts: Lasts = "until_released",
) -> StageHandle:
    """Write one stage of a claimed job; row i of a producer goes to partition i % used_partitions.

    Args:
        rows: how many rows each producer has; its length is M.
        commit: the producers that write and commit, default all.
        seal: False leaves the stage unsealed.
        lasts: whether the retention may release the stage.
    """
    ids, settings = ids or RandomIds(), settings or Settings()
    path = StagePath(job, name, fingerprint, ids.new_id())
    describe = Describe(
        record_id=ids.new_id(),
        generation=log.generation,
        name=name,
        fingerprint=fingerprint,
        incarnation=path.incarnation,
        schema=schema_to_bytes(SCHEMA),
        codec="arrow",
        compression=settings.compression,
        columns=tuple(SCHEMA.names),
        producers=len(rows),
        partitions=partitions,
        writing="batch",
        partitioner="hash",
        keys=(0,),
        components={"plan": "0" * 32},
        splits="",
        planning={},
        created_wall_seconds=created_wall_seconds,
    )
    stage = describe_stage(storage, path, describe)
    names = name, fingerprint, path.incarnation
    log.append(
        StageUse(
            ids.new_id(), log.generation, *names, wall_seconds=created_wall_seconds, lasts=lasts
        )
    )
    commits: dict[int, CommittedAttempt] = {}
    for producer in range(len(rows)) if commit is None else commit:
        batch = stored_rows(producer, rows[producer])
        to = np.arange(batch.num_rows, dtype=np.uint32) % np.uint32(used_partitions)
        batches = [
            (batch.slice(at, ROWS_PER_BATCH), to[at : at + ROWS_PER_BATCH])
            for at in range(0, batch.num_rows, ROWS_PER_BATCH)
        ]
        commits[producer] = run_producer(
            stage,
            producer,
            batches,
            attempt=ids.new_id(),
            producers=len(rows),
            settings=settings,
        ).committed
    if seal:
        seal_stage(
            stage,
            commits,
            producers=len(rows),
            generation=log.generation,
            record_id=ids.new_id(),
        )
    return stage
