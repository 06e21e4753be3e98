"""Verify a job or a stage: every control record and every byte that the logs commit.

Strategy: the logs say which objects must exist. All of them are read and compared; objects that no
log names are ignored. A finding is a value and does not stop the walk. Verification changes nothing
and needs no claim, so it may run beside a driver. A stage that is released meanwhile is reported as
released.

A listing shows the tasks of consumers. Every slot of their logs is read, even beside damaged ones.
After a damaged record the fold continues at the next full record, which needs none before it. The
outputs and the state to check are those of the last state that the fold reached.
"""

import math
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from durable_shuffle.serialization.checksum import frame_seed
from durable_shuffle.serialization.errors import DurableShuffleError, ErrorKind, NotFoundError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.resume_set import ResumeSet, fold, is_full
from durable_shuffle.shuffle.log.consumer_records import CONSUMER_RECORDS, OutputRef, StateRef
from durable_shuffle.shuffle.log.job_records import JOB_RECORDS, StagesGone
from durable_shuffle.shuffle.log.job_state import JobState, with_job_record
from durable_shuffle.shuffle.log.layout import (
    ConsumerPath,
    StagePath,
    command_log_prefix,
    consumers_prefix,
    job_log_prefix,
    parse_consumer_key,
    parse_stage_folder,
    request_log_prefix,
    status_log_prefix,
)
from durable_shuffle.shuffle.log.named_stage import was_entered, written_stages
from durable_shuffle.shuffle.log.records import Claim, StageReleased, StageUse
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.typed_log import AnyRecord
from durable_shuffle.shuffle.read.extents import read_frames
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.verify.ends import consumed_ends
from durable_shuffle.shuffle.verify.logs import LogCopy, copy_log, last_slots, repeated
from durable_shuffle.shuffle.verify.report import (
    ConsumerVerdict,
    Finding,
    StageVerdict,
    VerifyReport,
    damage,
    finding_of,
)
from durable_shuffle.shuffle.verify.segment import StoredBytes, check_bytes
from durable_shuffle.shuffle.verify.snapshots import check_snapshots, readable_floor
from durable_shuffle.shuffle.verify.stage import OnProgress, check_stage


def verify_stage(
    storage: Storage,
    path: StagePath,
    settings: Settings,
    progress: OnProgress | None = None,
    now: float = math.inf,
) -> VerifyReport:
    """Check the job's log and one stage.

    Args:
        settings: `max_frame_bytes` and `control_threads` are used.
        progress: called in this thread with (bytes of segments checked, bytes of all segments).
        now: as in `check_stage`.

    Returns:
        All findings. An object that the storage cannot serve is a finding too: nothing is skipped
        silently. Not detected: a stage that was never sealed and lost all objects of a producer.

    Raises:
        NotFoundError: nothing is stored of such a job.
        UnavailableError, InvalidInputError: the storage does not answer, or refuses access.
    """
    log = JobCopy(storage, path.job)
    released = path in log.released
    verdict = check_stage(storage, path, settings, released=released, progress=progress, now=now)
    return log.report((verdict,))


