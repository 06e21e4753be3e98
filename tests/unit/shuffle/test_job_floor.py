"""The purge of a job log's slots: who stands still meanwhile learns it, readers read the rest."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pytest
from small_stage import SeededIds
from stored_job import stored_stage

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    FencedError,
    NotFoundError,
)
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_floor import lower_floor, newest_floor, put_floor
from durable_shuffle.shuffle.log.job_log import JobLog, begin_stage, read_job
from durable_shuffle.shuffle.log.job_state import JobState
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.named_stage import stage_named
from durable_shuffle.shuffle.log.records import StageUse
from durable_shuffle.shuffle.log.stage import require_seal
from durable_shuffle.shuffle.release.purge import purge_slots
from durable_shuffle.shuffle.repair.job_log import repair_job_log
from durable_shuffle.shuffle.storage.contract import ObjectInfo, StorageLayer
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.verify.job import JobCopy, verify_job

T = TypeVar("T")
DAY = 86_400.0
NOW = 1000 * DAY
WEEK = {"horizon_seconds": 7 * DAY}


class Unlisted(StorageLayer):
    """Lists nothing: a listing proves nothing."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(())


def use(log: JobLog, ids: SeededIds, path: StagePath) -> bool:
    names = path.name, path.fingerprint, path.incarnation
    return log.append(StageUse(ids.new_id(), log.generation, *names))


def nights(storage: MemoryStorage, ids: SeededIds, first: int, last: int) -> JobLog:
    """Runs of the nights [first, last) that use one stage some times; return the last claim."""
    for night in range(first, last):
        log = JobLog.claim(storage, "job", ids.new_id(), wall_seconds=NOW + night * DAY)
        if not log.state.live:
            stored_stage(log, storage, job="job", fingerprint="a" * 32, rows=(20, 10), ids=ids)
        for _ in range(5):
            use(log, ids, log.state.order[0])
    return log


def sees_end(log: JobLog, *_: object) -> None:
    log.look()
    log.confirm(end=True)


def slots(storage: MemoryStorage) -> list[int]:
    return sorted(int(info.key.rpartition("/")[2]) for info in storage.list("job/log/"))


def purged(storage: MemoryStorage, ids: SeededIds, night: int = 20) -> JobLog:
    """A job of 20 nights whose slots went but for the last week; return the last claim."""
    log = nights(storage, ids, 0, night)
    assert purge_slots(log, storage, ids, now=NOW + (night - 1) * DAY, **WEEK) > 50
    return log


def test_slots_go_below_a_run_of_a_week_ago(storage: MemoryStorage, ids: SeededIds) -> None:
    """What they add up to stays; the log begins with the CLAIM of that run; once is enough."""
    log = nights(storage, ids, 0, 20)
    before = read_job(storage, "job")
    how = {"now": NOW + 19 * DAY, **WEEK}
    gone = purge_slots(log, storage, ids, **how)
    floor = newest_floor(storage, "job")
    assert floor is not None
    assert floor.next_slot == gone == slots(storage)[0]
    assert (floor.runs, len(slots(storage))) == (12, before.next_slot - gone)
    assert read_job(storage, "job") == read_job(Unlisted(storage), "job") == before == log.state
    assert purge_slots(log, storage, ids, **how) == 0
    assert verify_job(storage, "job", Settings()).ok
    assert JobCopy(storage, "job").paths == list(before.order)
    assert require_seal(stage_named(storage, "job", "stage")).rows == 30


def test_a_driver_that_stood_still_is_fenced(storage: MemoryStorage, ids: SeededIds) -> None:
    """Its next slot reads as empty, and a create there wins: it finds out before it goes on."""
    asks = {"append": use, "check": lambda log, *_: log.check_owner(), "look": sees_end}
    for ask in (*asks, "end"):
        old = nights(storage, ids, 0, 1)
        path, slot = old.state.order[0], old.state.next_slot
        purged(storage, ids)
        assert slot not in slots(storage)
        if ask == "end":
            old.end()
            assert not read_job(storage, "job").ended
        else:
            with pytest.raises(FencedError, match="generation"):
                asks[ask](old, ids, path)
        # what it won is litter: nobody reads it, and the next purge takes it
        state = read_job(storage, "job")
        assert state == read_job(Unlisted(storage), "job")
        assert verify_job(storage, "job", Settings()).ok
        log = nights(storage, ids, 20, 21)
        purge_slots(log, storage, ids, now=NOW + 20 * DAY, **WEEK)
        assert slot not in slots(storage)
        for info in list(storage.list("")):
            storage.delete([info.key])


