"""A log producer may die before or after any storage call: each record counts once, in order.

What must come out is the source itself, rows 0, 1, 2, …; the source position is the number of the
next row. What counts is read from the records on storage without the library's codecs.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from small_log import (
    SCHEMA,
    new_feed,
    numbered_rows,
    poll_all,
    read_log_rows,
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
    DurableShuffleError,
    FencedError,
    InvalidInputError,
    NotFoundError,
)
from durable_shuffle.serialization.markers import Checkpoint
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage
from durable_shuffle.shuffle.read.feed import EndOfInput
from durable_shuffle.shuffle.release.stages import delete_orphans
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.testing.faulty_storage import FaultyStorage, Rule, SimulatedCrash
from durable_shuffle.shuffle.write.log_producer import LogProducer

PARTITIONS = 3
FIRST, RIVAL, RETRY = "a" * 32, "b" * 32, "c" * 32
ROWS, STEP = 24, 8
MANY = 36
"""Rows of a random schedule: enough of them for some crash and some suspension in most."""

Rival = Callable[[StageHandle], None]


def modes(found: object) -> tuple[str, ...] | None:
    """How the producers ended, None if `found` is not the end."""
    return found.modes if isinstance(found, EndOfInput) else None


def on(stage: StageHandle, storage: Storage) -> StageHandle:
    """The same stage through another storage."""
    return StageHandle(storage, stage.path, stage.describe)


def opened(stage: StageHandle, record_id: str) -> LogProducer:
    return LogProducer.open(stage, 0, record_id=record_id, generation=1, settings=SMALL)


def copy_rest(stage: StageHandle, record_id: str, chars: int = 20) -> None:
    """Copy the source to its end, from where the log says it is, and end."""
    producer = opened(stage, record_id)
    for start in range(int(producer.source_position or b"0"), ROWS, STEP):
        end = min(start + STEP, ROWS)
        rows = numbered_rows(start, end, PARTITIONS, chars)
        producer.append(rows, b"%d" % end, markers=[Checkpoint(end)])
    producer.end("FINITE")


def appended_rows(stage: StageHandle) -> int:
    """How many rows the APPENDs on storage state, and that they are in order."""
    rows, owner = 0, None
    for _, kind, fields in records_below(stage.storage, stage.path.producer_log_prefix(0)):
        if kind == "OPEN":
            owner = fields["record_id"]
        assert (
            fields["record_id"] == owner
        )  # nothing of a fenced attempt stands above its successor
        rows += fields.get("rows", 0)
        assert fields["after"]["source_position"] == (b"%d" % rows if rows else b"")
    return rows


def assert_source_once(stage: StageHandle, rows: int) -> None:
    """Each subpartition holds exactly rows [0, rows) that are its own, in order."""
    for k in range(PARTITIONS):
        events, _ = read_log_rows(stage, k)
        got = [(o, n) for _, o, n in events if isinstance(n, int)]
        assert got == list(enumerate(rows_for(k, 0, rows, PARTITIONS)))


def no_rival(stage: StageHandle) -> None:
    """The attempt is alone."""


def rival_opens(stage: StageHandle) -> None:
    """A successor opens after the first append."""
    with suppress(InvalidInputError):  # the same run again, after it has ended
        opened(stage, RIVAL)


def rival_finishes(stage: StageHandle) -> None:
    """A successor copies the rest while this one is about to append."""
    with suppress(InvalidInputError):
        copy_rest(stage, RIVAL)


@pytest.mark.sampled(1)
@pytest.mark.requirement("R-F135-18")
@pytest.mark.requirement("R-F135-28")
@pytest.mark.parametrize(
    ("rival", "at_least"), [(no_rival, 24), (rival_opens, 18), (rival_finishes, 18)]
)
def test_log_producer_dies_at_every_call(
    rival: Rival,
    at_least: int,
    ids: SeededIds,
    crash_points: Callable[..., Iterator[tuple[Any, Any]]],
) -> None:
    """What was appended stays, what was not never counts, a successor brings the rest."""
    template = new_stage(MemoryStorage(), ids, SCHEMA, partitions=PARTITIONS, writing="log")
    path = template.path
    describe_key = f"{path.log_prefix}0000000000"

    def prepare(storage: MemoryStorage) -> None:
        storage.put_if_absent(describe_key, template.storage.read(describe_key))

    def attempt(storage: Storage, below: Storage) -> None:
        producer = opened(on(template, storage), FIRST)
        with suppress(FencedError):
            for start in range(0, ROWS, STEP):
                middle, end = start + STEP // 2, start + STEP
                rows = [  # each half fills a segment
                    *numbered_rows(start, middle, PARTITIONS, 20_000),
                    *numbered_rows(middle, end, PARTITIONS, 20_000),
                ]
                producer.append(rows, b"%d" % (start + STEP), markers=[Checkpoint(start)])
                if start == 0:
                    rival(on(template, below))
            producer.end("FINITE")

    count = 0
    for point, _ in crash_points(prepare, attempt):
        count += 1
        stage = open_stage(point.storage, path)
        before = appended_rows(stage)
        assert_source_once(stage, before)
        ended = [k for _, k, _ in records_below(point.storage, path.producers_prefix)][-1:] == [
            "END"
        ]
        assert ended <= (before == ROWS)
        if ended:
            with pytest.raises(InvalidInputError, match="ended with FINITE"):
                copy_rest(stage, RETRY)
        else:
            copy_rest(stage, RETRY)
        assert appended_rows(stage) == ROWS
        assert_source_once(stage, ROWS)
        for k in range(PARTITIONS):
            assert modes(read_log_rows(stage, k)[1]) == ("FINITE",)
        delete_orphans(stage, ids, cause="test")
        named = {
            (fields["record_id"], segment["number"])
            for _, kind, fields in records_below(point.storage, path.producers_prefix)
            if kind == "APPEND"
            for segment in fields["segments"]
        }
        stored = [i.key.rsplit("/", 1)[1] for i in stage.storage.list(path.segments_prefix)]
        assert {(s.split("-")[1], int(s.split("-")[2][:-4])) for s in stored} == named
        assert_source_once(stage, ROWS)
    print(f"{count} crash points")
    assert count >= at_least


def kill_schedule(random_: random.Random) -> list[Rule]:
    """What happens to one attempt: a crash, an outage, a lost reply, or nothing."""
    verb = random_.choice(["*", "put", "put_if_absent"])
    when = random_.choice(["before", "after"])
    fault = random_.choice(["crash", "crash", "crash", "lost_reply", "error"])
    if fault == "lost_reply" and verb == "*":
        verb = "put_if_absent"
    if fault == "error":
        when = "before"
    return [Rule(verb, "", when, random_.randint(1, 12), fault)]  # type: ignore[arg-type]


@pytest.mark.requirement("R-F135-15")
@pytest.mark.requirement("R-F46-11")
@pytest.mark.parametrize(
    "schedules", [60, pytest.param(1000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
def test_random_kills_leave_every_record_once(ids: SeededIds, seed: int, schedules: int) -> None:
    """Attempt after attempt dies or is suspended; a follower that reads along misses nothing."""
    fired = crashed = suspended = 0
    for number in range(schedules):
        random_ = random.Random(f"{seed} {number}")
        stage = new_stage(MemoryStorage(), ids, SCHEMA, partitions=PARTITIONS, writing="log")
        clock = ManualClock(0.0, [])
        feeds = [new_feed(stage, k, clock=clock) for k in range(PARTITIONS)]
        seen: list[list[int]] = [[] for _ in feeds]
        done = False
        while not done:
            storage = FaultyStorage(stage.storage, kill_schedule(random_))
            try:
                done = run_attempt(on(stage, storage), ids, random_)
                suspended += not done
            except SimulatedCrash:
                crashed += 1
            except DurableShuffleError:
                pass  # the launcher tries again
            fired += storage.fired
            clock.sleep(10)
            for k, feed in enumerate(feeds):
                events, _ = poll_all(feed, stage, k)
                seen[k] += [n for _, _, n in events if isinstance(n, int)]
        assert seen == [rows_for(k, 0, MANY, PARTITIONS) for k in range(PARTITIONS)]
        assert_source_once(stage, MANY)
        assert all(modes(feed.poll()) == ("FINITE",) for feed in feeds)
    print(f"{fired} faults, {crashed} crashes, {suspended} suspensions")
    assert min(fired, crashed, suspended) > schedules // 2


def run_attempt(stage: StageHandle, ids: SeededIds, random_: random.Random) -> bool:
    """Copy on from where the log is; return whether the end was reached."""
    try:
        producer = opened(stage, ids.new_id())
    except InvalidInputError:
        return True  # ended, and the attempt before did not live to tell
    at = int(producer.source_position or b"0")
    while at < MANY:
        if random_.random() < 0.15:
            producer.end("SUSPEND")
            return False
        at = min(MANY, at + random_.randint(1, STEP))
        start = int(producer.source_position or b"0")
        producer.append(numbered_rows(start, at, PARTITIONS), b"%d" % at)
    producer.end("FINITE")
    return True


@pytest.mark.requirement("R-F135-18")
def test_torn_tail_of_an_append_is_never_delivered(ids: SeededIds) -> None:
    """A segment that no record names, cut at every byte: followers and a successor see nothing."""
    stage = new_stage(MemoryStorage(), ids, SCHEMA, partitions=PARTITIONS, writing="log")
    producer = opened(stage, FIRST)
    producer.append(numbered_rows(0, 6, PARTITIONS), b"6")
    storage = FaultyStorage(stage.storage, [Rule("put_if_absent", "", "before", 1, "crash")])
    dying = LogProducer.open(stage, 0, record_id=RIVAL, generation=1, settings=SMALL)
    dying._stage = on(stage, storage)
    dying._log = dying._stage.producer_log(0)
    with pytest.raises(SimulatedCrash):
        dying.append(numbered_rows(6, 12, PARTITIONS), b"12", markers=[Checkpoint(1)])
    key = stage.path.segment_key(0, RIVAL, 0)
    whole = stage.storage.read(key)
    for cut in range(len(whole) + 1):
        stage.storage.delete([key])
        stage.storage.put(key, [whole[:cut]])
        k = cut % PARTITIONS
        expected = [(0, o, n) for o, n in enumerate(rows_for(k, 0, 6, PARTITIONS))]
        assert read_log_rows(stage, k) == (expected, None)
    assert len(whole) > 500
    assert opened(stage, RETRY).source_position == b"6"
    assert_source_once(stage, 6)


def test_missing_segment_of_an_append_is_an_error(ids: SeededIds) -> None:
    """What an APPEND names and is not there is missing, never empty."""
    stage = new_stage(MemoryStorage(), ids, SCHEMA, partitions=PARTITIONS, writing="log")
    opened(stage, FIRST).append(numbered_rows(0, 6, PARTITIONS), b"6")
    stage.storage.delete([stage.path.segment_key(0, FIRST, 0)])
    with pytest.raises(NotFoundError):
        read_log_rows(stage, 0)
