"""The claim of one coordinator on its pipeline's job.

The first CLAIM takes the job over from whoever holds it. Each later one is a record behind the own
newest CLAIM: if another CLAIM stands there, nothing is taken back from its owner.
"""

import os
import socket

from durable_shuffle.serialization.errors import FencedError
from durable_shuffle.shuffle.log.job_log import JobLog, job_records
from durable_shuffle.shuffle.log.job_state import JobState, keep_snapshot
from durable_shuffle.shuffle.log.records import LAYOUT_VERSION, Claim
from durable_shuffle.shuffle.storage.contract import Storage


class JobClaim:
    """Used by one thread.

    Args:
        owner: random id of the coordinator; all its CLAIMs carry it.
        since: now, since 1970, for messages.
    """

    def __init__(self, storage: Storage, job: str, owner: str, *, since: float = 0.0) -> None:
        self._storage, self._job, self._owner = storage, job, owner
        self._by, self._since = f"{socket.gethostname()}:{os.getpid()}", since
        self._log: JobLog | None = None

    @property
    def log(self) -> JobLog:
        """The job log under the newest CLAIM."""
        assert self._log is not None
        return self._log

    def win(self) -> int:
        """Win the next generation.

        Raises:
            FencedError: another driver or coordinator claimed the job since the last time.
        """
        if self._log is None:
            self._log = JobLog.claim(
                self._storage,
                self._job,
                self._owner,
                by=self._by,
                wall_seconds=self._since,
                run=False,
            )
            return self._log.generation
        mine = self._log.generation

        def again(state: JobState) -> Claim:
            if state.owner != self._owner:
                raise _fenced(mine, state)
            number = state.generation + 1
            return Claim(self._owner, self._job, number, LAYOUT_VERSION, self._by, self._since)

        records = job_records(self._storage, self._job)
        state, _ = records.decide(self._log.state, again)
        self._log = JobLog(records, keep_snapshot(self._storage, state), self._owner)
        return self._log.generation

    def end(self) -> None:
        """Say in the job log that this coordinator has ended, if it claimed the job and leads."""
        if self._log is not None:
            self._log.end()

    def check(self) -> None:
        """Check with one request whether another driver or coordinator claimed the job.

        Raises:
            FencedError: one did.
        """
        try:
            self.log.check_owner()
        except FencedError:
            raise _fenced(self.log.generation, self.log.state) from None


def _fenced(mine: int, state: JobState) -> FencedError:
    return FencedError(
        f"another coordinator, or a command that changes the job, took over {state.job!r}: "
        f"mine=generation {mine}, newest=generation {state.generation}; this one must stop"
    )
