"""Release the stages that runs of a job no longer use. The decision is pure; consumers can veto it.

A stage's last use stands in the job log: every driver that makes or reuses a stage writes a STAGE
record. So nothing is read to decide, except the logs of the stages that are about to go. Stages
that streams, write jobs and pipelines make have no such uses and stay until they are released.

A reader without a declared consumer leaves no trace. It is safe for as long as `KeepUsed` keeps
what an earlier run used, whatever the driver does meanwhile.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from durable_shuffle.serialization.errors import DurableShuffleError, InvalidInputError
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.log.job_log import JobLog, refuse_released
from durable_shuffle.shuffle.log.job_state import JobState, Use
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage, read_state
from durable_shuffle.shuffle.release.retention import (
    not_used,
    progress_in,
    register_consumers,
    unfinished,
)
from durable_shuffle.shuffle.release.stages import decide_release, skipping_damaged
from durable_shuffle.shuffle.storage.contract import Storage


@dataclass(frozen=True, slots=True)
class KeepUsed:
    """Which stages a job keeps: those that it used lately. Ages are counted from the last use.

    A stage goes once none of the last `runs` runs used it and its last use is `unused_for` ago.
    This run's stages stay, and those with a declared consumer that has not finished.

    Args:
        runs: the run that begins does not count. Each driver is a run; commands are none.
        unused_for: also after many runs a stage stays for this time, so that a job that fails and
            starts again every minute deletes nothing.
        unrecognized_for: the same for stages that no later run can find again, whatever `runs` is:
            for example those of a plan with `now()`. A DataFrame of an earlier run that
            reads such a stage can be read for this time.
        newest: keep the newest stage of each name, which others read by its name.

    Raises:
        InvalidInputError: a negative number.
    """

    runs: int = 3
    unused_for: timedelta = timedelta(days=7)
    unrecognized_for: timedelta = timedelta(hours=12)
    newest: bool = True

    def __post_init__(self) -> None:
        least = timedelta(0)
        if self.runs < 0 or self.unused_for < least or self.unrecognized_for < least:
            raise InvalidInputError(f"a retention is not negative, found={self}")


def keep_for(age: timedelta) -> KeepUsed:
    """Return the retention by age: a stage goes once it was not used for `age`.

    What the last run used stays, however long ago that was: a run that begins a minute later than
    yesterday reuses it.
    """
    return KeepUsed(runs=1, unused_for=age, unrecognized_for=age, newest=False)


Retention = Literal["until_released", "when_consumed"] | timedelta | KeepUsed
_NAMED = "until_released", "when_consumed"


def kept_by(retention: Retention) -> KeepUsed | None:
    """Return what a retention keeps by use; None if it releases nothing that is unused.

    Raises:
        InvalidInputError: not a retention.
    """
    if isinstance(retention, KeepUsed):
        return retention
    if isinstance(retention, timedelta):
        return keep_for(retention)
    if retention not in _NAMED:
        raise InvalidInputError(
            f"retention must be {' or '.join(map(repr, _NAMED))}, a timedelta or KeepUsed, "
            f"found={retention!r}"
        )
    return None


@dataclass(frozen=True, slots=True)
class Unused:
    """A stage that may go, and the reason for people."""

    path: StagePath
    used: Use
    why: str


def unused_stages(state: JobState, keep: KeepUsed, now: float, run: int) -> list[Unused]:
    """Return the stages that the retention does not keep, oldest first. Pure.

    Args:
        now: seconds since 1970.
        run: number of the run that asks, as `JobState.runs` counts them; for a command, of the
            run that comes next.
    """
    newest = {path.name: path for path in state.live} if keep.newest else {}
    found = []
    for path, used in state.live.items():
        idle, runs = timedelta(seconds=now - used.wall_seconds), run - used.run
        if runs < 1 or used.lasts == "until_released" or newest.get(path.name) == path:
            continue
        since = f"not used for {timedelta(seconds=round(idle.total_seconds()))}"
        if used.lasts == "unrecognised" and idle >= keep.unrecognized_for:
            found.append(Unused(path, used, f"{since}, and no later run can find it again"))
        elif used.lasts == "while_used" and runs > keep.runs and idle >= keep.unused_for:
            found.append(Unused(path, used, f"{since}, last by generation {used.generation}"))
    return found


def needed_by(storage: Storage, path: StagePath) -> str:
    """Return which declared consumer has not finished a stage; "" if none needs it.

    Raises:
        CorruptDataError, IncompatibleError, NotFoundError: a log cannot be read.
    """
    stage = open_stage(storage, path)
    register = read_state(stage).register
    if register is None:
        return ""
    waiting = unfinished(
        register, progress_in(stage, register.consumers), stage.describe.partitions
    )
    return waiting.why if waiting else ""


def free_stages(
    storage: Storage, found: list[Unused], failed: list[DurableShuffleError]
) -> list[Unused]:
    """Return those of the stages that no declared consumer needs.

    Args:
        failed: receives the errors of damaged stages, which stay.
    """
    free = []
    for unused in found:
        with skipping_damaged(failed):
            if not needed_by(storage, unused.path):
                free.append(unused)
    return free


def release_unused(
    log: JobLog,
    storage: Storage,
    keep: KeepUsed,
    ids: IdSource,
    now: float,
    failed: list[DurableShuffleError],
) -> list[Unused]:
    """Decide the release of what the retention does not keep. Deletes nothing yet.

    Returns:
        The stages that are released now; `finish_release` deletes the data of each.

    Raises:
        FencedError: a newer driver claimed the job; nothing more was decided.
    """
    found = free_stages(storage, unused_stages(log.state, keep, now, log.run), failed)
    done = []
    for unused in found:
        with skipping_damaged(failed):
            because = not_used(log.generation, unused.why)
            if decide_release(log, storage, unused.path, ids, because, unless=_used_since(unused)):
                done.append(unused)
    return done


def register_used(
    log: JobLog,
    stage: StageHandle,
    names: Iterable[str],
    *,
    ids: IdSource,
    now: float,
    closed: bool = True,
) -> tuple[str, ...]:
    """As `register_consumers`, by the driver that has claimed the job.

    Args:
        now: seconds since 1970.

    Raises:
        FencedError: a newer driver claimed the job; nothing was registered.
        InvalidInputError, NotFoundError: see `register_consumers`.
    """
    log.check_owner()
    refuse_released(log.state, stage.path)
    return register_consumers(
        stage, names, ids=ids, generation=log.generation, closed=closed, now=now
    )


def _used_since(unused: Unused) -> Callable[[JobState], bool]:
    """Return whether a state holds another use of the stage, or its release."""
    return lambda state: state.live.get(unused.path) != unused.used
