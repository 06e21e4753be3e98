"""Verify what is stored: every control record and every byte that the logs commit.

Strategy: logs say what must be there, and all of it is read and compared; what no log names is
ignored. Nothing found ends the walk: findings are values. It changes nothing and needs no claim, so
it may run beside a driver; a stage that is released meanwhile is reported as released.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from durable_shuffle.serialization.errors import (
    DurableShuffleError,
    ErrorKind,
    NotFoundError,
)
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobState, with_job_record
from durable_shuffle.shuffle.log.layout import (
    StagePath,
    command_log_prefix,
    job_log_prefix,
    parse_stage_folder,
    request_log_prefix,
    status_log_prefix,
)
from durable_shuffle.shuffle.log.lost_stages import written_stages
from durable_shuffle.shuffle.log.records import JOB_RECORDS, Claim, StageReleased, StageUse
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.typed_log import AnyRecord
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.verify.consumers import check_consumers
from durable_shuffle.shuffle.verify.ends import consumed_ends
from durable_shuffle.shuffle.verify.logs import LogCopy, copy_log, last_slots, repeated
from durable_shuffle.shuffle.verify.report import (
    ConsumerVerdict,
    Finding,
    StageVerdict,
    VerifyReport,
    finding_of,
)
from durable_shuffle.shuffle.verify.stage import Progress, check_stage


def verify_stage(
    storage: Storage, path: StagePath, settings: Settings, progress: Progress | None = None
) -> VerifyReport:
    """Check the job's log and one stage.

    Args:
        settings: `max_frame_bytes` and `control_threads` are used.
        progress: called in this thread with (bytes of segments checked, bytes of segments in all).

    Returns:
        All findings. A storage that cannot serve an object is a finding too: nothing is skipped
        without a word. Not found out: whether a stage that was never sealed lost a producer whole.
    """
    log = JobCopy(storage, path.job)
    verdict = check_stage(storage, path, settings, released=path in log.released, progress=progress)
    return log.report((verdict,))


def verify_job(
    storage: Storage, job: str, settings: Settings, progress: Progress | None = None
) -> VerifyReport:
    """Check a job's log, all its stages, released ones included, oldest first, and all consumers.

    If the job log is damaged, stages that only a listing shows are checked as well.

    Args:
        progress: as in `verify_stage`, over all stages; the second number grows when the next
            stage is begun.

    Raises:
        NotFoundError: nothing is stored of such a job.
    """
    log = JobCopy(storage, job)
    stages: list[StageVerdict] = []
    total = _Total(progress)
    unnamed = _unnamed_findings(storage, job, {*log.paths, *log.begun})
    log.findings += tuple(finding for _, finding in unnamed)
    for path in (*log.paths, *(path for path, _ in unnamed)):
        total.next_stage()
        stages.append(
            check_stage(storage, path, settings, released=path in log.released, progress=total)
        )
    consumers = check_consumers(storage, job, settings)
    reads = {one: c.path.prefix for c in consumers for one in c.reads}
    if reads:
        now = JobCopy(storage, job)  # a stage may have come since
        known = {*now.paths, *now.begun, *(path for path, _ in unnamed)}
        log.findings += consumed_ends(storage, job, reads, known)
    return log.report(tuple(stages), consumers, _command_logs(storage, job))


class _Total:
    """Adds the stages' progress up."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._before = self._stage = 0

    def next_stage(self) -> None:
        self._before, self._stage = self._before + self._stage, 0

    def __call__(self, done: int, total: int) -> None:
        self._stage = total
        if self._progress is not None:
            self._progress(self._before + done, self._before + total)