def verify_job(
    storage: Storage,
    job: str,
    settings: Settings,
    progress: OnProgress | None = None,
    now: float = math.inf,
) -> VerifyReport:
    """Check a job's logs, all its stages (also released ones), oldest first, and all consumers.

    If the job log is damaged, stages that only a listing shows are checked too.

    Args:
        progress: as in `verify_stage`, summed over the stages. The second number grows with each
            stage that is begun.
        now: as in `check_stage`.

    Raises:
        NotFoundError: nothing is stored of such a job.
        UnavailableError, InvalidInputError: the storage does not answer, or refuses access.
    """
    written = written_stages(storage, job)  # first: a driver at work names a stage, then writes it
    log = JobCopy(storage, job)
    stages: list[StageVerdict] = []
    total = _Total(progress)
    counted = {path for path in log.begun if was_entered(storage, path)}
    if counted:  # behind what was read: a writer enters a stage, then says so
        log = JobCopy(storage, job)
        counted &= log.begun
    known = {*log.paths, *log.begun, *log.purged} - counted
    unnamed = _unnamed_findings(job, {*written, *counted}, known)
    log.findings += tuple(finding for _, finding in unnamed)
    for path in (*log.paths, *(path for path, _ in unnamed)):
        if path in log.freed:
            continue
        total.next_stage()
        released = path in log.released
        checked = check_stage(storage, path, settings, released=released, progress=total, now=now)
        stages.append(checked)
    consumers = check_consumers(storage, job, settings)
    reads = {read: c.path.prefix for c in consumers for read in c.reads}
    if reads:
        again = JobCopy(storage, job)  # a stage may have been added since
        known = {*again.paths, *again.begun, *again.purged, *(path for path, _ in unnamed)}
        log.findings += consumed_ends(storage, job, reads, known)
    return log.report(tuple(stages), consumers, _command_logs(storage, job))


class _Total:
    """Adds up the progress of several stages."""

    def __init__(self, progress: OnProgress | None) -> None:
        self._progress = progress
        self._before = self._stage = 0

    def next_stage(self) -> None:
        self._before, self._stage = self._before + self._stage, 0

    def __call__(self, done: int, total: int) -> None:
        self._stage = total
        if self._progress is not None:
            self._progress(self._before + done, self._before + total)


class JobCopy:
    """All of a job log that can be read, even if some slots are damaged.

    Raises:
        NotFoundError: nothing is stored of such a job.
        UnavailableError, InvalidInputError: the storage does not answer, or refuses access.
    """

    def __init__(self, storage: Storage, job: str) -> None:
        prefix = job_log_prefix(job)
        slots = SlotLog(storage, prefix)
        slots.read(0)  # if the storage serves nothing at all, raise: that is no finding
        last, problems = last_slots(storage, prefix)
        base, bad_floors = readable_floor(storage, job)
        log = copy_log(slots, JOB_RECORDS, known=last.get(prefix, -1), first=base.next_slot)
        judged, state = _judge(base, log)
        findings = [*problems, *bad_floors, *log.findings, *judged, *repeated(log)]
        if not findings:
            findings += check_snapshots(storage, job, log.records, base)
        named = [r for r in log.records.values() if isinstance(r, StageUse | StageReleased)]
        paths = dict.fromkeys([*base.live, *base.gone, *map(state.path_of, named)])
        if findings or not log.records:
            paths.update(dict.fromkeys(_listed_stages(storage, job)))
        if not log.objects and paths:
            lost = "no such object, although stages are stored"
            findings.append(Finding(slots.key(0), ErrorKind.NOT_FOUND, "a job log", lost))
        if not findings and not log.objects and not base.next_slot:
            raise NotFoundError(f"no such job: job={job!r} on {storage.description}")
        self.storage, self.job = storage, job
        self.purged = _purged(job, log.records.values())
        """Released stages of which nothing is left."""
        self.paths = [path for path in paths if path not in self.purged]
        """Stages that count, oldest first, also released ones; not the ones in `begun`."""
        self.released = set(state.released)
        """Released stages, whose data may be gone."""
        self.freed = {path for path, gone in state.gone.items() if gone.freed}
        """Those of them whose data is known to be gone; their logs may go at any time."""
        self.begun = set(state.begun)
        """Stages that write jobs have begun and that do not count yet."""
        self.findings = tuple(findings)
        claims = [record for record in log.records.values() if isinstance(record, Claim)]
        self.generation = claims[-1].generation if claims else base.generation
        """The newest driver's generation; 0 if no CLAIM could be read."""
        self._log = log

    def status(self, path: StagePath) -> Literal["live", "begun", "released", "freed", "unknown"]:
        """Return what the job log says of a stage."""
        if path in self.freed:
            return "freed"
        if path in self.released:
            return "released"
        if path in self.begun:
            return "begun"
        return "live" if path in self.paths else "unknown"

    def report(
        self,
        stages: tuple[StageVerdict, ...],
        consumers: tuple[ConsumerVerdict, ...] = (),
        others: tuple[LogCopy[Any], ...] = (),
    ) -> VerifyReport:
        """Return the report: these verdicts and the findings of the job's own logs."""
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
    """Return copies of a pipeline's three control logs; they are empty if the job is no pipeline.

    The first slot of each log is read even if no listing shows it: a folder may have its name.
    """
    copies = []
    for prefix in (command_log_prefix(job), request_log_prefix(job), status_log_prefix(job)):
        last, problems = last_slots(storage, prefix)
        copy = copy_log(SlotLog(storage, prefix), AnyRecord(), known=last.get(prefix, -1))
        copies.append(replace(copy, findings=(*problems, *copy.findings)))
    return tuple(copies)


