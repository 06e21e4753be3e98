"""`durable-shuffle inspect`: what a job's or a stage's logs say, in detail."""

from dataclasses import asdict

from durable_shuffle.jobs.cli.call import Call
from durable_shuffle.jobs.cli.params import (
    AsJson,
    Debug,
    Job,
    OptionalStage,
    StorageOption,
    StorageOptionsEnv,
    Url,
)
from durable_shuffle.jobs.inspect.consumers import consumer_summaries, consumer_table
from durable_shuffle.jobs.inspect.log_details import log_details, log_text
from durable_shuffle.jobs.inspect.names import find_job, find_stage
from durable_shuffle.jobs.inspect.stage_details import stage_details, stage_text
from durable_shuffle.jobs.inspect.summary import stage_table, summaries
from durable_shuffle.shuffle.log.stage import open_stage


def inspect(
    url: Url,
    job: Job,
    stage: OptionalStage = None,
    *,
    as_json: AsJson = False,
    storage_option: StorageOption = None,
    storage_options_env: StorageOptionsEnv = None,
    debug: Debug = False,
) -> None:
    """Show a job's stages and consumers, or all that is known of one stage.

    Of a stage: description, seal, producers and their attempts, sizes, rows per partition, and how
    many attempts wrote although a commit stood. Of a stage of log producers: each attempt with what
    it appended and how it ended, and how far consumers are. Reads logs and lists objects, no data.

    \b
    Examples:
      durable-shuffle inspect /data/shuffle nightly
      durable-shuffle inspect /data/shuffle nightly orders-3f2a --json
    """
    with Call(url, storage_option, storage_options_env, as_json=as_json, debug=debug) as call:
        storage = call.storage
        copy = find_job(storage, job)
        call.warn_of_damage(copy)
        document: dict[str, object] = {
            "url": storage.description,
            "job": job,
            "generation": copy.generation,
        }
        if stage is None:
            found = summaries(storage, copy)
            document["stages"] = [asdict(one) for one in found]
            consumers = consumer_summaries(storage, job)
            document["consumers"] = [asdict(one) for one in consumers]
            text = f"job {job}, generation {copy.generation}\n{stage_table(found)}"
            if consumers:
                text += f"\n\n{consumer_table(consumers)}"
            call.emit(document, text)
            return
        path = find_stage(copy, stage)
        handle, released = open_stage(storage, path), path in copy.released
        if handle.describe.writing == "log":
            details = log_details(handle, released=released)
            text = log_text(details)
        else:
            details = stage_details(handle, released=released)
            text = stage_text(details)
        call.emit(document | {"stage": details}, text)
