"""Logs of producers whose old records went: nobody takes a slot that is gone for the end.

The oracle is the list of rows that were appended, and which of them each consumer acknowledged.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
from littered_job import StoredConsumer
from small_log import SCHEMA, new_feed, numbered_rows, poll_all
from small_stage import SMALL, ManualClock, SeededIds, new_stage

from durable_shuffle.jobs.inspect.producer_logs import LogRows, read_producer_logs
from durable_shuffle.serialization.errors import (
    ConflictError,
    CorruptDataError,
    FencedError,
    NotFoundError,
)
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.appender_log import Append, AppenderOpen, End, appender_log
from durable_shuffle.shuffle.log.appender_reads import (
    followed,
    gone_below,
    kept_records,
    producer_status,
    read_tail,
    refuse_holes,
    whole_tail,
)
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.named_stage import is_empty
from durable_shuffle.shuffle.log.records import Closed, StageUse
from durable_shuffle.shuffle.log.stage import StageHandle, read_state
from durable_shuffle.shuffle.read.position import ProducerPosition
from durable_shuffle.shuffle.release import upto
from durable_shuffle.shuffle.release.gc_run import collect_garbage
from durable_shuffle.shuffle.release.retention import register_consumers
from durable_shuffle.shuffle.release.stages import delete_orphans, release_stage_of
from durable_shuffle.shuffle.release.upto import release_upto
from durable_shuffle.shuffle.storage.contract import StorageLayer
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.stream.scan import StageScan
from durable_shuffle.shuffle.verify.job import verify_job
from durable_shuffle.shuffle.write.log_producer import LogProducer

PARTITIONS = 2


class Appending:
    """A stage of one producer, its registered consumers, and what they have acknowledged."""

    def __init__(self, seed: int = 5) -> None:
        self.storage = MemoryStorage()
        self.ids = SeededIds(random.Random(seed))
        self.log = JobLog.claim(self.storage, "job", self.ids.new_id())
        self.stage = new_stage(self.storage, self.ids, SCHEMA, partitions=PARTITIONS, writing="log")
        path = self.stage.path
        use = StageUse(self.ids.new_id(), 1, path.name, path.fingerprint, path.incarnation)
        self.log.append(use)
        self.rows = 0
        self.producer = self.opened()
        register_consumers(self.stage, ["c"], ids=self.ids, generation=1)
        self.tasks = [
            StoredConsumer(self.storage, self.stage, k, "c", self.ids) for k in range(PARTITIONS)
        ]
        for task in self.tasks:
            task.open()

    def opened(self, stage: StageHandle | None = None) -> LogProducer:
        return LogProducer.open(
            stage or self.stage,
            0,
            record_id=self.ids.new_id(),
            generation=1,
            settings=SMALL,
        )

    def append(self, rows: int = 2) -> None:
        """Append rows; row n goes to subpartition n % 2."""
        batches = numbered_rows(self.rows, self.rows + rows, PARTITIONS)
        self.producer.append(batches, str(self.rows + rows).encode())
        self.rows += rows

    def consumed(self, *partitions: int) -> None:
        """Let the consumer acknowledge all rows of these partitions."""
        for k in partitions or range(PARTITIONS):
            self.tasks[k].ack({0: len(range(k, self.rows, PARTITIONS))})

    def release(self, needed: Callable[..., Any] = lambda *_: ()) -> None:
        release_upto(self.stage, None, ids=self.ids, generation=1, needed=needed)

    def slots(self) -> list[int]:
        return sorted(self.stage.producer_log(0).listed())

    def trimmed(self) -> "Appending":
        """Append, consume and release until slots went in the middle of the log; restart once."""
        for _ in range(6):
            for _ in range(3):
                self.append()
            self.consumed()
            self.release()
            if self.producer.epoch == 1:
                self.producer = self.opened()
        self.append()
        assert len(self.slots()) < self.producer.next_slot - 5
        return self


def test_as_many_records_stand_after_a_year_as_after_a_day() -> None:
    """OPENs of all starts, and what one interval between releases appends."""
    appending = Appending()
    counts = []
    for n in range(2000):
        appending.append()
        if n % 300 == 299:
            appending.producer = appending.opened()
        if n % 50 == 49:
            appending.consumed()
            appending.release()
            counts.append(len(appending.slots()))
    assert appending.producer.epoch == 7
    assert max(counts) <= 50 + 50 + 7 + 1
    opens = [s for s in appending.slots() if s % 301 == 0]
    assert len(opens) == 7


def _consumer_goes_on(appending: Appending) -> None:
    for k in range(PARTITIONS):
        first = len(range(k, appending.rows - 2, PARTITIONS))
        feed = new_feed(appending.stage, k, {0: ProducerPosition(first)})
        events, _ = poll_all(feed, appending.stage, k)
        rows = [row for _, at, row in events if at >= first]
        assert rows == [n for n in range(appending.rows - 2, appending.rows) if n % 2 == k]


def _producer_goes_on(appending: Appending) -> None:
    slot = appending.producer.next_slot
    zombie, appending.producer = appending.producer, appending.opened()
    assert appending.producer.next_slot == slot + 1
    assert appending.producer.rows == appending.rows
    assert appending.producer.source_position == str(appending.rows).encode()
    with pytest.raises(FencedError):
        zombie.append(numbered_rows(0, 2, PARTITIONS), b"zombie")
    appending.append()


def _release_fences(appending: Appending) -> None:
    release_stage_of(appending.log, appending.storage, appending.stage.path, appending.ids)
    last = appender_log(appending.stage.producer_log(0)).record(appending.producer.next_slot)
    assert isinstance(last, Closed)
    with pytest.raises(FencedError):
        appending.append()


def _collects(appending: Appending) -> None:
    before = dict.fromkeys(i.key for i in appending.storage.list(appending.stage.path.prefix))
    report = collect_garbage(
        appending.storage,
        "job",
        ids=appending.ids,
        clock=ManualClock(1e12, []),
        settings=Settings(control_threads=1),
        older_than_seconds=0,
        delete=True,
    )
    assert not report.orphans
    assert not report.unknown
    left = {i.key for i in appending.storage.list(appending.stage.path.prefix)}
    assert set(before) <= left


def _tail(appending: Appending) -> None:
    end = appending.producer.next_slot
    for hint in range(end + 2):
        assert read_tail(appending.stage, 0, hint).next_slot == end, hint
    assert whole_tail(appending.stage, 0).next_slot == end
    assert isinstance(producer_status(appending.stage, 0), Append)
    refuse_holes(appending.stage)
    assert not is_empty(appending.stage)


def _inspect(appending: Appending) -> None:
    (log,) = read_producer_logs(appending.stage, read_state(appending.stage))
    assert [attempt.epoch for attempt in log.attempts] == [1, 2]
    assert int(log.appended.sum()) == appending.rows
    assert int(log.stored.sum()) == 2
    rows = LogRows(appending.stage)
    assert (rows.rows, rows.released) == (2, appending.rows - 2)


def _scan(appending: Appending) -> None:
    scan = StageScan(appending.stage)
    start, end = scan.earliest(), scan.latest()
    for at in (start, end):
        scan.check_standing(at)
        assert scan.latest(at) == end
    assert sum(span.end - span.skip for span in scan.ranges(start, end)) == 2
    assert [arrival.slot for arrival in scan.arrivals(start)] == [end.lanes[0].slot - 1]


def _verifies(appending: Appending) -> None:
    report = verify_job(appending.storage, "job", Settings(control_threads=1))
    assert report.ok, [str(finding) for finding in report.findings]


def _spares_what_is_written(appending: Appending) -> None:
    """Orphans of a stopped attempt go; what the newest one may still name stays."""
    before = len(list(appending.storage.list(appending.stage.path.segments_prefix)))
    delete_orphans(appending.stage, appending.ids, cause="test")
    assert len(list(appending.storage.list(appending.stage.path.segments_prefix))) == before
    _consumer_goes_on(appending)


@pytest.mark.parametrize(
    "use",
    [
        _consumer_goes_on, _producer_goes_on, _release_fences, _collects, _tail, _inspect, _scan,
        _verifies, _spares_what_is_written,
    ],
)  # fmt: skip
def test_a_log_whose_slots_went_is_read_to_its_end(use: Callable[[Appending], None]) -> None:
    use(Appending().trimmed())


def test_a_reader_that_paused_goes_on_where_the_log_does() -> None:
    """It has no row in the slots that went; one that has is told that they were released."""
    appending = Appending()
    clock = ManualClock(0.0, [])
    appending.append(1)  # row 0, for subpartition 0
    feeds = [new_feed(appending.stage, k, clock=clock) for k in range(PARTITIONS)]
    given = [poll_all(feed, appending.stage, k)[0] for k, feed in enumerate(feeds)]
    assert [len(events) for events in given] == [1, 0]
    for _ in range(6):  # while both pause, rows for subpartition 0 alone
        appending.producer.append(
            [(batch, 0 * ids) for batch, ids in numbered_rows(1, 3, PARTITIONS)], b""
        )
        appending.tasks[0].ack({0: int(appending.producer.rows)})
        appending.release()
    assert gone_below(appending.stage)[0] > 3
    appending.rows = 1
    appending.append(1)  # row 1, for subpartition 1
    for _ in range(3):  # the second miss looks
        events = poll_all(feeds[1], appending.stage, 1)[0]
        clock.now += 60.0
        if events:
            break
    assert [row for *_, row in events] == [1]
    with pytest.raises(NotFoundError, match="released"):
        poll_all(feeds[0], appending.stage, 0)


class Meanwhile(StorageLayer):
    """Lets others act right before the first OPEN that is sent through it."""

    def __init__(self, storage: MemoryStorage, act: Callable[[], None]) -> None:
        super().__init__(storage)
        self.act: Callable[[], None] | None = act

    def put_if_absent(self, key: str, data: Any) -> Any:
        if "/producers/" in key and (act := self.act) is not None:
            self.act = None
            act()
        return self._storage.put_if_absent(key, data)


def test_an_open_in_a_slot_that_went_meanwhile_counts_for_nobody() -> None:
    """Who opens looks at the floor behind its OPEN; readers do not take that OPEN for one."""
    appending = Appending()
    appending.append()

    def others() -> None:
        for _ in range(4):
            appending.append()
            appending.consumed()
            appending.release()
        assert 2 not in appending.slots()

    storage = Meanwhile(appending.storage, others)
    late = StageHandle(storage, appending.stage.path, appending.stage.describe)
    with pytest.raises(ConflictError, match="try again"):
        appending.opened(late)
    assert 2 in appending.slots(), "the OPEN stands there, and nobody follows it"
    appending.append()
    for _, record in kept_records(appending.stage, 0):
        assert not isinstance(record, AppenderOpen) or record.after.epoch == 1
    for use in (_tail, _verifies, _collects, _spares_what_is_written):
        use(appending)
    again = appending.opened(late)
    assert (again.epoch, again.rows) == (2, appending.rows)


def test_records_that_a_successor_reads_stay() -> None:
    """Whatever the source's position names."""
    appending = Appending()
    asked = []

    def needed(_stage: StageHandle, producer: int, position: bytes) -> set[int]:
        asked.append((producer, position))
        return {3}

    for _ in range(10):
        appending.append()
        appending.consumed()
        appending.release(needed)
    assert asked[-1] == (0, b"20")
    assert appending.slots()[:2] == [0, 3]
    assert 4 not in appending.slots()


