"""Releasing the consumed part of a stage of log producers, and collecting beside producers at work.

The oracle is which numbered rows each consumer has acknowledged: no row that one of them still
needs may go, and what a restarted consumer is given is exactly the rows behind its cursor.
"""

import random
import re
from collections.abc import Iterator

import pytest
from littered_job import StoredConsumer
from small_log import (
    SCHEMA,
    new_feed,
    numbered_rows,
    poll_all,
    rows_for,
)
from small_stage import (
    SMALL,
    ManualClock,
    SeededIds,
    new_stage,
    records_below,
)

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
)
from durable_shuffle.serialization.markers import Checkpoint
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.log.appender_reads import refuse_holes
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.records import StageUse
from durable_shuffle.shuffle.log.stage import StageHandle, StageState, read_state, stage_log
from durable_shuffle.shuffle.read.position import ProducerPosition
from durable_shuffle.shuffle.release.gc_run import GcReport, collect_garbage
from durable_shuffle.shuffle.release.retention import Keep, register_consumers
from durable_shuffle.shuffle.release.stages import Freed, release_consumed
from durable_shuffle.shuffle.release.upto import release_upto
from durable_shuffle.shuffle.storage.contract import ObjectInfo, Storage, StorageLayer
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.storage.retrying import CountingStorage
from durable_shuffle.shuffle.stream.scan import StageScan
from durable_shuffle.shuffle.testing.faulty_storage import FaultyStorage, Rule, SimulatedCrash
from durable_shuffle.shuffle.write.log_producer import LogProducer

PARTITIONS = 2
CHUNKS = [(0, 10), (10, 20), (20, 30)]
"""Rows of the APPENDs in slots 1, 2 and 3 of producer 0; row n goes to subpartition n % 2."""


@pytest.fixture
def log(storage: MemoryStorage, ids: SeededIds) -> JobLog:
    """A claimed job."""
    return JobLog.claim(storage, "job", ids.new_id())


@pytest.fixture
def stage(log: JobLog, storage: MemoryStorage, ids: SeededIds) -> StageHandle:
    """A stage of one log producer that the job's log names."""
    stage = new_stage(storage, ids, SCHEMA, partitions=PARTITIONS, writing="log")
    path = stage.path
    log.append(StageUse(ids.new_id(), 1, path.name, path.fingerprint, path.incarnation))
    return stage


@pytest.fixture
def producer(stage: StageHandle, ids: SeededIds) -> LogProducer:
    """At work, three APPENDs so far."""
    opened = opener(stage, ids)
    for start, end in CHUNKS:
        opened.append(numbered_rows(start, end, PARTITIONS), b"")
    return opened


def opener(stage: StageHandle, ids: SeededIds) -> LogProducer:
    """Open producer 0 again."""
    return LogProducer.open(stage, 0, record_id=ids.new_id(), generation=1, settings=SMALL)


def consumers(stage: StageHandle, ids: SeededIds, *names: str) -> dict[str, list[StoredConsumer]]:
    """Register consumers and open a task of each per subpartition."""
    register_consumers(stage, names, ids=ids, generation=1)
    made = {
        name: [StoredConsumer(stage.storage, stage, k, name, ids) for k in range(PARTITIONS)]
        for name in names
    }
    for tasks in made.values():
        for task in tasks:
            task.open()
    return made


def segments(stage: StageHandle) -> int:
    """How many segments are there."""
    return len(list(stage.storage.list(stage.path.segments_prefix)))


def collect(storage: Storage, ids: SeededIds) -> GcReport:
    """Collect; everything is old enough."""
    return collect_garbage(
        storage,
        "job",
        ids=ids,
        clock=ManualClock(1e12, []),
        settings=Settings(control_threads=1),
        older_than_seconds=0,
        delete=True,
    )


def rows_from(stage: StageHandle, k: int, ordinal: int) -> list[object]:
    """What a restarted consumer is given from a cursor on."""
    feed = new_feed(stage, k, {0: ProducerPosition(ordinal)})
    events, _ = poll_all(feed, stage, k)
    return [row for _, at, row in events if at >= ordinal]


