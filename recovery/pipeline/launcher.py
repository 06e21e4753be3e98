"""What runs the tasks of a pipeline, and what travels between a task and its supervisor."""

from typing import Protocol

from durable_shuffle.recovery.job_phase import Abort, Go, Stop, TaskReport
from durable_shuffle.serialization.control import RecordCodec

Order = Go | Abort | Stop
"""What a supervisor says to an attempt."""

REPORTS: RecordCodec[TaskReport] = RecordCodec((TaskReport,))
ORDERS: RecordCodec[Order] = RecordCodec((Go, Abort, Stop))


class Launcher(Protocol):
    """Runs attempts at tasks. Used by one thread.

    Guarantees: an attempt whose process is gone without a terminal report gets a FAILED in its
    place, from `receive`. Not guaranteed: that a killed attempt is gone; its logs fence it.
    """

    @property
    def silence_seconds(self) -> float:
        """After so long without a report an attempt counts as lost; inf: never."""

    def start(self, task: str, epoch: int) -> None:
        """Start an attempt; its reports come from `receive`."""

    def send(self, order: Order) -> None:
        """Say something to an attempt; one that is gone does not hear it."""

    def kill(self, task: str, epoch: int) -> None:
        """End an attempt without asking it; fine if it is gone."""

    def receive(self, timeout_seconds: float) -> list[TaskReport]:
        """Return what attempts said, in order for each; empty after the timeout."""

    def close(self) -> None:
        """Kill everything and let go."""
