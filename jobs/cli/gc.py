"""`durable-shuffle gc`: remove what no log of a job needs."""

from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any

import typer

from durable_shuffle.jobs.cli.call import Call
from durable_shuffle.jobs.cli.params import (
    AsJson,
    Debug,
    Job,
    StorageOption,
    StorageOptionsEnv,
    Url,
)
from durable_shuffle.jobs.cli.release import parse_age
from durable_shuffle.jobs.inspect.names import find_job
from durable_shuffle.jobs.text import size, table
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.release.gc import Judged
from durable_shuffle.shuffle.release.gc_run import GcReport, collect_garbage

_SHOWN = 20


def gc(
    url: Url,
    job: Job,
    *,
    delete: Annotated[bool, typer.Option("--delete", help="Act; default: only show.")] = False,
    older_than: Annotated[
        str,
        typer.Option(
            metavar="AGE",
            help="Spare temporary files and remains of drivers' starts that are younger, and write "
            "jobs that wrote something since then. 90m, 12h, 7d; 0s takes all.",
        ),
    ] = "1d",
    as_json: AsJson = False,
    storage_option: StorageOption = None,
    storage_options_env: StorageOptionsEnv = None,
    debug: Debug = False,
) -> None:
    """Remove what no log of a job needs; without --delete only show it.

    That is: segments of attempts and write jobs that never committed, stages that an overwrite
    began and never finished, index objects that no SEAL names, outputs
    and states that a consumer wrote and never acknowledged, what unfinished releases and killed
    writers left. Stages that are stored stay; `release` deletes those.

    --delete claims the job first: a running driver of that job will stop with FencedError, its
    running producers are aborted, and a consumer that has written what it has not acknowledged
    loses its view. Nothing that was committed or acknowledged is touched. It may be killed and
    started again at any time.

    Where names or records make no sense, nothing of that stage or consumer goes; it says so and
    exits with 1.

    \b
    Examples:
      durable-shuffle gc /data/shuffle nightly
      durable-shuffle gc /data/shuffle nightly --delete --older-than 2h
      durable-shuffle gc s3://bucket/shuffle nightly --json --storage-options-env S3_OPTIONS
    """
    with Call(url, storage_option, storage_options_env, as_json=as_json, debug=debug) as call:
        age = parse_age(older_than)
        find_job(call.storage, job)  # a wrong name is told together with the right ones
        report = collect_garbage(
            call.storage,
            job,
            ids=RandomIds(),
            clock=SystemClock(),
            settings=Settings(),
            older_than_seconds=age.total_seconds(),
            delete=delete,
        )
        call.emit(_document(call.storage.description, report, deleted=delete), _text(report))
        if report.odd:
            call.note(f"{len(report.odd)} odd or kept for it; run `durable-shuffle verify`")
            call.fail()


def _document(url: str, report: GcReport, *, deleted: bool) -> dict[str, Any]:
    def items(judged: tuple[Judged, ...]) -> list[dict[str, object]]:
        return [{"key": j.key, "bytes": j.size_bytes, "reason": j.reason} for j in judged]

    return {
        "url": url,
        "job": report.job,
        "deleted": deleted,
        "generation": report.generation or None,
        "live": report.live,
        "orphans": items(report.orphans),
        "spared": items(report.spared),
        "odd": items(report.odd),
        "unfinished_releases": report.unfinished_releases,
        "freed": asdict(report.freed),
    }


def _text(report: GcReport) -> str:
    """Return counts per stage or consumer and reason; odd things one by one."""
    acted = report.generation > 0
    counts: Counter[tuple[str, str, str]] = Counter()
    sizes: Counter[tuple[str, str, str]] = Counter()
    what = "removed" if acted else "would go"
    for verdict, judged in ((what, report.orphans), ("spared", report.spared)):
        for one in judged:
            folder = one.key.split("/")[1]
            where = folder if folder != "consumers" else "/".join(one.key.split("/")[1:4])
            counts[verdict, where, one.reason] += 1
            sizes[verdict, where, one.reason] += one.size_bytes
    lines = []
    if counts:
        head = ["", "WHERE", "OBJECTS", "SIZE", "WHY"]
        rows = [[v, w, n, size(sizes[v, w, why]), why] for (v, w, why), n in counts.items()]
        lines.append(table(head, rows))
    lines += [f"odd: {one.key}: {one.reason}" for one in report.odd[:_SHOWN]]
    if len(report.odd) > _SHOWN:
        lines.append(f"odd: and {len(report.odd) - _SHOWN} more; --json shows all")
    if report.unfinished_releases:
        did = "finished" if acted else "to finish"
        lines.append(f"{report.unfinished_releases} releases {did}")
    total = report.freed.data_bytes if acted else sum(one.size_bytes for one in report.orphans)
    if report.orphans or report.spared:
        lines.append(
            f"{size(total)} {'given back' if acted else 'to give back; nothing was changed'}"
        )
    else:
        lines.append(f"nothing to collect, {report.live} objects are live")
    return "\n".join(lines)