@pytest.mark.parametrize("ask", ["confirm", "check", "append", "end", "look"])
@pytest.mark.parametrize(("wins", "more"), [(1, 0), (2, 0), (6, 0), (1, 2)])
def test_slots_that_were_won_behind_the_floor_do_not_count(
    storage: MemoryStorage, ids: SeededIds, ask: str, wins: int, more: int
) -> None:
    """A driver stands still, wins slots that are gone up to the floor, then perhaps some that are
    the log's end, and asks about all of them at once."""
    old = nights(storage, ids, 0, 1)
    path, begin = old.state.order[0], old.state.next_slot
    new = JobLog.claim(storage, "job", ids.new_id(), wall_seconds=NOW)
    while new.state.next_slot < begin + wins:
        use(new, ids, path)
    assert put_floor(storage, new.state, ids.new_id())
    storage.delete([f"job/log/{slot:010d}" for slot in range(new.state.next_slot)])
    for _ in range(wins + more):
        names = path.name, path.fingerprint, path.incarnation
        assert old.append(StageUse(ids.new_id(), old.generation, *names), sure=False)
    if ask == "end":
        old.end()
    else:
        asked = {"confirm": old.confirm, "check": old.check_owner, "look": partial(sees_end, old)}
        with pytest.raises(FencedError):
            asked.get(ask, lambda: use(old, ids, path))()
    found = read_job(storage, "job")
    assert found.next_slot == new.state.next_slot + more
    told = replace(found, next_slot=new.state.next_slot)
    assert told == new.state, "what it wrote counts where the new driver goes on"


def test_litter_deceives_nobody(storage: MemoryStorage, ids: SeededIds) -> None:
    """A late create of a dead driver fills the slot at which another one stood still."""
    old = nights(storage, ids, 0, 1)
    path, slot = old.state.order[0], old.state.next_slot
    log = purged(storage, ids)
    late = JobLog(old._log, old.state, old.state.owner)  # type: ignore[attr-defined]
    with pytest.raises(FencedError):
        use(late, ids, path)
    assert slot in slots(storage)
    for ask in (lambda: use(old, ids, path), old.check_owner):
        with pytest.raises(FencedError):
            ask()
    assert use(log, ids, path)


def test_a_driver_without_a_listing_claims_behind_the_others(
    storage: MemoryStorage, ids: SeededIds
) -> None:
    """Slot 0 reads as empty, and it wins it; still it gets the next generation, and writers that
    claim nothing see that the job is claimed."""
    log = purged(storage, ids)
    generation = log.generation
    blind = Unlisted(storage)
    path = StagePath("job", "new", "b" * 32, "c" * 32)
    begin_stage(blind, path, record_id=ids.new_id(), claim_id=ids.new_id())
    claimed = JobLog.claim(blind, "job", ids.new_id())
    assert claimed.generation == generation + 1
    assert claimed.state.begun == (path,)
    with pytest.raises(FencedError):
        log.check_owner()
    assert read_job(storage, "job") == claimed.state


