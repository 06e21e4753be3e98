"""A producer's log: the first record that names an attempt is its fate."""

from dataclasses import replace

import numpy as np
import pytest
from small_stage import records_below

from durable_shuffle.serialization.errors import (
    AbortedError,
    CorruptDataError,
    FencedError,
    NotFoundError,
)
from durable_shuffle.shuffle.log.extent_table import EXTENT, pack_block
from durable_shuffle.shuffle.log.producer_log import (
    HELD_BYTES,
    CommittedAttempt,
    abort_attempt,
    close_log,
    commit_attempt,
    producer_state,
    read_commit,
    read_producer,
)
from durable_shuffle.shuffle.log.records import PRODUCER_RECORDS, Abort, Closed, Commit
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.storage.memory import MemoryStorage

A, B, C, CLEANER = "a" * 32, "b" * 32, "c" * 32, "e" * 32


def commit(attempt: str) -> Commit:
    """A COMMIT without data."""
    return Commit(attempt, 0, 1, 0, 0, (), b"")


def abort(attempt: str) -> Abort:
    """A cleaner's ABORT."""
    return Abort(CLEANER, attempt, "test")


@pytest.fixture
def log(storage: MemoryStorage) -> SlotLog:
    """An empty producer log."""
    return SlotLog(storage, "p/")


def kinds(log: SlotLog) -> list[str]:
    """Kinds in slot order, read without the library's codecs."""
    return [kind for _, kind, _ in records_below(log.storage, "p/")]


@pytest.mark.parametrize(
    ("records", "slot"),
    [
        ([], None),
        ([commit(A)], 0),
        ([commit(A), commit(B)], 0),
        ([abort(A)], None),
        ([abort(A), commit(A)], None),
        ([abort(A), commit(A), commit(B)], 2),
        ([abort(B), commit(A)], 1),
        ([commit(A), abort(A)], 0),
        ([Closed(C, "test")], None),
        ([commit(A), Closed(C, "test")], 0),
    ],
)
def test_the_first_commit_that_was_not_aborted_before_counts(
    records: list[Commit | Abort | Closed], slot: int | None
) -> None:
    """Table of logs and what counts in them."""
    found = producer_state(dict(enumerate(records))).counting()
    assert (found and found.slot) == slot
    assert found is None or found.commit is records[found.slot]


def test_the_first_record_of_an_attempt_is_its_fate() -> None:
    """Any later one is void, also for a repair that goes on past slot 0, and so is all behind
    CLOSED."""
    records = [commit(A), abort(A), commit(A), abort(B), commit(B), Closed(C, "test"), commit(C)]
    state = producer_state(dict(enumerate(records)))
    assert [state.fate(x) for x in (A, B, C)] == [records[0], records[3], records[5]]
    assert [committed.slot for committed in state.commits()] == [0]
    assert state.counting(after=0) is None
    assert producer_state({}).fate(A) is None


def test_a_slot_that_cannot_be_read_is_left_out() -> None:
    """The others keep their slots."""
    state = producer_state({4: commit(B), 1: abort(A)})
    assert (state.counting(), state.next_slot) == (CommittedAttempt(4, commit(B)), 5)


def test_commit_wins_an_empty_log(log: SlotLog) -> None:
    """It stands in slot 0 and reads back equal."""
    committed = commit_attempt(log, commit(A))
    assert (committed.slot, committed.commit) == (0, commit(A))
    assert read_producer(log).commits() == [committed]


def test_commit_is_idempotent(log: SlotLog) -> None:
    """The same attempt commits once, however often it asks."""
    assert commit_attempt(log, commit(A)) == commit_attempt(log, commit(A))
    assert kinds(log) == ["COMMIT"]


def test_the_second_attempt_gets_the_first_ones_commit(log: SlotLog) -> None:
    """And writes nothing."""
    commit_attempt(log, commit(A))
    assert commit_attempt(log, commit(B)).commit.record_id == A
    assert kinds(log) == ["COMMIT"]


def test_commit_passes_others_aborts_and_void_commits(log: SlotLog) -> None:
    """ABORT(a), COMMIT(a) that landed late, ABORT(b): c commits in slot 3."""
    for slot, record in enumerate([abort(A), commit(A), abort(B)]):
        log.append(slot, PRODUCER_RECORDS.encode(record))
    assert commit_attempt(log, commit(C)).slot == 3
    assert read_producer(log).counting().commit.record_id == C


def test_commit_meets_its_own_abort(log: SlotLog) -> None:
    """AbortedError with the cause; nothing is written."""
    assert abort_attempt(log, A, CLEANER, "looked dead")
    with pytest.raises(AbortedError, match=f"{A}.*looked dead"):
        commit_attempt(log, commit(A))
    assert kinds(log) == ["ABORT"]


