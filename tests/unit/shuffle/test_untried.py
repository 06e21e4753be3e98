"""A producer that need not look for a COMMIT before it writes still counts once."""

import random

import numpy as np
import pyarrow as pa
import pytest
from small_stage import SMALL, SeededIds, new_stage

from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.write.producer import ProducerResult, run_producer

SCHEMA = pa.schema([("v", pa.int64())])


def written(stage: StageHandle, attempt: str, value: int, *, untried: bool) -> ProducerResult:
    """Run producer 0 over one row."""
    stage = StageHandle(stage.storage, stage.path, stage.describe, untried=untried)
    rows = pa.record_batch([pa.array([value])], schema=SCHEMA)
    batches = [(rows, np.zeros(1, dtype=np.uint16))]
    return run_producer(stage, 0, batches, attempt=attempt, producers=1, settings=SMALL)


@pytest.mark.parametrize("untried", [True, False])
def test_a_commit_that_nobody_looked_for_counts_alone(untried: bool) -> None:
    """Spark may lose the result of a committed task and start the task anew as its first attempt.
    One that does not look writes in vain, loses to the COMMIT, and leaves no segment."""
    storage, ids = MemoryStorage(), SeededIds(random.Random(1))
    stage = new_stage(storage, ids, SCHEMA, partitions=1)
    first, second = ids.new_id(), ids.new_id()
    one = written(stage, first, 1, untried=True)
    segments = [info.key for info in storage.list(stage.path.segments_prefix)]
    other = written(stage, second, 2, untried=untried)
    assert (one.wrote, one.won) == (True, True)
    assert (other.wrote, other.won) == (untried, False)
    assert other.committed.commit.record_id == first
    assert [info.key for info in storage.list(stage.path.segments_prefix)] == segments