def _judge(state: JobState, log: LogCopy[Any]) -> tuple[list[Finding], JobState]:
    """Return findings for records that contradict the records before them, and the job's state."""
    findings, job = [], state.job
    for slot, record in log.records.items():
        try:
            state = with_job_record(state, record, log.log.key(slot))
        except DurableShuffleError as error:
            findings.append(finding_of(error, log.log.key(slot), f"a record of job {job!r}"))
    return findings, state


def _purged(job: str, records: Iterable[Any]) -> set[StagePath]:
    folders = (f for r in records if isinstance(r, StagesGone) and r.logs for f in r.folders)
    return {path for folder in folders if (path := parse_stage_folder(job, folder)) is not None}


def _unnamed_findings(
    job: str, written: Iterable[StagePath], known: Collection[StagePath]
) -> list[tuple[StagePath, Finding]]:
    """Return the stages that hold data but that the job log does not name, each with a finding."""
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
        for path in written
        if path not in known
    ]


def _listed_stages(storage: Storage, job: str) -> list[StagePath]:
    try:
        folders = {info.key.split("/")[1] for info in storage.list(f"{job}/")}
    except DurableShuffleError:
        return []  # a finding already: listing the log failed too
    paths = (parse_stage_folder(job, folder) for folder in sorted(folders))
    return [path for path in paths if path is not None]


def check_consumers(storage: Storage, job: str, settings: Settings) -> tuple[ConsumerVerdict, ...]:
    """Check all consumer tasks of a job, sorted by name.

    A failed listing is a finding of a consumer named "unknown".

    Args:
        settings: `max_frame_bytes` and `control_threads` are used.
    """
    last, problems = last_slots(storage, consumers_prefix(job))
    paths = listed_consumers(f"{prefix}{slot:010d}" for prefix, slot in last.items())

    def check(path: ConsumerPath) -> ConsumerVerdict:
        return _check(storage, path, settings, known=last[path.log_prefix])

    with ThreadPoolExecutor(settings.control_threads) as pool:
        verdicts = list(pool.map(check, paths))
    if problems:  # tasks that could not be listed could not be checked
        nobody = ConsumerPath(job, "unknown", "unknown")
        verdicts.append(ConsumerVerdict(nobody, 0, False, 0, 0, 0, problems))  # noqa: FBT003
    return tuple(verdicts)


def listed_consumers(keys: Iterable[str]) -> list[ConsumerPath]:
    """Return the consumer tasks whose logs have a slot among `keys`, by name; skip other keys."""
    paths = set()
    for key in keys:
        try:
            path, kind, _ = parse_consumer_key(key)
        except DurableShuffleError:
            continue  # no log names such a key
        if kind == "slot":
            paths.add(path)
    return sorted(paths, key=lambda path: path.prefix)


@dataclass(slots=True)
class _Tally:
    objects: int
    checked_bytes: int
    findings: list[Finding] = field(default_factory=list)

    def wrong(self, key: str, expected: str, actual: str) -> None:
        self.findings.append(damage(key, expected, actual))


