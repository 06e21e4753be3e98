"""What an attempt makes of lost replies, outages, others' ABORTs and its own: no self-fencing."""

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from small_stage import (
    ManualClock,
    SeededIds,
    model_of,
    new_stage,
    partition_of,
    patient,
    read_rows,
    records_below,
    seal,
    write,
)

from durable_shuffle.serialization.control import bound
from durable_shuffle.serialization.errors import (
    AbortedError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.producer_log import abort_attempt, commit_attempt
from durable_shuffle.shuffle.log.records import Commit, StageUse
from durable_shuffle.shuffle.log.slot_log import Lost, SlotLog, Won
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.release.stages import delete_orphans
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.testing.faulty_storage import FaultyStorage, Rule, SimulatedCrash
from durable_shuffle.shuffle.write.segments import IdBatch

PARTITIONS = 5
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
MINE, OTHER, CLEANER = "a" * 32, "b" * 32, "c" * 32

Make = Callable[..., list[IdBatch]]


@pytest.fixture
def stage(ids: SeededIds) -> StageHandle:
    """A stage of one producer in memory."""
    return new_stage(MemoryStorage(), ids, SCHEMA, partitions=PARTITIONS)


def on(stage: StageHandle, storage: Storage) -> StageHandle:
    """The same stage through another storage."""
    return StageHandle(storage, stage.path, stage.describe)


def log_of(stage: StageHandle) -> list[tuple[int, str, str]]:
    """(slot, kind, attempt) of the producer's log."""
    return [
        (int(key.rsplit("/", 1)[1]), kind, f["attempt"] if kind == "ABORT" else f["record_id"])
        for key, kind, f in records_below(stage.storage, stage.path.producer_log_prefix(0))
    ]


def owners(stage: StageHandle) -> set[str]:
    """Attempts that have segments on storage."""
    return {i.key.split("-")[-2] for i in stage.storage.list(stage.path.segments_prefix)}


def commit(attempt: str) -> Commit:
    """A COMMIT without data."""
    return Commit(attempt, 0, 1, 0, 0, (), b"")


@pytest.mark.requirement("R-F232-21")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("lost", [1, 3])
def test_lost_reply_of_an_append_is_sent_again_and_won(when: str, lost: int) -> None:
    """Whether the lost sendings took effect or not, the same bytes win; nobody is fenced."""
    rules = [Rule("put_if_absent", "log/", when, n, "lost_reply") for n in range(1, lost + 1)]
    inner, clock = MemoryStorage(), ManualClock(0.0, [])
    faulty = FaultyStorage(inner, rules)
    assert SlotLog(patient(faulty, clock), "log/").append(0, b"mine") == Won()
    assert faulty.fired == lost == len(clock.pauses)
    assert inner.read("log/0000000000") == b"mine"


@pytest.mark.requirement("R-F232-21")
def test_lost_reply_of_a_lost_race_is_still_lost() -> None:
    """The retry of a create that somebody else had won returns the winner's bytes."""
    inner = MemoryStorage()
    inner.put_if_absent("log/0000000000", b"theirs")
    faulty = FaultyStorage(inner, [Rule("put_if_absent", "log/", "after", 1, "lost_reply")])
    log = SlotLog(patient(faulty), "log/")
    assert log.append(0, b"mine") == Lost(b"theirs")
    assert faulty.fired == 1


def test_append_is_bounded_and_pauses_longer_each_time() -> None:
    """Eight sendings, growing pauses up to two seconds, then OutcomeUnknownError."""
    clock = ManualClock(0.0, [])
    faulty = FaultyStorage(
        MemoryStorage(), [Rule("put_if_absent", "", "before", "every", "lost_reply")]
    )
    with pytest.raises(OutcomeUnknownError, match="tries=8"):
        SlotLog(patient(faulty, clock), "log/").append(0, b"mine")
    assert faulty.fired == 8
    assert clock.pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0]


