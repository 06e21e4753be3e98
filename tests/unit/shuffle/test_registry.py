"""Registering consumers and releasing what they consumed, in every order, on the real logs.

The oracle is the stored records, read without this library's codecs, and which objects are there.
"""

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from littered_job import PARTITIONS, StoredConsumer
from small_stage import SeededIds, records_below
from stored_job import stored_stage

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    FencedError,
    InvalidInputError,
    NotFoundError,
)
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.stage import StageHandle, require_seal
from durable_shuffle.shuffle.release.retention import Keep, progress_in, register_consumers
from durable_shuffle.shuffle.release.stages import (
    Freed,
    decide_release,
    finish_release,
    release_consumed,
    release_stage,
    release_stage_of,
)
from durable_shuffle.shuffle.release.unused import (
    KeepUsed,
    Unused,
    _used_since,
    free_stages,
    release_unused,
)
from durable_shuffle.shuffle.storage.contract import Created, Exists
from durable_shuffle.shuffle.storage.memory import MemoryStorage


@pytest.fixture
def log(storage: MemoryStorage, ids: SeededIds) -> JobLog:
    """A claimed job."""
    return JobLog.claim(storage, "job", ids.new_id())


@pytest.fixture
def stage(log: JobLog, storage: MemoryStorage, ids: SeededIds) -> StageHandle:
    """A sealed stage of three subpartitions."""
    return stored_stage(
        log, storage, job="job", rows=(30, 0, 20), partitions=PARTITIONS, used_partitions=3, ids=ids
    )


def declared(stage: StageHandle) -> list[tuple[list[str], bool]]:
    """REGISTER records as stored."""
    return [
        (fields["consumers"], fields["closed"])
        for _, kind, fields in records_below(stage.storage, stage.path.log_prefix)
        if kind == "REGISTER"
    ]


def causes(stage: StageHandle) -> list[str]:
    """Causes of RELEASE records as stored."""
    return [
        fields["cause"]
        for _, kind, fields in records_below(stage.storage, stage.path.log_prefix)
        if kind == "RELEASE"
    ]


def data(stage: StageHandle) -> set[str]:
    """Segments and index objects."""
    prefixes = (stage.path.segments_prefix, stage.path.index_prefix)
    return {i.key for prefix in prefixes for i in stage.storage.list(prefix)}


def finish(stage: StageHandle, name: str, k: int, ids: SeededIds) -> None:
    """Have one consumer read one subpartition to its end."""
    consumer = StoredConsumer(stage.storage, stage, k, name, ids)
    consumer.open()
    assert consumer.ack({0: 10, 2: 6}, finish=True)


@pytest.mark.requirement("R-F135-24")
def test_registering_twice_is_one_record(stage: StageHandle, ids: SeededIds) -> None:
    """The same set again changes nothing; another one is refused and changes nothing."""
    for _ in range(3):
        assert register_consumers(stage, ["b", "a"], ids=ids, generation=1) == ("a", "b")
    with pytest.raises(InvalidInputError, match="declared and closed"):
        register_consumers(stage, ["c"], ids=ids, generation=2)
    assert declared(stage) == [(["a", "b"], True)]


def test_open_set_grows_until_it_is_closed(stage: StageHandle, ids: SeededIds) -> None:
    """Each record holds all names, so that the newest is enough."""
    for name in ("b", "a", "b"):
        register_consumers(stage, [name], ids=ids, generation=1, closed=False)
    register_consumers(stage, ["a", "b"], ids=ids, generation=1)
    assert declared(stage) == [(["b"], False), (["a", "b"], False), (["a", "b"], True)]


@pytest.mark.requirement("R-F135-2")
def test_stage_goes_when_the_last_consumer_finished_the_last_subpartition(
    log: JobLog, stage: StageHandle, storage: MemoryStorage, ids: SeededIds
) -> None:
    """Not before, whoever asks; then once, and the cause names them."""
    before = data(stage)
    register_consumers(stage, ["a", "b"], ids=ids, generation=1)
    todo = list(itertools.product("ab", range(PARTITIONS)))
    ids.random.shuffle(todo)
    for name, k in todo:
        kept = release_consumed(log, storage, stage.path, ids)
        assert isinstance(kept, Keep)
        assert data(stage) == before
        finish(stage, name, k, ids)
    freed = release_consumed(log, storage, stage.path, ids)
    assert isinstance(freed, Freed)
    assert freed.objects == len(before)
    assert data(stage) == set()
    assert causes(stage) == ["consumed: a, b finished in every subpartition"]
    again = release_consumed(log, storage, stage.path, ids)
    assert again == Keep("it was released: consumed: a, b finished in every subpartition")
    assert len(causes(stage)) == 1


