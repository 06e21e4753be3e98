"""`durable-shuffle verify`: check every stored byte, and repair what has another copy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from durable_shuffle.jobs.cli.call import (
    Call,
    OptionalJob,
    OptionalStage,
    command,
    progress_bar,
)
from durable_shuffle.jobs.inspect.names import find_job, find_stage, list_jobs, short_name
from durable_shuffle.jobs.text import size
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.base.words import StageStatus
from durable_shuffle.shuffle.repair.job_log import JobRepair, repair_job_log
from durable_shuffle.shuffle.repair.stage import StageRepair, repair_stage
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.verify.job import JobCopy, verify_job, verify_stage
from durable_shuffle.shuffle.verify.report import ConsumerVerdict, StageVerdict, VerifyReport


@command
def verify(
    call: Call,
    job: OptionalJob = None,
    stage: OptionalStage = None,
    *,
    repair: Annotated[
        bool, typer.Option("--repair", help="Restore damaged data from other stored copies.")
    ] = False,
) -> None:
    """Read everything that is committed and check every byte of it.

    Checks logs, indexes, segments and the output of consumers: checksums, digests, row counts, and
    that all of them agree. Changes nothing and may run beside a job. Ends with 1 if anything is
    found; each finding names the object and, if known, the bytes [first, last). A single stage is
    checked without its consumers.

    --repair restores damaged or lost segments of stored stages, byte for byte, from a compaction or
    another attempt's copy, and rebuilds damaged indexes. Producers without a copy are marked: the
    next run of the job runs only them again. A damaged job log is restored from its stages, which
    claims the job; nothing else is deleted or claimed. Ends with 0 only if everything is intact
    afterwards.

    \b
    Examples:
      durable-shuffle verify /data/shuffle
      durable-shuffle verify s3://bucket/shuffle nightly orders --json
      durable-shuffle verify s3://bucket/shuffle nightly --repair
    """
    storage, settings = call.storage, Settings()
    checked: list[_Checked] = []
    now = SystemClock().wall()
    jobs = [job] if job else list_jobs(storage)
    if not jobs:
        raise InvalidInputError(f"no jobs below {storage.description}: nothing to verify")
    for name in jobs:
        copy = find_job(storage, name)
        mended = repair_job_log(storage, name, RandomIds()) if repair else JobRepair()
        if mended.slots or mended.entered or mended.released:
            copy = find_job(storage, name)
        with progress_bar(name) as progress:

            def check(copy: JobCopy = copy, progress: Any = progress) -> VerifyReport:
                if stage is None:
                    return verify_job(storage, copy.job, settings, progress, now)
                return verify_stage(storage, find_stage(copy, stage), settings, progress, now)

            report = check()
            repairs = _repair(storage, copy, report) if repair else []
            if any(r.outcome in ("repaired", "run again") for r in repairs):
                report = check()
        checked.append(_Checked(report, repairs, mended))
    ok = all(job_checked.report.ok for job_checked in checked)
    jobs_checked = [_document(job_checked, repair=repair) for job_checked in checked]
    document = {"url": storage.description, "ok": ok, "jobs": jobs_checked}
    call.emit(document, "\n".join(map(_text, checked)))
    if not ok:
        call.fail()


@dataclass(frozen=True, slots=True)
class _Checked:
    """A job, after its repair if there was one."""

    report: VerifyReport
    repairs: Sequence[StageRepair]
    log: JobRepair


def _repair(storage: Storage, copy: JobCopy, report: VerifyReport) -> list[StageRepair]:
    """Repair the stages that have findings."""
    ids = RandomIds()
    return [
        repair_stage(storage, stage.path, Settings(), ids=ids, generation=copy.generation)
        for stage in report.stages
        if stage.findings and stage.status is not StageStatus.RELEASED
    ]


def _document(checked: _Checked, *, repair: bool) -> dict[str, Any]:
    document: dict[str, Any] = checked.report.to_dict()
    for entry, stage in zip(document["stages"], checked.report.stages, strict=True):
        if stage.ended is not None:
            entry["producers_ended"] = stage.ended
    if repair:
        document["log_repair"] = {
            "slots": list(checked.log.slots),
            "stages_entered": [path.folder for path in checked.log.entered],
            "stages_released": [path.folder for path in checked.log.released],
            "why": checked.log.why,
        }
        document["repairs"] = [
            {
                "stage": done.path.folder,
                "outcome": done.outcome,
                "producers_rebuilt": list(done.rebuilt),
                "producers_to_run_again": list(done.run_again),
                "new_index": done.index,
                "why": done.why,
            }
            for done in checked.repairs
        ]
    return document


def _log_lines(repair: JobRepair) -> list[str]:
    done = [f"slots {_numbers(repair.slots)} written again"] if repair.slots else []
    done += [f"names {path.folder} again" for path in repair.entered]
    done += [f"says again that {path.folder} was released" for path in repair.released]
    done += [repair.why] if repair.why else []
    return [f"  the job's log: {'; '.join(done)}"] if done else []


def _repair_line(repair: StageRepair) -> str:
    """Say what a repair did, for people."""
    done = [f"rebuilt map tasks {_numbers(repair.rebuilt)}"] if repair.rebuilt else []
    done += ["a new index"] if repair.index else []
    done += [f"map tasks {_numbers(repair.run_again)} must run again"] if repair.run_again else []
    done += [repair.why] if repair.why else []
    name = short_name(repair.path.name, repair.path.fingerprint)
    return f"  {name}: {repair.outcome}: {'; '.join(done)}"


def _numbers(producers: Sequence[int]) -> str:
    shown = ", ".join(map(str, producers[:10]))
    return shown + (f" and {len(producers) - 10} more" if len(producers) > 10 else "")


def _result(verdict: StageVerdict | ConsumerVerdict) -> str:
    return f"{len(verdict.findings)} findings" if verdict.findings else "ok"


def _text(checked: _Checked) -> str:
    report = checked.report
    lines = [f"job {report.job}", *_log_lines(checked.log), *map(_repair_line, checked.repairs)]
    for stage in report.stages:
        path = stage.path
        name = f"{short_name(path.name, path.fingerprint)} (copy {path.incarnation[:12]})"
        lines.append(f"  {name}: {_result(stage)}; {stage.summary}")
    for consumer in report.consumers:
        name = f"consumer {consumer.path.consumer} {consumer.path.task}"
        lines.append(f"  {name}: {_result(consumer)}; {consumer.summary}")
    lines.extend(f"  {finding}" for finding in report.findings)
    read = f"{report.objects} objects, {size(report.checked_bytes)}"
    count = len(report.findings)
    lines.append(f"  {count} findings in {read}" if count else f"  all intact: {read}")
    return "\n".join(lines)
