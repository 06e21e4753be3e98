"""A stage's life in its log: described once, sealed once, released for good."""

import dataclasses
import random

import numpy as np
import pyarrow as pa
import pytest
from small_stage import (
    SeededIds,
    commits_of,
    new_stage,
    read_rows,
    records_below,
    seal,
    write,
)

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    NotFoundError,
    NotReadyError,
)
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.records import STAGE_RECORDS, Closed, Damaged, Release, Replace
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import (
    StageHandle,
    describe_stage,
    open_stage,
    read_state,
    require_seal,
)
from durable_shuffle.shuffle.release.stages import release_stage
from durable_shuffle.shuffle.seal.seal import seal_stage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.write.segments import IdBatch

SCHEMA = pa.schema([("x", pa.int64())], metadata={"made": "by a test"})


def rows(*values: int, partitions: int = 3) -> list[IdBatch]:
    """One batch; the partition is the value's remainder."""
    batch = pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)
    return [(batch, np.array([v % partitions for v in values], np.uint16))]


@pytest.fixture
def stage(storage: MemoryStorage, ids: SeededIds) -> StageHandle:
    """A described stage without producers."""
    return new_stage(storage, ids, SCHEMA, partitions=3)


def test_a_described_stage_opens_as_it_was_described(stage: StageHandle) -> None:
    """All fields and the schema with its metadata come back."""
    opened = open_stage(stage.storage, stage.path)
    assert opened.describe == stage.describe
    assert opened.schema.equals(SCHEMA, check_metadata=True)


def test_a_path_is_described_once(stage: StageHandle, ids: SeededIds) -> None:
    """Other words at the same path are refused, and the first stay."""
    again = dataclasses.replace(stage.describe, record_id=ids.new_id(), partitions=9)
    with pytest.raises(IncompatibleError, match="must be new"):
        describe_stage(stage.storage, stage.path, again)
    assert open_stage(stage.storage, stage.path).describe.partitions == 3


def test_opening_what_was_never_described(storage: MemoryStorage) -> None:
    """NotFoundError with the stage's path and the storage."""
    with pytest.raises(NotFoundError, match="memory of one process"):
        open_stage(storage, StagePath("job", "stage", "f" * 32, "1" * 32))


def test_slot_0_must_be_the_description(storage: MemoryStorage) -> None:
    """Another record there is corruption, and is named."""
    path = StagePath("job", "stage", "f" * 32, "1" * 32)
    log = SlotLog(storage, path.log_prefix)
    log.append(0, STAGE_RECORDS.encode(Closed("a" * 32, "test")))
    with pytest.raises(CorruptDataError, match="found=CLOSED"):
        open_stage(storage, path)


def test_a_stage_that_was_released_without_a_description_is_released(
    storage: MemoryStorage,
) -> None:
    """Its DESCRIBE was damaged: RELEASE stands in slot 0."""
    path = StagePath("job", "stage", "f" * 32, "1" * 32)
    log = SlotLog(storage, path.log_prefix)
    log.append(0, STAGE_RECORDS.encode(Release("a" * 32, 1, "test")))
    with pytest.raises(NotFoundError, match=r"was released.*test"):
        open_stage(storage, path)


def test_subpartitions_and_producers_of_hash_and_passthrough(
    storage: MemoryStorage, ids: SeededIds
) -> None:
    """Hash: all to all. Passthrough: producer p and subpartition p alone."""
    hashed = new_stage(storage, ids, SCHEMA, partitions=3)
    assert hashed.subpartitions_of(1).tolist() == [0, 1, 2]
    assert list(hashed.producers_of(1, 4)) == [0, 1, 2, 3]
    straight = new_stage(storage, ids, SCHEMA, partitions=3, partitioner="passthrough")
    assert straight.subpartitions_of(1).tolist() == [1]
    assert list(straight.producers_of(1, 3)) == [1]


def test_a_stage_is_not_ready_until_it_is_sealed(stage: StageHandle, ids: SeededIds) -> None:
    """Not with all COMMITs, only with the SEAL."""
    write(stage, 0, rows(1, 2), ids.new_id())
    with pytest.raises(NotReadyError, match="not sealed"):
        require_seal(stage)
    sealed = seal(stage, 1, ids.new_id())
    assert require_seal(stage) == sealed


def test_sealing_names_the_first_missing_producer(stage: StageHandle, ids: SeededIds) -> None:
    """And writes nothing."""
    write(stage, 0, rows(1), ids.new_id(), producers=4)
    write(stage, 2, rows(1), ids.new_id(), producers=4)
    before = [i.key for i in stage.storage.list("")]
    with pytest.raises(NotReadyError, match=r"2 of 4 producers.*first=1"):
        seal(stage, 4, ids.new_id())
    assert [i.key for i in stage.storage.list("")] == before


def test_a_commit_of_another_plan_is_refused(stage: StageHandle, ids: SeededIds) -> None:
    """A producer that saw another M, or a COMMIT under the wrong number."""
    write(stage, 0, rows(1), ids.new_id(), producers=2)
    with pytest.raises(IncompatibleError, match=r"expected M=1.*M=2"):
        seal(stage, 1, ids.new_id())
    write(stage, 1, rows(1), ids.new_id(), producers=2)
    commits = commits_of(stage, 2)
    swapped = {0: commits[1], 1: commits[0]}
    with pytest.raises(IncompatibleError, match=r"producer=0.*found producer=1"):
        seal_stage(stage, swapped, producers=2, generation=1, record_id=ids.new_id())
    assert list(stage.storage.list(stage.path.index_prefix)) == []


