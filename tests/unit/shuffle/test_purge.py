"""Purge of released stages: what goes when, what stays, and a year in which nothing grows."""

import json
from pathlib import Path

import pytest
from littered_job import StoredConsumer
from nights import DAY, NOW, Clock, figures_of
from small_stage import SeededIds
from stored_job import stored_stage

from durable_shuffle.serialization.errors import FencedError, NotFoundError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobLog, read_job
from durable_shuffle.shuffle.log.records import StageUse
from durable_shuffle.shuffle.log.stage import StageHandle, require_seal
from durable_shuffle.shuffle.release.gc_run import collect_garbage
from durable_shuffle.shuffle.release.purge import finish_releases, purge_released
from durable_shuffle.shuffle.release.stages import release_stage_of
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.storage.retrying import CountingStorage
from durable_shuffle.shuffle.verify.job import JobCopy, verify_job

WEEK = 7 * DAY


@pytest.fixture
def log(storage: MemoryStorage, ids: SeededIds) -> JobLog:
    return JobLog.claim(storage, "job", ids.new_id())


def stage(log: JobLog, storage: Storage, ids: SeededIds, fingerprint: int = 0) -> StageHandle:
    """A small sealed stage."""
    text = f"{fingerprint:032x}"
    return stored_stage(log, storage, job="job", fingerprint=text, rows=(20, 10), ids=ids)


def keys(storage: Storage, stage: StageHandle) -> list[str]:
    return [info.key for info in storage.list(stage.path.prefix)]


def test_logs_go_a_horizon_after_the_data(
    log: JobLog, storage: MemoryStorage, ids: SeededIds
) -> None:
    """Not before it is known that all data is gone, not a second earlier; then nothing is left,
    verify and gc find nothing, and the name is still known."""
    gone, live = stage(log, storage, ids, 1), stage(log, storage, ids, 2)
    release_stage_of(log, storage, gone.path, ids)
    how = {"now": NOW + 10 * WEEK, "horizon_seconds": WEEK}
    assert purge_released(log, storage, ids, **how) == ()
    finish_releases(log, storage, ids, now=NOW)
    how["now"] = NOW + WEEK - 1
    assert purge_released(log, storage, ids, **how) == ()
    assert keys(storage, gone)
    how["now"] = NOW + WEEK
    assert purge_released(log, storage, ids, **how) == (gone.path,)
    assert keys(storage, gone) == []
    state = read_job(storage, "job")
    assert (state.order, state.released, state.purged) == ((live.path,), (), {"stage"})
    assert state == log.state
    report = verify_job(storage, "job", Settings())
    assert report.ok, report
    assert [verdict.path for verdict in report.stages] == [live.path]
    assert JobCopy(storage, "job").purged == {gone.path}
    assert purge_released(log, storage, ids, **how) == ()
    assert require_seal(live).rows == 30


def test_a_completed_release_is_looked_at_once(
    log: JobLog, storage: MemoryStorage, ids: SeededIds
) -> None:
    """30 released stages cost two requests each, once, and then none."""
    for n in range(30):
        release_stage_of(log, storage, stage(log, storage, ids, n).path, ids)
    finish_releases(log, storage, ids, now=NOW)
    counted = CountingStorage(storage)
    assert finish_releases(log, counted, ids, now=NOW) == []
    assert counted.total == 0


@pytest.mark.parametrize("dies_at", range(6))
def test_a_purge_that_died_is_done_again(
    log: JobLog, storage: MemoryStorage, ids: SeededIds, dies_at: int
) -> None:
    """Whatever it deleted, verify and gc find nothing wrong, and the next one ends it."""
    gone = stage(log, storage, ids)
    release_stage_of(log, storage, gone.path, ids)
    finish_releases(log, storage, ids, now=NOW)
    left = sorted(keys(storage, gone), key=lambda key: key.startswith(gone.path.log_prefix))
    storage.delete(left[: dies_at + 1])
    assert verify_job(storage, "job", Settings()).ok
    report = collect_garbage(
        storage,
        "job",
        ids=ids,
        clock=Clock(NOW),
        settings=Settings(),
        older_than_seconds=0,
        delete=True,
    )
    assert (report.unknown, report.orphans, report.unfinished_releases) == ((), (), 0)
    log = JobLog.claim(storage, "job", ids.new_id())
    purged = purge_released(log, storage, ids, now=NOW + WEEK, horizon_seconds=WEEK)
    assert purged == (gone.path,)
    assert keys(storage, gone) == []


