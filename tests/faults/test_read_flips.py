"""Every byte of a sealed stage flipped, one at a time: readers give right rows or the right error.

Whoever looks up the stage, reads a partition, a group of them, or consumes one through a view meets
the damage on its own. The oracle is the numbers of the rows that the test wrote.
"""

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sealed_stage import SealedStage, sealed_stage
from small_stage import SeededIds, read_rows

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    DurableShuffleError,
    IncompatibleError,
    NotFoundError,
)
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.open_view import forget_views, open_view
from durable_shuffle.shuffle.log.job_log import JobLog, read_job
from durable_shuffle.shuffle.log.records import StageUse
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage, read_state, require_seal
from durable_shuffle.shuffle.read.sealed_reader import read_group
from durable_shuffle.shuffle.repair.compaction import compact_stage
from durable_shuffle.shuffle.seal.rewrite import replace_commits, sealed_commits
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.testing.faulty_storage import FaultyStorage, Rule

PRODUCERS, PARTITIONS = 3, 2
SHORT = ("read", "read_range", "read_ranges")
RIGHT_ERRORS = (CorruptDataError, IncompatibleError, NotFoundError)
"""A damaged length or kind is corruption or of another version; a damaged name leads nowhere."""


@pytest.fixture(params=["sealed", "compacted", "repaired"])
def made(request: pytest.FixtureRequest) -> SealedStage:
    """A small stage of a job: as sealed, compacted, and with an index that a repair made."""
    storage, ids = MemoryStorage(), SeededIds(random.Random(8))
    log = JobLog.claim(storage, "job", ids.new_id())
    made = sealed_stage(
        storage, ids, producers=PRODUCERS, partitions=PARTITIONS, rows=5, chars=12, job="job"
    )
    path = made.stage.path
    log.append(StageUse(ids.new_id(), 1, path.name, path.fingerprint, path.incarnation))
    if request.param == "compacted":
        assert compact_stage(made.stage, ids=ids, generation=1, settings=Settings()).won
    if request.param == "repaired":
        state = read_state(made.stage)
        assert state.seal is not None
        commits = sealed_commits(made.stage, state.seal, Settings())
        replace_commits(
            made.stage, state, commits, {}, generation=1, record_id=ids.new_id(), cause="test"
        )
    return made


@pytest.fixture(autouse=True)
def _one_process_each() -> Iterator[None]:
    """Views of other tests are not this one's."""
    forget_views()
    yield
    forget_views()


def found_stage(storage: Storage) -> StageHandle:
    """Look the stage up, as a driver does."""
    (path,) = read_job(storage, "job").stages.values()
    return open_stage(storage, path)


def by_partition(storage: Storage) -> list[list[int]]:
    stage = found_stage(storage)
    sealed = require_seal(stage)
    return [[row["n"] for row in read_rows(stage, sealed, k)] for k in range(PARTITIONS)]


def by_group(storage: Storage) -> list[list[int]]:
    stage = found_stage(storage)
    batches = read_group(stage, require_seal(stage), 0, PARTITIONS, Settings())
    numbers = sorted(n for batch in batches for n in batch.column(0).to_pylist())
    return [[n for n in numbers if n % PARTITIONS == k] for k in range(PARTITIONS)]


def by_view(storage: Storage) -> list[list[int]]:
    forget_views()
    stage, ids = found_stage(storage), SeededIds(random.Random(9))
    settings = Settings(view_prefetch=False)
    found = []
    for k in range(PARTITIONS):
        view = open_view(stage, k, consumer="c", settings=settings, ids=ids, wait_seconds=0)
        found.append([row["n"] for row in view.records()])
    return found


READERS: tuple[Callable[[Storage], list[list[int]]], ...] = (by_partition, by_group, by_view)


def copy_of(content: dict[str, bytes]) -> MemoryStorage:
    storage = MemoryStorage()
    for key, data in content.items():
        storage.put_if_absent(key, data)
    return storage


