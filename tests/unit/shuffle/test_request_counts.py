"""Requests per producer and per partition read, held to a formula: they are time and money."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from small_stage import (
    SMALL,
    SeededIds,
    new_stage,
    read_rows,
    seal,
    write,
)

from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.stage import require_seal
from durable_shuffle.shuffle.storage.contract import ByteRange
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.storage.range_plan import REQUESTS_AT_ONCE
from durable_shuffle.shuffle.storage.retrying import CountingStorage
from durable_shuffle.shuffle.write.segments import IdBatch

SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string())])


def batches(count: int, partitions: int) -> list[IdBatch]:
    """`count` batches of about 40 kB with rows for all partitions."""
    made = []
    for _ in range(count):
        rows = max(20, partitions)
        texts = ["x" * (40_000 // rows)] * rows
        batch = pa.record_batch([list(range(rows)), texts], schema=SCHEMA)
        made.append((batch, np.array([r % partitions for r in range(rows)], np.uint16)))
    return made


@pytest.fixture
def counting() -> CountingStorage:
    """A storage that counts."""
    return CountingStorage(MemoryStorage())


@pytest.mark.parametrize("partitions", [1, 5, 1000])
@pytest.mark.parametrize("count", [1, 10])
def test_a_producer_within_its_memory_makes_two_objects(
    counting: CountingStorage, ids: SeededIds, partitions: int, count: int
) -> None:
    """One segment and one COMMIT, however many batches and partitions; and one look at the log."""
    stage = new_stage(counting, ids, SCHEMA, partitions=partitions)
    counting.counts.clear()
    write(stage, 0, batches(count, partitions), ids.new_id(), settings=Settings())
    assert dict(counting.counts) == {"read": 1, "put": 1, "put_if_absent": 1}


def test_a_producer_without_rows_makes_one_object(
    counting: CountingStorage, ids: SeededIds
) -> None:
    """Its COMMIT."""
    stage = new_stage(counting, ids, SCHEMA, partitions=5)
    counting.counts.clear()
    write(stage, 0, [], ids.new_id())
    assert dict(counting.counts) == {"read": 1, "put_if_absent": 1}


def test_a_producer_over_its_memory_makes_one_more_object_per_flush(
    counting: CountingStorage, ids: SeededIds
) -> None:
    """Ten batches of 40 kB and 64 kB of memory: five segments, one COMMIT."""
    stage = new_stage(counting, ids, SCHEMA, partitions=5)
    counting.counts.clear()
    write(stage, 0, batches(10, 5), ids.new_id(), settings=SMALL)
    assert dict(counting.counts) == {"read": 1, "put": 5, "put_if_absent": 1}


def test_a_committed_producer_costs_two_reads(counting: CountingStorage, ids: SeededIds) -> None:
    """The COMMIT and the empty slot behind it; nothing is written."""
    stage = new_stage(counting, ids, SCHEMA, partitions=5)
    write(stage, 0, batches(1, 5), ids.new_id())
    counting.counts.clear()
    write(stage, 0, batches(1, 5), ids.new_id())
    assert dict(counting.counts) == {"read": 2}


@pytest.mark.parametrize("producers", [0, 1, 7, 40])
def test_reading_a_partition_takes_at_most_three_more_reads_than_producers(
    counting: CountingStorage, ids: SeededIds, producers: int
) -> None:
    """The index, one range per producer; no listing, no log, and an empty one is free."""
    stage = new_stage(counting, ids, SCHEMA, partitions=4)
    for p in range(producers):
        batch, part = batches(1, 3)[0]
        write(stage, p, [(batch, part)], ids.new_id(), producers=producers, settings=Settings())
    sealed = seal(stage, producers, ids.new_id())
    for k, ranges in ((0, producers), (2, producers), (3, 0)):
        counting.counts.clear()
        assert (len(read_rows(stage, sealed, k)) > 0) == (ranges > 0)
        assert dict(counting.counts) == {"read_range": 1 + ranges}
        assert counting.total <= producers + 3


@pytest.mark.parametrize("memory_bytes", [1 << 16, 1 << 17, 1 << 20])
def test_what_is_in_flight_fits_the_memory(ids: SeededIds, memory_bytes: int) -> None:
    """However much a partition has, a reader asks for so many bytes and requests at once."""
    asked: list[list[ByteRange]] = []

    class Noting(MemoryStorage):
        def read_ranges(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
            asked.append(list(ranges))
            return super().read_ranges(ranges)

    stage = new_stage(Noting(), ids, SCHEMA, partitions=2, compression="none")
    for p in range(80):
        write(stage, p, batches(1, 2), ids.new_id(), producers=80, settings=Settings())
    sealed = seal(stage, 80, ids.new_id())
    asked.clear()
    settings = Settings(writer_memory_bytes=memory_bytes)
    assert len(read_rows(stage, sealed, 0, settings)) == 80 * 10
    assert sum(map(len, asked)) == 80
    assert all(len(ranges) <= REQUESTS_AT_ONCE for ranges in asked)
    assert all(sum(r.length for r in ranges) <= memory_bytes for ranges in asked)
    assert len(asked) >= 5


def test_sealing_reads_no_data(counting: CountingStorage, ids: SeededIds) -> None:
    """Given the COMMITs: one look at the stage log, one index object, one SEAL."""
    stage = new_stage(counting, ids, SCHEMA, partitions=4)
    for p in range(3):
        write(stage, p, batches(1, 4), ids.new_id(), producers=3)
    counting.counts.clear()
    seal(stage, 3, ids.new_id())  # reads 2 slots per producer log first
    assert dict(counting.counts) == {"read": 2 * 3 + 1, "put": 1, "put_if_absent": 1}
    counting.counts.clear()
    require_seal(stage)
    assert dict(counting.counts) == {"read": 2}


def test_counts_are_per_range_and_per_deleted_object() -> None:
    """The counter itself: what it counts and that it passes everything through."""
    counting = CountingStorage(MemoryStorage())
    counting.put("a/b", [b"12", b"3"])
    assert bytes(counting.read_ranges([ByteRange("a/b", 0, 1), ByteRange("a/b", 1, 2)])[1]) == b"23"
    assert bytes(counting.read_range("a/b", 2, 1)) == b"3"
    assert counting.read("a/b") == b"123"
    assert [i.key for i in counting.list("a/")] == ["a/b"]
    counting.delete(["a/b", "a/c"])
    assert dict(counting.counts) == {"put": 1, "read_range": 3, "read": 1, "list": 1, "delete": 2}
    assert counting.total == 8
    assert counting.description.startswith("memory of one process")