def test_append_during_an_outage_says_that_nothing_was_written() -> None:
    """If every sending was refused, the outcome is known: UnavailableError, not unknown."""
    faulty = FaultyStorage(MemoryStorage(), [Rule("put_if_absent", nth="every")])
    with pytest.raises(UnavailableError, match="tries=3"):
        SlotLog(patient(faulty, tries=3), "log/").append(0, b"mine")
    assert faulty.fired == 3


def test_one_lost_reply_among_refusals_leaves_the_outcome_unknown() -> None:
    """A record that was sent once without an answer may stand, whatever came after."""
    faulty = FaultyStorage(
        MemoryStorage(),
        [
            Rule("put_if_absent", "", "before", 1, "lost_reply"),
            *(Rule("put_if_absent", "", "before", n) for n in (2, 3)),
        ],
    )
    with pytest.raises(OutcomeUnknownError, match="tries=3"):
        SlotLog(patient(faulty, tries=3), "log/").append(0, b"mine")
    assert faulty.fired == 3


@pytest.mark.requirement("R-F232-21")
@pytest.mark.parametrize("when", ["before", "after"])
def test_lost_reply_of_the_commit_does_not_fence_its_own_attempt(
    stage: StageHandle, ids: SeededIds, make_batches: Make, when: str
) -> None:
    """The attempt learns that it won; its rows count and one COMMIT stands."""
    prefix = stage.path.producers_prefix
    faulty = FaultyStorage(stage.storage, [Rule("put_if_absent", prefix, when, 1, "lost_reply")])
    result = write(on(stage, patient(faulty)), 0, make_batches(1), MINE)
    assert faulty.fired == 1
    assert (result.won, result.wrote, result.committed.slot) == (True, True, 0)
    assert log_of(stage) == [(0, "COMMIT", MINE)]
    sealed = seal(stage, 1, ids.new_id())
    model = model_of([make_batches(1)])
    for k in range(PARTITIONS):
        assert read_rows(stage, sealed, k) == partition_of(model, k, 1)


def test_commit_of_unknown_outcome_keeps_its_segments(
    stage: StageHandle, ids: SeededIds, make_batches: Make
) -> None:
    """The COMMIT took effect and no reply ever came: nothing it names may be deleted."""
    prefix = stage.path.producers_prefix
    every = Rule("put_if_absent", prefix, "after", "every", "lost_reply")
    faulty = FaultyStorage(stage.storage, [every])
    with pytest.raises(OutcomeUnknownError):
        write(on(stage, patient(faulty)), 0, make_batches(1), MINE)
    assert faulty.fired == 8
    assert owners(stage) == {MINE}
    again = write(stage, 0, make_batches(2), OTHER)
    assert (again.wrote, again.committed.commit.record_id) == (False, MINE)
    assert delete_orphans(stage, ids, cause="test").objects == 0
    sealed = seal(stage, 1, ids.new_id())
    assert read_rows(stage, sealed, 0) == partition_of(model_of([make_batches(1)]), 0, 1)


def test_commit_that_lands_after_the_cleaner_is_void(
    stage: StageHandle, ids: SeededIds, make_batches: Make
) -> None:
    """A COMMIT still on its way when its attempt is aborted lands later and counts for nothing."""
    late: list[tuple[str, bytes]] = []

    class Slow(FaultyStorage):
        """Keeps the COMMIT on the way; the sender dies waiting."""

        def put_if_absent(self, key: str, data: bytes) -> object:
            late.append((key, data))
            raise SimulatedCrash(key)

    with pytest.raises(SimulatedCrash):
        write(on(stage, Slow(stage.storage)), 0, make_batches(1), MINE)
    orphaned = len(list(stage.storage.list(stage.path.segments_prefix)))
    assert orphaned >= 2
    assert delete_orphans(stage, ids, cause="test").objects == orphaned
    (key, data), landed_in = late[0], stage.producer_log(0).find_end()
    stage.storage.put_if_absent(key, data)  # its own slot is taken: refused
    aimed = stage.producer_log(0).append(landed_in, bound(data, key))
    assert isinstance(aimed, Won), "as if it had aimed at the next"
    assert log_of(stage) == [(0, "ABORT", MINE), (1, "COMMIT", MINE)]
    result = write(stage, 0, make_batches(2), OTHER)
    assert (result.won, result.committed.slot) == (True, 2)
    sealed = seal(stage, 1, ids.new_id())
    assert read_rows(stage, sealed, 0) == partition_of(model_of([make_batches(2)]), 0, 1)