class OnDisk:
    """A folder that holds objects; a call changes one of them and takes the change before back."""

    def __init__(self, root: Path, content: dict[str, bytes]) -> None:
        self._root, self._content, self._changed = root, content, ""
        for key, data in content.items():
            path = root / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def __call__(self, content: dict[str, bytes]) -> Storage:
        shutil.rmtree(self._root / "job" / "consumers", ignore_errors=True)
        if self._changed:
            (self._root / self._changed).write_bytes(self._content[self._changed])
        self._changed = ""
        for key, data in content.items():
            if data is not self._content[key] and data != self._content[key]:
                (self._root / key).write_bytes(data)
                self._changed = key
        return LocalStorage(self._root)


def try_flips(
    made: SealedStage,
    places: list[tuple[str, int]],
    draw: random.Random,
    copy_of: Callable[[dict[str, bytes]], Storage] = copy_of,
) -> None:
    """Flip a bit of each place; say how many there were and how they ended."""
    storage = made.stage.storage
    content = {info.key: storage.read(info.key) for info in storage.list("")}
    right = [made.of(k) for k in range(PARTITIONS)]
    ends: Counter[str] = Counter()
    for reader in READERS:
        assert reader(copy_of(content)) == right
    for key, at in places:
        data = bytearray(content[key])
        data[at] ^= 1 << draw.randrange(8)
        for reader in READERS:
            damaged = copy_of({**content, key: bytes(data)})
            try:
                found = reader(damaged)
            except RIGHT_ERRORS as error:
                ends[type(error).__name__] += 1
            except DurableShuffleError as error:
                pytest.fail(f"{key} byte {at}: {reader.__name__}: {error!r}")
            else:
                assert found == right, (key, at, reader.__name__)
                ends["right rows"] += 1
    print(f"{len(places)} flips, {dict(ends)}")
    assert ends["CorruptDataError"] > len(places) / 4


def places_of(made: SealedStage) -> list[tuple[str, int]]:
    storage = made.stage.storage
    sizes = {info.key: info.size_bytes for info in storage.list("")}
    return [(key, at) for key, size in sizes.items() for at in range(size)]


@pytest.mark.sampled(1)
@pytest.mark.requirement("R-F135-22")
def test_a_sample_of_bytes(made: SealedStage, seed: int) -> None:
    """Seeded, of every run; some of every object."""
    draw = random.Random(seed)
    places = places_of(made)
    of_each = {key: (key, at) for key, at in draw.sample(places, len(places))}
    try_flips(made, [*of_each.values(), *draw.sample(places, 50)], draw)


def test_a_short_answer_is_noticed(made: SealedStage) -> None:
    """A careless backend drops the last byte of one answer, of each in turn."""
    inner = made.stage.storage
    content = {info.key: inner.read(info.key) for info in inner.list("")}
    right = [made.of(k) for k in range(PARTITIONS)]
    noticed = 0
    for reader in READERS:
        clean = FaultyStorage(copy_of(content))
        assert reader(clean) == right
        verbs = Counter(verb for verb, _ in clean.calls if verb in SHORT)
        for verb, count in verbs.items():
            for nth in range(1, count + 1):
                rule = Rule(verb, when="after", nth=nth, fault="short_read")
                faulty = FaultyStorage(copy_of(content), [rule])
                try:
                    assert reader(faulty) == right, (reader, verb, nth)
                except RIGHT_ERRORS:
                    noticed += 1
                # a read of an absent slot has no last byte to lose
                assert faulty.fired == 1 or verb == "read"
    assert noticed > 15  # where a small index comes short, the reader asks again and rows are right


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_byte(made: SealedStage, seed: int, tmp_path: Path) -> None:
    """One bit of each byte, in files."""
    storage = made.stage.storage
    on_disk = OnDisk(tmp_path, {info.key: storage.read(info.key) for info in storage.list("")})
    try_flips(made, places_of(made), random.Random(seed), on_disk)