class ListsFrom(StorageLayer):
    """A storage that can begin a listing in the middle; counts the keys that it lists."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.keys = 0

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self.listed_after(prefix, "")

    def listed_after(self, prefix: str, key: str) -> Iterator[ObjectInfo]:
        found = [info for info in self._storage.list(prefix) if info.key > key]
        self.keys += len(found)
        return iter(found)


@pytest.mark.parametrize("released", [False, True])
def test_starts_list_only_what_was_not_released(ids: SeededIds, released: bool) -> None:
    """However long a log is: the start of a stream, a view and a producer."""
    storage = ListsFrom(MemoryStorage())
    stage = new_stage(storage, ids, SCHEMA, partitions=PARTITIONS, writing="log")
    producer = opener(stage, ids)
    tasks = consumers(stage, ids, "one")["one"]
    for n in range(100):
        producer.append(numbered_rows(2 * n, 2 * n + 2, PARTITIONS), b"")
    for task in tasks:
        task.ack({0: 99})
    if released:
        assert release_upto(stage, None, ids=ids, generation=1).objects == 99
    listed = []
    for start in (
        lambda: StageScan(stage).check_standing(StageScan(stage).earliest()),
        lambda: StageScan(stage).latest(),
        lambda: refuse_holes(stage),
        lambda: opener(stage, ids),
    ):
        storage.keys = 0
        start()
        listed.append(storage.keys)
    if released:
        assert max(listed) <= 4
    else:
        assert min(listed) >= 101


@pytest.mark.usefixtures("producer")
def test_only_slots_that_are_needed_are_missed(stage: StageHandle, ids: SeededIds) -> None:
    """A lost slot below released rows harms nobody; the last of them says what comes next."""
    for task in consumers(stage, ids, "one")["one"]:
        task.ack({0: 10})
    assert release_upto(stage, None, ids=ids, generation=1).objects == 2
    log = stage.producer_log(0)
    for slot in range(4):
        record = log.read(slot)
        assert record is not None
        stage.storage.delete([log.key(slot)])
        if slot < 2:  # slots 1 and 2 are released; a successor goes on from 2
            refuse_holes(stage)
            continue
        if slot == 2:
            with pytest.raises(CorruptDataError, match=re.escape(log.key(slot))):
                refuse_holes(stage)
        log.append(slot, record)
    assert opener(stage, ids).rows == 30


@pytest.mark.requirement("R-MZ-16")
@pytest.mark.requirement("R-MZ-17")
@pytest.mark.usefixtures("producer")
def test_release_goes_as_far_as_the_slowest_consumer(stage: StageHandle, ids: SeededIds) -> None:
    """Whatever is asked for; restarts from every cursor then find all that they need."""
    tasks = consumers(stage, ids, "fast", "slow")
    cursors = {("fast", 0): 15, ("fast", 1): 15, ("slow", 0): 10, ("slow", 1): 9}
    for (name, k), ordinal in cursors.items():
        tasks[name][k].ack({0: ordinal})
    freed = release_upto(stage, {0: 99}, ids=ids, generation=1)
    assert (freed.objects, segments(stage)) == (1, 2)
    for (_, k), ordinal in cursors.items():
        assert rows_from(stage, k, ordinal) == rows_for(k, 0, 30, PARTITIONS)[ordinal:]
    assert release_upto(stage, None, ids=ids, generation=1) == Freed(0, 0)
    tasks["slow"][1].ack({0: 10})
    assert release_upto(stage, {0: 1}, ids=ids, generation=1) == Freed(0, 0)  # late: no step back
    assert release_upto(stage, None, ids=ids, generation=1).objects == 1
    uptos = [
        (fields["upto"], fields["cause"])
        for _, kind, fields in records_below(stage.storage, stage.path.log_prefix)
        if kind == "RELEASE_UPTO"
    ]
    cause = "consumed: fast, slow acknowledged it in every subpartition"
    assert uptos == [(b"\2\0\0\0", cause), (b"\3\0\0\0", cause)]
    assert rows_from(stage, 1, 10) == rows_for(1, 0, 30, PARTITIONS)[10:]


def test_marker_holds_its_segment_until_a_record_behind_it(
    stage: StageHandle, ids: SeededIds
) -> None:
    """A cursor in front of a marker and one behind it look the same: it stays for both."""
    producer = opener(stage, ids)
    producer.append(numbered_rows(0, 10, PARTITIONS), b"", markers=[Checkpoint(1)])
    producer.append(numbered_rows(10, 20, PARTITIONS), b"")
    (tasks,) = consumers(stage, ids, "a").values()
    for task in tasks:
        task.ack({0: 5})
    assert release_upto(stage, None, ids=ids, generation=1) == Freed(0, 0)
    for task in tasks:
        task.ack({0: 6})
    assert release_upto(stage, None, ids=ids, generation=1).objects == 1


@pytest.mark.usefixtures("producer")
def test_part_of_a_stage_goes_only_behind_a_closed_set(stage: StageHandle, ids: SeededIds) -> None:
    """Others may still come; once a part went, nobody comes any more."""
    for closed in (False, True):
        with pytest.raises(InvalidInputError, match="closed set"):
            release_upto(stage, None, ids=ids, generation=1)
        register_consumers(stage, ["a"], ids=ids, generation=1, closed=closed)
    for k in range(PARTITIONS):
        task = StoredConsumer(stage.storage, stage, k, "a", ids)
        task.open()
        task.ack({0: 5})
    assert release_upto(stage, None, ids=ids, generation=1).objects == 1
    with pytest.raises(InvalidInputError, match="declared and closed"):
        register_consumers(stage, ["late"], ids=ids, generation=1)


@pytest.mark.usefixtures("producer")
def test_partial_release_dies_at_every_storage_call(
    stage: StageHandle, storage: MemoryStorage, ids: SeededIds
) -> None:
    """Nothing goes before its record stands; the next release or gc finishes."""
    (tasks,) = consumers(stage, ids, "a").values()
    for task in tasks:
        task.ack({0: 10})
    objects = {info.key: storage.read(info.key) for info in storage.list("")}

    def copy() -> MemoryStorage:
        fresh = MemoryStorage()
        for key, content in objects.items():
            fresh.put(key, [content])
        return fresh

    def release(target: Storage) -> None:
        own = SeededIds(random.Random(3))
        handle = StageHandle(target, stage.path, stage.describe)
        release_upto(handle, None, ids=own, generation=1)

    clean = FaultyStorage(copy())
    release(clean)
    assert len(clean.calls) >= 20
    for nth in range(1, len(clean.calls) + 1):
        for when in ("before", "after"):
            below = copy()
            faulty = FaultyStorage(below, [Rule("*", "", when, nth, "crash")])  # type: ignore[arg-type]
            with pytest.raises(SimulatedCrash):
                release(faulty)
            left = StageHandle(below, stage.path, stage.describe)
            kinds = [kind for _, kind, _ in records_below(below, stage.path.log_prefix)]
            assert segments(left) == 3 or "RELEASE_UPTO" in kinds
            for k in range(PARTITIONS):
                assert rows_from(left, k, 10) == rows_for(k, 0, 30, PARTITIONS)[10:]
            if nth % 2 and "RELEASE_UPTO" in kinds:
                assert collect(below, SeededIds(random.Random(4))).unknown == ()
            else:
                release(below)
            assert segments(left) == 1


@pytest.mark.requirement("R-F135-2")
def test_log_stage_is_consumed_once_its_producer_ended(
    log: JobLog, stage: StageHandle, storage: MemoryStorage, producer: LogProducer, ids: SeededIds
) -> None:
    """Consumers that finished do not end a stage that is still written."""
    (tasks,) = consumers(stage, ids, "a").values()
    for task in tasks:
        task.ack({0: 15}, finish=True)
    kept = release_consumed(log, storage, stage.path, ids)
    assert kept == Keep("its producers are not done")
    producer.end("FINITE")
    assert isinstance(release_consumed(log, storage, stage.path, ids), Freed)
    assert segments(stage) == 0
    with pytest.raises(NotFoundError, match="was released"):
        release_upto(stage, None, ids=ids, generation=1)


def test_gc_keeps_what_a_log_producer_at_work_may_still_append(
    stage: StageHandle, storage: MemoryStorage, producer: LogProducer, ids: SeededIds
) -> None:
    """Unnamed segments of the newest attempt stay until another opens; strangers keep it all."""
    attempt = producer.epoch and next(
        fields["record_id"]
        for _, kind, fields in records_below(storage, stage.path.producer_log_prefix(0))
        if kind == "OPEN"
    )
    unnamed = stage.path.segment_key(0, attempt, 7)
    storage.put(unnamed, [b"half way"])
    assert collect(storage, ids).orphans == ()
    successor = opener(stage, ids)
    assert [one.key for one in collect(storage, ids).orphans] == [unnamed]
    assert segments(stage) == 3
    successor.append(numbered_rows(30, 40, PARTITIONS), b"")  # gc stops no log producer
    assert rows_from(stage, 0, 0) == rows_for(0, 0, 40, PARTITIONS)
    stranger = stage.path.segment_key(0, ids.new_id(), 0)
    storage.put(stranger, [b"?"])
    assert [one.key for one in collect(storage, ids).unknown] == [stranger]


def test_a_new_reader_begins_at_the_newest_release(
    stage: StageHandle, storage: MemoryStorage, ids: SeededIds
) -> None:
    """After 1,984 batches and 31 releases: the stage's log is read in at most 25 requests, and the
    first release of a new process reads the batches since the last one, not every batch twice."""
    producer = opener(stage, ids)
    tasks = consumers(stage, ids, "a")["a"]
    for batch in range(1, 1985):
        producer.append(numbered_rows((batch - 1) * 2, batch * 2, PARTITIONS), b"")
        if batch % 64 == 0:
            for task in tasks:
                task.ack({0: batch})
            release_upto(stage, None, ids=ids, generation=1, since=(max(0, batch - 128),))
    assert segments(stage) == 0
    counted = CountingStorage(storage)
    fresh = StageHandle(counted, stage.path, stage.describe)
    state = read_state(fresh)
    assert counted.total <= 25
    assert state == stage_log(stage).read(StageState())
    assert state.released_below(1) == (1985,)
    producer.append(numbered_rows(3968, 3970, PARTITIONS), b"")
    for task in tasks:
        task.ack({0: 1985})
    counted = CountingStorage(storage)
    fresh = StageHandle(counted, stage.path, stage.describe)
    assert release_upto(fresh, None, ids=ids, generation=1).objects == 1
    print(counted.counts)
    assert counted.total <= 250  # 62 of them are this test's consumers


def test_two_releases_in_a_row_that_died_leave_nothing(
    stage: StageHandle, storage: MemoryStorage, ids: SeededIds
) -> None:
    """Each won its record and died before it deleted: the third knows from the records what is
    still there."""
    producer = opener(stage, ids)
    tasks = consumers(stage, ids, "a")["a"]
    for n in range(3):
        producer.append(numbered_rows(n * 10, n * 10 + 10, PARTITIONS), b"")
        for task in tasks:
            task.ack({0: n * 5 + 5})
        if n < 2:
            dying = FaultyStorage(storage, [Rule("delete", "", "before", 1, "crash")])
            with pytest.raises(SimulatedCrash):
                release_upto(
                    StageHandle(dying, stage.path, stage.describe), None, ids=ids, generation=1
                )
    assert segments(stage) == 3
    assert release_upto(stage, None, ids=ids, generation=1).objects == 3
    assert segments(stage) == 0


@pytest.mark.usefixtures("producer")
def test_a_view_behind_a_release_learns_what_became_of_its_rows(
    stage: StageHandle, ids: SeededIds
) -> None:
    """Not only that an object is missing: the cause of the release, and what would have kept it."""
    for task in consumers(stage, ids, "one")["one"]:
        task.ack({0: 10})
    assert release_upto(stage, None, ids=ids, generation=1) != Freed(0, 0)
    with pytest.raises(NotFoundError, match=r"were released.*one acknowledged"):
        list(open_view(stage, 0, consumer="late", ids=ids, follow_seconds=0.0))
