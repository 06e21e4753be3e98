"""An index in parts: readers, compaction, verify, repair, gc and release know them all."""

import numpy as np
import pytest
from repaired import assert_reads_right, compact_now, damaged, intact, make, repair
from sealed_stage import SealedStage
from small_stage import SMALL, SeededIds

from durable_shuffle.serialization.errors import CorruptDataError, NotFoundError
from durable_shuffle.shuffle.log.records import STAGE_RECORDS
from durable_shuffle.shuffle.log.stage import read_state, require_seal
from durable_shuffle.shuffle.read.sealed_reader import read_group, read_slices, subpartition_bytes
from durable_shuffle.shuffle.release.gc import StageLogs, judge_stage
from durable_shuffle.shuffle.release.stages import delete_orphans, release_stage
from durable_shuffle.shuffle.repair import compaction
from durable_shuffle.shuffle.seal import index, transpose
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.verify.logs import copy_log
from durable_shuffle.shuffle.verify.stage import check_stage


@pytest.fixture
def made(ids: SeededIds, monkeypatch: pytest.MonkeyPatch) -> SealedStage:
    """A stage whose slices stand alone in parts, sorted and compacted in runs of one partition."""
    monkeypatch.setattr(index, "PART_BYTES", 1)
    monkeypatch.setattr(transpose, "RUN_EXTENTS", 1)
    monkeypatch.setattr(transpose, "HELD_BYTES", 1)
    monkeypatch.setattr(compaction, "RUN_EXTENTS", 1)
    return make(ids, compact=False)


def parts(made: SealedStage) -> list[str]:
    """Keys of the parts of the index that counts, by number."""
    name = made.stage.path.index_key(require_seal(made.stage).index)
    listed = [info.key for info in made.stage.storage.list(made.stage.path.index_prefix)]
    return sorted(key for key in listed if key.startswith(f"{name}-"))


def test_all_who_read_an_index_read_its_parts(made: SealedStage, ids: SeededIds) -> None:
    """Partition by partition and as a group, before and after a compaction."""
    stage, partitions = made.stage, made.stage.describe.partitions
    for _ in range(2):
        sealed = require_seal(stage)
        assert len(parts(made)) == partitions
        assert_reads_right(made)
        rows = sum(b.num_rows for b in read_group(stage, sealed, 0, partitions, SMALL))
        assert rows == sum(len(made.of(k)) for k in range(partitions))
        slices = read_slices(stage, sealed, 0, partitions)
        sizes = [int(entries["length"].sum()) for entries in slices]
        assert np.array_equal(subpartition_bytes(stage, sealed), sizes)
        assert intact(stage)
        compact_now(stage, ids)
    compact = read_state(stage).compact
    assert compact is not None
    assert len(compact.segments) >= partitions


@pytest.mark.parametrize("how", ["a flipped bit", "lost"])
def test_a_damaged_part_is_found_and_mended(made: SealedStage, ids: SeededIds, how: str) -> None:
    """Its reader says so, those of other partitions do not; verify names it; a repair writes a new
    index."""
    stage, (key, *_) = made.stage, parts(made)
    assert isinstance(stage.storage, MemoryStorage)
    damaged(stage.storage, key, 9 if how == "a flipped bit" else None)
    sealed = require_seal(stage)
    with pytest.raises((CorruptDataError, NotFoundError), match=stage.path.index_prefix):
        list(read_slices(stage, sealed, 0, 1))
    assert list(read_slices(stage, sealed, 1, 2))
    (finding,) = check_stage(stage.storage, stage.path, SMALL, released=False).findings
    assert finding.key == key
    done = repair(stage, ids)
    assert (done.outcome, done.index) == ("repaired", True)
    assert key not in parts(made)
    assert_reads_right(made)
    assert intact(stage)


@pytest.mark.parametrize("lost", ["before", "after"])
@pytest.mark.parametrize("reads", [1, 2])
def test_a_part_that_goes_while_it_is_checked(
    made: SealedStage, ids: SeededIds, monkeypatch: pytest.MonkeyPatch, lost: str, reads: int
) -> None:
    """Of the index of the COMMITs or of the compaction's: verify finds it, whenever it went."""
    storage, before = made.stage.storage, parts(made)
    compact_now(made.stage, ids)
    key = (before if lost == "before" else parts(made))[0]
    left, read = reads, storage.read

    def reads_some(name: str, *most: int) -> bytes:
        nonlocal left
        left -= name == key
        if name == key and left < 0:
            raise NotFoundError(f"no such object: {key!r}")
        return read(name, *most)

    monkeypatch.setattr(storage, "read", reads_some)
    found = check_stage(storage, made.stage.path, SMALL, released=False).findings
    assert key in {finding.key for finding in found}


def test_parts_go_with_their_index(made: SealedStage, ids: SeededIds) -> None:
    """gc takes those that no record names, a cleaner those of a compaction that never counted, a
    release all."""
    stage, storage = made.stage, made.stage.storage
    stray = stage.path.index_key(ids.new_id()) + "-1"
    storage.put(stray, [b"of an author that died"])
    log = copy_log(stage.log(), STAGE_RECORDS)
    logs = StageLogs("live", log.records, {})
    listed = list(storage.list(stage.path.index_prefix))
    verdicts = {item.key: item.verdict for item in judge_stage(stage.path, listed, logs).objects}
    assert verdicts.pop(stray) == "orphan"
    assert set(verdicts.values()) == {"live"}
    attempt = ids.new_id()
    left = [f"{stage.path.index_key(attempt)}-{n}" for n in (1, 2)]
    for key in (*left, stage.path.compacted_key(attempt, 0)):
        storage.put(key, [b"of a compaction that died"])
    delete_orphans(stage, ids, cause="test")
    there = {info.key for info in storage.list(stage.path.prefix)}
    assert there.isdisjoint({*left, stage.path.compacted_key(attempt, 0)})
    assert_reads_right(made)
    producers = require_seal(stage).producers
    release_stage(stage, ids, generation=1, producers=producers, cause="test")
    assert list(storage.list(stage.path.index_prefix)) == []
