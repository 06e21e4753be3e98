"""Repair puts lost data together again from what is stored, or says who must run again.

The oracle is a dictionary of the rows; control records are read without the library's codecs.
"""

import random
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_shuffle.serialization.errors import (
    AbortedError,
    ConflictError,
    CorruptDataError,
    IncompatibleError,
    NotFoundError,
)
from durable_shuffle.shuffle.cleanup import delete_orphans, release_stage
from durable_shuffle.shuffle.compaction import Compaction, compact_stage
from durable_shuffle.shuffle.index_rewrite import abort_rewrite
from durable_shuffle.shuffle.layout import parse_segment_key
from durable_shuffle.shuffle.memory_storage import MemoryStorage
from durable_shuffle.shuffle.open_view import open_view
from durable_shuffle.shuffle.repair import StageRepair, repair_stage
from durable_shuffle.shuffle.replace_commits import replace_commits, sealed_commits
from durable_shuffle.shuffle.settings import Settings
from durable_shuffle.shuffle.stage import StageHandle, read_state, require_seal
from durable_shuffle.shuffle.storage import Created, Exists
from durable_shuffle.shuffle.testing.faulty_storage import FaultyStorage, Rule
from durable_shuffle.shuffle.testing.sealed_stage import SealedStage, sealed_stage
from durable_shuffle.shuffle.testing.small_stage import SMALL, SeededIds, read_rows, records_below
from durable_shuffle.shuffle.testing.small_stage import write as write_attempt
from durable_shuffle.shuffle.verify_stage import check_stage

PRODUCERS, PARTITIONS = 4, 3
WRITING = Settings(writer_memory_bytes=1 << 16, frame_bytes=4096, compression="none")


def damaged(storage: MemoryStorage, key: str, at: int | None = None) -> None:
    """Flip a bit of byte `at`, or have the object gone."""
    if at is None:
        del storage._objects[key]
        return
    data = bytearray(storage._objects[key])
    data[at % len(data)] ^= 1
    storage._objects[key] = bytes(data)


def segments(stage: StageHandle, producer: int) -> list[str]:
    """Return the segments of a producer, by name."""
    listed = sorted(info.key for info in stage.storage.list(stage.path.segments_prefix))
    return [key for key in listed if parse_segment_key(key)[0] == producer]


def kinds(stage: StageHandle) -> list[str]:
    return [kind for _, kind, _ in records_below(stage.storage, stage.path.log_prefix)]


def of_producer(stage: StageHandle, producer: int) -> list[str]:
    prefix = stage.path.producer_log_prefix(producer)
    return [kind for _, kind, _ in records_below(stage.storage, prefix)]


def repair(stage: StageHandle, ids: SeededIds) -> StageRepair:
    return repair_stage(stage.storage, stage.path, SMALL, ids=ids, generation=1)


def intact(stage: StageHandle) -> bool:
    return not check_stage(stage.storage, stage.path, SMALL, released=False).findings


def assert_reads_right(made: SealedStage) -> None:
    sealed = require_seal(made.stage)
    for k in range(PARTITIONS):
        assert [row["n"] for row in read_rows(made.stage, sealed, k)] == made.of(k)


def make(ids: SeededIds, storage: MemoryStorage | None = None, *, compact: bool) -> SealedStage:
    made = sealed_stage(storage or MemoryStorage(), ids, producers=PRODUCERS, partitions=PARTITIONS)
    if compact:
        assert compact_now(made.stage, ids).won
    return made


def compact_now(stage: StageHandle, ids: SeededIds, **more: int) -> Compaction:
    return compact_stage(stage, ids=ids, generation=1, settings=SMALL, **more)


def run_again(made: SealedStage, producers: list[int], ids: SeededIds, *, other: int = 0) -> None:
    """What the next run of a job does; `other` rows more than before."""
    stage, state = made.stage, read_state(made.stage)
    assert state.seal is not None
    assert state.damaged.keys() >= set(producers)
    handle = StageHandle(stage.storage, stage.path, stage.describe, state.damaged)
    instead = {}
    for p in producers:
        batches = []
        for start in range(0, 80, 20):
            ours = [p * 100_000 + r for r in range(start, start + 20)]
            if start == 60:
                ours += [p * 100_000 + 90 + n for n in range(other)]
            texts = [f"{n}:".ljust(1200, "x") for n in ours]
            to = np.array([n % PARTITIONS for n in ours], np.uint16)
            batches.append((pa.record_batch([ours, texts], schema=stage.schema), to))
        done = write_attempt(
            handle, p, batches, ids.new_id(), producers=PRODUCERS, settings=WRITING
        )
        assert done.wrote
        instead[p] = done.committed
    commits = sealed_commits(stage, state.seal, SMALL)
    replace_commits(
        stage, state, commits, instead, generation=2, record_id=ids.new_id(), cause="test"
    )


