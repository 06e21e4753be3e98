"""Memory of `verify` and `verify --repair`: it follows M + R, not the M x R extents of a stage."""

import tracemalloc
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pytest
from small_stage import SMALL, new_stage, seal

from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.log import producer_log
from durable_shuffle.shuffle.log.extent_table import EXTENT, pack_block
from durable_shuffle.shuffle.log.layout import COMPACTED
from durable_shuffle.shuffle.log.producer_log import commit_attempt
from durable_shuffle.shuffle.log.records import Commit, Compact, SegmentInfo
from durable_shuffle.shuffle.log.stage import StageHandle, read_state
from durable_shuffle.shuffle.read.sealed_reader import read_slices
from durable_shuffle.shuffle.repair import stage as repair_module
from durable_shuffle.shuffle.repair.stage import repair_stage
from durable_shuffle.shuffle.seal import index, transpose
from durable_shuffle.shuffle.seal.index import IndexWriter
from durable_shuffle.shuffle.seal.rewrite import commit_rewrite
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.verify import counting
from durable_shuffle.shuffle.verify.stage import check_stage

IDS = RandomIds()
SCHEMA = pa.schema([("n", pa.int64())])
T = TypeVar("T")


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may be held at a time, whatever the stage, a thousandth of what it is."""
    for module in (producer_log, counting, transpose):
        monkeypatch.setattr(module, "HELD_BYTES", 64 << 10)
    monkeypatch.setattr(producer_log, "_READ_AHEAD", 4)
    monkeypatch.setattr(transpose, "RUN_EXTENTS", 4000)
    monkeypatch.setattr(index, "PART_BYTES", 64 << 10)
    monkeypatch.setattr(repair_module, "_HELD_COPIES", 1 << 11)


def compacted_stage(size: int) -> StageHandle:
    """A sealed and compacted stage of as many producers as partitions, with an extent for each
    pair. Records and indexes are right, segments are not there."""
    stage = new_stage(MemoryStorage(), IDS, SCHEMA, partitions=size, producers=size)
    chance = np.random.default_rng(size)
    for producer in range(size):
        extents = np.zeros(size, dtype=EXTENT)
        extents["subpartition"] = range(size)
        extents["length"] = chance.integers(100, 1 << 16, size)
        extents["offset"] = np.cumsum(extents["length"]) - extents["length"]
        extents["rows"] = chance.integers(1, 100, size)
        segment = SegmentInfo(0, int(extents["length"].sum()), bytes(32))
        rows = int(extents["rows"].sum())
        table = pack_block(extents, "subpartition")
        commit = Commit(IDS.new_id(), producer, size, rows, rows, (segment,), table)
        commit_attempt(stage.producer_log(producer), commit)
    sealed, state = seal(stage, size, IDS.new_id()), read_state(stage)
    attempt, end = IDS.new_id(), 0
    key = stage.path.index_key(attempt)
    writer = IndexWriter(stage.storage.put, key, partitions=size, producers=size)
    for entries in read_slices(stage, sealed, 0, size):
        moved = entries.copy()
        moved["segment"] = COMPACTED
        moved["offset"] = end + np.cumsum(entries["length"]) - entries["length"]
        end += int(entries["length"].sum())
        writer.add(moved)
    index_bytes, segments = writer.finish(sealed.attempts), (SegmentInfo(0, end, bytes(32)),)
    record = Compact(attempt, 1, state.seal_slot, attempt, index_bytes, segments, size * size)
    assert commit_rewrite(stage, state, record, []) is record
    return stage


def peak(call: Callable[[], T]) -> tuple[T, int]:
    """Return what a call returns, and the most bytes that it held."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_of_verify_follows_producers_and_partitions() -> None:
    """22,500 extents, each of which stands in a record, two indexes and a task, are not held."""
    size = 150
    stage = compacted_stage(size)
    verdict, most = peak(lambda: check_stage(stage.storage, stage.path, SMALL, released=False))
    assert verdict.committed == size
    assert {finding.kind for finding in verdict.findings} == {"not_found"}
    assert len({finding.key for finding in verdict.findings}) == size + 1, "all segments, no index"
    assert most < 1 << 20, f"{most:,} bytes"


def test_memory_of_a_repair_follows_producers_and_partitions() -> None:
    """It looks for copies of all extents, a few producers at a time, and finds none."""
    size = 120
    stage = compacted_stage(size)
    repair = lambda: repair_stage(stage.storage, stage.path, SMALL, ids=IDS, generation=1)  # noqa: E731
    repaired, most = peak(repair)
    assert repaired.outcome == "run again"
    assert repaired.run_again == tuple(range(size))
    assert most < 2 << 20, f"{most:,} bytes"
