"""Garbage collection of one job: survey, settle, delete.

The order of the steps makes it safe to kill a collection at any point, and to run it beside other
processes:

1. Claim the job in its log.
2. List the objects, then read the logs, so that the logs are newer than the listing.
3. Judge every object (`gc.py`).
4. Append ABORT for every undecided attempt, and fence every view that may still name an object.
5. Only then delete.

Logs stay. It must never delete an object that it cannot explain.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    DurableShuffleError,
    FencedError,
)
from durable_shuffle.shuffle.base.clock import Clock, IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.log import Opening, hold, read_resume_set
from durable_shuffle.shuffle.consume.resume_set import ResumeSet, cursor, start_of
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.layout import ConsumerPath, StagePath, check_name
from durable_shuffle.shuffle.log.producer_log import abort_attempt
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import open_stage
from durable_shuffle.shuffle.release.cleanup import Freed
from durable_shuffle.shuffle.release.gc import REWRITE, Judged, Scope, named_by
from durable_shuffle.shuffle.release.gc_survey import survey, temporaries_of
from durable_shuffle.shuffle.release.retention import AttemptFailed
from durable_shuffle.shuffle.release.stages import finish_release, give_up_stage, skipping_damaged
from durable_shuffle.shuffle.seal.index_rewrite import abort_rewrite
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.verify.job import JobCopy
from durable_shuffle.shuffle.write.run_log import abort_job


@dataclass(frozen=True, slots=True)
class GcReport:
    """The result of a collection: what it found and, with `delete`, what it deleted."""

    job: str
    generation: int
    """The generation of this collection's claim; 0 without `delete`."""
    live: int
    """Number of objects that are needed."""
    orphans: tuple[Judged, ...]
    """Objects that were deleted or, without `delete`, would be."""
    spared: tuple[Judged, ...]
    """Objects that looked like orphans but were committed before they could be aborted."""
    odd: tuple[Judged, ...]
    """Objects and logs that cannot be explained, and the orphans that stay because of them."""
    unfinished_releases: int
    """Number of releases that an earlier driver decided but did not complete."""
    freed: Freed
    """What was deleted."""


def collect_garbage(
    storage: Storage,
    job: str,
    *,
    ids: IdSource,
    clock: Clock,
    settings: Settings,
    older_than_seconds: float,
    delete: bool = False,
) -> GcReport:
    """Find, and with `delete` remove, the objects that no log of a job needs.

    With `delete` it claims the job first. This fences a driver that runs the job, and then every
    consumer that has written objects but not acknowledged them yet. Without `delete` it writes
    nothing. Safe to repeat, to kill, and to run several times at once.

    Args:
        settings: `control_threads` is used.
        older_than_seconds: spares younger temporary files, leftovers of drivers' starts and of
            tasks, and stages of write jobs that wrote since then. Ages compare the storage's
            modification times with `clock`. The logs alone decide about all other objects.
        delete: whether to delete; by default it only reports.

    Raises:
        NotFoundError: nothing is stored of such a job.
        CorruptDataError: the job's log is damaged; nothing was deleted.
        FencedError: a newer driver claimed the job meanwhile. It is safe to start again.
    """
    check_name("job", job)
    _check_job_log(storage, job)
    log = JobLog.claim(storage, job, ids.new_id()) if delete else None
    copy = _check_job_log(storage, job)
    scopes = survey(
        storage, copy, threads=settings.control_threads, now=clock.wall(), age=older_than_seconds
    )
    report = GcReport(
        job=job,
        generation=log.generation if log else 0,
        live=sum(len(scope.of("live")) for scope in scopes),
        orphans=tuple(one for scope in scopes for one in scope.of("orphan")),
        spared=(),
        odd=tuple(one for scope in scopes for one in scope.of("odd")),
        unfinished_releases=sum(scope.release_unfinished for scope in scopes),
        freed=Freed(0, 0),
    )
    if log is None:
        return report
    acting = _Acting(storage, log, ids)
    gone, spared = acting.run(scopes)
    odd = (*report.odd, *acting.left)
    return replace(report, orphans=tuple(gone), spared=tuple(spared), odd=odd, freed=acting.freed)


def _check_job_log(storage: Storage, job: str) -> JobCopy:
    copy = JobCopy(storage, job)
    if copy.findings:
        raise CorruptDataError(
            f"the log of job {job!r} is damaged, nothing is collected: {copy.findings[0]}"
        )
    return copy


