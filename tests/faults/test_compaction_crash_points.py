"""A compaction may die before or after any storage call: readers never notice, gc finds the rest.

The oracle is the rows that were written and the records on storage, read without the library's
codecs.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from small_stage import (
    ManualClock,
    SeededIds,
    read_rows,
    records_below,
)
from stored_job import stored_stage

from durable_shuffle.serialization.errors import OutcomeUnknownError, UnavailableError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.layout import parse_compacted_key
from durable_shuffle.shuffle.log.stage import StageHandle, require_seal
from durable_shuffle.shuffle.release.gc_run import GcReport, collect_garbage
from durable_shuffle.shuffle.repair.compaction import compact_stage
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.testing.faulty_storage import FaultyStorage, Rule

CrashPoints = Callable[..., Iterator[tuple[Any, Any]]]
ROWS = (2000, 0, 1500, 1000)
PARTITIONS, USED = 4, 3
SMALL = Settings(
    writer_memory_bytes=1 << 16, frame_bytes=4096, compression="none", control_threads=1
)
"""Several compacted segments, and calls in one order."""


def make(storage: Storage) -> StageHandle:
    """The same sealed stage of a job every time."""
    ids = SeededIds(random.Random(3))
    log = JobLog.claim(storage, "job", ids.new_id())
    return stored_stage(
        log,
        storage,
        job="job",
        rows=ROWS,
        partitions=PARTITIONS,
        used_partitions=USED,
        settings=SMALL,
        ids=ids,
    )


@pytest.fixture(scope="module")
def objects() -> tuple[StageHandle, dict[str, bytes]]:
    """That stage and its objects."""
    storage = MemoryStorage()
    stage = make(storage)
    return stage, {info.key: storage.read(info.key) for info in storage.list("")}


def on(stage: StageHandle, storage: Storage) -> StageHandle:
    """The same stage through another storage."""
    return StageHandle(storage, stage.path, stage.describe)


def compact(stage: StageHandle, salt: int) -> bool:
    ids = SeededIds(random.Random(salt))
    return compact_stage(stage, ids=ids, generation=1, settings=SMALL, small_bytes=1 << 20).won


def collect(storage: Storage, salt: int) -> GcReport:
    return collect_garbage(
        storage,
        "job",
        ids=SeededIds(random.Random(salt)),
        clock=ManualClock(1e12, []),
        settings=SMALL,
        older_than_seconds=0,
        delete=True,
    )


def assert_reads_right(stage: StageHandle) -> None:
    """Every partition has the rows that went there, in order."""
    sealed = require_seal(stage)
    for k in range(PARTITIONS):
        expected = [
            p * 1_000_000 + row for p, rows in enumerate(ROWS) for row in range(k, rows, USED)
        ]
        assert [row["id"] for row in read_rows(stage, sealed, k)] == (expected if k < USED else [])


def compactions(stage: StageHandle) -> tuple[set[str], set[str]]:
    """Return the compactions that have objects, and those that a COMPACT names."""
    listed = stage.storage.list(stage.path.compacted_prefix)
    log = records_below(stage.storage, stage.path.log_prefix)
    named = {fields["record_id"] for _, kind, fields in log if kind == "COMPACT"}
    return {parse_compacted_key(info.key)[0] for info in listed}, named


@pytest.mark.requirement("R-F135-2")
def test_a_compaction_dies_at_every_call(
    objects: tuple[StageHandle, dict[str, bytes]], crash_points: CrashPoints
) -> None:
    """Readers never notice; what is left is found and removed; the next compaction counts."""
    template, content = objects

    def prepare(storage: MemoryStorage) -> None:
        for key, data in content.items():
            storage.put_if_absent(key, data)

    count = 0
    for point, calls in crash_points(
        prepare, lambda storage, below: compact(on(template, storage), 1)
    ):
        count += 1
        stage = on(template, point.storage)
        landed = bool(compactions(stage)[1])
        reached = point.reached("put_if_absent", stage.path.log_prefix, calls)
        assert landed is reached
        assert_reads_right(stage)
        report = collect(point.storage, 2)
        assert not report.unknown
        assert compactions(stage)[0] == compactions(stage)[1]
        assert len(list(point.storage.list(stage.path.index_prefix))) == 1 + landed
        assert_reads_right(stage)
        assert compact(stage, 3) is not landed
        assert_reads_right(stage)
        assert collect(point.storage, 4).orphans == ()
        assert_reads_right(stage)
    print(f"{count} crash points")
    assert count >= 20


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_unknown_outcome_keeps_everything(
    objects: tuple[StageHandle, dict[str, bytes]], when: Any
) -> None:
    """A COMPACT without an answer may land: nothing that it names goes but by a cleaner's ABORT."""
    template, content = objects
    storage = MemoryStorage()
    for key, data in content.items():
        storage.put_if_absent(key, data)
    rule = Rule("put_if_absent", template.path.log_prefix, when, nth=1, fault="lost_reply")
    faulty = FaultyStorage(storage, [rule])
    with pytest.raises((OutcomeUnknownError, UnavailableError)):
        compact(on(template, faulty), 1)
    assert faulty.fired == 1
    stage = on(template, storage)
    assert len(compactions(stage)[0]) == 1
    assert_reads_right(stage)
    assert bool(collect(storage, 2).orphans) is (when == "before")
    assert_reads_right(stage)
