"""A repair beside compactions, other repairs, cleaners and releases; storage that is silent."""

from collections.abc import Callable

import pytest
from repaired import (
    assert_reads_right,
    compact_now,
    damaged,
    intact,
    kinds,
    make,
    of_producer,
    repair,
    run_again,
    segments,
)
from sealed_stage import SealedStage
from small_stage import SeededIds

from durable_shuffle.serialization.control import bound
from durable_shuffle.serialization.errors import (
    AbortedError,
    ConflictError,
    NotFoundError,
)
from durable_shuffle.shuffle.log.stage import read_state, require_seal
from durable_shuffle.shuffle.release.stages import delete_orphans, release_stage
from durable_shuffle.shuffle.repair.compaction import Compaction
from durable_shuffle.shuffle.seal.rewrite import abort_rewrite
from durable_shuffle.shuffle.storage.contract import Created, Exists
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.testing.faulty_storage import FaultyStorage, Rule


class Meeting(MemoryStorage):
    """Lets something happen right before a record of one kind lands."""

    meet: Callable[[], object] | None = None
    kind = b""

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        if self.meet is not None and self.kind in data:
            meet, self.meet = self.meet, None
            meet()
        return super().put_if_absent(key, data)


def meeting(ids: SeededIds, kind: bytes, *, compact: bool) -> tuple[SealedStage, Meeting]:
    storage = Meeting()
    made = make(ids, storage, compact=compact)
    storage.kind = kind
    return made, storage


def test_a_compaction_that_began_before_a_repair_is_void(ids: SeededIds) -> None:
    """It notices, leaves nothing behind, and readers see what was replaced."""
    made, storage = meeting(ids, b"COMPACT", compact=False)
    stage = made.stage
    index = stage.path.index_key(require_seal(stage).index)

    def meet() -> None:
        damaged(storage, index, 30)
        assert repair(stage, ids).outcome == "repaired"

    storage.meet = meet
    assert compact_now(stage, ids) == Compaction(None, won=False)
    assert kinds(stage) == ["DESCRIBE", "SEAL", "REPLACE"]
    assert list(storage.list(stage.path.compacted_prefix)) == []
    assert_reads_right(made)


def test_a_compact_that_landed_behind_a_repair_is_void(ids: SeededIds) -> None:
    """A request that was under way: nobody reads by it, and a cleaner takes its objects."""
    made = make(ids, compact=False)
    stage, storage = made.stage, made.stage.storage
    assert isinstance(storage, MemoryStorage)
    aside = MemoryStorage()
    aside._objects = dict(storage._objects)
    assert compact_now(made.on(aside), ids).won
    late = {k: v for k, v in aside._objects.items() if k not in storage._objects}
    record = bound(late.pop(key := stage.log().key(2)), key)
    damaged(storage, segments(stage, 0)[0])
    repair(stage, ids)
    run_again(made, [0], ids)
    for key, data in late.items():
        storage.put_if_absent(key, data)
    stage.log().append(read_state(stage).next_slot, record)
    assert kinds(stage)[1:] == ["SEAL", "DAMAGED", "REPLACE", "COMPACT"]
    assert read_state(stage).compact is None
    assert_reads_right(made)
    assert intact(stage)
    assert compact_now(stage, ids).won
    assert delete_orphans(stage, ids, cause="test").objects == sum("/compacted/" in k for k in late)
    assert_reads_right(made)


def test_of_two_repairs_the_second_looks_again(ids: SeededIds) -> None:
    """It is told so, leaves no index behind, and what it rebuilt is used by the next."""
    made, storage = meeting(ids, b"REPLACE", compact=True)
    stage = made.stage
    damaged(storage, segments(stage, 0)[0])

    def meet() -> None:
        damaged(storage, segments(stage, 2)[0])
        assert repair(stage, ids).rebuilt == (0, 2)

    storage.meet = meet
    with pytest.raises(ConflictError, match="another repair"):
        repair(stage, ids)
    assert kinds(stage).count("REPLACE") == 1
    assert of_producer(stage, 0) == ["COMMIT", "COMMIT"], "the other's COMMIT was used"
    assert len(list(storage.list(stage.path.index_prefix))) == 3
    assert repair(stage, ids).outcome == "intact"
    assert_reads_right(made)


def test_a_cleaner_may_give_up_a_repair_that_runs(ids: SeededIds) -> None:
    """It stops, nothing of it counts, and the next one does."""
    made, storage = meeting(ids, b"COMMIT", compact=True)
    stage = made.stage
    damaged(storage, segments(stage, 0)[0])
    storage.meet = lambda: delete_orphans(stage, ids, cause="thought dead")
    with pytest.raises(AbortedError, match="thought dead"):
        repair(stage, ids)
    assert kinds(stage) == ["DESCRIBE", "SEAL", "COMPACT"]
    assert repair(stage, ids).outcome == "repaired"
    assert_reads_right(made)


def test_a_cleaner_may_give_up_a_replace_on_its_way(ids: SeededIds) -> None:
    """By an ABORT, although a COMPACT counts: only then may the index go."""
    made, storage = meeting(ids, b"REPLACE", compact=True)
    stage = made.stage
    damaged(storage, segments(stage, 0)[0])
    known = {info.key for info in storage.list(stage.path.index_prefix)}

    def meet() -> None:
        (new,) = {info.key for info in storage.list(stage.path.index_prefix)} - known
        assert abort_rewrite(stage, new.rsplit("/", 1)[1], ids.new_id(), "thought dead")
        storage.delete([new])

    storage.meet = meet
    with pytest.raises(AbortedError, match="thought dead"):
        repair(stage, ids)
    assert kinds(stage) == ["DESCRIBE", "SEAL", "COMPACT", "ABORT"]
    assert_reads_right(made)
    assert repair(stage, ids).outcome == "repaired"
    assert_reads_right(made)


def test_what_does_not_answer_is_not_lost(ids: SeededIds) -> None:
    """Whatever read fails: nothing is marked or written, and the failure is named."""
    made = make(ids, compact=False)
    stage, storage = made.stage, made.stage.storage
    assert isinstance(storage, MemoryStorage)
    key = segments(stage, 0)[0]
    before = dict(storage._objects)
    faulty = FaultyStorage(storage, [Rule("read", key, nth=1)])
    done = repair(made.on(faulty), ids)
    assert faulty.fired == 1
    assert done.outcome == "not repaired"
    assert "not everything could be read" in done.why
    assert storage._objects == before


def test_a_release_meanwhile_wins(ids: SeededIds) -> None:
    """The repair says so and leaves nothing behind."""
    made, storage = meeting(ids, b"REPLACE", compact=True)
    stage = made.stage
    damaged(storage, segments(stage, 0)[0])
    storage.meet = lambda: release_stage(stage, ids, generation=1, producers=4, cause="test")
    with pytest.raises(NotFoundError, match="released"):
        repair(stage, ids)
    assert list(storage.list(stage.path.index_prefix)) == []
    assert repair(stage, ids).why == "released"