@pytest.mark.sampled(4)
@pytest.mark.parametrize("deleted", range(0, 90, 7))
def test_a_purge_that_died_is_done_again(
    storage: MemoryStorage, ids: SeededIds, deleted: int
) -> None:
    """Whatever it deleted, readers and verify find nothing wrong."""
    log = nights(storage, ids, 0, 20)
    before = read_job(storage, "job")

    class Dies(StorageLayer):
        """Deletes some of the slots, and dies."""

        def delete(self, keys: Sequence[str]) -> None:
            if "/floors/" in keys[0]:
                storage.delete(keys)
                return
            storage.delete(keys[::-1][:deleted])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        purge_slots(log, Dies(storage), ids, now=NOW + 19 * DAY, **WEEK)
    assert read_job(storage, "job") == read_job(Unlisted(storage), "job") == before
    assert verify_job(storage, "job", Settings()).ok
    purge_slots(log, storage, ids, now=NOW + 19 * DAY, **WEEK)
    floor = newest_floor(storage, "job")
    assert floor is not None
    assert slots(storage) == list(range(floor.next_slot, before.next_slot))


def test_a_fenced_driver_purges_nothing(storage: MemoryStorage, ids: SeededIds) -> None:
    """It learns it before the floor rises."""
    log = nights(storage, ids, 0, 20)
    JobLog.claim(storage, "job", ids.new_id())
    before = slots(storage)
    with pytest.raises(FencedError):
        purge_slots(log, storage, ids, now=NOW + 19 * DAY, **WEEK)
    assert (slots(storage), newest_floor(storage, "job")) == (before, None)


def test_floors_only_rise(storage: MemoryStorage, ids: SeededIds) -> None:
    """One is replaced after the other; what is not higher is not put."""

    def at(slot: int) -> JobState:
        return JobState("job", slot)

    for slot in (10, 20, 30, 40):
        assert put_floor(storage, at(slot), ids.new_id())
        assert newest_floor(storage, "job") == at(slot)
        assert not put_floor(storage, at(slot - 1), ids.new_id())
        assert lower_floor(storage, "job") == slot


class Replaced(StorageLayer):
    """Floor 0 is being replaced when it is read, and floor 1 when it is read after that."""

    def __init__(self, storage: MemoryStorage, replace: Callable[[], None]) -> None:
        super().__init__(storage)
        self.reads: list[str] = []
        self._replace, self._first = replace, threading.Event()

    def read(self, key: str, *more: int) -> bytes:
        name = key[-1]
        self.reads.append(name)
        if name == "0" and not self._first.is_set():
            self._first.set()
            raise NotFoundError("deleted, and not yet put again")
        if name == "1" and self.reads.count("1") == 1:
            assert self._first.wait(60)
            self._replace()
            raise NotFoundError("deleted, since the other one stands again")
        return super().read(key, *more)


def test_floors_that_are_replaced_while_they_are_read(
    storage: MemoryStorage, ids: SeededIds
) -> None:
    """Whoever sees neither, but the mark, looks again; a job without a mark does not ask again,
    since it never had a floor."""
    state = JobState("job", 10)
    never = Replaced(storage, lambda: None)
    assert newest_floor(never, "job") is None
    assert sorted(never.reads) == ["0", "1", "2"]
    assert put_floor(storage, state, ids.new_id())
    higher = JobState("job", 20)
    put: list[bool] = []
    seen = Replaced(storage, lambda: put.append(put_floor(storage, higher, ids.new_id())))
    assert newest_floor(seen, "job") == higher
    assert sorted(seen.reads) == ["0", "0", "1", "1", "2"]
    assert put == [True]


def test_a_floor_that_is_missing_is_put_before_the_other_is_replaced(
    storage: MemoryStorage, ids: SeededIds
) -> None:
    """So one always stands. A driver may die behind each request."""
    assert put_floor(storage, JobState("job", 10), ids.new_id())
    storage.delete(["job/floors/0000000001"])  # by the DELETE of a driver that died
    standing: list[list[str]] = []

    class Watched(StorageLayer):
        def _call(self, verb: str, keys: tuple[str, ...], request: Callable[[], T]) -> T:
            answer = request()
            standing.append([info.key[-1] for info in storage.list("job/floors/")])
            return answer

    assert put_floor(Watched(storage), JobState("job", 20), ids.new_id())
    assert lower_floor(storage, "job") == 20
    assert all(set(keys) & {"0", "1"} and "2" in keys for keys in standing)


