"""`durable-shuffle report`: the life of a job as a page, drawn from its control records."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from durable_shuffle.jobs.cli.call import Call
from durable_shuffle.jobs.cli.params import (
    AsJson,
    Debug,
    OptionalJob,
    StorageOption,
    StorageOptionsEnv,
)
from durable_shuffle.jobs.reports.job_history import read_history
from durable_shuffle.jobs.reports.job_page import job_page
from durable_shuffle.serialization.errors import InvalidInputError

JobUrl = Annotated[
    str, typer.Argument(metavar="JOB_URL", help="URL with the job behind its last '/', or a URL.")
]


def report(
    job_url: JobUrl,
    job: OptionalJob = None,
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
      durable-shuffle report /data/shuffle/nightly --html nightly.html
      durable-shuffle report s3://bucket/shuffle nightly --json
    """
    url = job_url
    if job is None:
        url, _, job = job_url.rstrip("/").rpartition("/")
    with Call(url, storage_option, storage_options_env, as_json=as_json, debug=debug) as call:
        if not url or not job:
            raise InvalidInputError(
                f"no job in the URL, expected <url>/<job>: found={job_url!r}; or give the job "
                "as a second argument"
            )
        storage = call.storage
        history = read_history(storage, job)
        if html is not None:
            html.write_text(job_page(history, storage.description), encoding="utf-8")
            call.note(f"wrote {html}")
        lines = [f"job {job}: {len(history.drivers)} drivers, {len(history.stages)} stages"]
        for stage in history.stages:
            counts = sum(a.fate == "counts" for a in stage.attempts)
            again = sum(a.fate == "superseded" for a in stage.attempts)
            lines.append(
                f"{stage.name}: {counts} of {stage.producers or '?'} committed, {again} run again, "
                f"{'sealed' if stage.sealed else 'not sealed'}, drivers "
                f"{', '.join(str(generation) for _, generation in stage.uses)}"
            )
        call.emit(asdict(history), "\n".join(lines))
