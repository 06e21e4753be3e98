"""Following log producers: order, start positions, markers, suspension, requests, damage.

What must come is told by lists that the test fills; the clock moves only when the test says so.
"""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from small_log import (
    SCHEMA,
    new_feed,
    numbered_rows,
    poll_all,
    read_extent,
    read_log_rows,
    rows_for,
    wait_for,
)
from small_stage import SMALL, ManualClock, SeededIds, new_stage

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    NotReadyError,
)
from durable_shuffle.serialization.markers import Checkpoint, EndMode, EndOfData
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.appender_log import APPENDER_RECORDS, Append
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.extents import Extent
from durable_shuffle.shuffle.read.feed import EndOfInput
from durable_shuffle.shuffle.read.log_feed import LogFeed
from durable_shuffle.shuffle.read.position import ProducerPosition
from durable_shuffle.shuffle.release.stages import release_stage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.storage.retrying import CountingStorage
from durable_shuffle.shuffle.write.log_producer import LogProducer

PARTITIONS, PRODUCERS = 3, 2

Open = Callable[..., LogProducer]


def modes(found: object) -> tuple[str, ...] | None:
    """How the producers ended, None if `found` is not the end."""
    return found.modes if isinstance(found, EndOfInput) else None


@pytest.fixture
def ids(seed: int) -> SeededIds:
    return SeededIds(random.Random(seed))


@pytest.fixture
def stage(ids: SeededIds) -> StageHandle:
    """A stage of two log producers."""
    return new_stage(
        MemoryStorage(), ids, SCHEMA, partitions=PARTITIONS, producers=PRODUCERS, writing="log"
    )


@pytest.fixture
def open_producer(stage: StageHandle, ids: SeededIds) -> Open:
    def opened(producer: int = 0) -> LogProducer:
        return LogProducer.open(
            stage, producer, record_id=ids.new_id(), generation=1, settings=SMALL
        )

    return opened


def test_follower_is_given_what_comes_while_it_reads(
    stage: StageHandle, open_producer: Open
) -> None:
    """Nothing, rows, nothing, rows of both, the end: each as soon as it was appended."""
    clock = ManualClock(0.0, [])
    feed = new_feed(stage, 1, clock=clock)
    assert feed.producers == 2
    assert feed.poll() is None
    given: dict[int, list[int]] = {0: [], 1: []}
    producers = [open_producer(p) for p in range(PRODUCERS)]
    for step in range(6):
        p = step % 2
        producers[p].append(numbered_rows(step * 10, step * 10 + 10, PARTITIONS), b"")
        given[p] += rows_for(1, step * 10, step * 10 + 10, PARTITIONS)
        clock.sleep(1)
        events, end = poll_all(feed, stage, 1)
        assert {e[0] for e in events} == {p}
        assert [e[2] for e in events] == given[p][-len(events) :]
        assert end is None
        assert feed.poll() is None
    for producer in producers:
        producer.end("FINITE")
        clock.sleep(1)
    assert modes(feed.poll()) == ("FINITE", "FINITE")
    assert modes(feed.poll()) == ("FINITE", "FINITE")
    late, end = read_log_rows(stage, 1)
    assert {p: [n for q, _, n in late if q == p] for p in given} == given
    assert modes(end) == ("FINITE", "FINITE")


def test_producers_take_turns(stage: StageHandle, open_producer: Open) -> None:
    """A producer that is far ahead does not hold back the other one."""
    for p in range(PRODUCERS):
        producer = open_producer(p)
        for n in range(0, 40, 10):
            producer.append(numbered_rows(n, n + 10, PARTITIONS), b"")
    feed = new_feed(stage, 0)
    found = [feed.poll() for _ in range(8)]
    assert [e.producer for e in found if isinstance(e, Extent)] == [0, 1] * 4
    assert feed.poll() is None


