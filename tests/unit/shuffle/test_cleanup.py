"""Giving space back: only what can never count, and all of a released stage."""

import numpy as np
import pyarrow as pa
import pytest
from small_stage import (
    SeededIds,
    new_stage,
    read_rows,
    records_below,
    seal,
    write,
)

from durable_shuffle.serialization.errors import FencedError
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.release.stages import Freed, delete_orphans, release_stage
from durable_shuffle.shuffle.seal.seal import count_reruns
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.storage.retrying import CountingStorage
from durable_shuffle.shuffle.write.segments import IdBatch

SCHEMA = pa.schema([("x", pa.int64())])
ORPHAN = "0" * 32


def rows(*values: int) -> list[IdBatch]:
    """One batch for partition 0."""
    batch = pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)
    return [(batch, np.zeros(len(values), np.uint16))]


@pytest.fixture
def stage(storage: MemoryStorage, ids: SeededIds) -> StageHandle:
    """Two committed producers and two segments of an attempt that never committed."""
    stage = new_stage(storage, ids, SCHEMA, partitions=1)
    for p in range(2):
        write(stage, p, rows(p, p), ids.new_id(), producers=2)
    storage.put(stage.path.segment_key(1, ORPHAN, 0), [b"12345"])
    storage.put(stage.path.segment_key(1, ORPHAN, 1), [b"678"])
    return stage


def kinds(stage: StageHandle, producer: int) -> list[str]:
    """Kinds of a producer's records."""
    prefix = stage.path.producer_log_prefix(producer)
    return [k for _, k, _ in records_below(stage.storage, prefix)]


def test_orphans_are_aborted_first_and_then_deleted(stage: StageHandle, ids: SeededIds) -> None:
    """Objects and bytes are told; committed segments stay; a second run finds nothing."""
    assert delete_orphans(stage, ids, cause="test") == Freed(2, 8)
    assert (kinds(stage, 0), kinds(stage, 1)) == (["COMMIT"], ["COMMIT", "ABORT"])
    assert delete_orphans(stage, ids, cause="test") == Freed(0, 0)
    assert kinds(stage, 1) == ["COMMIT", "ABORT"]
    sealed = seal(stage, 2, ids.new_id())
    assert read_rows(stage, sealed, 0) == [{"x": 0}, {"x": 0}, {"x": 1}, {"x": 1}]


def test_orphans_in_a_clean_stage_cost_one_listing(storage: MemoryStorage, ids: SeededIds) -> None:
    """Nothing there, nothing done."""
    stage = new_stage(storage, ids, SCHEMA, partitions=1)
    assert delete_orphans(stage, ids, cause="test") == Freed(0, 0)


def test_orphans_of_a_sealed_stage_cost_nothing_per_producer(
    storage: MemoryStorage, ids: SeededIds
) -> None:
    """The seal names the attempts that count: only the orphan's producer's log is read."""
    stage = new_stage(storage, ids, SCHEMA, partitions=1)
    for p in range(40):
        write(stage, p, rows(p), ids.new_id(), producers=40)
    seal(stage, 40, ids.new_id())
    storage.put(stage.path.segment_key(7, ORPHAN, 0), [b"12345"])
    counted = CountingStorage(storage)
    fresh = StageHandle(counted, stage.path, stage.describe)
    assert delete_orphans(fresh, ids, cause="test") == Freed(1, 5)
    assert counted.total <= 10


def test_release_leaves_the_logs_only(stage: StageHandle, ids: SeededIds) -> None:
    """Segments, orphans and index go; objects and bytes are told; a repetition finds nothing."""
    seal(stage, 2, ids.new_id())
    data = [
        *stage.storage.list(stage.path.segments_prefix),
        *stage.storage.list(stage.path.index_prefix),
    ]
    freed = release_stage(stage, ids, generation=1, producers=2, cause="test")
    assert freed == Freed(len(data), sum(i.size_bytes for i in data)) == Freed(5, freed.data_bytes)
    assert all("/log/" in i.key or "/producers/" in i.key for i in stage.storage.list(""))
    before = [i.key for i in stage.storage.list("")]
    again = release_stage(stage, ids, generation=2, producers=2, cause="test")
    assert again == Freed(0, 0)
    assert [i.key for i in stage.storage.list("")] == before
    assert kinds(stage, 0) == kinds(stage, 1) == ["COMMIT", "CLOSED"]


def test_release_closes_logs_of_producers_that_never_ran(
    storage: MemoryStorage, ids: SeededIds
) -> None:
    """A producer that starts later is fenced."""
    stage = new_stage(storage, ids, SCHEMA, partitions=1)
    release_stage(stage, ids, generation=1, producers=2, cause="test")
    assert kinds(stage, 0) == kinds(stage, 1) == ["CLOSED"]
    with pytest.raises(FencedError):
        write(stage, 1, rows(1), ids.new_id(), producers=2)
    assert list(storage.list(stage.path.segments_prefix)) == []


def test_release_touches_no_other_stage(storage: MemoryStorage, ids: SeededIds) -> None:
    """Not even one with the same name and fingerprint."""
    one, two = (new_stage(storage, ids, SCHEMA, partitions=1) for _ in range(2))
    for stage in (one, two):
        write(stage, 0, rows(1, 2), ids.new_id())
        seal(stage, 1, ids.new_id())
    before = {i.key: storage.read(i.key) for i in storage.list(two.path.prefix)}
    release_stage(one, ids, generation=1, producers=1, cause="test")
    assert {i.key: storage.read(i.key) for i in storage.list(two.path.prefix)} == before


def test_objects_of_others_end_nothing_and_stay(stage: StageHandle, ids: SeededIds) -> None:
    """A file that somebody put among the segments is neither read nor deleted."""
    foreign = [stage.path.segments_prefix + name for name in ("_SUCCESS", "a/b/crc", "notes.txt")]
    for key in foreign:
        stage.storage.put(key, [b"x"])
    sealed = seal(stage, 2, ids.new_id())
    assert count_reruns(stage, sealed).segments == 2
    assert delete_orphans(stage, ids, cause="test") == Freed(2, 8)
    assert {info.key for info in stage.storage.list(stage.path.prefix)}.issuperset(foreign)
    assert read_rows(stage, sealed, 0) == [{"x": 0}, {"x": 0}, {"x": 1}, {"x": 1}]
