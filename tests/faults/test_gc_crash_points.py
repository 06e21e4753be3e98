"""Garbage collection may die before or after any storage call, and meet anybody on its way.

The oracle is the dictionary that `littered_job` fills while it writes: what must be there, byte for
byte, and what must be gone. Logs may grow and nothing else.
"""

import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from littered_job import (
    PARTITIONS,
    ROWS,
    LitteredJob,
    StoredConsumer,
    littered_job,
)
from small_stage import (
    ManualClock,
    SeededIds,
    read_rows,
    records_below,
)

from durable_shuffle.serialization.control import bound, encode_control
from durable_shuffle.serialization.errors import (
    AbortedError,
    CorruptDataError,
    FencedError,
    NotFoundError,
)
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.log import read_resume_set
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.producer_log import commit_attempt, read_producer
from durable_shuffle.shuffle.log.records import Commit, SegmentInfo, StageUse
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle, require_seal
from durable_shuffle.shuffle.release.gc_run import GcReport, collect_garbage
from durable_shuffle.shuffle.storage.contract import Created, Exists, Storage
from durable_shuffle.shuffle.storage.memory import MemoryStorage

CrashPoints = Callable[..., Iterator[tuple[Any, Any]]]
ONE_THREAD = Settings(control_threads=1)
"""So that calls come in one order and every run dies at the same ones."""


def collect(storage: Storage, *, delete: bool = True, salt: int = 1) -> GcReport:
    """Collect with ids of its own; everything is old enough."""
    return collect_garbage(
        storage,
        "job",
        ids=SeededIds(random.Random(salt)),
        clock=ManualClock(1e12, []),
        settings=ONE_THREAD,
        older_than_seconds=0,
        delete=delete,
    )


def littered(storage: Storage) -> LitteredJob:
    """The same job every time."""
    return littered_job(storage, SeededIds(random.Random(99)))


def is_slot(key: str) -> bool:
    """Keys of slots end in ten digits."""
    return key.rsplit("/", 1)[1].isdigit()


def data(storage: Storage) -> set[str]:
    """All keys but those of slots."""
    return {info.key for info in storage.list("") if not is_slot(info.key)}


def assert_nothing_lost(storage: Storage, job: LitteredJob) -> None:
    """Everything that must stay has its bytes, and the sealed stage reads as it was written."""
    for key, content in job.stays.items():
        assert storage.read(key) == content, key
    sealed = StageHandle(storage, job.sealed.path, job.sealed.describe)
    seal = require_seal(sealed)
    for k in range(PARTITIONS):
        ids = [row["id"] for row in read_rows(sealed, seal, k)]
        assert ids == [
            p * 1_000_000 + row
            for p, rows in enumerate(ROWS)
            for row in range(rows)
            if row % PARTITIONS == k
        ]


def assert_clean(storage: Storage, job: LitteredJob) -> None:
    """Nothing is lost and nothing is left."""
    assert_nothing_lost(storage, job)
    assert data(storage) == {key for key in job.stays if not is_slot(key)}


@pytest.mark.requirement("R-F135-2")
def test_gc_takes_all_litter_and_nothing_else_twice() -> None:
    """The first run takes exactly the litter; the second only adds its claim and its end."""
    storage = MemoryStorage()
    job = littered(storage)
    report = collect(storage)
    assert {one.key for one in report.orphans} == job.goes
    assert (report.freed.objects, report.unknown, report.spared) == (len(job.goes), (), ())
    assert report.unfinished_releases == 1
    assert_clean(storage, job)
    before = {info.key for info in storage.list("")}
    again = collect(storage, salt=2)
    assert (again.orphans, again.freed.objects, again.unfinished_releases) == ((), 0, 0)
    new = {f"job/log/{again.generation + slot:010d}" for slot in (6, 7)}  # CLAIM and ENDED
    assert {i.key for i in storage.list("")} - before == new


def test_gc_that_only_looks_writes_nothing() -> None:
    """A dry run names the litter, claims nothing, and fences nobody."""
    storage = MemoryStorage()
    job = littered(storage)
    before = {info.key: storage.read(info.key) for info in storage.list("")}
    report = collect(storage, delete=False)
    assert {one.key for one in report.orphans} == job.goes
    assert (report.generation, report.freed.objects) == (0, 0)
    assert {info.key: storage.read(info.key) for info in storage.list("")} == before


@pytest.mark.requirement("R-F135-2")
def test_gc_dies_at_every_storage_call(crash_points: CrashPoints) -> None:
    """Whatever it did: nothing that counts is harmed, and the next run finishes."""
    stored = MemoryStorage()
    job = littered(stored)
    objects = {info.key: stored.read(info.key) for info in stored.list("")}

    def prepare(storage: Storage) -> None:
        for key, content in objects.items():
            storage.put_if_absent(key, content)

    count = 0
    for point, _ in crash_points(prepare, lambda storage, below: collect(storage)):
        count += 1
        assert_nothing_lost(point.storage, job)
        collect(point.storage, salt=2)
        assert_clean(point.storage, job)
    print(f"{count} crash points")
    assert count >= 150


