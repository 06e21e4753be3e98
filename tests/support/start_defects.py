"""The three defects that together made a start of Arroyo hang, put into the product one by one.

(A) is a task's, so that each test has its own. The barrier hears of a failure whether or not the
job does: in Arroyo it stands in the process of the neighbours.
"""

from typing import Any

import pytest

from durable_shuffle.recovery.job.machine import Job
from durable_shuffle.recovery.job.phases import JobPhase, TaskPhase, TaskReport
from durable_shuffle.recovery.job.starts import StartBarrier


def cannot_be_called_off(patched: pytest.MonkeyPatch) -> None:
    """(B) nobody who waits at the barrier is told that a neighbour has failed."""
    patched.setattr(StartBarrier, "abort", lambda self, cause: False)


def drops_failures(patched: pytest.MonkeyPatch) -> list[str]:
    """(C) a failure that arrives while the job is being scheduled is dropped. Return which were."""
    said, dropped = Job.said, list[str]()

    def drops(self: Job, message: TaskReport, now: float) -> Any:
        if message.phase is not TaskPhase.FAILED or self.phase is not JobPhase.SCHEDULING:
            return said(self, message, now)
        start = self._starting.get(message.epoch)
        called_off = [] if start is None else self._call_off(start, "a neighbour failed", now)
        dropped.append(message.task)
        return called_off

    patched.setattr(Job, "said", drops)
    return dropped
