"""Any storage call of a whole stage may fail or kill its process, before or after it took effect.

Each point is a run that meets its fault, then a run that recovers, then a comparison: what was
published is what was written, once and in order, and garbage collection leaves nothing behind. The
oracle is arithmetic on the numbers of the rows, and records read without the library's codecs.
"""

import gc
import json
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import pytest
from small_stage import ManualClock, SeededIds
from whole_stage import JOB, PARTITIONS, expected, published, run_whole_stage

from durable_shuffle.serialization.errors import DurableShuffleError
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.open_view import forget_views
from durable_shuffle.shuffle.release.gc_run import GcReport, collect_garbage
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.fsspec_backend import FsspecStorage
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.testing.faulty_storage import (
    WRITES,
    FaultyStorage,
    Rule,
    SimulatedCrash,
)
from durable_shuffle.shuffle.testing.s3_server import S3Server

When = Literal["before", "after"]
Calls = list[tuple[str, tuple[str, ...]]]
PARTS = 10
"""Of the points on a real storage: a run that was stopped goes on at the next part."""


class Point(NamedTuple):
    """One fault: at which call, from 1, when, and which."""

    nth: int
    when: When
    how: Literal["error", "kill"]


@pytest.fixture(autouse=True)
def _one_process_each() -> Iterator[None]:
    """A crash takes everything in memory with it."""
    forget_views()
    yield
    forget_views()


@pytest.fixture(scope="module")
def calls() -> Calls:
    """All calls of a run that meets no fault."""
    return calls_on(MemoryStorage())


def calls_on(storage: Storage) -> Calls:
    """An object store is asked more: whether it obeys the condition of a create."""
    counting = FaultyStorage(storage)
    run_whole_stage(counting, 1)
    assert published(storage) == {k: expected(k) for k in range(PARTITIONS)}
    return counting.calls


@pytest.fixture(scope="module")
def points(calls: Calls) -> list[Point]:
    """Every point there is."""
    return points_of(calls)


def points_of(calls: Calls) -> list[Point]:
    return [
        Point(nth, when, how)
        for nth in range(1, len(calls) + 1)
        for when in ("before", "after")
        for how in ("error", "kill")
    ]


def rule_of(point: Point, calls: Calls) -> Rule:
    """Return the fault of a point; an error behind a write is a lost reply."""
    if point.how == "kill":
        return Rule("*", when=point.when, nth=point.nth, fault="crash")
    verbs = [verb for verb, _ in calls[: point.nth]]
    lost = verbs[-1] in WRITES and point.when == "after"
    fault: Literal["lost_reply", "error"] = "lost_reply" if lost else "error"
    return Rule(verbs[-1], when=point.when, nth=verbs.count(verbs[-1]), fault=fault)


def meet(point: Point, calls: Calls, storage: Storage) -> None:
    """Run into the fault."""
    faulty = FaultyStorage(storage, [rule_of(point, calls)])
    try:
        run_whole_stage(faulty, 1)
    except SimulatedCrash:
        assert point.how == "kill"
    except DurableShuffleError:
        assert point.how == "error"
    assert faulty.fired == 1, point
    assert in_order(faulty.calls[: point.nth]) == in_order(calls[: point.nth]), point


def in_order(calls: Calls) -> Calls:
    """Name both floors of a job alike: they are asked for side by side, in any order."""
    return [
        (verb, tuple(re.sub("floors/[0-9]+", "floors", key) for key in keys))
        for verb, keys in calls
    ]


def recover_and_compare(
    storage: Storage, point: Point, look: Callable[[Storage], Storage] = lambda storage: storage
) -> None:
    """Run again where nothing fails; then everything is published once, and nothing is left.

    Args:
        look: gives the storage to look at afterwards: the same, or one that holds the same.
    """
    gc.collect(0)
    for k, numbers in published(look(storage)).items():
        assert numbers == expected(k)[: len(numbers)], point
    run_whole_stage(storage, 2)
    after = look(storage)
    assert published(after) == {k: expected(k) for k in range(PARTITIONS)}, point
    collect(storage)
    after = look(storage)
    report = collect(after)
    assert report.orphans == (), point
    unknown = [one for one in report.unknown if "knows no such stage" not in one.reason]
    assert unknown == [], point
    assert len(report.unknown) <= 1, point  # DESCRIBE of a driver that died before it said so
    kept = {info.key.split("/")[2] for info in after.list("") if "/stage-" in info.key}
    assert kept <= {"log", "producers"}, point
    assert published(after) == {k: expected(k) for k in range(PARTITIONS)}, point


def collect(storage: Storage) -> GcReport:
    return collect_garbage(
        storage,
        JOB,
        ids=SeededIds(random.Random(3)),
        clock=ManualClock(1e12, []),
        settings=Settings(control_threads=1),
        older_than_seconds=0,
        delete=True,
    )


def try_points(points: list[Point], calls: Calls, storages: Callable[[], Storage]) -> None:
    """Try each on a storage of its own, and say how many there were."""
    for point in points:
        storage = storages()
        meet(point, calls, storage)
        recover_and_compare(storage, point)
    print(f"{len(points)} crash points")


def test_there_are_over_two_thousand_points(points: list[Point]) -> None:
    """What the soak run tries whole."""
    print(f"{len(points)} crash points")
    assert len(points) >= 2000


