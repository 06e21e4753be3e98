"""`durable-shuffle report`: the life of a job as a page, drawn from its control records."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from durable_shuffle.jobs.cli.call import PATIENCE_SECONDS, Call
from durable_shuffle.jobs.cli.params import (
    AsJson,
    Debug,
    OneJob,
    StorageOption,
    StorageOptionsEnv,
    Url,
)
from durable_shuffle.jobs.inspect.names import list_jobs
from durable_shuffle.jobs.reports.job_history import StageHistory, read_history
from durable_shuffle.jobs.reports.job_page import job_page
from durable_shuffle.jobs.text import plural, size
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.log.layout import job_log_prefix
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.open import open_storage


def report(
    url: Url,
    job: OneJob = None,
    *,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page to this file.")
    ] = None,
    as_json: AsJson = False,
    storage_option: StorageOption = None,
    storage_options_env: StorageOptionsEnv = None,
    debug: Debug = False,
) -> None:
    """Draw when a job's producers and consumers stored what, and what was used again.

    Reads control records and lists objects, no data; writes nothing to the storage. Records hold no
    times: those shown are the storage's own, of objects. Without --html one line per stage is
    printed.

    \b
    Examples:
      durable-shuffle report /data/shuffle nightly --html nightly.html
      durable-shuffle report /data/shuffle/nightly
      durable-shuffle report s3://bucket/shuffle nightly --json
    """
    with Call(url, storage_option, storage_options_env, as_json=as_json, debug=debug) as call:
        if job is None:
            storage, job = _split(url, call.storage_options)
        else:
            storage = call.storage
        history = read_history(storage, job)
        if html is not None:
            html.write_text(job_page(history, storage.description), encoding="utf-8")
            call.note(f"wrote {html}")
        drivers, stages = len(history.drivers), len(history.stages)
        lines = [f"job {job}: {plural(drivers, 'driver')}, {plural(stages, 'stage')}"]
        lines += [f"{stage.name}: {_line(stage)}" for stage in history.stages]
        call.emit(asdict(history), "\n".join(lines))


def _line(stage: StageHistory) -> str:
    if stage.error is not None:
        return stage.error
    drivers = ", ".join(str(generation) for _, generation in stage.uses)
    by = f"driver{'' if len(stage.uses) == 1 else 's'} {drivers}"
    if stage.ended is not None:
        stored = f"{plural(stage.rows, 'row')}, {size(stage.data_bytes)}"
        return f"{plural(stage.appends, 'append')}, {stored}, {stage.status}, {by}"
    counts = sum(a.fate == "counts" for a in stage.attempts)
    again = sum(a.fate == "superseded" for a in stage.attempts)
    done = f"{counts} of {stage.producers or '?'} committed, {again} run again"
    return f"{done}, {stage.status}, {by}"


def _split(url: str, options: Mapping[str, object]) -> tuple[Storage, str]:
    """Return the storage and the job that a URL with the job behind its last '/' names.

    Raises:
        InvalidInputError: there is no job in it; says what to type where there are jobs below it.
    """
    root, _, name = url.rstrip("/").rpartition("/")
    below = (
        open_storage(root, options, call_seconds=PATIENCE_SECONDS)
        if root and not root.endswith(":/")
        else None
    )
    if below is not None and _is_job(below, name):
        return below, name
    jobs = list_jobs(open_storage(url, options, call_seconds=PATIENCE_SECONDS))
    if jobs:
        raise InvalidInputError(
            f"which job? {url} holds {plural(len(jobs), 'job')}; "
            f"did you mean `report {url} {jobs[0]}`?"
        )
    if below is not None:
        return below, name  # it is not there: whoever looks for it says which jobs there are
    raise InvalidInputError(f"no job in the URL, expected URL JOB or <url>/<job>: found={url!r}")


def _is_job(storage: Storage, name: str) -> bool:
    try:
        prefix = job_log_prefix(name)
    except InvalidInputError:  # no name of a job
        return False
    return any(True for _ in storage.list(prefix))