def test_what_a_release_left_goes_with_a_later_one() -> None:
    """It had died before it deleted the records of its slots."""
    appending = Appending()
    for _ in range(3):
        appending.append()
    log = appending.stage.producer_log(0)
    left = log.read(2)
    assert left is not None
    appending = appending.trimmed()
    assert 2 not in appending.slots()
    log.append(2, left)
    appending.consumed()
    appending.release()
    assert 2 not in appending.slots()


def test_what_came_behind_the_newest_known_record_stays() -> None:
    """Another coordinator may have released since; nobody here knows what these records need."""
    appending = Appending()
    for _ in range(8):
        appending.append()
        appending.consumed()
        appending.release()
    gone, before = gone_below(appending.stage)[0], appending.slots()
    assert gone in before
    appending.append()
    log = appender_log(appending.stage.producer_log(0))
    stale = {gone: log.record(gone), gone - 1: log.record(0)}
    upto.delete_records(appending.stage, 0, gone + 2, stale, lambda *_: ())  # type: ignore[arg-type]
    assert appending.slots() == [*before, appending.producer.next_slot - 1]


def test_without_the_callers_knowledge_no_record_goes() -> None:
    """A stream's reader releases rows, and knows nothing of the producer's position."""
    appending = Appending()
    for _ in range(10):
        appending.append()
        appending.consumed()
        release_upto(appending.stage, None, ids=appending.ids, generation=1)
    assert appending.slots() == list(range(11))