@pytest.mark.requirement("R-F135-2")
def test_a_sample_of_all_points(points: list[Point], calls: Calls, seed: int) -> None:
    """Seeded, of every run."""
    try_points(random.Random(seed).sample(points, 16), calls, MemoryStorage)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_all_points(points: list[Point], calls: Calls) -> None:
    """Each one."""
    try_points(points, calls, MemoryStorage)


def on_s3(server: S3Server) -> FsspecStorage:
    """A root of its own on the server."""
    return FsspecStorage(f"s3://{server.bucket}/{RandomIds().new_id()}", server.options)


@pytest.mark.soak
@pytest.mark.s3
@pytest.mark.timeout(3600)
def test_a_point_on_s3(seed: int, s3_server: S3Server) -> None:
    """One of them, all of it on a real S3 server."""
    calls = calls_on(on_s3(s3_server))
    points = random.Random(seed).sample(points_of(calls), 1)
    try_points(points, calls, lambda: on_s3(s3_server))


Listing = frozenset[tuple[str, int]]
"""Names and sizes. Names hold random ids, so that a name tells the bytes."""


def listing(storage: Storage) -> Listing:
    return frozenset((info.key, info.size_bytes) for info in storage.list(""))


class FromCall:
    """A storage in memory up to a call, from then on another, which is made to hold the same.

    Args:
        there: what the other one holds.
    """

    def __init__(self, nth: int, memory: MemoryStorage, then: Storage, there: Listing) -> None:
        self._nth, self._memory, self._then, self._there = nth, memory, then, there
        self._calls, self.reached = 0, False

    @property
    def description(self) -> str:
        return self._then.description

    def __getattr__(self, verb: str) -> Any:
        def call(*arguments: Any) -> Any:
            self._calls += 1
            if self._calls == self._nth:
                become(self._then, self._there, self._memory)
                self.reached = True
            storage = self._then if self.reached else self._memory
            return getattr(storage, verb)(*arguments)

        return call


def become(storage: Storage, there: Listing, wanted: MemoryStorage) -> None:
    """Have a storage that holds `there` hold what another one does."""
    goal = listing(wanted)
    storage.delete([key for key, _ in there - goal])
    put_objects(wanted, storage, [key for key, _ in goal - there])


def in_memory(storage: Storage) -> MemoryStorage:
    """Return what a storage holds: looked at, a remote one costs a request per object."""
    memory = MemoryStorage()
    put_objects(storage, memory, [info.key for info in storage.list("")])
    return memory


def put_objects(source: Storage, target: Storage, keys: list[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: target.put(key, [source.read(key)]), keys))


def part_of(points: list[Point], part: int) -> list[Point]:
    return points[part * len(points) // PARTS : (part + 1) * len(points) // PARTS]


def try_from_the_fault(points: list[Point], calls: Calls, storages: Callable[[], Storage]) -> None:
    """Try each point on a real storage: the call that fails and all that follows it.

    The calls before it, of which all points have the same, are made in memory and their outcome is
    put on the storage. What two points leave behind, name by name and size by size, is often the
    same: then it is recovered from once.
    """
    left: set[Listing] = set()
    storage, there = storages(), frozenset[tuple[str, int]]()
    for point in points:
        memory = MemoryStorage()
        spliced = FromCall(point.nth, memory, storage, there)
        meet(point, calls, cast("Storage", spliced))
        if not spliced.reached:  # it died before the call
            become(storage, there, memory)
        there = listing(storage)
        if there not in left:
            left.add(there)
            recover_and_compare(storage, point, in_memory)
            storage, there = storages(), frozenset()
    print(f"{len(points)} crash points, {len(left)} states to recover from")


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(PARTS))
def test_all_points_on_local_files(
    points: list[Point], calls: Calls, tmp_path: Path, part: int
) -> None:
    """Every point in folders that are synced to disk as users' are, in parts."""

    def folder() -> LocalStorage:
        for old in tmp_path.iterdir():
            shutil.rmtree(old)
        return LocalStorage(tmp_path / RandomIds().new_id())

    try_from_the_fault(part_of(points, part), calls, folder)


@pytest.mark.s3
@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(PARTS))
def test_all_points_on_s3(
    points: list[Point], calls: Calls, s3_server: S3Server, part: int
) -> None:
    """Every point on a real S3 server, in parts."""
    try_from_the_fault(part_of(points, part), calls, lambda: on_s3(s3_server))


@pytest.mark.parametrize("count", [3, pytest.param(100, marks=pytest.mark.soak)])
@pytest.mark.timeout(3600)
def test_processes_that_are_killed(
    points: list[Point], seed: int, tmp_path: Path, count: int
) -> None:
    """Real processes on real files, SIGKILL at the call."""
    script = Path(__file__).with_name("whole_stage_process.py")
    kills = [point for point in points if point.how == "kill"]
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for n, point in enumerate(random.Random(seed).sample(kills, count)):
                root = tmp_path / str(n)
                job = {"root": str(root), "nth": point.nth, "when": point.when, "salt": 1}
                process.stdin.write(json.dumps(job) + "\n")
                process.stdin.flush()
                assert int(process.stdout.readline()) == signal.SIGKILL, point
                recover_and_compare(LocalStorage(root), point)
        finally:
            process.kill()
    print(f"{count} crash points")