@pytest.mark.requirement("R-F135-22")
@pytest.mark.parametrize("how", ["a flipped bit", "a lost object", "half an object"])
def test_a_segment_is_put_together_from_a_compaction(ids: SeededIds, how: str) -> None:
    """Same bytes under a new attempt, by one REPLACE; the compaction counts no more."""
    made = make(ids, compact=True)
    stage, storage = made.stage, made.stage.storage
    assert isinstance(storage, MemoryStorage)
    before = read_state(stage)
    lost = segments(stage, 1)[0]
    content = storage._objects[lost]
    if how == "half an object":
        storage._objects[lost] = content[: len(content) // 2]
    else:
        damaged(storage, lost, 1000 if how == "a flipped bit" else None)
    assert not intact(stage)
    there = set(segments(stage, 1))
    done = repair(stage, ids)
    assert (done.outcome, done.rebuilt, done.run_again) == ("repaired", (1,), ())
    assert there < set(segments(stage, 1)), "who began to read before goes on"
    assert kinds(stage) == ["DESCRIBE", "SEAL", "COMPACT", "REPLACE"]
    assert of_producer(stage, 1) == ["COMMIT", "COMMIT"]
    assert intact(stage)
    assert_reads_right(made)
    after = read_state(stage)
    assert before.seal is not None
    assert after.seal is not None
    assert after.seal.content_tags == before.seal.content_tags
    assert after.compact is None
    number = parse_segment_key(lost)[2]
    assert after.seal.attempts != before.seal.attempts
    attempt = after.seal.attempts[16:32].hex()
    assert storage._objects[stage.path.segment_key(1, attempt, number)] == content
    assert repair(stage, ids).outcome == "intact"
    assert compact_now(stage, ids).won
    assert_reads_right(made)
    assert delete_orphans(stage, ids, cause="test").objects == 0, "what was replaced stays"


def test_without_a_copy_producers_are_named_and_run_again(ids: SeededIds) -> None:
    """DAMAGED is written once; the next run of these producers alone makes the stage whole."""
    made = make(ids, compact=False)
    stage, storage = made.stage, made.stage.storage
    assert isinstance(storage, MemoryStorage)
    for producer in (0, 2):
        damaged(storage, segments(stage, producer)[0])
    done = repair(stage, ids)
    assert (done.outcome, done.rebuilt, done.run_again) == ("run again", (), (0, 2))
    assert "run the job again" in done.why
    assert repair(stage, ids) == done
    assert kinds(stage) == ["DESCRIBE", "SEAL", "DAMAGED"]
    with pytest.raises(NotFoundError):
        assert_reads_right(made)
    run_again(made, [0, 2], ids)
    assert read_state(stage).damaged == {}
    assert_reads_right(made)
    assert intact(stage)


def test_what_can_be_rebuilt_is_although_the_rest_cannot(ids: SeededIds) -> None:
    """One producer from the compaction, the other by its next run, in whatever order."""
    made = make(ids, compact=False)
    stage, storage = made.stage, made.stage.storage
    assert isinstance(storage, MemoryStorage)
    assert compact_now(stage, ids).won
    damaged(storage, segments(stage, 0)[0])
    damaged(storage, segments(stage, 3)[1])
    state = read_state(stage)
    assert state.compact is not None
    for segment in state.compact.segments:  # copies of producer 3 are gone, too
        key = stage.path.compacted_key(state.compact.record_id, segment.number)
        data = bytearray(storage._objects[key])
        at = data.find(b"300001:")
        if at >= 0:
            damaged(storage, key, at)
    done = repair(stage, ids)
    assert done.outcome == "run again"
    assert 3 in done.run_again
    run_again(made, list(done.run_again), ids)
    assert_reads_right(made)
    assert intact(stage)


def test_extents_that_never_moved_are_taken_from_the_segment_itself(ids: SeededIds) -> None:
    """A segment of which a compaction has one extent only: the rest must be intact."""
    made = make(ids, compact=False)
    stage, storage = made.stage, made.stage.storage
    assert isinstance(storage, MemoryStorage)
    sealed = require_seal(stage)
    sizes = sorted(
        int(e["length"])
        for c in sealed_commits(stage, sealed, SMALL)
        for e in c.commit.extent_array()
    )
    small = sizes[len(sizes) // 2]
    assert compact_now(stage, ids, small_bytes=small).won
    for commit in (one.commit for one in sealed_commits(stage, sealed, SMALL)):
        extents = commit.extent_array()
        for moved in (True, False):
            extent = extents[(extents["length"] <= small) == moved][0]
            key = stage.path.segment_key(commit.producer, commit.record_id, int(extent["segment"]))
            content = dict(storage._objects)
            damaged(storage, key, int(extent["offset"]) + 30)
            done = repair(stage, ids)
            assert done.outcome == ("repaired" if moved else "run again")
            assert done.rebuilt == ((commit.producer,) if moved else ())
            storage._objects = content
    assert_reads_right(made)


def test_a_damaged_index_is_made_anew(ids: SeededIds) -> None:
    """From the COMMITs, by a REPLACE of no producer."""
    made = make(ids, compact=False)
    stage, storage = made.stage, made.stage.storage
    assert isinstance(storage, MemoryStorage)
    damaged(storage, stage.path.index_key(require_seal(stage).index), 30)
    with pytest.raises(CorruptDataError):
        assert_reads_right(made)
    done = repair(stage, ids)
    assert (done.outcome, done.rebuilt, done.index) == ("repaired", (), True)
    assert_reads_right(made)
    assert intact(stage)


@pytest.mark.parametrize("what", ["index", "segment"])
def test_a_damaged_compaction_is_passed_by(ids: SeededIds, what: str) -> None:
    """Readers read the originals again, and another compaction may count."""
    made = make(ids, compact=True)
    stage, storage = made.stage, made.stage.storage
    assert isinstance(storage, MemoryStorage)
    compact = read_state(stage).compact
    assert compact is not None
    key = stage.path.index_key(compact.index)
    damaged(storage, key if what == "index" else stage.path.compacted_key(compact.record_id, 0), 40)
    with pytest.raises(CorruptDataError):
        assert_reads_right(made)
    assert repair(stage, ids).outcome == "repaired"
    assert_reads_right(made)
    assert intact(stage)
    assert compact_now(stage, ids).won
    assert_reads_right(made)


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
    record = late.pop(stage.log().key(2))
    damaged(storage, segments(stage, 0)[0])
    repair(stage, ids)
    run_again(made, [0], ids)
    for key, data in late.items():
        storage.put_if_absent(key, data)
    storage.put_if_absent(stage.log().key(read_state(stage).next_slot), record)
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


@pytest.mark.requirement("R-F135-15")
@pytest.mark.parametrize("other", [0, 1], ids=["equal rows", "other rows"])
def test_a_consumer_with_a_cursor_goes_on_only_in_equal_rows(ids: SeededIds, other: int) -> None:
    """By content tags: after equal data it goes on behind its last record, else it stops."""
    made = make(ids, compact=False)
    stage, storage = made.stage, made.stage.storage
    assert isinstance(storage, MemoryStorage)
    view = open_view(stage, 1, consumer="c", settings=SMALL, ids=ids)
    got = []
    for row in view.records():
        got.append(row["n"])
        if len(got) == 5:
            break
    view.ack()
    view.release()
    damaged(storage, segments(stage, 0)[0])
    repair(stage, ids)
    run_again(made, [0], ids, other=other)
    if other:
        with pytest.raises(IncompatibleError, match="producer 0 were replaced"):
            open_view(stage, 1, consumer="c", settings=SMALL, ids=ids)
        return
    view = open_view(stage, 1, consumer="c", settings=SMALL, ids=ids)
    assert got + [row["n"] for row in view.records()] == made.of(1)


def test_what_cannot_be_repaired_is_said(ids: SeededIds) -> None:
    """A damaged COMMIT, a stage that is not sealed: nothing is written, the way out is named."""
    made = make(ids, compact=False)
    stage, storage = made.stage, made.stage.storage
    assert isinstance(storage, MemoryStorage)
    key = stage.path.producer_log_prefix(1) + "0000000000"
    content = storage._objects[key]
    damaged(storage, key, 60)
    before = dict(storage._objects)
    done = repair(stage, ids)
    assert done.outcome == "not repaired"
    assert key in done.why
    assert "durable-shuffle release" in done.why
    assert storage._objects == before
    storage._objects[key] = content
    del storage._objects[stage.path.log_prefix + "0000000001"]
    damaged(storage, segments(stage, 0)[0])
    done = repair(stage, ids)
    assert (done.outcome, "not sealed" in done.why) == ("not repaired", True)


def any_damage_is_repaired_or_named(seed: int, steps: int) -> None:
    """Whatever is damaged, compacted and repaired: rows are right, and a producer that must run
    again is one whose object was damaged."""
    draw, ids = random.Random(seed), SeededIds(random.Random(seed))
    made = make(ids, compact=draw.random() < 0.5)
    stage, storage = made.stage, made.stage.storage
    assert isinstance(storage, MemoryStorage)
    for _ in range(steps):
        data = [k for k in storage._objects if "/log/" not in k and "/producers/" not in k]
        key = draw.choice(data)
        damaged(storage, key, draw.choice([None, draw.randrange(1 << 16)]))
        done = repair(stage, ids)
        assert done.outcome in ("intact", "repaired", "run again"), (seed, done)
        if done.run_again:
            assert done.run_again == (parse_segment_key(key)[0],)
            assert not intact(stage)
            run_again(made, list(done.run_again), ids)
        assert intact(stage), (seed, key)
        assert_reads_right(made)
        if draw.random() < 0.4:
            compact_now(stage, ids)
            assert_reads_right(made)


@settings(max_examples=8)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 5))
def test_any_damage_is_repaired_or_named(seed: int, steps: int) -> None:
    """Some of every run."""
    any_damage_is_repaired_or_named(seed, steps)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(max_examples=1000)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 8))
def test_any_damage_is_repaired_or_named_soak(seed: int, steps: int) -> None:
    """Many, and longer."""
    any_damage_is_repaired_or_named(seed, steps)
