"""Commands that look at what is stored: `ls`, `inspect`, `report`, `storage-check`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from durable_shuffle.jobs.cli.call import (
    Call,
    Job,
    OptionalJob,
    OptionalStage,
    command,
)
from durable_shuffle.jobs.inspect.details import details_text, stage_details
from durable_shuffle.jobs.inspect.names import find_job, find_stage, list_jobs, require_root
from durable_shuffle.jobs.inspect.summary import (
    StageSummary,
    consumer_summaries,
    consumer_table,
    stage_table,
    summaries,
)
from durable_shuffle.jobs.reports.job_history import StageHistory, read_history
from durable_shuffle.jobs.reports.job_page import job_page
from durable_shuffle.jobs.text import plural, size, table
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.words import StageStatus
from durable_shuffle.shuffle.log.layout import job_log_prefix
from durable_shuffle.shuffle.log.stage import open_stage
from durable_shuffle.shuffle.storage.check import StorageReport, check_storage
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.verify.job import JobCopy


@command
def ls(
    call: Call,
    job: OptionalJob = None,
) -> None:
    """List jobs, or the stages of one job.

    Reads control records only. Without JOB it lists the whole root, which takes long if much is
    stored. An empty folder has no jobs; a folder that does not exist is an error.

    \b
    Examples:
      durable-shuffle ls /data/shuffle
      durable-shuffle ls s3://bucket/shuffle nightly --storage-options-env S3_OPTIONS
    """
    storage = call.storage
    copies = [find_job(storage, name) for name in ([job] if job else list_jobs(storage))]
    if not copies:
        require_root(storage)  # what is not there must not read as empty
    jobs = [(copy, summaries(storage, copy)) for copy in copies]
    document = {
        "url": storage.description,
        "jobs": [
            {
                "job": copy.job,
                "generation": copy.generation,
                "log_findings": len(copy.findings),
                "stages": [asdict(stage) for stage in stages],
            }
            for copy, stages in jobs
        ],
    }
    if job:
        text = stage_table(jobs[0][1])
    elif jobs:
        head = ["JOB", "DRIVERS", "STAGES", "RELEASED", "ROWS", "SIZE"]
        text = table(head, [_job_row(copy, stages) for copy, stages in jobs])
    else:
        text = f"no jobs below {storage.description}; is it the right place?"
    call.emit(document, text)
    for copy in copies:
        call.warn_of_damage(copy)


def _job_row(copy: JobCopy, stages: list[StageSummary]) -> list[object]:
    live = [stage for stage in stages if stage.status != StageStatus.RELEASED]
    rows, data = sum(s.rows or 0 for s in live), sum(s.data_bytes or 0 for s in live)
    return [copy.job, copy.generation, len(live), len(stages) - len(live), rows, size(data)]


@command
def inspect(
    call: Call,
    job: Job,
    stage: OptionalStage = None,
) -> None:
    """Show a job's stages and consumers, or all that is known of one stage.

    For a stage: description, seal, map tasks and their attempts, sizes, rows per partition, and the
    number of attempts that wrote although a commit existed. For a stage that grows: what each
    attempt appended and how it ended, and the positions of consumers. Reads logs and lists objects,
    but reads no data.

    \b
    Examples:
      durable-shuffle inspect /data/shuffle nightly
      durable-shuffle inspect /data/shuffle nightly orders-3f2a --json
    """
    storage = call.storage
    copy = find_job(storage, job)
    call.warn_of_damage(copy)
    document: dict[str, object] = {
        "url": storage.description,
        "job": job,
        "generation": copy.generation,
    }
    if stage is None:
        stages, consumers = summaries(storage, copy), consumer_summaries(storage, job)
        document |= {"stages": list(map(asdict, stages)), "consumers": list(map(asdict, consumers))}
        text = f"job {job}, driver no. {copy.generation}\n{stage_table(stages)}"
        if consumers:
            text += f"\n\n{consumer_table(consumers)}"
    else:
        path = find_stage(copy, stage)
        details = stage_details(open_stage(storage, path), released=path in copy.released)
        document["stage"], text = details, details_text(details)
    call.emit(document, text)


@command
def report(
    call: Call,
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="Name of the job; may also end the URL.")
    ] = None,
    *,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page to this file.")
    ] = None,
) -> None:
    """Show when a job's map tasks and consumers stored data, and what was used again.

    Reads control records and lists objects, but reads no data and writes nothing to the storage.
    Records hold no times: the times shown are those at which the storage wrote the objects. Prints
    one line per stage; --html also writes a page with drawings.

    \b
    Examples:
      durable-shuffle report /data/shuffle nightly --html nightly.html
      durable-shuffle report /data/shuffle/nightly
      durable-shuffle report s3://bucket/shuffle nightly --json
    """
    storage, job = _job_in_url(call) if job is None else (call.storage, job)
    history = read_history(storage, job)
    if html is not None:
        html.write_text(job_page(history, storage.description), encoding="utf-8")
        call.note(f"wrote {html}")
    drivers, stages = len(history.drivers), len(history.stages)
    lines = [f"job {job}: {plural(drivers, 'driver')}, {plural(stages, 'stage')}"]
    lines += [f"{_named(stage)}: {_stage_line(stage)}" for stage in history.stages]
    call.emit(asdict(history), "\n".join(lines))


def _named(stage: StageHistory) -> str:
    return f"{stage.name}, {stage.rows_by}" if stage.rows_by else stage.name


def _stage_line(stage: StageHistory) -> str:
    if stage.error is not None:
        return stage.error
    drivers = ", ".join(str(generation) for _, generation in stage.uses)
    by = f"driver{'' if len(stage.uses) == 1 else 's'} {drivers}"
    if stage.ended is not None:
        stored = f"{plural(stage.rows, 'row')}, {size(stage.data_bytes)}"
        return f"{plural(stage.appends, 'append')}, {stored}, {stage.status}, {by}"
    done = f"{stage.count('counts')} of {stage.producers or '?'} map tasks stored"
    return f"{done}, {stage.count('superseded')} run again, {stage.status}, {by}"


def _job_in_url(call: Call) -> tuple[Storage, str]:
    """Return the storage and the job that the URL names; the job is what follows its last '/'."""
    url = call.url
    root, _, name = url.rstrip("/").rpartition("/")
    below = call.open(root) if root and not root.endswith(":/") else None
    if below is not None and _is_job(below, name):
        return below, name
    if jobs := list_jobs(call.storage):
        raise InvalidInputError(
            f"which job? {url} holds {plural(len(jobs), 'job')}; "
            f"did you mean `report {url} {jobs[0]}`?"
        )
    if below is not None:
        return below, name  # no such job: the error of `find_job` lists the jobs
    raise InvalidInputError(f"no job in the URL, expected URL JOB or <url>/<job>: found={url!r}")


def _is_job(storage: Storage, name: str) -> bool:
    try:
        prefix = job_log_prefix(name)
    except InvalidInputError:  # no name of a job
        return False
    return any(True for _ in storage.list(prefix))


@command
def storage_check(
    call: Call,
    *,
    processes: Annotated[int, typer.Option(help="How many race for each key, from 2.")] = 8,
    rounds: Annotated[int, typer.Option(help="Keys to race for, from 1.")] = 50,
) -> None:
    """Test the storage contract on a live backend and say what it may be used for.

    Writes below storage-check-<random id>/ and deletes those objects again. Ends with 1 if the
    storage breaks a rule. Takes about 10 seconds on a local folder, some minutes on a slow object
    store, and almost no space.

    \b
    Examples:
      durable-shuffle storage-check ./shuffle-data --processes 2 --rounds 5
      durable-shuffle storage-check /mnt/nfs/shuffle
      durable-shuffle storage-check s3://bucket/shuffle --storage-option anon=false
    """
    report = check_storage(call.storage, ids=RandomIds(), processes=processes, rounds=rounds)
    document = asdict(report) | {"passed": report.passed, "verdict": report.verdict}
    call.emit(document, _laws_text(report))
    if not report.passed:
        call.fail()


def _laws_text(report: StorageReport) -> str:
    lines = [f"{'ok  ' if law.passed else 'FAIL'} {law.law}: {law.reason}" for law in report.laws]
    times = [("put", report.put_ms), ("create", report.create_ms), ("get", report.get_ms)]
    shown = ", ".join(f"{name} {ms:.1f} ms" for name, ms in times if ms is not None)
    if shown:
        lines.append(f"medians for 1 kB: {shown}")
    if report.leftovers:
        lines.append(f"left behind: {report.leftovers}")
    return "\n".join([*lines, report.verdict])
