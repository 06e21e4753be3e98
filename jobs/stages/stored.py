"""The stored stages of a job: list them, delete them."""

import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from durable_shuffle.jobs.stages.driver import Driver
from durable_shuffle.jobs.text import html_table, size, when
from durable_shuffle.serialization.errors import (
    DurableShuffleError,
    NotFoundError,
)
from durable_shuffle.shuffle.base.words import StageStatus, status_of
from durable_shuffle.shuffle.log.job_state import SNAPSHOT_EVERY
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.stage import open_stage, read_state
from durable_shuffle.shuffle.release.purge import finish_releases, purge_released, purge_slots
from durable_shuffle.shuffle.release.stages import (
    Freed,
    finish_release,
    raise_first,
    release_consumed,
    release_stage_of,
    skipping_damaged,
)
from durable_shuffle.shuffle.release.unused import (
    KeepUsed,
    Unused,
    free_stages,
    release_unused,
    unused_stages,
)
from durable_shuffle.shuffle.storage.contract import Storage


@dataclass(frozen=True, slots=True)
class StageInfo:
    """A stage on storage. `rows` and `data_bytes` are None until its status is "stored".

    A stage to which producers append is "open" here, even if they have ended: `inspect` asks them.
    """

    name: str
    fingerprint: str
    incarnation: str
    status: StageStatus
    map_tasks: int
    partitions: int
    rows: int | None
    data_bytes: int | None
    created_wall_seconds: float

    def path(self, job: str) -> StagePath:
        """Where the stage lives."""
        return StagePath(job, self.name, self.fingerprint, self.incarnation)


class StageList(list[StageInfo]):
    """Stored stages; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        head = ("name", "status", "map tasks", "partitions", "rows", "size", "created")
        rows = [
            (
                *(f"{s.name}-{s.fingerprint[:6]}", s.status, s.map_tasks),
                *(s.partitions, None if s.rows is None else f"{s.rows:,}"),
                *(size(s.data_bytes), when(s.created_wall_seconds)),
            )
            for s in self
        ]
        return html_table(head, rows)


@dataclass(frozen=True, slots=True)
class VacuumedStage:
    """A stage that the retention does not keep."""

    stage: StageInfo
    """The stage, as `stages()` lists it."""
    why: str
    """The reason, for people."""


def stage_info(storage: Storage, path: StagePath) -> StageInfo:
    """Read the stage's log and return its entry for `stages()`."""
    stage = open_stage(storage, path)
    state = read_state(stage)
    seal = state.seal
    if stage.describe.writing == "log":
        status = StageStatus.OPEN
    else:
        status = status_of(released=False, sealed=seal is not None, damaged=bool(state.damaged))
    return StageInfo(
        path.name,
        path.fingerprint,
        path.incarnation,
        status,
        seal.producers if seal else stage.describe.producers,
        stage.describe.partitions,
        seal.rows if seal else None,
        seal.data_bytes if seal else None,
        stage.describe.created_wall_seconds,
    )


class StoredStages:
    """The stored stages of one driver's job."""

    def __init__(self, driver: Driver) -> None:
        self._log, self._storage, self._keep = driver.log, driver.storage, driver.keep
        self._clock, self._ids, self._settings = driver.clock, driver.ids, driver.settings
        self.deleting: threading.Thread | None = None
        """Deletes the data of released stages."""

    def listed(self) -> StageList:
        """Return the stages, oldest first."""
        return StageList(stage_info(self._storage, path) for path in self._log.state.order)

    def release(self, name: str | None, older_than: timedelta | None) -> list[Freed]:
        """Delete stages; see `DurableShuffle.release`."""
        state = self._log.state
        known = {path.name for path in (*state.order, *state.released)} | state.purged
        if name is not None and name not in known:
            raise NotFoundError(
                f"job={self._log.state.job!r} never had a stage named {name!r}; it has had "
                f"{', '.join(sorted(known)) or 'none'}"
            )
        failed: list[DurableShuffleError] = []
        now = self._clock.wall()
        freed = finish_releases(self._log, self._storage, self._ids, failed, now)
        for path in list(self._log.state.order):
            if name is not None and path.name != name:
                continue
            with skipping_damaged(failed):
                if older_than is None or self._age(path) > older_than.total_seconds():
                    freed.append(release_stage_of(self._log, self._storage, path, self._ids))
        raise_first(failed)
        return freed

    def release_consumed(self) -> list[Freed]:
        """Delete what was consumed; see `DurableShuffle.release_consumed`."""
        paths = list(self._log.state.order)
        failed: list[DurableShuffleError] = []
        freed = []
        for path in paths:
            with skipping_damaged(failed):
                done = release_consumed(self._log, self._storage, path, self._ids)
                if isinstance(done, Freed):
                    freed.append(done)
        raise_first(failed)
        return freed

    def vacuum(self, keep: KeepUsed | None, *, dry_run: bool) -> list[VacuumedStage]:
        """Say what the retention does not keep; see `DurableShuffle.vacuum`."""
        keep = keep or self._keep or KeepUsed()
        failed: list[DurableShuffleError] = []
        if dry_run:
            found = unused_stages(self._log.state, keep, self._clock.wall(), self._log.run)
            found = free_stages(self._storage, found, failed)
        else:
            found = self._release_unused(keep, failed)
        vacuumed = []
        for unused in found:
            with skipping_damaged(failed):
                info = stage_info(self._storage, unused.path)
                vacuumed.append(VacuumedStage(info, unused.why))
                if not dry_run:
                    finish_release(self._log, self._storage, unused.path, self._ids)
        return vacuumed

    def _release_unused(self, keep: KeepUsed, failed: list[DurableShuffleError]) -> list[Unused]:
        now = self._clock.wall()
        return release_unused(self._log, self._storage, keep, self._ids, now, failed)

    def begin_vacuum(self) -> None:
        """Release what the retention does not keep.

        A thread deletes the data of released stages, and the logs of those that went long ago. If
        the process ends before, the next driver goes on.
        """
        if self._keep is not None:
            self._release_unused(self._keep, [])

        def delete() -> None:
            with suppress(DurableShuffleError):  # the next driver tries again
                log, storage, ids, now = self._log, self._storage, self._ids, self._clock.wall()
                horizon = self._settings.purge_seconds
                finish_releases(log, storage, ids, [], now)
                purge_released(log, storage, ids, now=now, horizon_seconds=horizon)
                purge_slots(log, storage, ids, now=now, horizon_seconds=horizon)

        if self._log.state.gone or self._log.state.next_slot >= SNAPSHOT_EVERY:
            self.deleting = threading.Thread(target=delete, name="vacuum", daemon=True)
            self.deleting.start()

    def _age(self, path: StagePath) -> float:
        return self._clock.wall() - open_stage(self._storage, path).describe.created_wall_seconds
