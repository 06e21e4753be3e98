"""A compacted stage reads the same rows in the same order by fewer requests; one compaction counts.

The oracle is a dictionary of the rows; control records are read without the library's codecs.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_stage import (
    SMALL,
    SeededIds,
    model_of,
    new_stage,
    partition_of,
    read_rows,
    records_below,
    seal,
    write,
)

from durable_shuffle.serialization.errors import (
    AbortedError,
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    NotReadyError,
)
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import parse_compacted_key
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle, require_seal
from durable_shuffle.shuffle.read.sealed_reader import read_group
from durable_shuffle.shuffle.release.stages import delete_orphans, release_stage
from durable_shuffle.shuffle.repair.compaction import (
    Compaction,
    bytes_to_compact_at_seal,
    compact_stage,
    group_bytes,
    tiles,
)
from durable_shuffle.shuffle.seal.index import INDEX_ENTRY
from durable_shuffle.shuffle.seal.rewrite import abort_rewrite
from durable_shuffle.shuffle.storage.contract import Created, Exists
from durable_shuffle.shuffle.storage.fsspec_backend import FsspecStorage
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.storage.retrying import CountingStorage, RetryingStorage
from durable_shuffle.shuffle.write.segments import IdBatch

SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string())])
PARTITIONS = 4
Inputs = list[list[IdBatch]]


def inputs(producers: int, seed: int = 0, most_rows: int = 30) -> Inputs:
    """Rows per producer: few for most partitions, none for some, many of producer 1 for k 2."""
    draw = random.Random(seed)
    made: Inputs = []
    for p in range(producers):
        to = [draw.randrange(3) for _ in range(draw.randrange(most_rows))]
        to += [2] * 300 if p == 1 else []
        rows = [p * 10_000 + n for n in range(len(to))]
        batch = pa.record_batch([rows, [f"{n}" * 40 for n in rows]], schema=SCHEMA)
        made.append([(batch, np.array(to, np.uint16))])
    return made


def stored(storage: MemoryStorage | CountingStorage, ids: SeededIds, given: Inputs) -> StageHandle:
    """Write and seal them."""
    stage = new_stage(storage, ids, SCHEMA, partitions=PARTITIONS, producers=len(given))
    for p, batches in enumerate(given):
        write(stage, p, batches, ids.new_id(), producers=len(given))
    seal(stage, len(given), ids.new_id())
    return stage


def compact(stage: StageHandle, ids: SeededIds, **more: int) -> Compaction:
    return compact_stage(stage, ids=ids, generation=1, settings=SMALL, **more)


def assert_reads_right(stage: StageHandle, given: Inputs) -> None:
    """Each partition alone and all together equal the dictionary."""
    model, sealed = model_of(given), require_seal(stage)
    for k in range(PARTITIONS):
        assert read_rows(stage, sealed, k) == partition_of(model, k, len(given))
    group = [r for b in read_group(stage, sealed, 0, PARTITIONS, SMALL) for r in b.to_pylist()]
    every = [row for p in range(len(given)) for k in range(PARTITIONS) for row in model[p, k]]
    assert group == every


def objects(stage: StageHandle) -> set[str]:
    """Attempts that have a compacted segment."""
    listed = stage.storage.list(stage.path.compacted_prefix)
    return {parse_compacted_key(info.key)[0] for info in listed}


def kinds(stage: StageHandle) -> list[str]:
    return [kind for _, kind, _ in records_below(stage.storage, stage.path.log_prefix)]


def test_a_compacted_stage_takes_two_requests_per_partition(ids: SeededIds) -> None:
    """Forty small extents of a partition come by one range, in the order of producers."""
    storage, given = CountingStorage(MemoryStorage()), inputs(40)
    stage = stored(storage, ids, given)
    assert compact_stage(stage, ids=ids, generation=1, settings=Settings()).won
    assert kinds(stage) == ["DESCRIBE", "SEAL", "COMPACT"]
    assert_reads_right(stage, given)
    sealed = require_seal(stage)
    for k, ranges in ((0, 1), (1, 1), (3, 0)):
        storage.counts.clear()
        read_rows(stage, sealed, k, Settings())
        assert dict(storage.counts) == {"read_range": 1 + ranges}  # the small index comes whole


def test_requests_of_a_compaction(ids: SeededIds) -> None:
    """The logs and the index, one range per producer, one segment, one index, one record."""
    storage, given = CountingStorage(MemoryStorage()), inputs(40)
    stage = stored(storage, ids, given)
    with_rows = sum(bool(batches[0][0].num_rows) for batches in given)
    storage.counts.clear()
    compact_stage(stage, ids=ids, generation=1, settings=Settings())
    found = dict(storage.counts)
    assert found == {"read": 2, "read_range": 1 + with_rows, "put": 2, "put_if_absent": 1}


def test_long_extents_stay_where_they_are(ids: SeededIds) -> None:
    """Only what is small moves; the reader takes both, in order."""
    given = inputs(6)
    stage = stored(MemoryStorage(), ids, given)
    done = compact(stage, ids, small_bytes=2000)
    assert done.won
    assert_reads_right(stage, given)
    (info,) = stage.storage.list(stage.path.compacted_prefix)
    assert done.compact is not None
    assert info.size_bytes == sum(segment.length for segment in done.compact.segments)
    assert info.size_bytes < 6 * PARTITIONS * 2000


@pytest.mark.soak
@given(seed=st.integers(0, 2**32), producers=st.integers(0, 12), small=st.integers(1, 5000))
def test_any_stage_reads_the_same(seed: int, producers: int, small: int) -> None:
    """Whatever the sizes and whatever counts as small."""
    ids, given = SeededIds(random.Random(seed)), inputs(producers, seed)
    stage = stored(MemoryStorage(), ids, given)
    done = compact(stage, ids, small_bytes=small)
    assert done.won is bool(objects(stage))
    assert_reads_right(stage, given)
    again = compact(stage, ids)
    assert again.compact is None or not done.won or again.compact == done.compact
    assert_reads_right(stage, given)


@given(
    lengths=st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=8), max_size=8),
    memory=st.integers(1, 300),
)
def test_tiles_hold_every_extent_once_within_memory(lengths: list[list[int]], memory: int) -> None:
    """Each by subpartition, then producer, of neighbouring producers; too long ones come alone."""
    places = [(k, p, n) for k, row in enumerate(lengths) for p, n in enumerate(row)]
    entries = np.zeros(len(places), INDEX_ENTRY)
    for field, at in (("producer", 1), ("length", 2)):
        entries[field] = [place[at] for place in places]
    found = list(tiles(entries, np.array([place[0] for place in places], np.int64), memory))
    assert sorted(n for tile in found for n in tile.tolist()) == list(range(len(places)))
    spans = []
    for tile in found:
        inside = [places[n] for n in tile.tolist()]
        assert inside == sorted(inside)
        assert sum(n for _, _, n in inside) <= memory or len(inside) == 1
        producers = [p for _, p, _ in inside]
        spans.append((min(producers), max(producers)))
    assert [span[0] for span in sorted(spans)] == sorted(span[0] for span in spans)


@pytest.mark.parametrize(
    ("data", "segments", "partitions", "memory", "expected"),
    [
        (50, 10, 10, 64, 64),
        (6400, 100, 100, 64, 640),
        (6400, 100, 10_000, 64, 6400),
        (6400, 100, 1, 64, 64),
        (640_000, 10_000, 10_000, 64, 6400),
    ],
)
def test_groups_of_producers_balance_both_sides(
    data: int, segments: int, partitions: int, memory: int, expected: float
) -> None:
    """Requests to move, segments x G / memory, and to read, partitions x data / G, in sum least."""

    def cost(group: float) -> float:
        return segments * group / memory + partitions * data / group

    found = group_bytes(data, segments, partitions, memory)
    assert found == expected
    if data > memory:
        assert all(cost(found) <= cost(g) * 1.000001 for g in range(memory, data + 1, 16))


def test_nothing_to_gain_writes_nothing(ids: SeededIds) -> None:
    """One producer has one extent per partition."""
    stage = stored(MemoryStorage(), ids, inputs(1))
    assert compact(stage, ids) == Compaction(None, won=False)
    assert kinds(stage) == ["DESCRIBE", "SEAL"]
    assert objects(stage) == set()


def test_stages_that_cannot_be_compacted(ids: SeededIds) -> None:
    """Not sealed, released, a senseless size."""
    stage = new_stage(MemoryStorage(), ids, SCHEMA, partitions=PARTITIONS)
    with pytest.raises(NotReadyError):
        compact(stage, ids)
    stage = stored(MemoryStorage(), ids, inputs(5))
    with pytest.raises(InvalidInputError):
        compact(stage, ids, small_bytes=0)
    release_stage(stage, ids, generation=1, producers=5, cause="test")
    with pytest.raises(NotFoundError, match="released"):
        compact(stage, ids)


class Meeting(MemoryStorage):
    """Lets something happen right before COMPACT lands."""

    meet: Callable[[], object] | None = None

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        if self.meet is not None and b"COMPACT" in data:
            meet, self.meet = self.meet, None
            meet()
        return super().put_if_absent(key, data)


def met(ids: SeededIds, given: Inputs) -> tuple[StageHandle, Meeting]:
    storage = Meeting()
    return stored(storage, ids, given), storage


def test_of_two_compactions_one_counts(ids: SeededIds) -> None:
    """The loser returns the winner's record and leaves nothing behind."""
    given = inputs(8)
    stage, storage = met(ids, given)
    winners: list[Compaction] = []
    storage.meet = lambda: winners.append(compact(stage, ids))
    loser = compact(stage, ids)
    assert winners[0].won
    assert not loser.won
    assert loser.compact == winners[0].compact
    assert objects(stage) == {winners[0].compact.record_id}  # type: ignore[union-attr]
    assert len(list(storage.list(stage.path.index_prefix))) == 2
    assert_reads_right(stage, given)


