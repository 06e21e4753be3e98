"""Repair puts lost data together again from what is stored, or says who must run again.

The oracle is a dictionary of the rows; control records are read without the library's codecs.
"""

import dataclasses
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from repaired import (
    PRODUCERS,
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
from small_stage import SMALL, SeededIds, write

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    NotFoundError,
)
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.log.layout import parse_segment_key
from durable_shuffle.shuffle.log.producer_log import commit_attempt
from durable_shuffle.shuffle.log.stage import StageHandle, read_state, require_seal
from durable_shuffle.shuffle.release.stages import delete_orphans
from durable_shuffle.shuffle.seal.rewrite import sealed_commits
from durable_shuffle.shuffle.storage.memory import MemoryStorage


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
    damaged(storage, stage.path.index_key(require_seal(stage).index), 50)
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


@pytest.mark.parametrize("compacted", [False, True])
def test_a_damaged_spare_is_never_taken_for_a_result(ids: SeededIds, compacted: bool) -> None:
    """A repair died between COMMIT and REPLACE, then both copies lost a bit: the producer runs
    again, or is rebuilt from the compaction, and the stage reads right at once."""
    made = make(ids, compact=compacted)
    stage, storage = made.stage, made.stage.storage
    assert isinstance(storage, MemoryStorage)
    first = sealed_commits(stage, require_seal(stage), SMALL)[1].commit
    spare = dataclasses.replace(first, record_id=ids.new_id())
    for info in first.segments:
        content = storage.read(stage.path.segment_key(1, first.record_id, info.number))
        storage.put(stage.path.segment_key(1, spare.record_id, info.number), [content])
    commit_attempt(stage.producer_log(1), spare, after=0)
    for attempt in (first.record_id, spare.record_id):
        damaged(storage, stage.path.segment_key(1, attempt, 0), 1000)
    done = repair(stage, ids)
    if not compacted:
        assert (done.outcome, done.run_again) == ("run again", (1,))
        assert read_state(stage).damaged == {1: 1}
        assert repair(stage, ids).outcome == "run again"
        assert kinds(stage) == ["DESCRIBE", "SEAL", "DAMAGED"]
        run_again(made, [1], ids)
    assert intact(stage)
    assert_reads_right(made)
    assert require_seal(stage).attempts[16:32].hex() not in (first.record_id, spare.record_id)
    assert read_state(stage).damaged == {}


def test_a_commit_of_a_run_that_died_is_named_if_it_is_damaged(ids: SeededIds) -> None:
    """The producer ran again and committed other rows, its driver died, then that COMMIT lost a
    segment, too: the next repair names its slot, and a run makes the stage whole."""
    made = make(ids, compact=False)
    stage, storage = made.stage, made.stage.storage
    assert isinstance(storage, MemoryStorage)
    damaged(storage, segments(stage, 1)[0])
    assert repair(stage, ids).outcome == "run again"
    handle = StageHandle(storage, stage.path, stage.describe, read_state(stage).damaged)
    batch = pa.record_batch([[1], ["other"]], schema=stage.schema)
    again = write(handle, 1, [(batch, np.array([0], np.uint16))], ids.new_id(), producers=PRODUCERS)
    assert again.committed.slot == 1
    damaged(storage, stage.path.segment_key(1, again.committed.commit.record_id, 0))
    assert repair(stage, ids).outcome == "run again"
    assert read_state(stage).damaged == {1: 1}
    run_again(made, [1], ids)
    assert intact(stage)
    assert_reads_right(made)
