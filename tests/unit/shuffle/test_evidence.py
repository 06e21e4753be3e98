"""Work done twice, counted from storage: who wrote although a COMMIT stood."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from small_stage import (
    ManualClock,
    SeededIds,
    new_stage,
    seal,
    write,
)

from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.release.stages import delete_orphans
from durable_shuffle.shuffle.seal.seal import Reruns, count_reruns
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.write.segments import IdBatch

SCHEMA = pa.schema([("x", pa.int64())])
ZOMBIE = "0" * 32


@pytest.fixture
def clock() -> ManualClock:
    """The storage's time."""
    return ManualClock(100.0, [])


@pytest.fixture
def stage(clock: ManualClock, ids: SeededIds) -> StageHandle:
    """A stage on a storage whose time the test moves."""
    return new_stage(MemoryStorage(clock=clock), ids, SCHEMA, partitions=1)


def rows(*values: int) -> list[IdBatch]:
    """One batch for partition 0."""
    batch = pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)
    return [(batch, np.zeros(len(values), np.uint16))]


def leave_segment(stage: StageHandle, producer: int) -> None:
    """An attempt wrote and died."""
    stage.storage.put(stage.path.segment_key(producer, ZOMBIE, 0), [b"x"])


def test_a_clean_run_has_no_reruns(stage: StageHandle, ids: SeededIds) -> None:
    """Every segment belongs to the attempt that counts."""
    for p in range(3):
        write(stage, p, rows(1), ids.new_id(), producers=3)
    assert count_reruns(stage, seal(stage, 3, ids.new_id())) == Reruns(0, 3)


def test_a_producer_without_rows_has_no_segment(stage: StageHandle, ids: SeededIds) -> None:
    """It committed all the same."""
    write(stage, 0, [], ids.new_id())
    assert count_reruns(stage, seal(stage, 1, ids.new_id())) == Reruns(0, 0)


@pytest.mark.parametrize("seconds", [0, 1])
def test_an_attempt_that_died_before_any_commit_is_no_rerun(
    stage: StageHandle, clock: ManualClock, ids: SeededIds, seconds: int
) -> None:
    """Its work was lost, but nobody had done it yet; storages may tell whole seconds only."""
    leave_segment(stage, 0)
    clock.sleep(seconds)
    write(stage, 0, rows(1), ids.new_id())
    assert count_reruns(stage, seal(stage, 1, ids.new_id())) == Reruns(0, 1)


def test_an_attempt_that_wrote_after_the_commit_is_a_rerun(
    stage: StageHandle, clock: ManualClock, ids: SeededIds
) -> None:
    """A zombie's segment is newer than the COMMIT that counts."""
    write(stage, 0, rows(1), ids.new_id())
    clock.sleep(1)
    leave_segment(stage, 0)
    assert count_reruns(stage, seal(stage, 1, ids.new_id())) == Reruns(1, 1)


def test_an_attempt_that_lost_left_evidence(stage: StageHandle, ids: SeededIds) -> None:
    """It deleted its segments, and still counts, once."""

    def batches() -> Iterator[IdBatch]:
        yield from rows(1)
        write(stage, 0, rows(2), ids.new_id())

    result = write(stage, 0, batches(), ids.new_id())
    assert (result.wrote, result.won) == (True, False)
    assert count_reruns(stage, seal(stage, 1, ids.new_id())) == Reruns(1, 1)


def test_a_cleaners_abort_is_no_rerun(
    stage: StageHandle, clock: ManualClock, ids: SeededIds
) -> None:
    """The attempt died before the COMMIT; that it was cleaned up afterwards changes nothing."""
    leave_segment(stage, 0)
    clock.sleep(1)
    write(stage, 0, rows(1), ids.new_id())
    clock.sleep(1)
    delete_orphans(stage, ids, cause="test")
    assert count_reruns(stage, seal(stage, 1, ids.new_id())) == Reruns(0, 1)


@pytest.mark.requirement("R-F135-19")
def test_a_skipped_producer_is_no_rerun(stage: StageHandle, ids: SeededIds) -> None:
    """Asked again after its COMMIT, it wrote nothing and reads no input."""
    write(stage, 0, rows(1), ids.new_id())
    for _ in range(3):
        assert write(stage, 0, rows(1), ids.new_id()).wrote is False
    assert count_reruns(stage, seal(stage, 1, ids.new_id())) == Reruns(0, 1)
