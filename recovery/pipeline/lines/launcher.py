"""What runs the tasks of a pipeline, and what travels between a task and its supervisor."""

from collections.abc import Callable
from typing import Protocol

from durable_shuffle.recovery.job.phases import TaskReport
from durable_shuffle.recovery.pipeline.task.link import TaskLink
from durable_shuffle.serialization.control import RecordCodec

RunAttempt = Callable[[TaskLink], None]
"""Runs one attempt to its end and reports all of it, the end included. Can be pickled."""

REPORTS: RecordCodec[TaskReport] = RecordCodec((TaskReport,))


class Launcher(Protocol):
    """Runs attempts at tasks. Used by one thread, but for `wake`.

    What a supervisor says to attempts stands in the pipeline's command log, which each attempt
    reads for itself; `push` only makes that faster.

    Guarantees: an attempt whose process is gone without a terminal report gets a FAILED in its
    place, from `receive`. Not guaranteed: that a killed attempt is gone; its logs fence it.
    """

    @property
    def silence_seconds(self) -> float:
        """After so long without a report an attempt counts as lost; inf: never."""

    def use(self, run_task: RunAttempt) -> None:
        """Start attempts by this from here on; those that run are not touched."""

    @property
    def slots(self) -> int | None:
        """How many attempts can run at once at the moment; None: any number. Asked often."""

    def start(self, task: str, epoch: int, slot: int) -> None:
        """Start an attempt; its reports come from `receive`.

        Args:
            slot: of the command log, from which on the attempt reads it (`TaskLink`).
        """

    def push(self, slot: int, record: bytes) -> None:
        """Pass a slot of the command log on to all attempts that have a line. May do nothing."""

    def kill(self, task: str, epoch: int) -> None:
        """End an attempt without asking it; fine if it is gone."""

    def receive(self, timeout_seconds: float) -> list[TaskReport]:
        """Return what attempts said, in order for each; empty after the timeout or a `wake`."""

    def wake(self) -> None:
        """End a `receive` that waits, or the next one. From any thread; may come too late."""

    def close(self) -> None:
        """Kill everything and let go."""
