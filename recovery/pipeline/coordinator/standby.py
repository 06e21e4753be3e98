"""Stands by: waits until the coordinator that leads has ended, or gives no sign of life any more.

A sign of life is a new record in its status log, which comes at least every `ALIVE_SECONDS`, or in
the job log. Only the own monotonic clock counts, so the clocks of hosts may differ. Taking over
needs no certainty: a coordinator that was only slow is fenced. If the leader was seen to end a
pipeline for good, there is nothing to take over.
"""

from collections.abc import Callable
from dataclasses import dataclass

from durable_shuffle.recovery.job.phases import JobPhase, JobResult
from durable_shuffle.recovery.pipeline.status import last_phase
from durable_shuffle.recovery.pipeline.task.link import PASSING
from durable_shuffle.shuffle.base.clock import Clock
from durable_shuffle.shuffle.log.job_log import read_job
from durable_shuffle.shuffle.log.layout import status_log_prefix
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.storage.contract import Storage

_OVER = (JobPhase.FINISHED, JobPhase.CANCELED)
_LOOKS = 20
"""In the time after which a silent leader is replaced."""
_LONGEST_PAUSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Signs:
    """What the storage shows of a leader."""

    generation: int
    """0: there was none."""
    ended: bool
    status: int
    """The end of its status log."""


class Watch:
    """Decides when to take over. Pure; times are of one monotonic clock, in seconds.

    Args:
        patience_seconds: without a sign of life.
    """

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._seen: Signs | None = None
        self._since = 0.0
        self.led = False
        """Whether another coordinator was seen to lead."""

    def may_lead(self, signs: Signs, now: float) -> bool:
        """Take in what is seen now; return whether nobody leads."""
        if not signs.generation or signs.ended:
            return True
        self.led = True
        if signs != self._seen:
            self._seen, self._since = signs, now
        return now - self._since >= self._patience_seconds


def stand_by(
    storage: Storage,
    name: str,
    *,
    patience_seconds: float,
    clock: Clock,
    pause: Callable[[float], bool],
) -> JobResult | None:
    """Wait until this instance may lead.

    Args:
        pause: waits for so many seconds; True: stop standing by.

    Returns:
        None to lead. Else how the pipeline ended: SUSPENDED if `pause` said to stop.
    """
    watch, slots = Watch(patience_seconds), SlotLog(storage, status_log_prefix(name))
    end = 0
    while True:
        try:
            state, end = read_job(storage, name), slots.find_end(end)
            if watch.may_lead(Signs(state.generation, state.ended, end), clock.monotonic()):
                phase = last_phase(storage, name) if watch.led and state.ended else None
                return JobResult(JobPhase(phase)) if phase in _OVER else None
        except PASSING:
            pass  # nothing was seen: the leader may be as it was
        if pause(min(patience_seconds / _LOOKS, _LONGEST_PAUSE_SECONDS)):
            return JobResult(JobPhase.SUSPENDED)