class Rival(MemoryStorage):
    """Calls somebody else right before the first write whose key holds a text."""

    def __init__(self, verb: str, text: str, act: Callable[["Rival"], object]) -> None:
        super().__init__()
        self.when, self._act, self.acted = (verb, text), act, False
        self.armed = False

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        self._meet("put_if_absent", key)
        return super().put_if_absent(key, data)

    def delete(self, keys: Any) -> None:
        self._meet("delete", "".join(keys))
        super().delete(keys)

    def list(self, prefix: str) -> Any:
        self._meet("list", "whole job" if prefix == "job/" else prefix)
        return super().list(prefix)

    def _meet(self, verb: str, key: str) -> None:
        if self.armed and not self.acted and verb == self.when[0] and self.when[1] in key:
            self.acted = True
            self._act(self)


def commit_of(job: LitteredJob) -> Commit:
    """The COMMIT that the slow attempt is about to send."""
    return Commit(job.slow_attempt, 1, 3, 0, 0, (SegmentInfo(0, 6, b"\0" * 32),), b"")


@pytest.mark.requirement("R-F135-3")
def test_slow_attempt_commits_between_judgement_and_abort() -> None:
    """N24: it was judged an orphan and wins; gc meets its COMMIT and leaves its segment."""
    job: LitteredJob

    def commit(storage: Rival) -> None:
        assert commit_attempt(job.unsealed.producer_log(1), commit_of(job)).slot == 0

    storage = Rival("put_if_absent", "/producers/p000001/", commit)
    job = littered(storage)
    storage.when = ("put_if_absent", job.unsealed.path.producer_log_prefix(1))
    storage.armed = True
    segment = job.unsealed.path.segment_key(1, job.slow_attempt, 0)
    report = collect(storage)
    assert storage.acted
    assert [one.key for one in report.spared] == [segment]
    assert storage.read(segment) == b"litter"
    assert data(storage) == {key for key in job.stays if not is_slot(key)} | {segment}
    found = read_producer(job.unsealed.producer_log(1)).counting()
    assert found is not None
    assert found.commit.record_id == job.slow_attempt


def test_slow_attempt_commits_after_its_segments_went() -> None:
    """Its fate is ABORT by then: nothing counts that is not there."""
    storage = MemoryStorage()
    job = littered(storage)
    collect(storage)
    with pytest.raises(AbortedError, match="collected by generation 2"):
        commit_attempt(job.unsealed.producer_log(1), commit_of(job))
    assert read_producer(job.unsealed.producer_log(1)).counting() is None


def test_consumer_acknowledges_between_judgement_and_fence() -> None:
    """Its output was judged an orphan and came to count: it stays, with the view fenced behind."""
    job: LitteredJob

    def acknowledge(storage: Rival) -> None:
        assert job.live.ack({0: 3}, [job.unacknowledged], None)

    storage = Rival("put_if_absent", "/consumers/live/", acknowledge)
    job = littered(storage)
    storage.armed = True
    report = collect(storage)
    assert storage.acted
    assert job.unacknowledged.key in {one.key for one in report.spared}
    assert storage.read(job.unacknowledged.key) == b"not acknowledged"
    state = read_resume_set(SlotLog(storage, job.live.path.log_prefix))
    assert job.unacknowledged.key in {output.key for output in state.outputs}


def test_consumer_acknowledges_after_gc_fenced_it() -> None:
    """Its output is gone and no record names it: a successor starts at what was acknowledged."""
    storage = MemoryStorage()
    job = littered(storage)
    collect(storage)
    assert not job.live.ack({0: 3}, [job.unacknowledged], None)
    state = read_resume_set(SlotLog(storage, job.live.path.log_prefix))
    (cursor,) = state.inputs.values()
    assert {p: at.next_ordinal for p, at in cursor.acked.items()} == {0: 2}
    assert all(storage.read(output.key) for output in state.outputs)
    assert state.generation == 1  # its launcher may open it again


def test_idle_consumers_are_not_fenced() -> None:
    """Only a consumer that wrote what it did not acknowledge meets the collector."""
    storage = MemoryStorage()
    job = littered(storage)
    other = StoredConsumer(storage, job.sealed, 2, "idle", SeededIds(random.Random(4)))
    other.open()
    collect(storage)
    assert other.ack({0: 1})


def test_driver_that_plans_to_reuse_is_fenced_by_gc() -> None:
    """It claimed before; its next slot of the job log is lost, so it uses nothing that may go."""
    storage = MemoryStorage()
    job = littered(storage)
    collect(storage)
    path = job.unsealed.path
    use = StageUse("e" * 32, 1, path.name, path.fingerprint, path.incarnation)
    with pytest.raises(FencedError, match="took over"):
        job.log.append(use)