_MOST_LOOKS = 4
"""Of a consumer that acknowledges, and deletes what it needs no more, while verify looks."""


def _check(
    storage: Storage, path: ConsumerPath, settings: Settings, *, known: int
) -> ConsumerVerdict:
    verdict, end = _check_once(storage, path, settings, known)
    for _ in range(_MOST_LOOKS):
        if not verdict.findings or SlotLog(storage, path.log_prefix).read(end) is None:
            break
        verdict, end = _check_once(storage, path, settings, end)
    return verdict


def _check_once(
    storage: Storage, path: ConsumerPath, settings: Settings, known: int
) -> tuple[ConsumerVerdict, int]:
    """Return the verdict, and the first slot that was not read."""
    log = copy_log(SlotLog(storage, path.log_prefix), CONSUMER_RECORDS, known=known)
    tally = _Tally(log.objects, log.checked_bytes, list(log.findings))
    state = _folded(log, tally)
    if not state.closed:
        for output in state.outputs:
            _check_output(storage, path, output, settings, tally)
        if isinstance(state.state, StateRef):
            _check_object(storage, state.state, "a state", tally)
    records = sum(
        position.next_ordinal
        for cursor in state.inputs.values()
        for position in cursor.acked.values()
    )
    verdict = ConsumerVerdict(
        path,
        records,
        state.finished,
        len(state.outputs),
        tally.objects,
        tally.checked_bytes,
        tuple(tally.findings),
        tuple(
            sorted({(folder, cursor.stage_slot) for (folder, _), cursor in state.inputs.items()})
        ),
    )
    return verdict, max([known, *log.records], default=-1) + 1


def _folded(log: LogCopy[Any], tally: _Tally) -> ResumeSet:
    """Return the state after the last record that fits the records before it."""
    last = ResumeSet()
    state: ResumeSet | None = last
    for slot, record in log.records.items():
        if state is None or state.next_slot != slot:
            state = ResumeSet(next_slot=slot) if is_full(record) else None
        if state is None:
            continue  # it only says what changed since a damaged record
        try:
            state = last = fold(state, record, name=log.log.key(slot))
        except DurableShuffleError as error:
            expected = f"a record that follows slot {slot - 1}" if slot else "OPEN"
            tally.findings.append(finding_of(error, log.log.key(slot), expected))
            state = None
    return last


def _check_output(
    storage: Storage, path: ConsumerPath, output: OutputRef, settings: Settings, tally: _Tally
) -> None:
    if not output.key.startswith(path.outputs_prefix):
        tally.wrong(output.key, f"an output below {path.outputs_prefix!r}", "a key elsewhere")
        return
    data = _check_object(storage, output, "an output", tally)
    if data is None:
        return
    nonce = output.key.rsplit("/", 1)[-1]
    try:
        for _ in read_frames(
            data.pieces(0, len(data)),
            lambda ordinal: frame_seed(nonce, 0, 0, ordinal),
            lambda *_: (),
            rows=output.rows,
            place=f"output={output.key!r}",
            max_body_bytes=settings.max_frame_bytes,
        ):
            pass
    except DurableShuffleError as error:
        tally.findings.append(finding_of(error, output.key, "intact frames"))


def _check_object(
    storage: Storage, named: OutputRef | StateRef, what: str, tally: _Tally
) -> StoredBytes | None:
    """Return the object that a record names, or None with a finding if it is missing or differs."""
    key, length = named.key, named.length
    try:
        data = StoredBytes(storage, key, length)
        findings = check_bytes(data, length, named.sha256)
    except DurableShuffleError as error:
        tally.findings.append(finding_of(error, key, f"{what} of {length} bytes"))
        return None
    tally.objects, tally.checked_bytes = tally.objects + 1, tally.checked_bytes + data.size
    tally.findings.extend(findings)
    return None if findings else data