def test_attempt_that_meets_anothers_abort_commits_in_the_next_slot(
    stage: StageHandle, make_batches: Make
) -> None:
    """An ABORT of somebody else is passed."""
    assert abort_attempt(stage.producer_log(0), OTHER, CLEANER, "test")
    result = write(stage, 0, make_batches(1), MINE)
    assert (result.won, result.committed.slot) == (True, 1)
    assert log_of(stage) == [(0, "ABORT", OTHER), (1, "COMMIT", MINE)]


def test_attempt_that_meets_its_own_abort_stops_and_cleans_up(
    stage: StageHandle, make_batches: Make
) -> None:
    """AbortedError, no COMMIT, no segment."""

    def batches() -> Iterator[IdBatch]:
        yield from make_batches(1)
        assert abort_attempt(stage.producer_log(0), MINE, CLEANER, "given up")

    with pytest.raises(AbortedError, match="given up"):
        write(stage, 0, batches(), MINE)
    assert log_of(stage) == [(0, "ABORT", MINE)]
    assert owners(stage) == set()


def test_a_failing_input_gives_its_segments_back(stage: StageHandle, make_batches: Make) -> None:
    """The user's error comes through, nothing is committed, nothing is left."""

    def batches() -> Iterator[IdBatch]:
        yield from make_batches(1)
        assert owners(stage) == {MINE}
        raise ZeroDivisionError("in the map function")

    with pytest.raises(ZeroDivisionError):
        write(stage, 0, batches(), MINE)
    assert log_of(stage) == []
    assert owners(stage) == set()


def test_clean_up_that_fails_does_not_hide_the_cause(
    stage: StageHandle, make_batches: Make
) -> None:
    """The disk is full and the delete fails, too: the first error is the one that is raised."""
    faulty = FaultyStorage(
        stage.storage,
        [Rule("put", nth=2, fault="disk_full"), Rule("delete")],
    )
    with pytest.raises(UnavailableError, match="no space left"):
        write(on(stage, faulty), 0, make_batches(1), MINE)
    assert faulty.unfired == ()
    assert owners(stage) == {MINE}
    assert log_of(stage) == []


@pytest.mark.requirement("R-F232-21")
def test_lost_replies_do_not_fence_a_driver() -> None:
    """Claim and stage use whose replies are lost are the driver's own."""
    inner = MemoryStorage()
    faulty = FaultyStorage(
        inner, [Rule("put_if_absent", "job/log/", "after", n, "lost_reply") for n in (1, 3)]
    )
    log = JobLog.claim(patient(faulty), "job", MINE, take_over=False)
    log.append(StageUse(OTHER, 1, "stage", "f" * 32, "9" * 32))
    log.check_owner()
    assert faulty.fired == 2
    assert [kind for _, kind, _ in records_below(inner, "job/log/")] == ["CLAIM", "STAGE"]


def test_abort_and_commit_race_in_threads_have_one_fate(ids: SeededIds) -> None:
    """Either the attempt commits and the cleaner is told so, or it is aborted: never both."""
    fates = []
    for _ in range(200):
        log, attempt = SlotLog(MemoryStorage(), "p/"), ids.new_id()
        barrier, told = threading.Barrier(2), {}

        def produce(log=log, attempt=attempt, barrier=barrier, told=told) -> None:
            barrier.wait(60)
            try:
                told["committed"] = commit_attempt(log, commit(attempt)).commit.record_id == attempt
            except AbortedError:
                told["committed"] = False

        thread = threading.Thread(target=produce)
        thread.start()
        barrier.wait(60)
        aborted = abort_attempt(log, attempt, CLEANER, "test")
        thread.join()
        assert told["committed"] is not aborted
        fates.append(aborted)
    assert len(fates) == 200
