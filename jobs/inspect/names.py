"""From what a user typed to a job or a stage. A wrong name is told together with the right ones."""

import difflib
import os
import re
from collections.abc import Sequence

from durable_shuffle.serialization.errors import InvalidInputError, NotFoundError
from durable_shuffle.shuffle.log.layout import StagePath, check_name, parse_stage_folder
from durable_shuffle.shuffle.log.lost_stages import lost_stage
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.verify.job import JobCopy

_SHOWN = 10
SHORT_ID = 12
"""Characters of an id that people are shown."""
_SLOT = re.compile(r"\d{10,}")


def list_jobs(storage: Storage) -> list[str]:
    """Return the jobs that a listing of the whole root shows, sorted."""
    found: set[str] = set()
    for info in storage.list(""):
        parts = info.key.split("/")
        if len(parts) < 3 or parts[0] in found:
            continue
        if (parts[1] == "log" and _SLOT.fullmatch(parts[2])) or (
            parse_stage_folder(parts[0], parts[1]) is not None
        ):
            found.add(parts[0])
    return sorted(found)


def require_root(storage: Storage) -> None:
    """Refuse a local root that is no folder. Object stores have none: there, empty is all we know.

    Raises:
        InvalidInputError: there is no such folder.
    """
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


def folder(path: StagePath) -> str:
    """Return the name of a stage's folder."""
    return f"{path.name}-{path.fingerprint}-{path.incarnation}"


def short_name(name: str, fingerprint: str) -> str:
    """Return the start of a folder's name that people are shown; it names the stage, too."""
    return f"{name}-{fingerprint[:SHORT_ID]}"


def find_stage(job: JobCopy, text: str, *, released: bool = True) -> StagePath:
    """Return the one stage that `text` names.

    Args:
        text: a folder name, a stage's name, or the start of a folder name that is longer than the
            stage's name. A stage that is not released goes before one that is.
        released: False never returns a released stage.

    Raises:
        InvalidInputError: none or several; names them.
        NotFoundError: the job log lost the record that names it.
    """
    live = [path for path in job.paths if path not in job.released]
    gone = released_stages(job, text)
    for found in (_matches(live, text), gone if released else []):
        if len(found) > 1:
            raise _ambiguous(job, text, found)
        if found:
            return found[0]
    if gone:
        raise InvalidInputError(f"stage {text!r} of job {job.job!r} was released")
    known = {*job.paths, *job.begun}
    if lost := lost_stage(job.storage, job.job, known, lambda path: bool(_matches([path], text))):
        raise lost
    names = sorted({path.name for path in live})
    raise InvalidInputError(
        f"job {job.job!r} has no stage {text!r}; {_choices('stages', text, names)}"
    )


def released_stages(job: JobCopy, text: str) -> list[StagePath]:
    """Return the released stages that `text` names, see `find_stage`; none if it names one that is
    not released."""
    live = [path for path in job.paths if path not in job.released]
    gone = [path for path in job.paths if path in job.released]
    return [] if _matches(live, text) else _matches(gone, text)


def _matches(paths: Sequence[StagePath], text: str) -> list[StagePath]:
    """Return the stages of the best kind of match that there is."""
    for match in (_is_folder, _is_name, _is_prefix):
        found = [path for path in paths if match(path, text)]
        if found:
            return found
    return []


def _ambiguous(job: JobCopy, text: str, found: Sequence[StagePath]) -> InvalidInputError:
    error = InvalidInputError(
        f"write more of the name: stage {text!r} of job {job.job!r} is ambiguous, "
        f"{len(found)} match:"
    )
    short = [short_name(path.name, path.fingerprint) for path in found]
    for path, name in list(zip(found, short, strict=True))[:_SHOWN]:
        longer = f"{path.name}-{path.fingerprint}-{path.incarnation[:SHORT_ID]}"
        error.add_note(name if short.count(name) == 1 else longer)
    if len(found) > _SHOWN:
        error.add_note(f"and {len(found) - _SHOWN} more")
    return error


def _is_folder(path: StagePath, text: str) -> bool:
    return folder(path) == text


def _is_name(path: StagePath, text: str) -> bool:
    return path.name == text


def _is_prefix(path: StagePath, text: str) -> bool:
    return len(text) > len(path.name) + 1 and folder(path).startswith(text)


def _choices(what: str, text: str, names: Sequence[str]) -> str:
    if not names:
        return f"there are no {what}"
    near = difflib.get_close_matches(text, names, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{meant}{what} here: {', '.join(names[:_SHOWN])}{more}"
