"""Which jobs this process has claimed. Objects of one process share the claim of a job.

Two drivers of a job fence each other, because nobody can tell whether the other one is dead. Within
a process that is known: a second object goes on with the claim of the first one. The last object
that is closed, or else the end of the process, tells the job log that the driver ended.
"""

import atexit
import os
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass

from durable_shuffle.serialization.errors import DurableShuffleError, FencedError
from durable_shuffle.shuffle.base.clock import Clock, IdSource
from durable_shuffle.shuffle.base.side_by_side import Behind, at_once
from durable_shuffle.shuffle.log.job_log import JobLog, read_job
from durable_shuffle.shuffle.log.job_state import JobState
from durable_shuffle.shuffle.storage.contract import Storage, identity_of
from durable_shuffle.shuffle.storage.local import is_far


@dataclass(slots=True)
class _Held:
    log: JobLog
    holders: int
    behind: Behind | None
    """Writes what nobody need wait for; None if the storage is near."""


_LAST_WORD_SECONDS = 10.0
_lock = threading.Lock()
_held: dict[tuple[int, str, str], _Held] = {}
"""By process, storage and job; a forked process shares nothing."""


def hold_claim(
    storage: Storage,
    job: str,
    *,
    ids: IdSource,
    clock: Clock,
    take_over: bool,
    before: JobState | None = None,
) -> JobLog:
    """Return this process's claim of a job; claim the job if there is none.

    Each call is followed by `let_go`, or by the end of the process.

    Args:
        before: what `read_before_claim` returned just now, of the same storage.

    Raises:
        ConflictError: see `JobLog.claim`.
    """
    key = _key(storage, job)
    with _lock:
        atexit.unregister(_end_all)  # at most once
        atexit.register(_end_all)
        shared = _held.get(key)
        if shared is not None:
            shared.log.move(storage)
            with suppress(FencedError):  # another process has the job: claim it anew
                shared.log.check_owner()
                shared.holders += 1
                return shared.log
        behind = Behind() if is_far(storage) else None
        by = f"{socket.gethostname()}:{os.getpid()}"
        log = JobLog.claim(
            *(storage, job, ids.new_id()),
            take_over=take_over,
            by=by,
            wall_seconds=clock.wall(),
            before=before,
            later=behind or at_once,
        )
        _held[key] = _Held(log, 1, behind)
        return log


def read_before_claim(storage: Storage, job: str) -> JobState | None:
    """Return what a claim will need of the job's log; None if this process holds the job, or if the
    storage fails, which the claim will meet."""
    with _lock:
        if _key(storage, job) in _held:
            return None
    with suppress(DurableShuffleError):
        return read_job(storage, job)
    return None


def let_go(log: JobLog, storage: Storage) -> None:
    """Give up one share of a claim. With the last one, the driver says that it ended."""
    key = _key(storage, log.state.job)
    with _lock:
        shared = _held.get(key)
        if shared is None or shared.log is not log:
            return
        shared.holders -= 1
        if shared.holders == 0:
            del _held[key]
            log.end()
            if shared.behind is not None:
                shared.behind.wait()


def _key(storage: Storage, job: str) -> tuple[int, str, str]:
    return os.getpid(), identity_of(storage), job


def _end_all() -> None:
    """At the end of the process: whoever has not let go has ended, too.

    A storage that does not answer holds nobody up for long: then the driver ended without a word.
    """
    mine = [shared.log for (process, _, _), shared in _held.items() if process == os.getpid()]

    def end() -> None:
        for log in mine:
            with suppress(Exception):  # Spark, through which it may be reached, has ended
                log.end()

    with suppress(RuntimeError):  # the interpreter starts no thread any more
        last = threading.Thread(target=end, name="end-claims", daemon=True)
        last.start()
        last.join(_LAST_WORD_SECONDS)
