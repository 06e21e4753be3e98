"""`durable-shuffle ls`: which jobs and stages are stored."""

from dataclasses import asdict

from durable_shuffle.jobs.cli.call import Call
from durable_shuffle.jobs.cli.params import (
    AsJson,
    Debug,
    OptionalJob,
    StorageOption,
    StorageOptionsEnv,
    Url,
)
from durable_shuffle.jobs.inspect.names import find_job, list_jobs, require_root
from durable_shuffle.jobs.inspect.summary import stage_table, summaries
from durable_shuffle.jobs.text import size, table


def ls(
    url: Url,
    job: OptionalJob = None,
    *,
    as_json: AsJson = False,
    storage_option: StorageOption = None,
    storage_options_env: StorageOptionsEnv = None,
    debug: Debug = False,
) -> None:
    """List jobs, or the stages of one job.

    Reads control records only. Jobs are found by listing the whole root, which takes a while where
    much is stored; naming the job avoids it. An empty folder has no jobs; one that is not
    there is an error.

    \b
    Examples:
      durable-shuffle ls /data/shuffle
      durable-shuffle ls s3://bucket/shuffle nightly --storage-options-env S3_OPTIONS
    """
    with Call(url, storage_option, storage_options_env, as_json=as_json, debug=debug) as call:
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
            head = ["JOB", "GENERATION", "STAGES", "RELEASED", "ROWS", "SIZE"]
            rows = []
            for copy, stages in jobs:
                live = [s for s in stages if s.status != "released"]
                rows.append(
                    [
                        copy.job,
                        copy.generation,
                        len(live),
                        len(stages) - len(live),
                        sum(s.rows or 0 for s in live),
                        size(sum(s.data_bytes or 0 for s in live)),
                    ]
                )
            text = table(head, rows)
        else:
            text = f"no jobs below {storage.description}; is it the right place?"
        call.emit(document, text)
        for copy in copies:
            call.warn_of_damage(copy)