def test_floors_that_are_lost_are_no_new_job(storage: MemoryStorage, ids: SeededIds) -> None:
    """The mark says that there were some. Nobody claims such a job."""
    purged(storage, ids)
    storage.delete([f"job/floors/000000000{name}" for name in (0, 1)])
    for refused in (
        lambda: read_job(storage, "job"),
        lambda: JobLog.claim(Unlisted(storage), "job", "c"),
    ):
        with pytest.raises(CorruptDataError, match="both floors of the job log are missing"):
            refused()


@pytest.mark.parametrize("snapshots", ["kept", "gone"])
def test_a_damaged_floor_is_made_anew(
    storage: MemoryStorage, ids: SeededIds, snapshots: str
) -> None:
    """Nobody goes on past it, verify names it, and a repair makes it of the other floor or of a
    snapshot."""
    purged(storage, ids)
    nights(storage, ids, 20, 28)
    log = nights(storage, ids, 28, 36)
    purge_slots(log, storage, ids, now=NOW + 35 * DAY, **WEEK)
    state = read_job(storage, "job")
    (name,) = [k.key for k in storage.list("job/floors/") if k.key.endswith("1")]
    good = storage.read(name)
    storage.delete([name])
    storage.put(name, [good[:-1]])
    if snapshots == "gone":
        storage.delete([info.key for info in storage.list("job/snapshots/")])
    for refused in (lambda: read_job(storage, "job"), lambda: JobLog.claim(storage, "job", "c")):
        with pytest.raises(CorruptDataError, match=name):
            refused()
    report = verify_job(storage, "job", Settings())
    assert name in {finding.key for finding in report.findings}
    mended = repair_job_log(storage, "job", ids)
    assert mended.why == ""
    assert verify_job(storage, "job", Settings()).ok
    assert read_job(storage, "job") == state
    log.check_owner()


def test_a_job_that_lost_all_is_not_a_new_one(storage: MemoryStorage, ids: SeededIds) -> None:
    """Without a slot, a snapshot or a floor there is no such job."""
    with pytest.raises(NotFoundError):
        JobCopy(storage, "job")


class Meets(StorageLayer):
    """Lets something happen right before the next delete of a floor, and may die behind it."""

    def __init__(self, storage: MemoryStorage, meet: Callable[[], object], *, dies: bool) -> None:
        super().__init__(storage)
        self.meet: Callable[[], object] | None = meet
        self.dies = dies

    def delete(self, keys: Sequence[str]) -> None:
        meet = self.meet
        if meet is None or not any("/floors/" in key for key in keys):
            self._storage.delete(keys)
            return
        self.meet = None
        meet()
        self._storage.delete(keys)
        if self.dies:
            raise KeyboardInterrupt


@pytest.mark.parametrize("dies", [False, True], ids=["stands still", "dies"])
def test_a_late_delete_of_a_floor_loses_no_slot(
    storage: MemoryStorage, ids: SeededIds, *, dies: bool
) -> None:
    """A newer driver has put its floors and deleted slots meanwhile: nobody is deceived, also
    without a listing, and the next purge raises both floors again."""
    purged(storage, ids)

    def newer() -> None:
        log = nights(storage, ids, 21, 40)
        assert purge_slots(log, storage, ids, now=NOW + 39 * DAY, **WEEK) > 50

    met = Meets(storage, newer, dies=dies)
    log = nights(storage, ids, 20, 21)
    log.move(met)
    with pytest.raises(KeyboardInterrupt) if dies else nullcontext():
        purge_slots(log, met, ids, now=NOW + 29 * DAY, **WEEK)
    assert met.meet is None
    assert read_job(storage, "job") == read_job(Unlisted(storage), "job")
    assert read_job(storage, "job").runs == 40
    assert verify_job(storage, "job", Settings()).ok
    log = nights(storage, ids, 40, 60)
    assert purge_slots(log, storage, ids, now=NOW + 59 * DAY, **WEEK) > 50
    assert lower_floor(storage, "job") == slots(storage)[0]
