"""A driver may die before or after any storage call of its decisions: seal, claim, use, release.

The oracle is the records on storage, read without the library's codecs, and a dictionary of rows.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from small_stage import (
    SeededIds,
    model_of,
    new_stage,
    partition_of,
    read_rows,
    records_below,
    seal,
    write,
)

from durable_shuffle.serialization.errors import FencedError, NotFoundError, NotReadyError
from durable_shuffle.shuffle.log.job_log import JobLog, read_job
from durable_shuffle.shuffle.log.records import StageUse
from durable_shuffle.shuffle.log.stage import StageHandle, require_seal
from durable_shuffle.shuffle.release.stages import release_stage
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.write.segments import IdBatch

PRODUCERS, PARTITIONS = 3, 5
FIRST, SECOND = "a" * 32, "b" * 32

Make = Callable[..., list[IdBatch]]
CrashPoints = Callable[..., Iterator[tuple[Any, Any]]]


def copy_into(source: Storage) -> Callable[[Storage], None]:
    """Return what puts all objects of `source` into another storage."""
    objects = {info.key: source.read(info.key) for info in source.list("")}

    def prepare(storage: Storage) -> None:
        for key, content in objects.items():
            storage.put_if_absent(key, content)

    return prepare


@pytest.fixture
def stage(ids: SeededIds, make_batches: Make) -> StageHandle:
    """A stage whose three producers have committed."""
    schema = make_batches(0)[0][0].schema
    stage = new_stage(MemoryStorage(), ids, schema, partitions=PARTITIONS)
    for p in range(PRODUCERS):
        write(stage, p, make_batches(p), ids.new_id(), producers=PRODUCERS)
    return stage


def on(stage: StageHandle, storage: Storage) -> StageHandle:
    """The same stage through another storage."""
    return StageHandle(storage, stage.path, stage.describe)


def kinds(storage: Storage, prefix: str) -> list[str]:
    """Return the kinds of the records below a prefix, in slot order."""
    return [kind for _, kind, _ in records_below(storage, prefix)]


def assert_reads_right(stage: StageHandle, make_batches: Make) -> None:
    """Every partition equals the dictionary."""
    model = model_of([make_batches(p) for p in range(PRODUCERS)])
    sealed = require_seal(stage)
    for k in range(PARTITIONS):
        assert read_rows(stage, sealed, k) == partition_of(model, k, PRODUCERS)


@pytest.mark.requirement("R-F135-24")
def test_driver_dies_at_every_call_of_the_seal(
    stage: StageHandle, ids: SeededIds, make_batches: Make, crash_points: CrashPoints
) -> None:
    """The stage is sealed by the SEAL alone; the next driver seals it once, not twice."""
    path, count = stage.path, 0
    for point, calls in crash_points(
        copy_into(stage.storage),
        lambda storage, below: seal(on(stage, storage), PRODUCERS, FIRST),
    ):
        count += 1
        stored = on(stage, point.storage)
        sealed = point.reached("put_if_absent", path.log_prefix, calls)
        assert kinds(stored.storage, path.log_prefix) == ["DESCRIBE", "SEAL"][: 1 + sealed]
        if not sealed:
            with pytest.raises(NotReadyError):
                require_seal(stored)
        again = seal(stored, PRODUCERS, SECOND)
        assert again.record_id == (FIRST if sealed else SECOND)
        assert kinds(stored.storage, path.log_prefix) == ["DESCRIBE", "SEAL"]
        assert_reads_right(stored, make_batches)
    print(f"{count} crash points")
    assert count >= 14  # one look at each of 3 producers and its end, the log, index, SEAL


def test_driver_dies_at_every_call_of_a_claim(crash_points: CrashPoints) -> None:
    """A claim counts once it stands; the next driver always gets a higher generation."""
    older = MemoryStorage()
    JobLog.claim(older, "job", "0" * 32)
    count = 0
    for point, calls in crash_points(
        copy_into(older), lambda storage, below: JobLog.claim(storage, "job", FIRST)
    ):
        count += 1
        storage = point.storage
        claimed = point.reached("put_if_absent", "job/log/", calls)
        assert read_job(storage, "job").owner == (FIRST if claimed else "0" * 32)
        log = JobLog.claim(storage, "job", SECOND)
        assert log.generation == 2 + claimed
        claims = [f for _, kind, f in records_below(storage, "job/log/") if kind == "CLAIM"]
        assert [c["generation"] for c in claims] == list(range(1, 3 + claimed))
        assert claims[-1]["record_id"] == SECOND
    print(f"{count} crash points")
    assert count >= 6  # slot 0, its end, the CLAIM


def test_driver_dies_at_every_call_of_a_stage_use(crash_points: CrashPoints) -> None:
    """The stage is known to the next driver exactly if its record stands."""
    use = StageUse("e" * 32, 1, "stage", "f" * 32, "9" * 32)
    count = 0

    def run(storage: Storage, below: Storage) -> None:
        JobLog.claim(storage, "job", FIRST).append(use)

    for point, _ in crash_points(lambda storage: None, run):
        count += 1
        storage = point.storage
        stands = "STAGE" in kinds(storage, "job/log/")
        known = JobLog.claim(storage, "job", SECOND).state.order
        assert [p.incarnation for p in known] == (["9" * 32] if stands else [])
        assert kinds(storage, "job/log/")[-1] == "CLAIM"
        assert len(list(storage.list("job/log/"))) == read_job(storage, "job").next_slot
    print(f"{count} crash points")
    assert count >= 6  # the empty log, the CLAIM, the STAGE


@pytest.mark.requirement("R-F135-3")
def test_driver_dies_at_every_call_of_a_release(
    stage: StageHandle, ids: SeededIds, make_batches: Make, crash_points: CrashPoints
) -> None:
    """Before RELEASE stands all reads right; after it a repeated release leaves only logs."""
    seal(stage, PRODUCERS, FIRST)
    path, count = stage.path, 0

    def release(storage: Storage) -> None:
        own = SeededIds(random.Random(7))
        release_stage(on(stage, storage), own, generation=1, producers=PRODUCERS, cause="test")

    for point, calls in crash_points(
        copy_into(stage.storage), lambda storage, below: release(storage)
    ):
        count += 1
        stored = on(stage, point.storage)
        if point.reached("put_if_absent", path.log_prefix, calls):
            with pytest.raises(NotFoundError, match=r"released.*cause=test"):
                require_seal(stored)
        else:
            assert_reads_right(stored, make_batches)
        release(stored.storage)
        log = ["DESCRIBE", "SEAL", "RELEASE", "CLOSED"]
        assert kinds(stored.storage, path.log_prefix) == log
        for p in range(PRODUCERS):
            prefix = path.producer_log_prefix(p)
            assert kinds(stored.storage, prefix) == ["COMMIT", "CLOSED"]
        for prefix in (path.segments_prefix, path.index_prefix):
            assert list(stored.storage.list(prefix)) == []
    print(f"{count} crash points")
    assert count >= 30


def test_late_producer_of_a_released_stage_meets_closed(ids: SeededIds, make_batches: Make) -> None:
    """A producer that commits after the release is fenced and takes its segments with it."""
    stage = new_stage(MemoryStorage(), ids, make_batches(0)[0][0].schema, partitions=PARTITIONS)

    def batches() -> Iterator[IdBatch]:
        yield from make_batches(1)
        release_stage(stage, ids, generation=1, producers=1, cause="the job is over")

    with pytest.raises(FencedError, match="the job is over"):
        write(stage, 0, batches(), FIRST)
    assert list(stage.storage.list(stage.path.segments_prefix)) == []
    assert kinds(stage.storage, stage.path.producer_log_prefix(0)) == ["CLOSED"]


@pytest.mark.requirement("R-F135-24")
@pytest.mark.parametrize("rival", ["seals", "releases"])
def test_driver_that_loses_the_seal_takes_its_index_with_it(
    stage: StageHandle, ids: SeededIds, make_batches: Make, rival: str
) -> None:
    """A rival that seals or releases between the look and the SEAL wins; no index is left over."""

    class Raced(MemoryStorage):
        """Lets the rival go first, right after our index object was written."""

        def put(self, key: str, parts: object) -> None:
            super().put(key, parts)
            if key == stage.path.index_key(FIRST):
                if rival == "seals":
                    seal(on(stage, self), PRODUCERS, SECOND)
                else:
                    release_stage(
                        on(stage, self), ids, generation=2, producers=PRODUCERS, cause="rival"
                    )
                    super().put(key, parts)  # as if it landed after the release

    storage = Raced()
    copy_into(stage.storage)(storage)
    if rival == "seals":
        assert seal(on(stage, storage), PRODUCERS, FIRST).record_id == SECOND
        assert_reads_right(on(stage, storage), make_batches)
        left = [SECOND]
    else:
        with pytest.raises(NotFoundError, match="cause=rival"):
            seal(on(stage, storage), PRODUCERS, FIRST)
        left = []
    found = [i.key.rsplit("/", 1)[1] for i in storage.list(stage.path.index_prefix)]
    assert found == left


@pytest.mark.requirement("R-F135-24")
def test_sealing_after_the_release_is_refused(stage: StageHandle, ids: SeededIds) -> None:
    """No SEAL and no index object comes after a RELEASE."""
    release_stage(stage, ids, generation=1, producers=PRODUCERS, cause="test")
    with pytest.raises(NotReadyError):  # released producers' logs still show their COMMITs
        seal(stage, PRODUCERS + 1, FIRST)
    with pytest.raises(NotFoundError, match="released"):
        seal(stage, PRODUCERS, FIRST)
    assert kinds(stage.storage, stage.path.log_prefix) == ["DESCRIBE", "RELEASE", "CLOSED"]
    assert list(stage.storage.list(stage.path.index_prefix)) == []