@pytest.mark.requirement("R-F135-24")
def test_sealing_twice_returns_the_seal_that_stands(stage: StageHandle, ids: SeededIds) -> None:
    """One SEAL, one index object, whoever asks and however often."""
    write(stage, 0, rows(1, 2, 3), ids.new_id())
    first = seal(stage, 1, ids.new_id())
    assert [seal(stage, 1, ids.new_id()) for _ in range(2)] == [first, first]
    kinds = [k for _, k, _ in records_below(stage.storage, stage.path.log_prefix)]
    assert kinds == ["DESCRIBE", "SEAL"]
    assert len(list(stage.storage.list(stage.path.index_prefix))) == 1
    assert (read_state(stage).seal, read_state(stage).next_slot) == (first, 2)


def test_a_second_seal_is_corruption(stage: StageHandle, ids: SeededIds) -> None:
    """Nobody writes one, whatever it says; readers of the stage get an error that names it."""
    write(stage, 0, rows(1, 2, 3), ids.new_id())
    first = seal(stage, 1, ids.new_id())
    other = dataclasses.replace(first, record_id=ids.new_id(), rows=2)
    stage.log().append(2, STAGE_RECORDS.encode(other))
    with pytest.raises(CorruptDataError, match=r"second SEAL.*0000000002"):
        read_state(stage)
    with pytest.raises(CorruptDataError, match="second SEAL"):
        require_seal(stage)


@pytest.mark.requirement("R-F135-3")
@pytest.mark.requirement("R-F135-19")
def test_a_producer_that_fails_after_the_seal_releases_nothing(
    stage: StageHandle, ids: SeededIds
) -> None:
    """A further attempt neither reads its input nor touches what is sealed."""
    write(stage, 0, rows(1, 4, 2), ids.new_id())
    sealed = seal(stage, 1, ids.new_id())
    before = {i.key: stage.storage.read(i.key) for i in stage.storage.list("")}
    called = []

    def failing() -> object:
        called.append(1)
        yield from rows(7)
        raise RuntimeError("the producer died")

    result = write(stage, 0, failing(), ids.new_id())
    assert (result.wrote, result.won, called) == (False, False, [])
    assert {i.key: stage.storage.read(i.key) for i in stage.storage.list("")} == before
    assert read_rows(stage, sealed, 1) == [{"x": 1}, {"x": 4}]


def test_the_seal_adds_up(stage: StageHandle, ids: SeededIds) -> None:
    """Rows, bytes, attempts and slots are those of the COMMITs on storage."""
    attempts = [ids.new_id(), ids.new_id()]
    for p, attempt in enumerate(attempts):
        write(stage, p, rows(*range(10 + p)), attempt, producers=2)
    sealed = seal(stage, 2, ids.new_id())
    sizes = [i.size_bytes for i in stage.storage.list(stage.path.segments_prefix)]
    assert (sealed.rows, sealed.data_bytes) == (21, sum(sizes))
    assert sealed.memory_bytes == 21 * 8
    assert sealed.attempts.hex() == "".join(attempts)
    assert sealed.commit_slots == bytes(8)
    assert len(sealed.content_tags) == 64
    (index,) = stage.storage.list(stage.path.index_prefix)
    assert index.size_bytes == sealed.index_bytes


def test_a_released_stage_says_so(stage: StageHandle, ids: SeededIds) -> None:
    """NotFoundError with the cause, sealed before or not."""
    write(stage, 0, rows(1), ids.new_id())
    seal(stage, 1, ids.new_id())
    release_stage(stage, ids, generation=1, producers=1, cause="nobody wants it")
    with pytest.raises(NotFoundError, match=r"released.*nobody wants it"):
        require_seal(stage)


def test_an_empty_stage_seals_and_reads_as_empty(stage: StageHandle, ids: SeededIds) -> None:
    """No producers at all: every partition is there and has no rows."""
    sealed = seal(stage, 0, ids.new_id())
    assert (sealed.producers, sealed.rows) == (0, 0)
    assert [read_rows(stage, sealed, k) for k in range(3)] == [[], [], []]


def test_a_foreign_record_in_the_stage_log_is_an_error(stage: StageHandle) -> None:
    """A damaged log is not read as an unsealed stage."""
    key = f"{stage.path.log_prefix}0000000001"
    stage.storage.put_if_absent(key, random.Random(1).randbytes(50))
    with pytest.raises(CorruptDataError, match="0000000001"):
        read_state(stage)


@pytest.mark.parametrize("kind", ["SEAL", "REPLACE", "DAMAGED"])
def test_a_record_that_does_not_fit_is_named(stage: StageHandle, ids: SeededIds, kind: str) -> None:
    """Intact, bound to its slot, and impossible behind what stands before it."""
    write(stage, 0, rows(1), ids.new_id(), producers=1)
    first = seal(stage, 1, ids.new_id())
    replaces = Replace(ids.new_id(), 1, 1, first.index, 1, b"", b"", b"", b"x", 0, 0, 0, "test")
    wrong = {
        "SEAL": dataclasses.replace(first, record_id=ids.new_id()),
        "REPLACE": replaces,
        "DAMAGED": Damaged(ids.new_id(), 1, bytes(4), b""),
    }
    stage.log().append(2, STAGE_RECORDS.encode(wrong[kind]))
    with pytest.raises(CorruptDataError, match=stage.log().key(2)):
        read_state(stage)
