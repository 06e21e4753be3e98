"""Find the job or stage that a user typed. The error for a wrong name lists the right ones."""

import difflib
import os
import re
from collections.abc import Sequence

from durable_shuffle.serialization.errors import InvalidInputError, NotFoundError
from durable_shuffle.shuffle.log.layout import StagePath, check_name, parse_stage_folder
from durable_shuffle.shuffle.log.named_stage import lost_stage
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.verify.job import JobCopy

_SHOWN = 10
SHORT_ID = 12
"""Characters of an id that people are shown."""
_SLOT = re.compile(r"\d{10,}")


def list_jobs(storage: Storage) -> list[str]:
    """Return the jobs that a listing of the whole root shows, sorted."""
    jobs: set[str] = set()
    for info in storage.list(""):
        parts = info.key.split("/")
        if len(parts) < 3 or parts[0] in jobs:
            continue
        if (parts[1] == "log" and _SLOT.fullmatch(parts[2])) or (
            parse_stage_folder(parts[0], parts[1]) is not None
        ):
            jobs.add(parts[0])
    return sorted(jobs)


def require_root(storage: Storage) -> None:
    """Refuse a local root that is no folder. Object stores have no folders to ask for."""
    backend = getattr(storage, "backend", storage)
    if isinstance(backend, LocalStorage):
        root = backend.description.removeprefix("file:")
        if not os.path.isdir(root):  # noqa: PTH112 (False, not an error, where it cannot be asked)
            raise InvalidInputError(f"no such folder: {root}; check the URL")


def find_job(storage: Storage, job: str) -> JobCopy:
    """Return a job's log.

    Raises:
        InvalidInputError: there is no such job; names those that exist.
    """
    check_name("job", job)
    try:
        return JobCopy(storage, job)
    except NotFoundError:
        jobs = list_jobs(storage)
        raise InvalidInputError(
            f"no job {job!r} below {storage.description}; {_choices('jobs', job, jobs)}"
        ) from None


def short_name(name: str, fingerprint: str) -> str:
    """Return the start of a folder's name that people see; it also names the stage."""
    return f"{name}-{fingerprint[:SHORT_ID]}"


def live_stages(job: JobCopy) -> list[StagePath]:
    """Return the stages that were not released, oldest first."""
    return [path for path in job.paths if path not in job.released]


def find_stage(job: JobCopy, text: str, *, released: bool = True) -> StagePath:
    """Return the one stage that `text` names. A stage that is not released goes first.

    Args:
        text: a folder name, a stage's name, or the start of a folder name that is longer than the
            stage's name.
        released: False never returns a released stage.

    Raises:
        InvalidInputError: none or several; names them.
        NotFoundError: the job log lost the record that names it.
    """
    live = live_stages(job)
    gone = released_stages(job, text)
    for matches in (_matches(live, text), gone if released else []):
        if len(matches) > 1:
            raise _ambiguous(job, text, matches)
        if matches:
            return matches[0]
    if gone:
        raise InvalidInputError(f"stage {text!r} of job {job.job!r} was released")
    if lost := lost_stage(job.storage, job.job, lambda path: bool(_matches([path], text))):
        raise lost
    names = sorted({path.name for path in live})
    raise InvalidInputError(
        f"job {job.job!r} has no stage {text!r}; {_choices('stages', text, names)}"
    )


def released_stages(job: JobCopy, text: str) -> list[StagePath]:
    """Return the released stages that `text` names; none if it also names a live stage."""
    gone = [path for path in job.paths if path in job.released]
    return [] if _matches(live_stages(job), text) else _matches(gone, text)


def _matches(paths: Sequence[StagePath], text: str) -> list[StagePath]:
    """Return the stages of that folder, else of that name, else whose folder begins so."""
    return (
        [path for path in paths if path.folder == text]
        or [path for path in paths if path.name == text]
        or [p for p in paths if len(text) > len(p.name) + 1 and p.folder.startswith(text)]
    )


def _ambiguous(job: JobCopy, text: str, matches: Sequence[StagePath]) -> InvalidInputError:
    error = InvalidInputError(
        f"write more of the name: stage {text!r} of job {job.job!r} is ambiguous, "
        f"{len(matches)} match:"
    )
    short = [short_name(path.name, path.fingerprint) for path in matches]
    for path, name in list(zip(matches, short, strict=True))[:_SHOWN]:
        longer = f"{path.name}-{path.fingerprint}-{path.incarnation[:SHORT_ID]}"
        error.add_note(name if short.count(name) == 1 else longer)
    if len(matches) > _SHOWN:
        error.add_note(f"and {len(matches) - _SHOWN} more")
    return error


def _choices(what: str, text: str, names: Sequence[str]) -> str:
    if not names:
        return f"there are no {what}"
    near = difflib.get_close_matches(text, names, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{meant}{what} here: {', '.join(names[:_SHOWN])}{more}"
