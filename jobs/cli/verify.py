"""`durable-shuffle verify`: is every stored byte what was written?"""

from collections.abc import Sequence
from typing import Any

from durable_shuffle.jobs.cli.call import Call, progress_bar
from durable_shuffle.jobs.cli.names import find_job, find_stage, list_jobs, short_name
from durable_shuffle.jobs.cli.params import (
    AsJson,
    Debug,
    OptionalJob,
    OptionalStage,
    StorageOption,
    StorageOptionsEnv,
    Url,
)
from durable_shuffle.jobs.cli.text import size
from durable_shuffle.jobs.cli.verify_log import LastRecords, LogVerdict, log_verdict
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.settings import Settings
from durable_shuffle.shuffle.verify import verify_job, verify_stage
from durable_shuffle.shuffle.verify_report import VerifyReport


def verify(
    url: Url,
    job: OptionalJob = None,
    stage: OptionalStage = None,
    *,
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

    \b
    Examples:
      durable-shuffle verify /data/shuffle
      durable-shuffle verify s3://bucket/shuffle nightly orders --json
    """
    with Call(url, storage_option, storage_options_env, as_json=as_json, debug=debug) as call:
        storage, settings = LastRecords(call.storage), Settings()
        reports: list[VerifyReport] = []
        jobs = [job] if job else list_jobs(storage)
        if not jobs:
            raise InvalidInputError(f"no jobs below {storage.description}: nothing to verify")
        for name in jobs:
            copy = find_job(storage, name)
            with progress_bar(name) as progress:
                if stage is None:
                    reports.append(verify_job(storage, name, settings, progress))
                else:
                    path = find_stage(copy, stage)
                    reports.append(verify_stage(storage, path, settings, progress))
        ok = all(report.ok for report in reports)
        logs = [[log_verdict(storage, stage) for stage in report.stages] for report in reports]
        both = list(zip(reports, logs, strict=True))
        document = {
            "url": storage.description,
            "ok": ok,
            "jobs": [_document(report, of) for report, of in both],
        }
        call.emit(document, "\n".join(_text(report, of) for report, of in both))
        if not ok:
            call.fail()


def _document(report: VerifyReport, logs: Sequence[LogVerdict | None]) -> dict[str, Any]:
    document: dict[str, Any] = report.to_dict()
    for stage, log in zip(document["stages"], logs, strict=True):
        if log is not None:
            stage |= {"status": "log", "summary": log.summary, "producers_ended": log.ended}
    return document


def _text(report: VerifyReport, logs: Sequence[LogVerdict | None]) -> str:
    lines = [f"job {report.job}"]
    for stage, log in zip(report.stages, logs, strict=True):
        what = f"{len(stage.findings)} findings" if stage.findings else "ok"
        path = stage.path
        name = f"{short_name(path.name, path.fingerprint)} (incarnation {path.incarnation[:12]})"
        lines.append(f"  {name}: {what}; {(log or stage).summary}")
    for one in report.consumers:
        what = f"{len(one.findings)} findings" if one.findings else "ok"
        lines.append(f"  consumer {one.path.consumer} {one.path.task}: {what}; {one.summary}")
    lines.extend(f"  {finding}" for finding in report.findings)
    checked = f"{report.objects} objects, {size(report.checked_bytes)}"
    count = len(report.findings)
    lines.append(f"  {count} findings in {checked}" if count else f"  all intact: {checked}")
    return "\n".join(lines)