@pytest.mark.requirement("R-F135-2")
@pytest.mark.parametrize("declaration", ["none", "open"])
def test_consumers_that_nobody_declared_release_nothing(
    log: JobLog, stage: StageHandle, storage: MemoryStorage, ids: SeededIds, declaration: str
) -> None:
    """Finishing alone is no cause: others may still come."""
    if declaration == "open":
        register_consumers(stage, ["a"], ids=ids, generation=1, closed=False)
    for k in range(PARTITIONS):
        finish(stage, "a", k, ids)
    before = data(stage)
    assert isinstance(release_consumed(log, storage, stage.path, ids), Keep)
    assert data(stage) == before


@pytest.mark.requirement("R-F135-2")
def test_unsealed_stage_is_not_released_by_its_consumers(
    log: JobLog, storage: MemoryStorage, ids: SeededIds
) -> None:
    """Producers that are not done hold their stage, whatever consumers say."""
    stage = stored_stage(
        log, storage, job="job", rows=(30, 0, 20), partitions=3, used_partitions=3, seal=False
    )
    register_consumers(stage, ["a"], ids=ids, generation=1)
    for k in range(PARTITIONS):
        finish(stage, "a", k, ids)
    kept = release_consumed(log, storage, stage.path, ids)
    assert kept == Keep("its producers are not done")


def test_damaged_consumer_log_releases_nothing(
    log: JobLog, stage: StageHandle, storage: MemoryStorage, ids: SeededIds
) -> None:
    """What cannot be read is an error, not a guess."""
    register_consumers(stage, ["a"], ids=ids, generation=1)
    for k in range(PARTITIONS):
        finish(stage, "a", k, ids)
    key = f"{StoredConsumer(storage, stage, 1, 'a', ids).path.log_prefix}0000000001"
    content = bytearray(storage.read(key))
    content[-1] ^= 1
    storage.delete([key])
    storage.put(key, [bytes(content)])
    before = data(stage)
    with pytest.raises(CorruptDataError, match=key):
        release_consumed(log, storage, stage.path, ids)
    assert data(stage) == before


def test_progress_is_what_was_acknowledged(stage: StageHandle, ids: SeededIds) -> None:
    """Per consumer and subpartition; whoever has not begun is not there."""
    consumer = StoredConsumer(stage.storage, stage, 1, "a", ids)
    consumer.open()
    consumer.ack({0: 4})
    consumer.ack({2: 3})
    found = progress_in(stage, ["a", "b"])
    assert {
        key: {p: at.next_ordinal for p, at in one.acked.items()} for key, one in found.items()
    } == {("a", 1): {0: 4, 2: 3}}


def test_consumer_of_a_subpartition_that_is_not_there(stage: StageHandle, ids: SeededIds) -> None:
    """Such a cursor was made for something else: nothing is released by it."""
    StoredConsumer(stage.storage, stage, PARTITIONS, "a", ids).open()
    with pytest.raises(CorruptDataError, match=f"subpartition={PARTITIONS}"):
        progress_in(stage, ["a"])


class Raced(MemoryStorage):
    """Lets a rival go first, right before the first write to a stage log."""

    rival: Callable[[], Any] | None = None

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        if self.rival is not None and "/log/" in key and not key.startswith("job/log/"):
            rival, self.rival = self.rival, None
            rival()
        return super().put_if_absent(key, data)


def raced(ids: SeededIds) -> tuple[Raced, JobLog, StageHandle]:
    """A sealed stage on a storage where somebody can be faster."""
    storage = Raced()
    log = JobLog.claim(storage, "job", ids.new_id())
    stage = stored_stage(log, storage, job="job", rows=(30,), partitions=3, used_partitions=3)
    return storage, log, stage