class JobCopy:
    """A job log as far as it can be read, whatever is wrong with single slots.

    Raises:
        NotFoundError: nothing is stored of such a job.
        UnavailableError, InvalidInputError: the storage does not answer, or not to us.
    """

    def __init__(self, storage: Storage, job: str) -> None:
        prefix = job_log_prefix(job)
        slots = SlotLog(storage, prefix)
        slots.read(0)  # a storage that cannot be asked at all is an error, not a finding
        last, problems = last_slots(storage, prefix)
        log = copy_log(slots, JOB_RECORDS, known=last.get(prefix, -1))
        judged, state = _judge(job, log)
        findings = [*problems, *log.findings, *judged, *repeated(log)]
        named = [r for r in log.records.values() if isinstance(r, StageUse | StageReleased)]
        paths = {state.path_of(record): None for record in named}
        if findings or not log.records:
            paths.update(dict.fromkeys(_listed_stages(storage, job)))
        if not log.objects and paths:
            lost = "no such object, although stages are stored"
            findings.append(Finding(slots.key(0), ErrorKind.NOT_FOUND, "a job log", lost))
        if not findings and not log.objects:
            raise NotFoundError(f"no such job: job={job!r} on {storage.description}")
        self.storage, self.job = storage, job
        self.paths = list(paths)
        """Stages, oldest first, released ones included; without those that do not count yet."""
        self.released = set(state.released)
        """Those of them whose data may be gone."""
        self.begun = set(state.begun)
        """Stages that writers make and that do not count yet."""
        self.findings = tuple(findings)
        claims = [record for record in log.records.values() if isinstance(record, Claim)]
        self.generation = claims[-1].generation if claims else 0
        """Of the newest driver; 0 if no CLAIM could be read."""
        self._log = log

    def report(
        self,
        stages: tuple[StageVerdict, ...],
        consumers: tuple[ConsumerVerdict, ...] = (),
        others: tuple[LogCopy[Any], ...] = (),
    ) -> VerifyReport:
        """Return the verdicts together with what the job log itself, and the job's other logs,
        showed."""
        logs = (self._log, *others)
        return VerifyReport(
            self.job,
            stages,
            (*self.findings, *(f for log in others for f in log.findings)),
            sum(log.objects for log in logs),
            sum(log.checked_bytes for log in logs),
            consumers,
        )


def _command_logs(storage: Storage, job: str) -> tuple[LogCopy[Any], ...]:
    """Return the three logs by which a pipeline is led; empty ones of a job that is no pipeline.

    Each is asked for its first slot, whatever a listing shows: a folder may stand there.
    """
    copies = []
    for prefix in (command_log_prefix(job), request_log_prefix(job), status_log_prefix(job)):
        last, problems = last_slots(storage, prefix)
        copy = copy_log(SlotLog(storage, prefix), AnyRecord(), known=last.get(prefix, -1))
        copies.append(replace(copy, findings=(*problems, *copy.findings)))
    return tuple(copies)


def _judge(job: str, log: LogCopy[Any]) -> tuple[list[Finding], JobState]:
    """Return what decodes but does not add up, and what the rest adds up to."""
    findings, state = [], JobState(job)
    for slot, record in log.records.items():
        try:
            state = with_job_record(state, record, log.log.key(slot))
        except DurableShuffleError as error:
            findings.append(finding_of(error, log.log.key(slot), f"a record of job {job!r}"))
    return findings, state


def _unnamed_findings(
    storage: Storage, job: str, known: Collection[StagePath]
) -> list[tuple[StagePath, Finding]]:
    """Return the written stages that the job log does not name, each with what is wrong."""
    return [
        (
            path,
            Finding(
                job_log_prefix(job),
                ErrorKind.NOT_FOUND,
                f"a STAGE record of {path.prefix}",
                "no such record, and data of that stage: the log ends before what the storage "
                "holds; verify --repair enters the stage again",
            ),
        )
        for path in written_stages(storage, job)
        if path not in known
    ]


def _listed_stages(storage: Storage, job: str) -> list[StagePath]:
    try:
        folders = {info.key.split("/")[1] for info in storage.list(f"{job}/")}
    except DurableShuffleError:
        return []  # the listing of the log failed before: a finding
    found = (parse_stage_folder(job, folder) for folder in sorted(folders))
    return [path for path in found if path is not None]
