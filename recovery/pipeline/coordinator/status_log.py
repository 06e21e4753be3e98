"""Writes how a pipeline is to its status log.

The companion does the writing, so the control loop never waits for it.
"""

import logging

from durable_shuffle.recovery.job.machine import Job
from durable_shuffle.recovery.pipeline.coordinator.companion import Companion
from durable_shuffle.recovery.pipeline.coordinator.logs import PipelineLogs, PreparedPlan
from durable_shuffle.recovery.pipeline.coordinator.reporter import Reporter
from durable_shuffle.serialization.errors import FencedError

_log = logging.getLogger(__name__)


class StatusLog:
    """The status log of one coordinator. Used by the thread of the control loop.

    Args:
        every_seconds: a status is written at most so often.
    """

    def __init__(
        self, reporter: Reporter, logs: PipelineLogs, companion: Companion, every_seconds: float
    ) -> None:
        self._reporter, self._logs, self._companion = reporter, logs, companion
        self._every_seconds = every_seconds
        self._next_at = 0.0
        self._writing = False

    def is_due(self, now: float) -> bool:
        """Return whether it is time for a status; if so, the next one is due later."""
        if self._writing or now < self._next_at:
            return False
        self._next_at = now + self._every_seconds
        return True

    def write(self, job: Job, running: PreparedPlan) -> None:
        """Have the companion write a status, if there is news."""
        status = self._reporter.status(job, running.plan, str(running.description))
        if status is None:
            return
        self._writing = True
        self._companion.submit(lambda: self._logs.say(status), self._written, self._failed)

    def _written(self, _: object) -> None:
        self._writing = False

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, FencedError):  # the end of this coordinator says that
            _log.warning("cannot say how the pipeline is: %s", error)
        self._writing = isinstance(error, FencedError)
        self._reporter.not_said()