@pytest.mark.requirement("R-F135-2")
def test_register_that_meets_a_release_is_refused(ids: SeededIds) -> None:
    """RELEASE won the slot first: nobody registers behind it, and the message says why."""
    storage, log, stage = raced(ids)
    storage.rival = lambda: release_stage_of(log, storage, stage.path, ids)
    with pytest.raises(NotFoundError, match=r"was released.*released by generation 1"):
        register_consumers(stage, ["late"], ids=ids, generation=1)
    assert storage.rival is None
    assert declared(stage) == []
    with pytest.raises(NotFoundError, match="was released"):
        register_consumers(stage, ["later"], ids=ids, generation=1)


def test_release_that_meets_a_register_goes_behind_it(ids: SeededIds) -> None:
    """REGISTER won first: a release by the user still goes, and who registered is told."""
    storage, log, stage = raced(ids)
    storage.rival = lambda: register_consumers(stage, ["a"], ids=ids, generation=1)
    release_stage_of(log, storage, stage.path, ids)
    kinds = [kind for _, kind, _ in records_below(storage, stage.path.log_prefix)]
    assert kinds == ["DESCRIBE", "SEAL", "REGISTER", "RELEASE", "CLOSED"]
    with pytest.raises(NotFoundError, match="was released"):
        require_seal(stage)


def test_two_registers_at_once_add_up(ids: SeededIds) -> None:
    """The loser reads the winner's names and writes both."""
    storage, _, stage = raced(ids)
    storage.rival = lambda: register_consumers(stage, ["b"], ids=ids, generation=1, closed=False)
    assert register_consumers(stage, ["a"], ids=ids, generation=1, closed=False) == ("a", "b")
    assert declared(stage) == [(["b"], False), (["a", "b"], False)]


def test_register_that_meets_another_closed_set_is_refused(ids: SeededIds) -> None:
    """The first declaration stands."""
    storage, _, stage = raced(ids)
    storage.rival = lambda: register_consumers(stage, ["b"], ids=ids, generation=1)
    with pytest.raises(InvalidInputError, match=r"declared=b found=a"):
        register_consumers(stage, ["a"], ids=ids, generation=1)
    assert declared(stage) == [(["b"], True)]


@pytest.mark.requirement("R-F135-2")
def test_release_again_and_late_changes_nothing(
    log: JobLog, stage: StageHandle, storage: MemoryStorage, ids: SeededIds
) -> None:
    """The second of the same release, and one by a driver that was superseded."""
    release_stage_of(log, storage, stage.path, ids)
    before = {i.key: storage.read(i.key) for i in storage.list("")}
    assert release_stage_of(log, storage, stage.path, ids) == Freed(0, 0)
    assert release_stage(stage, ids, generation=1, producers=3, cause="again") == Freed(0, 0)
    assert {i.key: storage.read(i.key) for i in storage.list("")} == before
    other = stored_stage(log, storage, job="job", name="other", rows=(9,))
    JobLog.claim(storage, "job", ids.new_id())
    with pytest.raises(FencedError):
        release_stage_of(log, storage, other.path, ids)
    assert data(other)
    assert require_seal(other)


def test_a_release_that_is_decided_refuses_consumers(
    log: JobLog, storage: MemoryStorage, stage: StageHandle, ids: SeededIds
) -> None:
    """RELEASED stands in the job's log and RELEASE not yet in the stage's: a consumer is not told
    that the stage is kept."""
    assert decide_release(log, storage, stage.path, ids, "released by generation 1")
    with pytest.raises(NotFoundError, match="released"):
        register_consumers(stage, ["late"], ids=ids, generation=1)
    finish_release(log, storage, stage.path, ids)
    assert not data(stage)


def test_a_consumer_that_registers_stops_who_found_the_stage_unused(
    log: JobLog, storage: MemoryStorage, ids: SeededIds
) -> None:
    """Whatever the consumer's clock says, and also right behind the look at the consumers."""
    stage = stored_stage(log, storage, job="job", rows=(30, 20), ids=ids, lasts="while_used")
    found = [Unused(stage.path, log.state.live[stage.path], "not used")]
    assert free_stages(storage, found, []) == found
    register_consumers(stage, ["late"], ids=ids, generation=1)
    keep = KeepUsed(runs=0, unused_for=timedelta(0), newest=False)
    assert not release_unused(log, storage, keep, ids, 1e9, [])
    unless = _used_since(found[0])
    assert not decide_release(log, storage, stage.path, ids, "unused", unless=unless)
    assert require_seal(stage)
