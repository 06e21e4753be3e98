"""`durable-shuffle verify`: is every stored byte what was written, and what can be mended?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from durable_shuffle.jobs.cli.call import Call, progress_bar
from durable_shuffle.jobs.cli.params import (
    AsJson,
    Debug,
    OptionalJob,
    OptionalStage,
    StorageOption,
    StorageOptionsEnv,
    Url,
)
from durable_shuffle.jobs.inspect.names import find_job, find_stage, list_jobs, short_name
from durable_shuffle.jobs.inspect.verify_log import LastRecords, LogVerdict, log_verdict
from durable_shuffle.jobs.text import size
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.repair.job_log import JobRepair, repair_job_log
from durable_shuffle.shuffle.repair.stage import StageRepair, repair_stage
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.verify.job import JobCopy, verify_job, verify_stage
from durable_shuffle.shuffle.verify.report import VerifyReport


def verify(
    url: Url,
    job: OptionalJob = None,
    stage: OptionalStage = None,
    *,
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend damaged data from what else is stored.")
    ] = False,
    as_json: AsJson = False,
    storage_option: StorageOption = None,
    storage_options_env: StorageOptionsEnv = None,
    debug: Debug = False,
) -> None:
    """Read everything that is committed and check every byte of it.

    Logs, indexes, segments, what consumers published: checksums, digests, row counts, and that all
    of it agrees. Changes nothing and may run beside a job. Ends with 1 if anything is found; each
    finding names the object and, where known, the bytes [first, last). A single stage is checked
    without its consumers.

    --repair puts damaged or lost segments of sealed stages together again, byte for byte, from a
    compaction or another attempt's copy, and makes damaged indexes anew. Producers of which no
    copy is left are marked: the next run of the job runs them again, and nothing else. A damaged
    job log is written again from what its stages say, which claims the job; nothing else is deleted
    or claimed. Ends with 0 only if everything is intact afterwards.

    \b
    Examples:
      durable-shuffle verify /data/shuffle
      durable-shuffle verify s3://bucket/shuffle nightly orders --json
      durable-shuffle verify s3://bucket/shuffle nightly --repair
    """
    with Call(url, storage_option, storage_options_env, as_json=as_json, debug=debug) as call:
        storage, settings = LastRecords(call.storage), Settings()
        checked: list[_Checked] = []
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
                        return verify_job(storage, copy.job, settings, progress)
                    return verify_stage(storage, find_stage(copy, stage), settings, progress)

                report = check()
                repairs = _repair(storage, copy, report) if repair else ()
                if any(one.outcome in ("repaired", "run again") for one in repairs):
                    report = check()
            logs = [log_verdict(storage, one) for one in report.stages]
            checked.append(_Checked(report, logs, repairs, mended))
        ok = all(one.report.ok for one in checked)
        document = {
            "url": storage.description,
            "ok": ok,
            "jobs": [_document(one, repair=repair) for one in checked],
        }
        call.emit(document, "\n".join(map(_text, checked)))
        if not ok:
            call.fail()


@dataclass(frozen=True, slots=True)
class _Checked:
    """A job, after its repair if there was one."""

    report: VerifyReport
    logs: Sequence[LogVerdict | None]
    repairs: Sequence[StageRepair]
    log: JobRepair


def _repair(storage: Storage, copy: JobCopy, report: VerifyReport) -> tuple[StageRepair, ...]:
    """Repair the stages in which something was found."""
    ids = RandomIds()
    return tuple(
        repair_stage(storage, one.path, Settings(), ids=ids, generation=copy.generation)
        for one in report.stages
        if one.findings and one.status != "released"
    )


def _document(checked: _Checked, *, repair: bool) -> dict[str, Any]:
    document: dict[str, Any] = checked.report.to_dict()
    for stage, log in zip(document["stages"], checked.logs, strict=True):
        if log is not None:
            stage |= {"status": "log", "summary": log.summary, "producers_ended": log.ended}
    if repair:
        document["log_repair"] = {
            "slots": list(checked.log.slots),
            "stages_entered": [path.folder for path in checked.log.entered],
            "stages_released": [path.folder for path in checked.log.released],
            "why": checked.log.why,
        }
        document["repairs"] = [
            {
                "stage": one.path.folder,
                "outcome": one.outcome,
                "producers_rebuilt": list(one.rebuilt),
                "producers_to_run_again": list(one.run_again),
                "new_index": one.index,
                "why": one.why,
            }
            for one in checked.repairs
        ]
    return document


def _log_lines(one: JobRepair) -> list[str]:
    done = [f"slots {_numbers(one.slots)} written again"] if one.slots else []
    done += [f"names {path.folder} again" for path in one.entered]
    done += [f"says again that {path.folder} was released" for path in one.released]
    done += [one.why] if one.why else []
    return [f"  the job's log: {'; '.join(done)}"] if done else []


def _repair_line(one: StageRepair) -> str:
    """Say what a repair did, for people."""
    done = [f"rebuilt producers {_numbers(one.rebuilt)}"] if one.rebuilt else []
    done += ["a new index"] if one.index else []
    done += [f"producers {_numbers(one.run_again)} must run again"] if one.run_again else []
    done += [one.why] if one.why else []
    name = short_name(one.path.name, one.path.fingerprint)
    return f"  {name}: {one.outcome}: {'; '.join(done)}"


def _numbers(producers: Sequence[int]) -> str:
    shown = ", ".join(map(str, producers[:10]))
    return shown + (f" and {len(producers) - 10} more" if len(producers) > 10 else "")


def _text(checked: _Checked) -> str:
    report = checked.report
    lines = [f"job {report.job}", *_log_lines(checked.log), *map(_repair_line, checked.repairs)]
    for stage, log in zip(report.stages, checked.logs, strict=True):
        what = f"{len(stage.findings)} findings" if stage.findings else "ok"
        path = stage.path
        name = f"{short_name(path.name, path.fingerprint)} (incarnation {path.incarnation[:12]})"
        lines.append(f"  {name}: {what}; {(log or stage).summary}")
    for one in report.consumers:
        what = f"{len(one.findings)} findings" if one.findings else "ok"
        lines.append(f"  consumer {one.path.consumer} {one.path.task}: {what}; {one.summary}")
    lines.extend(f"  {finding}" for finding in report.findings)
    read = f"{report.objects} objects, {size(report.checked_bytes)}"
    count = len(report.findings)
    lines.append(f"  {count} findings in {read}" if count else f"  all intact: {read}")
    return "\n".join(lines)
