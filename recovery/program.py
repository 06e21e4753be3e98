"""What to do after an attempt at a user's program: start it again, or stop, and why. Pure.

The shell (`jobs/cli/run.py`) starts programs, passes signals on and looks at the job's storage.
Attempts that store something may go on for ever; attempts that store nothing are counted.
"""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace

from durable_shuffle.serialization.errors import ErrorKind
from durable_shuffle.shuffle.base.retry import Backoff, Jitter

DONE, GAVE_UP, FENCED, HOPELESS = 0, 1, 3, 4
"""Exit codes. HOPELESS: an error that a further attempt would only repeat."""
_SIGNALLED = 128

_HOPELESS_KINDS = {
    ErrorKind.INVALID_INPUT,
    ErrorKind.INCOMPATIBLE,
    ErrorKind.CORRUPT_DATA,
    ErrorKind.ABORTED,
}
_HOPELESS_TYPES = {"SyntaxError", "ImportError", "NameError", "AnalysisException"}
"""Errors of programs that do not depend on when they run; their subclasses, too. Spark raises
AnalysisException for a path, table or column that there is not."""
_HOPELESS_CODES = {
    2: "exit code 2 means misuse",
    126: "the command cannot be executed",
    127: "the command was not found",
}


@dataclass(frozen=True, slots=True)
class StoredPart:
    """How much of a stage is stored."""

    name: str
    done: int
    """Producers that committed; for a stage that is appended to, records."""
    total: int | None
    """Producers; None where it is not known."""
    sealed: bool


@dataclass(frozen=True, slots=True)
class JobLook:
    """What a job's storage holds at one time."""

    owner: str
    """Id of its newest driver; "" before the first one."""
    ended: bool
    """Whether that driver said that it ended."""
    stages: Mapping[str, StoredPart]
    """By folder; released stages are left out."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one attempt at the program ended."""

    exit_code: int
    """Negative: killed by the signal with this number."""
    kind: str = ""
    """Kind of the error of this library that ended the program, "" if none is known."""
    types: tuple[str, ...] = ()
    """Class of the error that ended it and the classes above it, () if unknown."""
    passed_on: int = 0
    """Signal that was passed on to the program, 0 if none was."""
    gained: bool | None = None
    """Whether the storage holds more of the job than before; None if that is not known."""
    superseded: bool | None = None
    """Whether a newer driver has claimed the job since, and has not ended; None if that is not
    known: see `superseded`."""


@dataclass(frozen=True, slots=True)
class Again:
    """Start the program again."""

    delay_seconds: float
    fruitless: int
    """Attempts in a row, this one included, that stored nothing new."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Start it no more."""

    exit_code: int
    why: str


SUPERSEDED = Stop(FENCED, "a newer driver has the job; starting this one again would fence it")


def superseded(mine: str, now: JobLook | None) -> bool | None:
    """Return whether another driver than `mine` holds the job; None if that is not known."""
    return None if not mine or now is None else now.owner != mine and not now.ended


def gained(before: JobLook | None, after: JobLook | None) -> bool | None:
    """Return whether more is stored than before; None if one of the two is not known."""
    if before is None or after is None:
        return None
    nothing = StoredPart("", 0, None, sealed=False)
    return any(
        part.done > (was := before.stages.get(folder, nothing)).done
        or (part.sealed and not was.sealed)
        for folder, part in after.stages.items()
    )


def next_step(attempt: Attempt, fruitless: int, backoff: Backoff, jitter: Jitter) -> Again | Stop:
    """Decide what follows an attempt.

    Args:
        fruitless: attempts in a row before this one that stored nothing new.
        backoff: its retries are attempts in a row that store nothing; others are not counted.
    """
    if attempt.exit_code == 0:
        return Stop(DONE, "ended")
    if attempt.passed_on:
        name = signal.Signals(attempt.passed_on).name
        return Stop(_SIGNALLED + attempt.passed_on, f"{name} was passed on to it")
    unknown = attempt.superseded is None and not attempt.types  # then the code is all there is
    fenced = attempt.kind == ErrorKind.FENCED or (unknown and attempt.exit_code == FENCED)
    if attempt.superseded or fenced:
        return SUPERSEDED
    if attempt.kind in _HOPELESS_KINDS:
        return Stop(HOPELESS, f"{attempt.kind}: another attempt would fail in the same way")
    if not _HOPELESS_TYPES.isdisjoint(attempt.types):
        return Stop(HOPELESS, f"{attempt.types[0]}: another attempt would fail in the same way")
    if not attempt.types and attempt.exit_code in _HOPELESS_CODES:
        return Stop(HOPELESS, _HOPELESS_CODES[attempt.exit_code])
    fruitless = 0 if attempt.gained else fruitless + 1
    if fruitless > backoff.max_retries:
        times = f"{fruitless} attempts in a row" if fruitless > 1 else "the attempt"
        if attempt.gained is None:
            return Stop(
                GAVE_UP,
                f"{times} failed; --url and --job would show whether it stored anything",
            )
        return Stop(GAVE_UP, f"{times} stored nothing new")
    first = replace(backoff, max_retries=max(1, backoff.max_retries))  # progress begins anew
    return Again(first.delay_seconds(max(1, fruitless), jitter) or 0.0, fruitless)
