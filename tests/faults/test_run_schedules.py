"""Runs of a streaming query that die, lose replies, or live on beside their successors: every row
once, in every schedule; the readers of the stage stop and go on at random offsets, too."""

import random
from collections import Counter
from contextlib import suppress

import pytest
from run_engine import ROWS, SCHEMA, EngineRun
from small_log import read_log_rows
from small_stage import SMALL, SeededIds, new_stage

from durable_shuffle.serialization.errors import (
    FencedError,
    IncompatibleError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.log.appender_log import Part
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.release.stages import delete_orphans
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.stream.offset import Limits, advance, offset_from_json
from durable_shuffle.shuffle.stream.scan import StageScan, read_row_ranges
from durable_shuffle.shuffle.testing.faulty_storage import FaultyStorage, Rule, SimulatedCrash
from durable_shuffle.shuffle.write.run_log import clear_behind

BATCHES, PARTITIONS = 6, 3


def rows_read(stage: StageHandle, draw: random.Random) -> list[int]:
    """Read the stage in steps of random size; every step by a reader that knows only the offset."""
    found: list[int] = []
    offset = StageScan(stage).earliest().to_json()
    while True:
        scan = StageScan(stage)
        start = offset_from_json(offset, stage=stage.path.folder, widths=scan.widths)
        limits = draw.choice(
            [Limits(draw.randrange(1, 30)), Limits(None, draw.randrange(1, 3000)), Limits()]
        )
        end = advance(start, scan.arrivals(start), limits)
        if end.rows == start.rows:
            return found
        ranges = StageScan(stage).ranges(start, end)
        mine = [n for b in read_row_ranges(stage, ranges, SMALL) for n in b.column(0).to_pylist()]
        assert len(mine) == end.rows - start.rows
        found += mine
        offset = end.to_json()


def run_schedule(seed: int) -> Counter[str]:
    """Write all batches, whatever happens; return what happened."""
    draw = random.Random(seed)
    storage = MemoryStorage()
    stage = new_stage(
        storage, SeededIds(draw), SCHEMA, partitions=PARTITIONS, writing="log"
    )  # fmt: skip
    done, seen = 0, Counter[str]()
    alive: list[tuple[EngineRun, int]] = []
    while done < BATCHES:
        on, run, batch = _start(storage, stage, draw, done)
        parts: list[Part | None] = []
        try:
            while batch < BATCHES:
                parts = []
                parts = run.tasks(batch)
                if draw.random() < 0.15:
                    alive.append((run, batch))  # it is slow: somebody starts the query again
                    seen["overtaken"] += 1
                    break
                came = run.append(batch, parts)
                seen["appended" if came.wrote else "dropped"] += 1
                while draw.random() < 0.2:  # Spark may commit an epoch as often as it likes
                    assert not run.append(batch, parts).wrote
                    seen["committed again"] += 1
                if came.first:
                    seen["cleared"] += clear_behind(run.stage, 0, attempt_of(parts))
                if draw.random() < 0.2:
                    seen["died behind its commit"] += 1
                    break
                batch += 1
                done = max(done, batch)
        except SimulatedCrash:
            seen["died"] += 1
        except (OutcomeUnknownError, UnavailableError):
            seen["no answer"] += 1
            with suppress(FencedError, OutcomeUnknownError, UnavailableError, SimulatedCrash):
                if parts:
                    seen["called again"] += run.commit(batch, parts) in (True, False)
        seen["faults"] += on.fired
        if draw.random() < 0.5 and alive:
            done = _goes_on(*alive.pop(), done, seen)
        if draw.random() < 0.3:
            delete_orphans(stage, SeededIds(draw), cause="test")
    while alive:
        done = _goes_on(*alive.pop(), done, seen)
    delete_orphans(stage, SeededIds(draw), cause="test")
    expected = Counter(range(BATCHES * ROWS))
    assert Counter(rows_read(stage, draw)) == expected, f"seed={seed}"
    followed = Counter(
        number
        for k in range(PARTITIONS)
        for _, _, number in _followed(stage, k)
    )  # fmt: skip
    assert followed == expected, f"seed={seed}"
    return seen


def attempt_of(parts: list[Part | None]) -> str:
    """The OPEN under which the parts were written."""
    (attempt,) = {part.begun.attempt for part in parts if part is not None}
    return attempt


def _followed(stage: StageHandle, k: int) -> list[tuple[int, int, int]]:
    """What a view's feed gives: the rows stand where any other reader finds them, too."""
    events, _ = read_log_rows(stage, k)
    return [(p, o, n) for p, o, n in events if isinstance(n, int)]


def _start(
    storage: Storage, stage: StageHandle, draw: random.Random, done: int
) -> tuple[FaultyStorage, EngineRun, int]:
    rules = []
    if draw.random() < 0.6:
        when = draw.choice(("before", "after"))
        rules.append(Rule("*", nth=draw.randrange(1, 25), when=when, fault="crash"))
    if draw.random() < 0.3:
        when = draw.choice(("before", "after"))
        rules.append(
            Rule("put_if_absent", nth=draw.randrange(1, 5), when=when, fault="lost_reply")
        )  # fmt: skip
    on = FaultyStorage(storage, rules)
    return on, EngineRun(StageHandle(on, stage.path, stage.describe), draw), done


def _goes_on(run: EngineRun, batch: int, done: int, seen: Counter[str]) -> int:
    """A run that was overtaken tries its batch after all."""
    try:
        parts = run.tasks(batch)
        seen["late append" if run.commit(batch, parts) else "late drop"] += 1
    except (FencedError, IncompatibleError):  # the latter: by more than one batch
        seen["fenced"] += 1
        return done
    except (SimulatedCrash, OutcomeUnknownError, UnavailableError):
        return done
    return max(done, batch + 1)


@pytest.mark.requirement("R-F135-1")
@pytest.mark.requirement("R-F135-28")
def test_every_row_stands_once_in_every_schedule(seed: int) -> None:
    """Sixty schedules; each kind of turn occurs."""
    seen = sum((run_schedule(seed + n) for n in range(60)), Counter[str]())
    print(seed, dict(seen))
    for turn in (
        "appended",
        "dropped",
        "died",
        "died behind its commit",
        "no answer",
        "committed again",
        "called again",
        "fenced",
        "cleared",
    ):
        assert seen[turn], turn
    assert seen["faults"]


@pytest.mark.soak
def test_two_thousand_schedules(seed: int) -> None:
    """As above."""
    for n in range(2000):
        run_schedule(seed + 1000 + n)


def test_clearing_up_spares_who_came_later() -> None:
    """A run clears behind itself while its successor has written and not committed yet."""
    draw = random.Random(2)
    stage = new_stage(MemoryStorage(), SeededIds(draw), SCHEMA, partitions=2, writing="log")
    dead, first, second = (EngineRun(stage, draw) for _ in range(3))
    assert any(dead.tasks(0))
    mine = first.tasks(0)
    assert first.commit(0, mine)
    parts = second.tasks(1)
    assert clear_behind(stage, 0, attempt_of(mine)) > 0
    assert clear_behind(stage, 0, attempt_of(mine)) == 0
    assert second.commit(1, parts)
    assert Counter(rows_read(stage, draw)) == Counter(range(2 * ROWS))


def test_the_oracle_would_notice() -> None:
    """A batch that a broken sink appends twice is found by both readers."""
    draw = random.Random(1)
    stage = new_stage(MemoryStorage(), SeededIds(draw), SCHEMA, partitions=2, writing="log")
    for _ in range(2):
        run = EngineRun(stage, draw, query="")  # a write job: it has no batch ids to be known by
        assert run.commit(0, run.tasks(0))
    assert Counter(rows_read(stage, draw)) == Counter(list(range(ROWS)) * 2)
