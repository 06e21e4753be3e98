"""Snapshots of the job log: opening costs what is live, and a snapshot never changes the answer."""

import gc
import random
import time
from collections.abc import Iterator

import pytest
from small_stage import SeededIds

from durable_shuffle.serialization.errors import FencedError, UnavailableError
from durable_shuffle.shuffle.log.job_log import JobLog, enter_stage, job_records, read_job
from durable_shuffle.shuffle.log.job_records import JOB_RECORDS, JobRecord, StageBegun
from durable_shuffle.shuffle.log.job_state import (
    JOB_SNAPSHOTS,
    SNAPSHOT_EVERY,
    Gone,
    JobState,
    Use,
    snapshot_of,
    snapshots_listed,
    state_at,
    with_job_record,
)
from durable_shuffle.shuffle.log.layout import StagePath, job_snapshots_prefix
from durable_shuffle.shuffle.log.records import Claim, StageReleased, StageUse
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.repair.job_log import repair_job_log
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.storage.retrying import CountingStorage
from durable_shuffle.shuffle.verify.job import JobCopy

A, B, C = "a" * 32, "b" * 32, "c" * 32
MOST_REQUESTS = 20


def from_the_start(storage: MemoryStorage) -> JobState:
    """What the slots add up to, without any snapshot."""
    return job_records(storage, "job").read(JobState("job"))


def use(record_id: str, stage: int, generation: int = 1) -> StageUse:
    """The STAGE record of one of many stages."""
    return StageUse(record_id, generation, f"stage{stage % 7}", f"{stage:032x}", f"{stage:032x}")


def random_records(rng: random.Random, ids: SeededIds) -> Iterator[JobRecord]:
    """Records as drivers and writers leave them, also twice and in any order."""
    yield Claim(ids.new_id(), "job", 1, 1)
    generation = 1
    while True:
        n, name = rng.randrange(12), rng.choice(["one", "two"])
        names = name, f"{n % 4:032x}", f"{n:032x}"
        kind = rng.randrange(6)
        if kind == 0:
            generation += 1
            yield Claim(ids.new_id(), "job", generation, 1)
        elif kind == 1:
            yield StageReleased(ids.new_id(), generation, *names, "test")
        elif kind == 2:
            yield StageBegun(ids.new_id(), generation, *names)
        elif kind == 3:
            replaced = StagePath("job", name, f"{n % 3:032x}", f"{rng.randrange(12):032x}").folder
            yield StageUse(ids.new_id(), generation, *names, replaced)
        else:
            yield StageUse(ids.new_id(), generation, *names)


def test_a_snapshot_is_the_state(ids: SeededIds, seed: int) -> None:
    """Behind any record the state comes back from its snapshot, in the same order, and goes on as
    the other does."""
    records = random_records(random.Random(seed), ids)
    state = restored = JobState("job")
    for _ in range(400):
        record = next(records)
        state, restored = with_job_record(state, record), with_job_record(restored, record)
        data = JOB_SNAPSHOTS.encode(snapshot_of(state))
        again = state_at("job", state.next_slot, JOB_SNAPSHOTS.decode(data, "a snapshot"))
        assert again == state == restored
        assert (again.order, again.begun) == (state.order, state.begun)
        assert set(again.released) == set(state.released)
        if state.next_slot % 5 == 0:
            restored = again


@pytest.mark.soak
@pytest.mark.parametrize("released", [0, 11_970], ids=["all live", "30 live"])
def test_opening_a_job_with_12000_stages_in_its_past(
    request: pytest.FixtureRequest, storage: MemoryStorage, ids: SeededIds, released: int
) -> None:
    """At most 20 requests and one second, to claim it as well as to read it. What other tests left
    in memory is not what the second is for."""
    uses = [use(ids.new_id(), n) for n in range(12_000)]
    gone = [
        StageReleased(ids.new_id(), 1, u.name, u.fingerprint, u.incarnation, "test")
        for u in uses[:released]
    ]
    records: list[JobRecord] = [Claim(A, "job", 1, 1), *uses, *gone]
    log = SlotLog(storage, "job/log/")
    for slot, record in enumerate(records):
        log.append(slot, JOB_RECORDS.encode(record))
    paths = [StagePath("job", u.name, u.fingerprint, u.incarnation) for u in uses]
    last = len(records) - SNAPSHOT_EVERY + 1  # as many records behind it as there may be
    dropped = max(0, last - 1 - len(paths))
    live = paths[dropped : last - 1]
    state = JobState(
        "job",
        last,
        1,
        A,
        stages={(p.name, p.fingerprint): p for p in live},
        live=dict.fromkeys(live, Use(1, 0, 0.0, "until_released")),
        gone=dict.fromkeys(paths[:dropped], Gone()),
    )
    SlotLog(storage, job_snapshots_prefix("job")).append(
        last, JOB_SNAPSHOTS.encode(snapshot_of(state))
    )
    request.addfinalizer(gc.unfreeze)
    for open_it in (lambda s: read_job(s, "job"), lambda s: JobLog.claim(s, "job", B).state):
        counted = CountingStorage(storage)
        gc.freeze()
        began = time.process_time()
        opened = open_it(counted)
        seconds = time.process_time() - began
        print(f"{counted.total} requests, {seconds:.2f} s CPU")
        assert counted.total <= MOST_REQUESTS
        assert seconds < 1
        assert opened.order == tuple(paths[released:])


