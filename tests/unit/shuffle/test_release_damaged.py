"""A release over damaged logs, beside late writers and others that carry it out."""

from collections.abc import Callable, Sequence

import pytest
from sealed_stage import sealed_stage
from small_stage import SeededIds, records_below

from durable_shuffle.shuffle.log.layout import slot_name
from durable_shuffle.shuffle.log.records import STAGE_RECORDS, Abort
from durable_shuffle.shuffle.log.stage import StageHandle, read_state
from durable_shuffle.shuffle.release.stages import release_damaged, release_done
from durable_shuffle.shuffle.storage.memory import MemoryStorage


class Meeting(MemoryStorage):
    """Lets something happen once, right after a slot was emptied."""

    meet: Callable[[str], object] | None = None

    def delete(self, keys: Sequence[str]) -> None:
        super().delete(keys)
        if self.meet is not None:
            meet, self.meet = self.meet, None
            meet(keys[0])


@pytest.fixture
def storage() -> Meeting:
    return Meeting()


@pytest.fixture
def stage(storage: Meeting, ids: SeededIds) -> StageHandle:
    """A sealed stage whose SEAL is damaged."""
    stage = sealed_stage(storage, ids, producers=2, partitions=2).stage
    flip(stage, 1)
    return stage


def flip(stage: StageHandle, slot: int) -> None:
    storage = stage.storage
    assert isinstance(storage, MemoryStorage)
    key = stage.path.log_prefix + slot_name(slot)
    data = bytearray(storage._objects[key])
    data[-1] ^= 1
    storage._objects[key] = bytes(data)


def release(stage: StageHandle, ids: SeededIds) -> None:
    release_damaged(stage.storage, stage.path, ids, generation=1, cause="test")


def kinds(stage: StageHandle) -> list[str]:
    return [kind for _, kind, _ in records_below(stage.storage, stage.path.log_prefix)]


def test_a_late_record_takes_the_slot_that_is_mended(
    storage: Meeting, stage: StageHandle, ids: SeededIds
) -> None:
    """RELEASE stands behind it before anything is deleted, and readers are told."""
    late = STAGE_RECORDS.encode(Abort(ids.new_id(), ids.new_id(), "late"))
    storage.meet = lambda _: stage.log().append(1, late)
    release(stage, ids)
    assert kinds(stage) == ["DESCRIBE", "ABORT", "RELEASE", "CLOSED"]
    assert read_state(stage).release is not None
    assert release_done(storage, stage.path)


def test_two_carry_out_one_release(storage: Meeting, stage: StageHandle, ids: SeededIds) -> None:
    """One empties the slot that the other has just mended and dies: RELEASE stands all the same,
    the release is not done, and the next one does it."""

    class Dies(Exception):
        pass

    def die(key: str) -> None:
        assert "RELEASE" in kinds(stage), "nothing is emptied before RELEASE stands"
        release(stage, ids)
        storage._objects.pop(key)  # as the first one saw it: damaged
        raise Dies

    storage.meet = die
    with pytest.raises(Dies):
        release(stage, ids)
    assert "RELEASE" in kinds(stage)
    assert not release_done(storage, stage.path)
    release(stage, ids)
    assert release_done(storage, stage.path)
    assert read_state(stage).release is not None


def test_a_release_that_lost_its_first_slot_is_not_done(
    storage: Meeting, stage: StageHandle, ids: SeededIds
) -> None:
    """CLOSED at the end does not hide it: who looks later reads from the first slot on."""
    release(stage, ids)
    assert release_done(storage, stage.path)
    storage.delete([stage.log().key(0)])
    assert not release_done(storage, stage.path)
    release(stage, ids)
    assert kinds(stage)[0] == "RELEASE"
    assert release_done(storage, stage.path)