@pytest.mark.requirement("R-F135-15")
@pytest.mark.parametrize("hint", ["right", "none", "too high", "beyond the end", "too low"])
def test_every_start_position_gives_the_rest(
    stage: StageHandle, open_producer: Open, hint: str
) -> None:
    """From ordinal n on each record once, whatever the hint says; extents before it are skipped."""
    producer = open_producer()
    rows: list[int] = []
    slots: list[int] = []
    for n in range(0, 60, 12):
        slot = producer.append(numbered_rows(n, n + 12, PARTITIONS), b"").slot
        new = rows_for(2, n, n + 12, PARTITIONS)
        rows += new
        slots += [slot] * len(new)
    producer.end("DRAIN")
    open_producer(1).end("DRAIN")
    for start in range(len(rows) + 1):
        right = slots[min(start, len(rows) - 1)]
        slot = {"right": right, "none": 0, "too high": right + 1, "too low": max(0, right - 2)}
        at = ProducerPosition(start, slot=slot.get(hint, 99))
        feed = new_feed(stage, 2, {0: at})
        events = []
        while isinstance(found := feed.poll(), Extent):
            assert found.first_ordinal + found.rows > start
            events += [n for _, o, n in read_extent(stage, 2, found) if o >= start]
        assert modes(found) == ("DRAIN", "DRAIN")
        assert events == rows[start:]


@pytest.mark.parametrize("read", [0.01, 0.99])
def test_start_costs_the_same_wherever_it_is(
    stage: StageHandle, open_producer: Open, read: float
) -> None:
    """With its hint a follower asks for the slot that it needs, not for those before."""
    producer = open_producer()
    for n in range(0, 300, 3):
        producer.append(numbered_rows(n, n + 3, PARTITIONS), b"")
    storage = CountingStorage(stage.storage)
    at = int(100 * read)
    feed = new_feed(
        StageHandle(storage, stage.path, stage.describe), 0, {0: ProducerPosition(at, slot=at + 1)}
    )
    found = feed.poll()
    assert isinstance(found, Extent)
    assert found.first_ordinal == at
    assert storage.total == 2  # the slot of that record, and producer 1, which has none


