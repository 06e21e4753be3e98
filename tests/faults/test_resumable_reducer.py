"""A resumable reducer that dies at every storage request, and two that race for the same work."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from small_stage import (
    ManualClock,
    SeededIds,
    new_stage,
    seal,
    write,
)

from durable_shuffle.recovery.resumable import ResumableRun
from durable_shuffle.serialization.errors import (
    FencedError,
    InvalidInputError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.testing.faulty_storage import FaultyStorage, Rule, SimulatedCrash

SCHEMA = pa.schema([("v", pa.int64())])
SAID = pa.schema([("n", pa.int64()), ("v", pa.int64())])
ROWS = 60
SETTINGS = Settings(writer_memory_bytes=1 << 16, frame_bytes=1024, ack_rows=15, view_prefetch=False)


@dataclass
class Numbering:
    """Says each row with a number that goes on over crashes, and at the end how many there were.

    What it did to the world is in lists that a copy shares: they are outside of what is restored.
    """

    world: "World"
    seen: int = 0

    def __deepcopy__(self, memo: Any) -> "Numbering":
        return Numbering(self.world, self.seen)

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        numbers = range(self.seen, self.seen + batch.num_rows)
        self.seen += batch.num_rows
        yield pa.record_batch([pa.array(numbers, pa.int64()), batch.column("v")], schema=SAID)

    def snapshot(self) -> bytes:
        return json.dumps(self.seen).encode()

    def restore(self, state: bytes) -> None:
        self.seen = json.loads(state)
        self.world.restored.append(self.seen)

    def finish(self) -> pa.RecordBatch:
        self.world.finished += 1
        return pa.record_batch([[-1], [self.seen]], schema=SAID)

    def prepare_to_shutdown(self, token: str) -> None:
        self.world.hooks.append(("prepare", token))

    def shutdown(self, token: str) -> None:
        self.world.hooks.append(("shutdown", token))

    def close(self) -> None:
        self.world.hooks.append(("close", ""))


@dataclass
class World:
    """What reducers did, seen from outside."""

    hooks: list[tuple[str, str]] = field(default_factory=list)
    restored: list[int] = field(default_factory=list)
    finished: int = 0

    def calls(self, hook: str) -> list[str]:
        return [token for name, token in self.hooks if name == hook]


@pytest.fixture
def ids(seed: int) -> SeededIds:
    return SeededIds(random.Random(seed))


def stored(storage: Storage, ids: SeededIds) -> StageHandle:
    """Three producers with sixty rows in all, one partition, many frames."""
    stage = new_stage(storage, ids, SCHEMA, partitions=1, producers=3)
    for producer in range(3):
        rows = range(producer * 20, producer * 20 + 20)
        batches = [
            (pa.record_batch([list(rows[at : at + 5])], names=["v"]), np.zeros(5, np.uint16))
            for at in range(0, 20, 5)
        ]
        write(stage, producer, batches, ids.new_id(), producers=3)
    seal(stage, 3, ids.new_id())
    return stage


def run_on(
    stage: StageHandle,
    ids: SeededIds,
    world: World,
    *,
    storage: Storage | None = None,
    **how: Any,
) -> ResumableRun:
    return ResumableRun(
        **{
            "stage": stage if storage is None else replace(stage, storage=storage),
            "subpartition": 0,
            "reducer": Numbering(world),
            "consumer": "numbering",
            "generation": 1,
            "convert": lambda batch: batch,
            "check": lambda made: iter([made] if isinstance(made, pa.RecordBatch) else made),
            "schema": SAID,
            "settings": SETTINGS,
            "clock": ManualClock(0.0, []),
            "ids": ids,
            **how,
        }
    )


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[tuple[int, int]]:
    return [(row["n"], row["v"]) for batch in batches for row in batch.to_pylist()]


def _collect(batches: Iterator[pa.RecordBatch], into: list[tuple[int, int]]) -> None:
    for batch in batches:
        into += rows_of(iter([batch]))


def is_right(rows: list[tuple[int, int]]) -> None:
    """Every row once, numbered without a gap, then the count: whatever order producers come in."""
    assert [n for n, _ in rows] == [*range(ROWS), -1]
    assert sorted(v for _, v in rows[:-1]) == list(range(ROWS))
    assert rows[-1] == (-1, ROWS)


def test_a_run_publishes_once_and_is_read_again(ids: SeededIds) -> None:
    """The second action finds the rows stored: nothing is finished or shut down again."""
    stage, world = stored(MemoryStorage(), ids), World()
    first = rows_of(run_on(stage, ids, world).rows())
    is_right(first)
    (token,) = world.calls("prepare")
    assert world.hooks == [("prepare", token), ("shutdown", token), ("close", "")]
    assert rows_of(run_on(stage, ids, world).rows()) == first
    assert (world.finished, world.calls("shutdown")) == (1, [token])


@pytest.mark.requirement("R-F135-21")
@pytest.mark.parametrize("when", ["before", "after"])
def test_crash_at_every_request(seed: int, when: str) -> None:
    """Killed before or after any request, the next attempt hands on all rows, no row twice, with
    the numbers that went on from the acknowledged state; hooks keep their token and their order."""
    dry = SeededIds(random.Random(seed))
    counting = FaultyStorage(MemoryStorage())
    stage = stored(counting, dry)
    before = len(counting.calls)
    rows_of(run_on(stage, dry, World()).rows())
    requests = len(counting.calls) - before
    assert requests > 12
    resumed_inside = 0
    for nth in range(1, requests + 1):
        ids, memory, world = SeededIds(random.Random(seed)), MemoryStorage(), World()
        stage = stored(memory, ids)
        rule = Rule("*", when=when, nth=nth, fault="crash")  # type: ignore[arg-type]
        dying = FaultyStorage(memory, [rule])
        handed_on: list[tuple[int, int]] = []
        with pytest.raises(SimulatedCrash):
            _collect(run_on(stage, ids, world, storage=dying).rows(), handed_on)
        assert dying.fired == 1
        found = rows_of(run_on(stage, ids, world).rows())
        is_right(found)
        assert handed_on == found[: len(handed_on)], "what was handed on stays"
        resumed_inside += any(0 < seen < ROWS for seen in world.restored)
        tokens = {token for name, token in world.hooks if name != "close"}
        assert len(tokens) == 1
        assert world.calls("shutdown")
        names = [name for name, _ in world.hooks if name != "close"]
        assert names.index("prepare") < names.index("shutdown")
        assert "prepare" not in names[names.index("shutdown") :]
        is_right(rows_of(run_on(stage, ids, world).rows()))
    assert resumed_inside > 3


@pytest.mark.requirement("R-F46-23")
def test_leaving_early_is_a_cancel(ids: SeededIds) -> None:
    """Closing the generator calls `close` and no other hook; the next action goes on."""
    stage, world = stored(MemoryStorage(), ids), World()
    rows = run_on(stage, ids, world).rows()
    next(rows)
    rows.close()
    assert world.hooks == [("close", "")]
    assert world.finished == 0
    is_right(rows_of(run_on(stage, ids, world).rows()))
    assert world.restored == [20]


def test_fenced_attempt_returns_the_winners_rows(ids: SeededIds) -> None:
    """A speculative attempt takes over in the middle; the first one waits and hands on the same."""
    stage, world = stored(MemoryStorage(), ids), World()
    first = run_on(stage, ids, world).rows()
    head = [next(first)]
    winner = rows_of(run_on(stage, ids, world).rows())
    is_right(winner)
    assert rows_of(iter([*head, *first])) == winner
    assert world.finished == 1


@dataclass
class PausingClock(ManualClock):
    """Runs something when somebody waits."""

    on_sleep: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.on_sleep()


def test_fenced_attempt_waits_for_a_winner_at_work(ids: SeededIds) -> None:
    """While the winner gets on the other waits, beyond the bound; then it has all of its rows."""
    stage, world = stored(MemoryStorage(), ids), World()
    clock = PausingClock(0.0, [])
    settings = replace(SETTINGS, winner_wait_seconds=0.2)
    first = run_on(stage, ids, world, clock=clock, settings=settings).rows()
    head = [next(first)]
    winner = run_on(stage, ids, world).rows()
    theirs = [next(winner)]

    def work() -> None:
        if len(clock.pauses) % 3 == 0 and (batch := next(winner, None)) is not None:
            theirs.append(batch)

    clock.on_sleep = work
    mine = rows_of(iter([*head, *first]))
    is_right(mine)
    assert mine == rows_of(iter([*theirs, *winner]))
    assert sum(clock.pauses) > 0.2
    assert world.finished == 1


def test_winner_that_stands_still_is_taken_over(ids: SeededIds) -> None:
    """After the bound the fenced attempt goes on by itself; after some turns it gives up."""
    stage, world = stored(MemoryStorage(), ids), World()
    first = run_on(stage, ids, world).rows()
    head = [next(first)]
    dead = run_on(stage, ids, world).rows()
    next(dead)
    is_right(rows_of(iter([*head, *first])))


def test_attempt_that_is_robbed_again_and_again_gives_up(ids: SeededIds) -> None:
    """Each time that it has taken over another takes it away and dies: the task ends with an error
    that lets Spark try again."""
    stage, world = stored(MemoryStorage(), ids), World()

    class Robbed(Numbering):
        def __deepcopy__(self, memo: Any) -> "Numbering":
            return Robbed(self.world)

        def snapshot(self) -> bytes:
            next(run_on(stage, ids, world).rows())
            return super().snapshot()

    with pytest.raises(UnavailableError, match="do not finish it: consumer='numbering'"):
        rows_of(run_on(stage, ids, world, reducer=Robbed(World())).rows())


def test_newer_driver_stops_an_older_one(ids: SeededIds) -> None:
    """A higher generation is no winner to wait for."""
    stage, world = stored(MemoryStorage(), ids), World()
    first = run_on(stage, ids, world).rows()
    next(first)
    newer = run_on(stage, ids, world, generation=2).rows()
    next(newer)
    with pytest.raises(FencedError, match="generation 2 runs it"):
        rows_of(first)


def test_snapshot_must_be_bytes(ids: SeededIds) -> None:
    stage = stored(MemoryStorage(), ids)

    class Wrong(Numbering):
        def __deepcopy__(self, memo: Any) -> "Numbering":
            return self

        def snapshot(self) -> Any:
            return self.seen

    with pytest.raises(InvalidInputError, match="snapshot must be bytes, found int"):
        rows_of(run_on(stage, ids, World(), reducer=Wrong(World())).rows())
