"""Commands that change what is stored: `release`, `gc`, `compact`."""

import re
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Annotated

import typer

from durable_shuffle.jobs.cli.call import (
    Call,
    Job,
    OptionalStage,
    command,
)
from durable_shuffle.jobs.inspect.names import find_job, find_stage, live_stages, released_stages
from durable_shuffle.jobs.inspect.summary import stage_table, summarise
from durable_shuffle.jobs.text import size, table
from durable_shuffle.serialization.errors import DurableShuffleError, InvalidInputError
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.stage import open_stage, read_state
from durable_shuffle.shuffle.release.gc import Judged
from durable_shuffle.shuffle.release.gc_run import GcReport, collect_garbage
from durable_shuffle.shuffle.release.purge import finish_releases
from durable_shuffle.shuffle.release.stages import (
    raise_first,
    release_done,
    release_stage_of,
    skipping_damaged,
)
from durable_shuffle.shuffle.repair.compaction import SMALL_BYTES, compact_stage
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.verify.job import JobCopy

_AGE = re.compile(r"(\d{1,15})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LONGEST_AGE_SECONDS = 365_000 * 86_400
_SHOWN = 20
FENCES = "this claims the job: a driver that runs it now is fenced and stops at its next write"


@command
def release(
    call: Call,
    job: Job,
    stage: OptionalStage = None,
    *,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Only stages older than this: 90m, 12h, 7d, 2w."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete stages of a job for good: all of them, one, or those older than an age.

    Claims the job first: a driver that runs it now is fenced and stops at its next write. Logs
    stay, so that a late writer learns that its stage was deleted. Age is the wall-clock time since
    the stage was created; later use does not count. For a stage that was released before, only an
    interrupted deletion is finished.

    \b
    Examples:
      durable-shuffle release /data/shuffle nightly --older-than 7d --dry-run
      durable-shuffle release /data/shuffle nightly orders --yes
    """
    storage = call.storage
    age = None if older_than is None else parse_age(older_than)
    copy = find_job(storage, job)
    before = [] if stage is None else released_stages(copy, stage)
    paths = [] if before else _chosen(copy, stage)
    candidates = len(paths)
    clock = call.clock(job, writes=not dry_run)
    if age is not None:
        now = clock.wall()
        paths = [path for path in paths if _age(storage, path, now) > age.total_seconds()]
    shown = [summarise(storage, path, released=False) for path in paths]
    document: dict[str, object] = {
        "url": storage.description,
        "job": job,
        "dry_run": dry_run,
        "stages": list(map(asdict, shown)),
    }
    failed: list[DurableShuffleError] = []
    unfinished = False
    for path in before or copy.released - copy.freed:
        with skipping_damaged(failed):
            unfinished |= not release_done(storage, path)
    if before:
        document["released_before"] = [path.folder for path in before]
    if dry_run or not (paths or unfinished):
        nothing = (
            f"stage {stage!r} was released already: nothing to do"
            if before
            else _none_older(older_than, candidates)
        )
        call.emit(document, f"would release:\n{stage_table(shown)}" if paths else nothing)
        raise_first(failed)
        return
    failed.clear()
    confirm(call, yes=yes, what=f"release for good:\n{stage_table(shown)}\n{FENCES}")
    ids = RandomIds()
    with JobLog.claim(storage, job, ids.new_id(), run=False) as log:
        before_now = finish_releases(log, storage, ids, failed, clock.wall())
        freed = [{"stage": "(released before)", **asdict(part)} for part in before_now]
        for path in paths:
            if path in log.state.live:  # else a driver released it since we looked
                with skipping_damaged(failed):
                    part = release_stage_of(log, storage, path, ids)
                    freed.append({"stage": path.folder, **asdict(part)})
    document |= {"generation": log.generation, "freed": freed}
    lines = [f"released {f['stage']}: {f['objects']} objects" for f in freed]
    total = size(sum(f["data_bytes"] for f in freed))
    call.emit(document, "\n".join([*lines, f"{total} freed"]))
    raise_first(failed)


def _chosen(copy: JobCopy, stage: str | None) -> list[StagePath]:
    """Return the stage that was named, else all; none of them is released."""
    return live_stages(copy) if stage is None else [find_stage(copy, stage, released=False)]


def parse_age(text: str) -> timedelta:
    """Return the age that `text` states, as in 90m, 12h or 7d.

    Raises:
        InvalidInputError: anything else.
    """
    match = _AGE.fullmatch(text)
    seconds = int(match[1]) * _SECONDS[match[2]] if match else _LONGEST_AGE_SECONDS + 1
    if seconds > _LONGEST_AGE_SECONDS:
        raise InvalidInputError(
            f"--older-than takes a number and one of s, m, h, d, w, such as 7d, found={text!r}"
        )
    return timedelta(seconds=seconds)


def _age(storage: Storage, path: StagePath, now: float) -> float:
    """Return the age of a stage in seconds, 0 if it is damaged."""
    created = now
    with skipping_damaged([]):
        created = open_stage(storage, path).describe.created_wall_seconds
    return now - created


def _none_older(age: str | None, younger: int) -> str:
    if age is None or not younger:
        return "no stages"
    return f"no stage is older than {age} ({younger} {'is' if younger == 1 else 'are'} younger)"


def confirm(call: Call, *, yes: bool, what: str) -> None:
    """Ask before something is deleted for good.

    Raises:
        InvalidInputError: nobody can answer.
    """
    if yes:
        call.note(FENCES)
        return
    call.note(what)
    if not sys.stdin.isatty():
        raise InvalidInputError("nothing is deleted without --yes where nobody can answer")
    typer.confirm("Go on?", abort=True, err=True)


@command
def gc(
    call: Call,
    job: Job,
    *,
    delete: Annotated[bool, typer.Option("--delete", help="Delete; default: only show.")] = False,
    older_than: Annotated[
        str,
        typer.Option(
            metavar="AGE",
            help="Keep temporary files and leftovers of dead drivers that are younger, and write "
            "jobs that wrote something since then. 90m, 12h, 7d; 0s takes all.",
        ),
    ] = "1d",
) -> None:
    """Remove what no log of a job needs; without --delete only show it.

    It removes segments of attempts and write jobs that never committed, stages that an overwrite
    began and never finished, index objects that no SEAL names, outputs and states that a consumer
    wrote and never acknowledged, and what unfinished releases and killed writers left. Stored
    stages stay; `release` deletes those.

    --delete claims the job first: a running driver of that job stops with FencedError, its running
    producers are aborted, and a consumer with unacknowledged output loses its view. A pipeline that
    runs, or that died without a word, is not disturbed: what its tasks may still name is spared.
    Nothing that was committed or acknowledged is touched. It may be killed and started again at any
    time.

    If names or records of a stage or consumer make no sense, nothing of it is removed, it is
    listed, and the command exits with 1.

    \b
    Examples:
      durable-shuffle gc /data/shuffle nightly
      durable-shuffle gc /data/shuffle nightly --delete --older-than 2h
      durable-shuffle gc s3://bucket/shuffle nightly --json --storage-options-env S3_OPTIONS
    """
    age = parse_age(older_than)
    find_job(call.storage, job)  # the error for a wrong name lists the right ones
    report = collect_garbage(
        call.storage,
        job,
        ids=RandomIds(),
        clock=call.clock(job, writes=delete),
        settings=Settings(),
        older_than_seconds=age.total_seconds(),
        delete=delete,
    )
    document = {"url": call.storage.description, "job": report.job, "deleted": delete}
    document |= {
        "generation": report.generation or None,
        "live": report.live,
        "orphans": _items(report.orphans),
        "spared": _items(report.spared),
        "unknown": _items(report.unknown),
        "unfinished_releases": report.unfinished_releases,
        "freed": asdict(report.freed),
    }
    call.emit(document, _gc_text(report))
    if report.beside and delete:
        call.note("a pipeline leads this job: it was not claimed; suspend it to collect the rest")
    if report.unknown:
        call.note(f"{len(report.unknown)} unknown or kept for them; run `durable-shuffle verify`")
        call.fail()


def _items(judged: tuple[Judged, ...]) -> list[dict[str, object]]:
    return [{"key": j.key, "bytes": j.size_bytes, "reason": j.reason} for j in judged]


def _gc_text(report: GcReport) -> str:
    """Return counts per stage or consumer and reason, and each key that makes no sense."""
    acted = report.deleted
    counts: Counter[tuple[str, str, str]] = Counter()
    sizes: Counter[tuple[str, str, str]] = Counter()
    what = "removed" if acted else "would go"
    for verdict, judged in ((what, report.orphans), ("spared", report.spared)):
        for item in judged:
            parts = item.key.split("/")
            where = "/".join(parts[1:4]) if parts[1] == "consumers" else parts[1]
            counts[verdict, where, item.reason] += 1
            sizes[verdict, where, item.reason] += item.size_bytes
    lines = []
    if counts:
        head = ["", "WHERE", "OBJECTS", "SIZE", "WHY"]
        rows = [[v, w, n, size(sizes[v, w, why]), why] for (v, w, why), n in counts.items()]
        lines.append(table(head, rows))
    lines += [f"unknown: {item.key}: {item.reason}" for item in report.unknown[:_SHOWN]]
    if len(report.unknown) > _SHOWN:
        lines.append(f"unknown: and {len(report.unknown) - _SHOWN} more; --json shows all")
    if report.unfinished_releases:
        lines.append(
            f"{report.unfinished_releases} releases {'finished' if acted else 'to finish'}"
        )
    total = report.freed.data_bytes if acted else sum(item.size_bytes for item in report.orphans)
    if report.orphans or report.spared:
        lines.append(f"{size(total)} {'freed' if acted else 'could be freed; nothing was changed'}")
    else:
        lines.append(f"nothing to collect, {report.live} objects are live")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Compacted:
    stage: str
    outcome: str
    extents: int = 0
    segments: int = 0
    data_bytes: int = 0


@command
def compact(
    call: Call,
    job: Job,
    stage: OptionalStage = None,
    *,
    small_bytes: Annotated[
        int, typer.Option(help="Longest extent that is moved, in bytes.", min=1)
    ] = SMALL_BYTES,
) -> None:
    """Rewrite small extents of stored stages next to each other; saves readers requests.

    Useful if many map tasks write for many partitions on an object store. Changes no row and no
    order, claims nothing, and may run beside drivers and readers. The originals stay until the
    stage is released, so data that moves is stored twice.

    \b
    Examples:
      durable-shuffle compact s3://bucket/shuffle nightly
      durable-shuffle compact s3://bucket/shuffle nightly orders --small-bytes 262144
    """
    copy = find_job(call.storage, job)
    done = [_compact(call.storage, path, small_bytes) for path in _chosen(copy, stage)]
    document = {"url": call.storage.description, "job": job, "stages": list(map(asdict, done))}
    call.emit(document, "\n".join(map(_compact_line, done)) or "no stages")


def _compact(storage: Storage, path: StagePath, small_bytes: int) -> _Compacted:
    stage = open_stage(storage, path)
    state = read_state(stage)
    if state.seal is None:
        return _Compacted(path.folder, "not sealed")
    result = compact_stage(
        stage,
        ids=RandomIds(),
        generation=state.seal.generation,
        settings=Settings(),
        small_bytes=small_bytes,
    )
    if result.compact is None:
        return _Compacted(path.folder, "nothing to gain")
    outcome, segments = "compacted" if result.won else "compacted before", result.compact.segments
    moved = sum(segment.length for segment in segments)
    return _Compacted(path.folder, outcome, result.compact.extents, len(segments), moved)


def _compact_line(done: _Compacted) -> str:
    text = f"{done.stage}: {done.outcome}"
    if done.segments:
        text += f": {done.extents} extents in {done.segments} segments, {size(done.data_bytes)}"
    return text
