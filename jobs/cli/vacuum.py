"""The command `vacuum`: delete the stages that a job's runs no longer use."""

from dataclasses import asdict
from typing import Annotated

import typer

from durable_shuffle.jobs.cli.call import Call, Job, command
from durable_shuffle.jobs.cli.changing import FENCES, confirm, parse_age
from durable_shuffle.jobs.inspect.names import find_job, short_name
from durable_shuffle.jobs.inspect.summary import summarise
from durable_shuffle.jobs.text import size, table
from durable_shuffle.serialization.errors import DurableShuffleError
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.log.job_log import JobLog, read_job
from durable_shuffle.shuffle.release.purge import (
    finish_releases,
    purge_released,
    purge_slots,
    purgeable,
)
from durable_shuffle.shuffle.release.stages import Freed, finish_release, skipping_damaged
from durable_shuffle.shuffle.release.unused import (
    KeepUsed,
    Unused,
    free_stages,
    release_unused,
    unused_stages,
)
from durable_shuffle.shuffle.storage.contract import Storage


@command
def vacuum(
    call: Call,
    job: Job,
    *,
    runs: Annotated[
        int, typer.Option(help="Keep what any of this many last runs used.", min=0)
    ] = KeepUsed().runs,
    unused_for: Annotated[
        str, typer.Option(metavar="AGE", help="Keep what was used within this time: 12h, 7d.")
    ] = "7d",
    unrecognized_for: Annotated[
        str,
        typer.Option(metavar="AGE", help="The same for stages that no later run can find again."),
    ] = "12h",
    keep_newest: Annotated[
        bool, typer.Option(help="Keep the newest stage of each name in any case.")
    ] = True,
    purge_after: Annotated[
        str,
        typer.Option(metavar="AGE", help="Delete the logs of stages that were deleted longer ago."),
    ] = "7d",
    delete: Annotated[bool, typer.Option("--delete", help="Delete; default: only show.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete the stages that a job's runs no longer use; without --delete only show them.

    A job does this itself each time it starts, as its `retention` says. Ages are counted from the
    last use of a stage. Stages that a declared consumer has not finished stay, and so do the stages
    of streams, write jobs and pipelines; `release` deletes any stage.

    --delete claims the job first: a driver that runs it now stops at its next write.

    \b
    Examples:
      durable-shuffle vacuum /data/shuffle nightly
      durable-shuffle vacuum /data/shuffle nightly --runs 1 --unused-for 2d --delete --yes
    """
    keep = KeepUsed(runs, parse_age(unused_for), parse_age(unrecognized_for), keep_newest)
    find_job(call.storage, job)  # the error for a wrong name lists the right ones
    now = call.clock(job, writes=delete).wall()
    state = read_job(call.storage, job)
    failed: list[DurableShuffleError] = []
    found = unused_stages(state, keep, now, state.runs + 1)
    found = free_stages(call.storage, found, failed)
    document: dict[str, object] = {"url": call.storage.description, "job": job, "deleted": delete}
    document["stages"] = [_described(call.storage, unused) for unused in found]
    shown = _table(call.storage, found) if found else "nothing to delete"
    old = purgeable(state, now, parse_age(purge_after).total_seconds())
    document["purgeable"] = [path.folder for path in old]
    if old:
        shown += f"\nlogs of {len(old)} stages that were deleted before"
    if not delete or not (found or old):
        call.emit(document, f"{shown}\nnothing was changed" if found or old else shown)
        return
    confirm(call, yes=yes, what=f"delete for good:\n{shown}\n{FENCES}")
    ids = RandomIds()
    freed = Freed(0, 0)
    with JobLog.claim(call.storage, job, ids.new_id(), run=False) as log:
        for unused in release_unused(log, call.storage, keep, ids, now, failed):
            with skipping_damaged(failed):
                freed += finish_release(log, call.storage, unused.path, ids)
        finish_releases(log, call.storage, ids, failed, now)
        horizon = parse_age(purge_after).total_seconds()
        purged = purge_released(log, call.storage, ids, now=now, horizon_seconds=horizon)
        purge_slots(log, call.storage, ids, now=now, horizon_seconds=horizon)
    document |= {"generation": log.generation, "freed": asdict(freed)}
    document["purged"] = [path.folder for path in purged]
    call.emit(document, f"{shown}\n{size(freed.data_bytes)} freed")


def _described(storage: Storage, unused: Unused) -> dict[str, object]:
    return {**asdict(summarise(storage, unused.path, released=False)), "why": unused.why}


def _table(storage: Storage, found: list[Unused]) -> str:
    rows = []
    for unused in found:
        path = unused.path
        data_bytes = summarise(storage, path, released=False).data_bytes
        rows.append([short_name(path.name, path.fingerprint), size(data_bytes), unused.why])
    return table(["STAGE", "SIZE", "WHY"], rows)