def test_hint_clips_the_first_extent_to_its_frame(stage: StageHandle, open_producer: Open) -> None:
    """With the frame's place in the position, what stands before it is not even fetched."""
    producer = open_producer()
    producer.append(numbered_rows(0, 90, PARTITIONS, chars=500), b"")
    whole = new_feed(stage, 0).poll()
    assert isinstance(whole, Extent)
    frames: list[tuple[int, int]] = []  # (ordinal, offset) of each frame, by its header
    data = bytes(stage.storage.read_range(whole.key, whole.offset, whole.length))
    at = ordinal = 0
    while at < len(data):
        frames.append((ordinal, whole.offset + at))
        ordinal += int.from_bytes(data[at + 8 : at + 12], "little")
        at += 24 + -(-int.from_bytes(data[at + 12 : at + 16], "little") // 8) * 8
    assert len(frames) > 3
    assert ordinal == 30
    first, offset = frames[2]
    hinted = ProducerPosition(first + 1, 0, whole.slot, offset, 1)
    clipped = new_feed(stage, 0, {0: hinted}).poll()
    assert isinstance(clipped, Extent)
    assert (clipped.first_ordinal, clipped.offset) == (first, offset)
    got = [n for _, _, n in read_extent(stage, 0, clipped)]
    assert got == rows_for(0, 0, 90, PARTITIONS)[first:]


@pytest.mark.requirement("R-F135-13")
def test_markers_keep_their_place_in_every_subpartition(
    stage: StageHandle, open_producer: Open
) -> None:
    """Behind the rows of their append, before those of the next, in order, also without rows."""
    producer = open_producer()
    expected: dict[int, list[object]] = {k: [] for k in range(PARTITIONS)}
    plan = [
        (0, 4, (Checkpoint(1),)),
        (4, 4, (Checkpoint(2), Checkpoint(3))),
        (4, 5, ()),
        (5, 90, (Checkpoint(4), EndOfData("SUSPEND"))),
        (90, 91, (EndOfData("FINITE"),)),
    ]
    for start, end, markers in plan:
        producer.append(numbered_rows(start, end, PARTITIONS, 1500), b"", markers=markers)
        for k in range(PARTITIONS):
            expected[k] += [*rows_for(k, start, end, PARTITIONS), *markers]
    for k in range(PARTITIONS):
        events, _ = read_log_rows(stage, k)
        assert [what for _, _, what in events] == expected[k]
        ordinal = 0
        for _, at, what in events:  # a marker has no ordinal of its own
            assert at == ordinal
            ordinal += isinstance(what, int)


@pytest.mark.requirement("R-F135-25")
def test_marker_at_the_start_position_is_given_again_those_before_are_not(
    stage: StageHandle, open_producer: Open
) -> None:
    """Markers have no ordinal: the one between n-1 and n comes when reading starts at n."""
    producer = open_producer()
    for n in range(3):
        producer.append(numbered_rows(n * 3, n * 3 + 3, PARTITIONS), b"", markers=[Checkpoint(n)])
    row = rows_for(0, 0, 9, PARTITIONS)
    for slot in (0, 1, 2):
        events, _ = read_log_rows(stage, 0, {0: ProducerPosition(2, slot=slot)})
        assert [what for _, _, what in events] == [Checkpoint(1), row[2], Checkpoint(2)]


@pytest.mark.requirement("R-F46-12")
def test_follower_reads_through_a_suspension(stage: StageHandle, open_producer: Open) -> None:
    """SUSPEND travels, is no end of input, and is superseded by what the successor appends."""
    clock = ManualClock(0.0, [])
    feed = new_feed(stage, 0, clock=clock)
    open_producer(1).end("FINITE")
    expected: list[int] = []
    for n in range(0, 40, 10):
        producer = open_producer()
        assert producer.source_position == (b"%d" % n if n else b"")
        producer.append(numbered_rows(n, n + 10, PARTITIONS), b"%d" % (n + 10))
        expected += rows_for(0, n, n + 10, PARTITIONS)
        producer.end("SUSPEND")
        clock.sleep(1)
        events, end = poll_all(feed, stage, 0)
        assert [what for _, _, what in events] == expected[-len(events) :]
        assert end is None
        assert feed.modes == ("SUSPEND", "FINITE")
    successor = open_producer()
    clock.sleep(1)
    assert feed.poll() is None
    assert feed.modes == (None, "FINITE")
    successor.end("DRAIN")
    clock.sleep(1)
    assert modes(feed.poll()) == ("DRAIN", "FINITE")
    events, _ = read_log_rows(stage, 0)
    assert [(o, what) for _, o, what in events] == list(enumerate(expected))


def test_idle_follower_sends_a_bounded_number_of_requests(
    stage: StageHandle, open_producer: Open
) -> None:
    """One read per producer in each longest pause, and none of the stage's log."""
    for p in range(PRODUCERS):
        open_producer(p).append(numbered_rows(0, 3, PARTITIONS), b"")
    settings = Settings(follow_first_pause_seconds=0.01, follow_longest_pause_seconds=0.5)
    storage = CountingStorage(stage.storage)
    clock = ManualClock(0.0, [])
    on = StageHandle(storage, stage.path, stage.describe)
    feed = LogFeed(on, 0, {}, settings=settings, clock=clock)
    assert storage.total == 0
    while feed.poll() is not None:
        pass
    assert storage.counts == {"read": PRODUCERS * 3}  # OPEN, APPEND, and one that found nothing
    assert feed.poll() is None
    assert storage.total == PRODUCERS * 3  # a poll during the pause costs nothing
    clock.sleep(60)  # past the growing pauses
    assert feed.poll() is None
    before = storage.total
    with pytest.raises(NotReadyError):
        wait_for(feed, clock=clock, timeout_seconds=60.0)
    per_second = (storage.total - before) / 60
    assert per_second <= PRODUCERS / 0.5 * 1.1
    assert set(storage.counts) == {"read"}
    assert len(clock.pauses) < 60 / 0.5 * 1.2  # and the waiting process sleeps meanwhile


def test_silent_producer_is_seen_within_the_longest_pause(
    stage: StageHandle, open_producer: Open
) -> None:
    """However long it was silent; and a busy one is read without any pause."""
    clock = ManualClock(0.0, [])
    producer = open_producer()
    open_producer(1).end("FINITE")
    feed = new_feed(stage, 0, clock=clock)
    for _ in range(100):
        assert feed.poll() is None
        clock.sleep(feed.quiet_seconds())
    producer.append(numbered_rows(0, 3, PARTITIONS), b"")
    asked = clock.now
    assert isinstance(wait_for(feed, clock=clock, timeout_seconds=9), Extent)
    assert clock.now - asked <= SMALL.follow_longest_pause_seconds
    assert feed.poll() is None
    assert 0 < feed.quiet_seconds() <= SMALL.follow_first_pause_seconds  # not what it was before
    for n in range(3, 30, 3):
        producer.append(numbered_rows(n, n + 3, PARTITIONS), b"")
    clock.sleep(feed.quiet_seconds())
    before = clock.now
    assert len(poll_all(feed, stage, 0)[0]) == 9
    assert clock.now == before


@pytest.mark.parametrize("ended", [True, False])
def test_released_stage_is_told_as_released(
    stage: StageHandle, open_producer: Open, ids: SeededIds, ended: bool
) -> None:
    """A follower that meets CLOSED looks why; one whose producers had ended finds their end."""
    clock = ManualClock(0.0, [])
    feed = new_feed(stage, 0, clock=clock)
    for p in range(PRODUCERS):
        producer = open_producer(p)
        if ended:
            producer.end("FINITE")
    assert ended or feed.poll() is None
    release_stage(stage, ids, generation=1, producers=PRODUCERS, cause="nobody reads it")
    clock.sleep(1)
    if ended:
        assert modes(feed.poll()) == ("FINITE", "FINITE")
        return
    with pytest.raises(NotFoundError, match=r"released.*nobody reads it"):
        feed.poll()


def test_log_that_is_gone_is_not_taken_for_an_empty_one(
    stage: StageHandle, open_producer: Open
) -> None:
    """Missing never reads as empty: records were read of it before."""
    open_producer().append(numbered_rows(0, 9, PARTITIONS), b"")
    stage.storage.delete([i.key for i in stage.storage.list(stage.path.producers_prefix)])
    for slot in (0, 1):
        with pytest.raises(NotFoundError, match="gone"):
            read_log_rows(stage, 0, {0: ProducerPosition(1, slot=slot)})


def test_position_behind_the_end_is_refused(stage: StageHandle, open_producer: Open) -> None:
    """It belongs to other data."""
    open_producer().end("FINITE")
    with pytest.raises(CorruptDataError, match="behind the end"):
        read_log_rows(stage, 0, {0: ProducerPosition(1)})


@pytest.mark.parametrize(
    "damage",
    [
        lambda a: replace(a, record_id="f" * 32, after=replace(a.after, owner="f" * 32)),
        lambda a: replace(a, extents=a.extents[:-1]),
        lambda a: replace(a, extents=b""),
        lambda a: replace(a, segments=()),
        lambda a: replace(a, after=replace(a.after, next_ordinals=bytes(24))),
        lambda a: replace(a, after=replace(a.after, next_ordinals=bytes(16))),
    ],
    ids=["foreign", "cut extents", "no extents", "no segments", "other ordinals", "fewer ordinals"],
)
def test_record_that_does_not_join_up_is_refused(
    stage: StageHandle, open_producer: Open, damage: Callable[[Append], Append]
) -> None:
    """Intact by its checksum, wrong by its content: an error that names the slot, no guess."""
    open_producer().append(numbered_rows(0, 9, PARTITIONS), b"")
    log = stage.producer_log(0)
    record = APPENDER_RECORDS.decode(log.read(1) or b"", "test")
    assert isinstance(record, Append)
    stage.storage.delete([log.key(1)])
    log.append(1, APPENDER_RECORDS.encode(damage(record)))
    with pytest.raises(CorruptDataError, match="0000000001"):
        read_log_rows(stage, 0)


def test_batch_stage_and_unknown_subpartition_are_refused(
    stage: StageHandle, ids: SeededIds
) -> None:
    """Before any request."""
    batch = new_stage(MemoryStorage(), ids, SCHEMA, partitions=1)
    for where, k in ((batch, 0), (stage, PARTITIONS), (stage, -1)):
        with pytest.raises(InvalidInputError):
            new_feed(where, k)


def test_ends_with_different_modes_are_told_by_producer(
    stage: StageHandle, open_producer: Open
) -> None:
    """One ended by itself, the other was drained."""
    told: list[EndMode] = ["DRAIN", "FINITE"]
    for p, mode in enumerate(told):
        open_producer(p).end(mode)
    assert modes(new_feed(stage, 0).poll()) == ("DRAIN", "FINITE")