def test_a_year_of_nights_opens_as_the_first_one(storage: MemoryStorage, ids: SeededIds) -> None:
    """Each night claims the job, uses ten stages again and makes one: the requests of a claim stay
    below one bound, and every night knows all stages."""
    most = 0
    for night in range(120):
        counted = CountingStorage(storage)
        log = JobLog.claim(counted, "job", ids.new_id())
        most = max(most, counted.total)
        for stage in range(night, night + 11):
            log.append(use(ids.new_id(), stage, night + 1))
        if night % 20 == 19:
            assert log.state == from_the_start(storage)
            assert len(snapshots_listed(storage, "job")) == 2
    assert most <= MOST_REQUESTS
    assert JobCopy(storage, "job").findings == ()


def test_a_driver_with_a_stale_view_is_fenced(storage: MemoryStorage, ids: SeededIds) -> None:
    """Snapshots and 40 records stand behind its view; it meets the CLAIM in its own next slot."""
    older = JobLog.claim(storage, "job", A)
    newer = JobLog.claim(storage, "job", B)
    for stage in range(40):
        newer.append(use(ids.new_id(), stage, 2))
    assert len(snapshots_listed(storage, "job")) == 2
    before = list(storage.list(""))
    with pytest.raises(FencedError, match="newest=generation 2"):
        older.append(use(ids.new_id(), 99))
    assert list(storage.list("")) == before


def test_writers_that_claim_nothing_leave_snapshots(storage: MemoryStorage, ids: SeededIds) -> None:
    """A stream's planner reads few records, however many stages others entered."""
    for stage in range(60):
        path = StagePath("job", f"s{stage}", f"{stage:032x}", f"{stage:032x}")
        enter_stage(storage, path, record_id=ids.new_id(), claim_id=ids.new_id(), replaces=False)
    counted = CountingStorage(storage)
    assert len(read_job(counted, "job").order) == 60
    assert counted.total <= MOST_REQUESTS


@pytest.mark.parametrize("how", ["flipped", "cut", "of another job", "wrong"])
def test_a_bad_snapshot_loses_nothing(storage: MemoryStorage, ids: SeededIds, how: str) -> None:
    """A damaged one is passed over; verify names each one, and a repair deletes them."""
    log = JobLog.claim(storage, "job", A)
    for stage in range(40):
        log.append(use(ids.new_id(), stage))
    slots = SlotLog(storage, job_snapshots_prefix("job"))
    newest = snapshots_listed(storage, "job")[0]
    key = slots.key(newest)
    data = bytearray(storage.read(key))
    storage.delete([key])
    if how == "flipped":
        data[-3] ^= 4
        storage.put_if_absent(key, bytes(data))
    elif how == "cut":
        storage.put_if_absent(key, bytes(data[:-1]))
    else:
        job = "other" if how == "of another job" else "job"
        slots.append(newest, JOB_SNAPSHOTS.encode(snapshot_of(JobState(job, newest, 1, A))))
    if how != "wrong":
        assert read_job(storage, "job") == log.state == from_the_start(storage)
    (finding,) = JobCopy(storage, "job").findings
    assert finding.key == key
    repair_job_log(storage, "job", ids)
    assert snapshots_listed(storage, "job") == []
    assert JobCopy(storage, "job").findings == ()
    assert read_job(storage, "job") == log.state


def test_no_snapshot_is_needed(storage: MemoryStorage, ids: SeededIds) -> None:
    """Without them, and with a listing that shows none, the log is read from its first slot."""
    log = JobLog.claim(storage, "job", A)
    for stage in range(40):
        log.append(use(ids.new_id(), stage))
    prefix = job_snapshots_prefix("job")
    storage.delete([info.key for info in storage.list(prefix)])
    assert read_job(storage, "job") == log.state
    log.append(use(ids.new_id(), 40))
    assert JobLog.claim(storage, "job", B).state.order == log.state.order


def test_a_storage_that_refuses_a_snapshot_stops_nobody(ids: SeededIds) -> None:
    """The record was won; the next one that may try again writes the snapshot."""

    class Full(MemoryStorage):
        full = True

        def put_if_absent(self, key: str, data: bytes) -> object:
            if self.full and "/snapshots/" in key:
                raise UnavailableError("no room")
            return super().put_if_absent(key, data)

    storage = Full()
    log = JobLog.claim(storage, "job", A)
    for stage in range(20):
        assert log.append(use(ids.new_id(), stage))
    assert snapshots_listed(storage, "job") == []
    storage.full = False
    assert JobLog.claim(storage, "job", B).state.order == log.state.order
    assert len(snapshots_listed(storage, "job")) == 1