def test_what_must_not_go_stays(log: JobLog, storage: MemoryStorage, ids: SeededIds) -> None:
    """A stage with an object that nobody knows stays whole; a fenced driver deletes nothing."""
    one, two = stage(log, storage, ids, 1), stage(log, storage, ids, 2)
    for gone in (one, two):
        release_stage_of(log, storage, gone.path, ids)
    finish_releases(log, storage, ids, now=NOW)
    storage.put(f"{one.path.prefix}notes.txt", [b"of the user"])
    before = keys(storage, one)
    how = {"now": NOW + WEEK, "horizon_seconds": WEEK}
    JobLog.claim(storage, "job", ids.new_id())
    with pytest.raises(FencedError):
        purge_released(log, storage, ids, **how)
    assert keys(storage, two)
    log = JobLog.claim(storage, "job", ids.new_id())
    assert purge_released(log, storage, ids, **how) == (two.path,)
    assert keys(storage, one) == before


def test_consumers_of_a_purged_stage_go_with_it(
    log: JobLog, storage: MemoryStorage, ids: SeededIds
) -> None:
    """Their logs, outputs and states; those of another stage stay, and nothing is amiss."""
    gone, live = stage(log, storage, ids, 1), stage(log, storage, ids, 2)
    consumers = [StoredConsumer(storage, s, 0, "loader", ids) for s in (gone, live)]
    for consumer in consumers:
        consumer.open()
        consumer.output()
    release_stage_of(log, storage, gone.path, ids)
    finish_releases(log, storage, ids, now=NOW)
    purge_released(log, storage, ids, now=NOW + WEEK, horizon_seconds=WEEK)
    listed = [info.key for info in storage.list("job/consumers/")]
    assert listed
    assert all(key.startswith(consumers[1].path.prefix) for key in listed)
    assert verify_job(storage, "job", Settings()).ok


def test_a_writer_that_comes_late_but_within_the_horizon_meets_the_release(
    log: JobLog, storage: MemoryStorage, ids: SeededIds
) -> None:
    """A stage that was released is not entered again before it is purged."""
    gone = stage(log, storage, ids)
    release_stage_of(log, storage, gone.path, ids)
    finish_releases(log, storage, ids, now=NOW)
    purge_released(log, storage, ids, now=NOW + WEEK - 1, horizon_seconds=WEEK)
    names = gone.path.name, gone.path.fingerprint, gone.path.incarnation
    with pytest.raises(NotFoundError, match="released"):
        log.append(StageUse(ids.new_id(), 1, *names))


@pytest.mark.soak
@pytest.mark.parametrize(
    "nights", [30, pytest.param(365, marks=pytest.mark.soak)], ids=["nights", "a year"]
)
@pytest.mark.parametrize("kind", ["memory", "local"])
def test_nothing_grows(tmp_path: Path, ids: SeededIds, kind: str, nights: int) -> None:
    """Bytes, objects and the requests of an opening are flat behind the horizon, each night from
    the 20th to the last. `-rP` shows the figures."""
    storage: Storage = MemoryStorage() if kind == "memory" else LocalStorage(tmp_path)
    figures = list(figures_of(storage, ids, nights))
    print(json.dumps(figures))
    size, objects, requests = zip(*figures[20:], strict=True)
    assert max(objects) - min(objects) <= 2, "a snapshot more or less"
    assert max(size) <= 1.2 * min(size)
    assert max(requests) <= 16
    assert verify_job(storage, "job", Settings(control_threads=1)).ok