def test_a_cleaner_may_give_up_a_compaction_that_runs(ids: SeededIds) -> None:
    """It stops, nothing of it counts, and the next one does."""
    given = inputs(8)
    stage, storage = met(ids, given)
    storage.meet = lambda: delete_orphans(stage, ids, cause="thought dead")
    with pytest.raises(AbortedError, match="thought dead"):
        compact(stage, ids)
    assert kinds(stage) == ["DESCRIBE", "SEAL", "ABORT"]
    assert objects(stage) == set()
    assert_reads_right(stage, given)
    assert compact(stage, ids).won
    assert_reads_right(stage, given)


def test_a_cleaner_spares_the_compaction_that_counts(ids: SeededIds) -> None:
    """Its objects are live; those of others are not."""
    given = inputs(8)
    stage = stored(MemoryStorage(), ids, given)
    done = compact(stage, ids)
    other = ids.new_id()
    stage.storage.put(stage.path.compacted_key(other, 0), [b"left behind"])
    assert delete_orphans(stage, ids, cause="test").objects == 1
    assert objects(stage) == {done.compact.record_id}  # type: ignore[union-attr]
    assert_reads_right(stage, given)
    assert abort_rewrite(stage, other, ids.new_id(), "test")
    assert kinds(stage)[2:] == ["COMPACT", "ABORT"], "one of it is enough"


