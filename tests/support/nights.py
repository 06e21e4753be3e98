"""A job that runs every night on a clock of its own, and what it leaves on the storage."""

from collections.abc import Iterator

from small_stage import SeededIds
from stored_job import stored_stage

from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobLog, read_job
from durable_shuffle.shuffle.log.records import StageUse
from durable_shuffle.shuffle.log.stage import StageHandle, require_seal
from durable_shuffle.shuffle.release.gc_run import collect_garbage
from durable_shuffle.shuffle.release.purge import finish_releases, purge_released, purge_slots
from durable_shuffle.shuffle.release.stages import release_stage_of
from durable_shuffle.shuffle.release.unused import KeepUsed, release_unused
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.retrying import CountingStorage

DAY = 86_400.0
NOW = 1000 * DAY
HORIZON = Settings().purge_seconds


class Clock:
    """The clock of one night."""

    def __init__(self, now: float) -> None:
        self._now = now

    def wall(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        raise AssertionError


def figures_of(storage: Storage, ids: SeededIds, nights: int) -> Iterator[tuple[int, int, int]]:
    """Yield after each night the bytes and objects stored, and the requests to open the job."""
    reused = None
    for day in range(nights):
        reused = night(storage, ids, day, reused)
        counted = CountingStorage(storage)
        assert reused.path in read_job(counted, "job").live
        listed = list(storage.list("job/"))
        yield sum(info.size_bytes for info in listed), len(listed), counted.total
    assert reused is not None
    assert require_seal(reused).rows == 4


def night(storage: Storage, ids: SeededIds, day: int, reused: StageHandle | None) -> StageHandle:
    """Open the job, delete what is old, reuse one stage, make two new ones, release one of these,
    and collect garbage. Return the stage that is reused."""
    now = NOW + day * DAY
    with JobLog.claim(storage, "job", ids.new_id(), wall_seconds=now) as log:
        release_unused(log, storage, KeepUsed(), ids, now, [])
        finish_releases(log, storage, ids, [], now)
        purge_released(log, storage, ids, now=now, horizon_seconds=HORIZON)
        purge_slots(log, storage, ids, now=now, horizon_seconds=HORIZON)

        def make(n: int, lasts: str) -> StageHandle:
            return stored_stage(
                log,
                storage,
                job="job",
                fingerprint=f"{n:032x}",
                rows=(4,),
                partitions=2,
                used_partitions=2,
                created_wall_seconds=now,
                ids=ids,
                lasts=lasts,  # type: ignore[arg-type]
            )

        if reused is None:
            reused = make(0, "while_used")
        names = reused.path.name, reused.path.fingerprint, reused.path.incarnation
        log.append(
            StageUse(ids.new_id(), log.generation, *names, wall_seconds=now, lasts="while_used")
        )
        release_stage_of(log, storage, make(3 * day + 1, "while_used").path, ids)
        make(3 * day + 2, "while_used")
        make(3 * day + 3, "unrecognised")
    collect_garbage(
        storage,
        "job",
        ids=ids,
        clock=Clock(now),
        settings=Settings(control_threads=1),
        older_than_seconds=0,
        delete=True,
    )
    return reused
