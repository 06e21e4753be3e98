"""Spark's micro-batch engine as far as a sink sees it, without Spark: for schedules by the hundred.

A checkpoint says how many batches are done. A run tries the batch behind it: tasks write, then the
commit; what dies is tried again by a new run, with the batch's rows in another order, dealt out to
other tasks. Batch b holds the numbers [b * ROWS, (b + 1) * ROWS), and row n belongs to subpartition
n % R.
"""

import random
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from small_stage import SMALL, SeededIds, new_stage

from durable_shuffle.shuffle.log.appender_log import Appended, Begun, Part
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.write.run_log import (
    FIRST_ORDINALS,
    SEGMENT_NUMBERS,
    Run,
    append_batch,
    begin_batch,
    begin_job,
    write_part,
)

ROWS, PARTITIONS = 12, 3
SCHEMA = pa.schema([("n", pa.int64())])
QUERY = "7d9f3f7e-query"


def new_log_stage(draw: random.Random) -> StageHandle:
    """Return a stage in memory that is written by a log."""
    return new_stage(MemoryStorage(), SeededIds(draw), SCHEMA, partitions=PARTITIONS, writing="log")


@dataclass
class EngineRun:
    """One start of the query. `stage` stands on a storage of this run's own, which may fail."""

    stage: StageHandle
    draw: random.Random
    query: str = QUERY
    """"" for a write job."""
    run: Run = field(init=False)
    job: Begun | None = None
    """What a write job planned."""

    def __post_init__(self) -> None:
        self.run = Run(self.query, SeededIds(self.draw).new_id())

    def tasks(self, batch: int) -> list[Part | None]:
        """Run the tasks of a batch; None from those that find it done."""
        numbers = list(range(batch * ROWS, (batch + 1) * ROWS))
        self.draw.shuffle(numbers)
        cut = self.draw.randrange(ROWS + 1)
        return [self._task(batch, t, mine) for t, mine in enumerate((numbers[:cut], numbers[cut:]))]

    def commit(self, batch: int, parts: list[Part | None]) -> bool:
        """Return whether this commit is the one that counts."""
        return self.append(batch, parts).wrote

    def append(self, batch: int, parts: list[Part | None], repeated: int | None = None) -> Appended:
        """Commit a batch; what a commit comes to."""
        found = [part for part in parts if part is not None]
        schema = self.stage.describe.schema
        return append_batch(self.stage, 0, self.run, batch, found, schema, repeated_rows=repeated)

    def _task(self, batch: int, number: int, mine: list[int]) -> Part | None:
        begun: Begun | None
        if self.run.query:
            begun, _ = begin_batch(self.stage, 0, self.run, batch)
        else:
            self.job = begun = self.job or begin_job(self.stage, 0, self.run)[0]
        if begun is None:
            return None
        rows = pa.record_batch([pa.array(mine, pa.int64())], schema=SCHEMA)
        ids = (np.array(mine, dtype=np.int64) % self.stage.describe.partitions).astype(np.uint16)
        return write_part(
            self.stage,
            0,
            begun,
            number,
            [(rows, ids)] if mine else [],
            first_segment=self.draw.randrange(SEGMENT_NUMBERS),
            first_ordinal=self.draw.randrange(FIRST_ORDINALS),
            settings=SMALL,
        )