class _Acting:
    """Carries out the verdicts. Once another driver claims the job, it deletes nothing more."""

    def __init__(self, storage: Storage, log: JobLog, ids: IdSource) -> None:
        self._storage, self._log, self._ids = storage, log, ids
        self.freed = Freed(0, 0)
        self.left: list[Judged] = []
        """Released stages whose data cannot be deleted yet, each with the reason."""
        self._given_up: set[StagePath] = set()

    def run(self, scopes: Sequence[Scope]) -> tuple[list[Judged], list[Judged]]:
        """Settle all scopes, then delete; return the deleted and the spared objects."""
        self._log.check_owner()
        settled = [self._settle(scope) for scope in scopes]
        gone = [one for goes, _ in settled for one in goes]
        spared = [one for _, stays in settled for one in stays]
        for scope, (goes, _) in zip(scopes, settled, strict=True):
            self._log.check_owner()
            self._delete(scope, goes)
        return gone, spared

    def _settle(self, scope: Scope) -> tuple[list[Judged], list[Judged]]:
        orphans = scope.of("orphan")
        if scope.give_up and scope.stage is not None:
            if not give_up_stage(self._log, scope.stage, self._ids):
                return [], [replace(one, verdict="live", reason="it counts now") for one in orphans]
            self._given_up.add(scope.stage)
            return list(orphans), []
        if scope.consumer is not None and scope.must_fence:
            return self._fence(scope.consumer, orphans)
        fates = {
            attempt: self._abort(scope, *attempt)
            for attempt in sorted({one.attempt for one in orphans if one.attempt})
        }
        goes = [one for one in orphans if one.attempt is None or fates[one.attempt]]
        stays = [
            replace(one, verdict="live", reason="its attempt committed meanwhile")
            for one in orphans
            if one.attempt is not None and not fates[one.attempt]
        ]
        return goes, stays

    def _abort(self, scope: Scope, producer: int, attempt: str) -> bool:
        assert scope.stage is not None  # only stages have attempts
        cause = AttemptFailed(f"collected by generation {self._log.generation}")
        stage = open_stage(self._storage, scope.stage)
        if producer == REWRITE:
            return abort_rewrite(stage, attempt, self._ids.new_id(), str(cause))
        if stage.describe.writing == "log":
            return abort_job(stage, producer, attempt, self._ids.new_id(), str(cause))
        return abort_attempt(stage.producer_log(producer), attempt, self._ids.new_id(), str(cause))

    def _fence(
        self, path: ConsumerPath, orphans: Sequence[Judged]
    ) -> tuple[list[Judged], list[Judged]]:
        """Open the consumer's log, which fences its view: objects unnamed by then stay unnamed.

        Return the objects to delete and the objects to keep.
        """
        log = SlotLog(self._storage, path.log_prefix)
        found = read_resume_set(log)
        try:
            held = hold(
                log,
                record_id=self._ids.new_id(),
                generation=found.generation,  # so that its launcher can open it again
                consumer=path.consumer,
                task=path.task,
                resume=found.resume,
                opening=_same_start,
            )
        except FencedError:  # a newer launcher opened it, or it is closed: leave it to the next gc
            return [], [replace(one, verdict="live", reason="it is in use") for one in orphans]
        named = named_by(held if isinstance(held, ResumeSet) else held.state)
        goes = [one for one in orphans if one.key not in named]
        stays = [
            replace(one, verdict="live", reason="its consumer acknowledged it meanwhile")
            for one in orphans
            if one.key in named
        ]
        return goes, stays

    def _delete(self, scope: Scope, goes: Sequence[Judged]) -> None:
        objects = [one for one in goes if not one.temporary]
        temporary = [one for one in goes if one.temporary]
        unfinished = scope.release_unfinished or scope.stage in self._given_up
        if unfinished and scope.stage is not None:
            failed: list[DurableShuffleError] = []
            with skipping_damaged(failed):
                self._count(finish_release(self._log, self._storage, scope.stage, self._ids))
            for error in failed:
                reason = f"its release cannot be finished: {error}"
                self.left.append(Judged(scope.prefix, 0, "odd", reason))
        elif objects:
            self._storage.delete([one.key for one in objects])
            self._count(_sum(objects))
        keeper = temporaries_of(self._storage)
        if temporary and keeper is not None:
            keeper.delete_temporary([one.key for one in temporary])
            self._count(_sum(temporary))

    def _count(self, freed: Freed) -> None:
        self.freed = Freed(
            self.freed.objects + freed.objects, self.freed.data_bytes + freed.data_bytes
        )


def _same_start(found: ResumeSet) -> Opening:
    start = start_of(found, found.resume)
    inputs = tuple(
        cursor(key, state.stage_slot, start.inputs[key]) for key, state in found.inputs.items()
    )
    return Opening(inputs, start.dropped, start.dropped_exact)


def _sum(gone: Sequence[Judged]) -> Freed:
    return Freed(len(gone), sum(one.size_bytes for one in gone))