def test_a_lost_record_is_damage_still() -> None:
    """Above the floor a gap is no release."""
    appending = Appending().trimmed()
    log = appending.stage.producer_log(0)
    appending.append()
    appending.storage.delete([log.key(appending.producer.next_slot - 2)])
    with pytest.raises(CorruptDataError):
        whole_tail(appending.stage, 0)
    assert not verify_job(appending.storage, "job", Settings(control_threads=1)).ok


def test_only_opens_that_others_followed_are_kept() -> None:
    """Pure: by epoch; among equal ones the later slot."""
    appending = Appending().trimmed()
    records = dict(kept_records(appending.stage, 0))
    first = gone_below(appending.stage)[0]
    assert followed(records, first) == records
    opens = [s for s, r in records.items() if isinstance(r, AppenderOpen) and s < first]
    litter = {opens[0] + 1: records[opens[-1]], **records}
    assert followed(dict(sorted(litter.items())), first) == records
    assert followed(litter, 0) == litter


@pytest.mark.parametrize("extra_seed", range(8))
def test_random_histories(seed: int, extra_seed: int) -> None:
    """Producers restart, fenced ones wake up, consumers and releases come and go in any order."""
    draw = random.Random(seed * 100 + extra_seed)
    appending, clock = Appending(seed * 100 + extra_seed), ManualClock(0.0, [])
    feeds = [new_feed(appending.stage, k, clock=clock) for k in range(PARTITIONS)]
    given: list[list[int]] = [[] for _ in feeds]
    zombies: list[LogProducer] = []
    lost = 0
    for _ in range(250):
        match draw.randrange(7):
            case 0:
                zombies.append(appending.producer)
                appending.producer = appending.opened()
            case 1 if zombies:
                with pytest.raises(FencedError):
                    draw.choice(zombies).append(numbered_rows(0, 4, PARTITIONS), b"no")
            case 2:
                k = draw.randrange(PARTITIONS)
                given[k] += [row for *_, row in poll_all(feeds[k], appending.stage, k)[0]]  # type: ignore[misc]
                appending.tasks[k].ack({0: len(given[k])})
                clock.now += 100.0
            case 3:
                lost -= len(appending.slots())
                appending.release()
                lost += len(appending.slots())
            case _:
                appending.append(draw.choice([0, 1, 2, 5]))
    for k, feed in enumerate(feeds):
        for _ in range(4):
            given[k] += [row for *_, row in poll_all(feed, appending.stage, k)[0]]  # type: ignore[misc]
            clock.now += 100.0
        assert given[k] == [n for n in range(appending.rows) if n % 2 == k]
    assert lost < 0
    _tail_of(appending)
    _verifies(appending)


def _tail_of(appending: Appending) -> None:
    end = appending.producer.next_slot
    assert read_tail(appending.stage, 0).next_slot == end
    assert not isinstance(whole_tail(appending.stage, 0).last, End)
