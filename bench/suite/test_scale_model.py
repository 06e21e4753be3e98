"""The cost model's requests are those that a small stage really takes."""

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from scale_model import TB, Requests, Shuffle, table
from small_stage import SeededIds, new_stage, seal, write

from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.stage import require_seal
from durable_shuffle.shuffle.read.sealed_reader import read_subpartition
from durable_shuffle.shuffle.repair.compaction import compact_stage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.storage.retrying import CountingStorage

SCHEMA = pa.schema([("n", pa.int64())])
MEMORY_BYTES = 1 << 16


def sent(counts: Counter[str]) -> Requests:
    """Return the requests counted since the last time."""
    puts = counts["put"] + counts["put_if_absent"]
    found = Requests(puts, counts.total() - puts)
    counts.clear()
    return found


@pytest.mark.parametrize(("producers", "partitions"), [(12, 20), (30, 10), (5, 60)])
def test_requests_as_counted(producers: int, partitions: int) -> None:
    """Writing, sealing and reading to the request; compaction and reading after it nearly."""
    storage, ids = CountingStorage(MemoryStorage()), SeededIds(random.Random(1))
    stage = new_stage(
        storage, ids, SCHEMA, partitions=partitions, producers=producers, compression="none"
    )
    rows = 4000
    batch = pa.record_batch([np.arange(rows)], schema=SCHEMA)
    to = (np.arange(rows) % partitions).astype(np.uint16)
    counts = storage.counts
    counts.clear()
    for p in range(producers):
        write(stage, p, [(batch, to)], ids.new_id(), producers=producers, settings=Settings())
    written = sent(counts)
    sealed = seal(stage, producers, ids.new_id())
    sealing = sent(counts)
    model = Shuffle(producers, partitions, sealed.data_bytes, segment_bytes=MEMORY_BYTES)
    assert model.segments == 1
    assert (written, sealing) == (model.write(), model.seal())

    def read_all() -> Requests:
        current = require_seal(stage)
        counts.clear()
        found = sum(
            b.num_rows
            for k in range(partitions)
            for b in read_subpartition(stage, current, k, Settings())
        )
        assert found == producers * rows
        return sent(counts)

    assert read_all() == model.read()
    settings = Settings(writer_memory_bytes=MEMORY_BYTES)
    assert compact_stage(stage, ids=ids, generation=1, settings=settings).won
    compaction = sent(counts)
    assert compaction.puts == pytest.approx(model.compact().puts, rel=0.2)
    assert compaction.gets == pytest.approx(model.compact().gets, rel=0.2)
    after = read_all()
    assert after.gets == pytest.approx(model.read_compacted().gets, rel=0.2)
    assert after.gets < model.read().gets


def test_the_table_prints() -> None:
    """A row per shuffle, and what stands behind the numbers."""
    text = table([Shuffle(50_000, 50_000, 1000 * TB), Shuffle(1000, 1000, TB)])
    assert "50,000" in text
    assert "(!)" in text.splitlines()[1]
    assert "ms a request" in text