@pytest.mark.requirement("R-F135-24")
def test_late_commit_meets_closed(log: SlotLog) -> None:
    """FencedError with the cause; nothing is written behind CLOSED."""
    close_log(log, C, "the job is over")
    with pytest.raises(FencedError, match="the job is over"):
        commit_attempt(log, commit(A))
    assert kinds(log) == ["CLOSED"]


def test_abort_of_a_committed_attempt_is_refused(log: SlotLog) -> None:
    """False, and no record: its segments must stay."""
    commit_attempt(log, commit(A))
    assert abort_attempt(log, A, CLEANER, "test") is False
    assert kinds(log) == ["COMMIT"]


def test_abort_of_an_attempt_that_lost(log: SlotLog) -> None:
    """Another's COMMIT is not enough, the ABORT is written behind it."""
    commit_attempt(log, commit(A))
    assert abort_attempt(log, B, CLEANER, "test") is True
    assert kinds(log) == ["COMMIT", "ABORT"]
    assert read_producer(log).counting().commit.record_id == A


def test_abort_is_idempotent(log: SlotLog) -> None:
    """Two cleaners abort one attempt: one record, both may delete."""
    assert abort_attempt(log, A, CLEANER, "test") is True
    assert abort_attempt(log, A, "d" * 32, "test") is True
    assert kinds(log) == ["ABORT"]


def test_abort_in_a_closed_log(log: SlotLog) -> None:
    """Nobody can commit any more: the segments may go. A committed attempt's may not."""
    commit_attempt(log, commit(A))
    close_log(log, C, "test")
    assert abort_attempt(log, B, CLEANER, "test") is True
    assert abort_attempt(log, A, CLEANER, "test") is False
    assert kinds(log) == ["COMMIT", "CLOSED"]


@pytest.mark.parametrize("before", [[], [commit(A)], [abort(A), commit(B), abort(C)]])
def test_close_comes_last_and_once(log: SlotLog, before: list[Commit | Abort]) -> None:
    """Closing again adds nothing."""
    for slot, record in enumerate(before):
        log.append(slot, PRODUCER_RECORDS.encode(record))
    for _ in range(2):
        close_log(log, C, "test")
        assert kinds(log) == [r.KIND for r in before] + ["CLOSED"]


def test_close_races_a_commit() -> None:
    """A COMMIT that takes the slot first is kept, CLOSED goes behind it."""

    class Raced(MemoryStorage):
        """The attempt commits right before CLOSED is written."""

        raced = False

        def put_if_absent(self, key: str, data: bytes) -> object:
            if not self.raced:
                self.raced = True
                commit_attempt(SlotLog(self, "p/"), commit(A))
            return super().put_if_absent(key, data)

    log = SlotLog(Raced(), "p/")
    close_log(log, C, "test")
    assert kinds(log) == ["COMMIT", "CLOSED"]


def test_a_damaged_record_is_an_error(log: SlotLog) -> None:
    """A log with a bad record is never read as shorter."""
    log.append(0, PRODUCER_RECORDS.encode(commit(A))[:-1])
    for action in (
        lambda: read_producer(log),
        lambda: commit_attempt(log, commit(B)),
        lambda: abort_attempt(log, B, CLEANER, "test"),
    ):
        with pytest.raises(CorruptDataError, match="p/0000000000"):
            action()


def test_damaged_extents_name_the_attempt() -> None:
    """A part of the block is refused."""
    entry = np.zeros(1, dtype=EXTENT)
    entry["rows"], entry["length"] = 7, 8
    good = Commit(A, 0, 1, 7, 0, (), pack_block(entry, "subpartition"))
    assert good.extent_array()["rows"].tolist() == [7]
    with pytest.raises(CorruptDataError, match=f"{A}.*a column at byte"):
        replace(good, extents=good.extents[:-1]).extent_array()


def test_extents_of_many_producers_are_left_out_and_read_again() -> None:
    """A driver holds those of a small stage; the COMMIT itself is read back from its slot."""
    slots = SlotLog(MemoryStorage(), "p/")
    entry = np.array([(0, 0, 0, 8, 0, 7)], dtype=EXTENT)
    made = commit_attempt(slots, Commit(A, 0, 1, 7, 0, (), pack_block(entry, "subpartition")))
    assert made.light(100) is made
    light = made.light(HELD_BYTES)
    assert (light.slot, light.commit.extents, light.commit.rows) == (0, b"", 7)
    assert read_commit(slots, 0, A) == made
    with pytest.raises(CorruptDataError, match=f"not the COMMIT of attempt {B}"):
        read_commit(slots, 0, B)
    with pytest.raises(NotFoundError, match="is gone: 'p/0000000001'"):
        read_commit(slots, 1, A)