def test_a_release_meanwhile_wins(ids: SeededIds) -> None:
    """The compaction says so and leaves nothing behind."""
    stage, storage = met(ids, inputs(8))
    storage.meet = lambda: release_stage(stage, ids, generation=1, producers=8, cause="test")
    with pytest.raises(NotFoundError, match="released"):
        compact(stage, ids)
    for prefix in (stage.path.compacted_prefix, stage.path.index_prefix):
        assert list(storage.list(prefix)) == []


def test_release_deletes_compacted_data(ids: SeededIds) -> None:
    """With the rest."""
    stage = stored(MemoryStorage(), ids, inputs(8))
    assert compact(stage, ids).won
    release_stage(stage, ids, generation=1, producers=8, cause="test")
    left = {info.key.split("/")[2] for info in stage.storage.list(stage.path.prefix)}
    assert left == {"log", "producers"}


def test_a_damaged_extent_is_not_carried_on(ids: SeededIds) -> None:
    """The error names the segment; nothing is committed, nothing left behind."""
    storage = MemoryStorage()
    stage = stored(storage, ids, inputs(8))
    key = next(info.key for info in storage.list(stage.path.segments_prefix))
    damaged = bytearray(storage._objects[key])
    damaged[40] ^= 1
    storage._objects[key] = bytes(damaged)
    with pytest.raises(CorruptDataError, match=key):
        compact(stage, ids)
    assert kinds(stage) == ["DESCRIBE", "SEAL"]
    assert objects(stage) == set()


@pytest.mark.parametrize(
    ("asked", "kind", "producers", "extent", "partitioner", "expected"),
    [
        (None, "object store", 32, 65_536, "hash", 128 << 10),
        (None, "object store", 32, 65_537, "hash", 0),
        (None, "object store", 31, 10, "hash", 0),
        (None, "object store", 40, 0, "hash", 0),
        (None, "object store", 40, 10, "passthrough", 0),
        (None, "folder", 40, 10, "hash", 0),
        (0, "object store", 40, 10, "hash", 0),
        (7, "folder", 1, 10**9, "hash", 7),
    ],
)
def test_what_is_compacted_at_the_seal(
    ids: SeededIds,
    tmp_path: Path,
    asked: int | None,
    kind: str,
    producers: int,
    extent: int,
    partitioner: str,
    expected: int,
) -> None:
    """By default where it pays: many short extents, on an object store."""
    backend = FsspecStorage("s3://bucket/x") if kind == "object store" else LocalStorage(tmp_path)
    made = new_stage(MemoryStorage(), ids, SCHEMA, partitions=9, partitioner=partitioner)
    stage = replace(made, storage=CountingStorage(RetryingStorage(backend)))
    tables = bytes(4 * producers), bytes(16 * producers), bytes(32 * producers)
    sealed = Seal("a" * 32, 1, producers, "a" * 32, 1, *tables, 1, extent * 9 * producers, 1)
    settings = Settings(compact_small_bytes=asked)
    assert bytes_to_compact_at_seal(stage, sealed, settings) == expected