@pytest.mark.parametrize(
    ("verb", "text"),
    [("list", "whole job"), ("put_if_absent", "/producers/p000001/"), ("delete", "/segments/")],
)
def test_driver_that_claims_during_gc_stops_it(verb: str, text: str) -> None:
    """Whoever claims later wins: gc stops before it deletes behind a driver that may reuse."""
    storage = Rival(verb, text, lambda s: JobLog.claim(s, "job", "d" * 32))
    job = littered(storage)
    before = data(storage)
    storage.armed = True
    with pytest.raises(FencedError, match="took over"):
        collect(storage)
    assert storage.acted
    left = before - data(storage)
    assert left == set() if verb != "delete" else left < job.goes  # the delete under way
    assert_nothing_lost(storage, job)


@pytest.mark.parametrize(
    ("damage", "where"),
    [
        ("flipped", "{stage}/log/0000000001"),
        ("flipped", "{stage}/producers/p000000/0000000000"),
        ("missing", "{stage}/log/0000000000"),
        ("strange", "{stage}/notes.txt"),
        ("strange", "{stage}/segments/00/notes.txt"),
        ("strange", "{stage}/index/short"),
        ("strange", "{stage}/producers/p000000/x"),
        ("strange", "{stage}/log/x"),
        ("unknown kind", "{stage}/log/0000000006"),
        ("newer version", "{stage}/log/0000000006"),
        ("flipped", "job/consumers/live/{task}/0000000001"),
        ("strange", "job/consumers/live/{task}/outputs/short"),
        ("newer version", "job/consumers/live/{task}/0000000003"),
    ],
)
def test_odd_metadata_keeps_its_whole_stage_or_consumer(damage: str, where: str) -> None:
    """N10 and its kin: nothing beside an unknown object goes, everything else still does."""
    storage = MemoryStorage()
    job = littered(storage)
    key = where.format(stage=job.sealed.path.prefix.rstrip("/"), task=job.live.path.task)
    break_it(storage, key, damage)
    scope = job.sealed.path.prefix if key.startswith(job.sealed.path.prefix) else ""
    scope = scope or job.live.path.prefix
    before = {i.key: storage.read(i.key) for i in storage.list(scope)}
    report = collect(storage)
    assert {i.key: storage.read(i.key) for i in storage.list(scope)} == before
    assert report.unknown
    gone = {goes for goes in job.goes if not goes.startswith(scope)}
    assert {one.key for one in report.orphans} == gone
    assert not data(storage) & gone


def break_it(storage: MemoryStorage, key: str, damage: str) -> None:
    """Damage one object, or put a strange one."""
    if damage == "strange":
        storage.put(key, [b"?"])
    elif damage == "missing":
        storage.delete([key])
    elif damage == "flipped":
        content = bytearray(storage.read(key))
        content[-1] ^= 1
        storage.delete([key])
        storage.put(key, [bytes(content)])
    else:
        record = encode_control("RECORD_OF_TOMORROW", {"record_id": "0" * 32})
        if damage == "newer version":
            head = record[:4] + b"\x09\x00" + record[6:12]
            crc = zlib.crc32(record[16:], zlib.crc32(head))
            record = head + crc.to_bytes(4, "little") + record[16:]
        storage.put(key, [bound(record, key)])


def test_damaged_job_log_stops_gc_before_it_claims() -> None:
    """A gap in the job's log must not be filled with a claim."""
    storage = MemoryStorage()
    littered(storage)
    storage.delete(["job/log/0000000002"])
    before = {i.key: storage.read(i.key) for i in storage.list("")}
    with pytest.raises(CorruptDataError, match="nothing is collected"):
        collect(storage)
    assert {i.key: storage.read(i.key) for i in storage.list("")} == before


def test_gc_of_a_job_that_is_not_stored() -> None:
    """It makes no job, and says that there is none."""
    storage = MemoryStorage()
    with pytest.raises(NotFoundError, match="no such job"):
        collect(storage)
    assert list(storage.list("")) == []


def test_stage_that_no_job_log_names_is_left_alone() -> None:
    """Its logs are no litter; data in it makes it unknown."""
    storage = MemoryStorage()
    job = littered(storage)
    described = job.sealed.log().read(0)
    assert described is not None
    prefix = f"job/lost-{'1' * 32}-{'2' * 32}/"
    SlotLog(storage, f"{prefix}log/").append(0, described)
    assert collect(storage).unknown == ()
    storage.put(f"{prefix}index/{'3' * 32}", [b"data"])
    unknown = collect(storage, salt=3).unknown
    assert [(one.key, one.reason) for one in unknown] == [
        (f"{prefix}index/{'3' * 32}", "the job log knows no such stage")
    ]
    kinds = [kind for _, kind, _ in records_below(storage, prefix + "log/")]
    assert kinds == ["DESCRIBE"]
