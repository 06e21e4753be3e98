"""`durable-shuffle release`: delete stages for good."""

import re
import sys
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer

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
from durable_shuffle.jobs.inspect.names import find_job, find_stage, folder, released_stages
from durable_shuffle.jobs.inspect.summary import stage_table, summarise
from durable_shuffle.jobs.text import size
from durable_shuffle.serialization.errors import DurableShuffleError, InvalidInputError
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.stage import open_stage
from durable_shuffle.shuffle.release.damaged import release_done
from durable_shuffle.shuffle.release.stages import (
    finish_releases,
    raise_first,
    release_stage_of,
    skipping_damaged,
)
from durable_shuffle.shuffle.storage.contract import Storage

_AGE = re.compile(r"(\d+)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LONGEST_AGE = timedelta(days=365_000)
_FENCES = "this claims the job: a driver that runs it now is fenced and stops at its next write"


def release(
    url: Url,
    job: Job,
    stage: OptionalStage = None,
    *,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Only stages older than this: 90m, 12h, 7d, 2w."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
    storage_option: StorageOption = None,
    storage_options_env: StorageOptionsEnv = None,
    debug: Debug = False,
) -> None:
    """Delete stages of a job for good: all of them, one, or those above an age.

    Claims the job first: a driver that runs it now is fenced and stops at its next write. Logs
    stay, so that a late writer learns that its stage is gone. Age is the wall-clock time since the
    stage was first described, whoever used it since. Of a stage that was released before, only a
    deletion that died midway is finished.

    \b
    Examples:
      durable-shuffle release /data/shuffle nightly --older-than 7d --dry-run
      durable-shuffle release /data/shuffle nightly orders --yes
    """
    with Call(url, storage_option, storage_options_env, as_json=as_json, debug=debug) as call:
        storage = call.storage
        age = None if older_than is None else parse_age(older_than)
        copy = find_job(storage, job)
        live = [path for path in copy.paths if path not in copy.released]
        before = [] if stage is None else released_stages(copy, stage)
        if stage is None:
            paths = live
        else:
            paths = [] if before else [find_stage(copy, stage, released=False)]
        candidates = len(paths)
        if age is not None:
            now = SystemClock().wall()
            paths = [path for path in paths if _age(storage, path, now) > age.total_seconds()]
        shown = [summarise(storage, path, released=False) for path in paths]
        document: dict[str, object] = {
            "url": storage.description,
            "job": job,
            "dry_run": dry_run,
            "stages": [asdict(one) for one in shown],
        }
        failed: list[DurableShuffleError] = []
        unfinished = False
        for path in before or copy.released:
            with skipping_damaged(failed):
                unfinished |= not release_done(storage, path)
        if before:
            document["released_before"] = [folder(path) for path in before]
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
        _confirm(call, yes=yes, what=f"release for good:\n{stage_table(shown)}\n{_FENCES}")
        ids = RandomIds()
        log = JobLog.claim(storage, job, ids.new_id())
        freed: list[dict[str, object]] = [
            {"stage": "(released before)", **asdict(one)}
            for one in finish_releases(log, storage, ids, failed)
        ]
        for path in paths:
            if path in log.state.order:  # else a driver released it since we looked
                with skipping_damaged(failed):
                    one = release_stage_of(log, storage, path, ids)
                    freed.append({"stage": folder(path), **asdict(one)})
        document |= {"generation": log.generation, "freed": freed}
        lines = [f"released {f['stage']}: {f['objects']} objects" for f in freed]
        total = size(sum(int(str(f["data_bytes"])) for f in freed))
        call.emit(document, "\n".join([*lines, f"{total} given back"]))
        raise_first(failed)


def parse_age(text: str) -> timedelta:
    """Return the age that `text` writes as a number and one of s, m, h, d, w.

    Raises:
        InvalidInputError: anything else.
    """
    match = _AGE.fullmatch(text)
    age = None
    if match and len(match[1]) <= 15:
        seconds = int(match[1]) * _SECONDS[match[2]]
        age = timedelta(seconds=seconds) if seconds <= _LONGEST_AGE.total_seconds() else None
    if age is None:
        raise InvalidInputError(
            f"--older-than takes a number and one of s, m, h, d, w, such as 7d, found={text!r}"
        )
    return age


def _age(storage: Storage, path: StagePath, now: float) -> float:
    """Return the age of a stage; a damaged one has none and stays."""
    created = now
    with skipping_damaged([]):
        created = open_stage(storage, path).describe.created_wall_seconds
    return now - created


def _none_older(age: str | None, younger: int) -> str:
    if age is None or not younger:
        return "no stages"
    return f"no stage is older than {age} ({younger} {'is' if younger == 1 else 'are'} younger)"


def _confirm(call: Call, *, yes: bool, what: str) -> None:
    if yes:
        call.note(_FENCES)
        return
    call.note(what)
    if not sys.stdin.isatty():
        raise InvalidInputError("nothing is deleted without --yes where nobody can answer")
    typer.confirm("Go on?", abort=True, err=True)
