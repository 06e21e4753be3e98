"""What runs the tasks of a pipeline, and what travels between a task and its supervisor.

`Threads` implements the contract in this process, for tests and debuggers.
"""

import math
import threading
from collections.abc import Callable
from typing import Protocol

from durable_shuffle.recovery.job.phases import Failure, TaskPhase, TaskReport
from durable_shuffle.recovery.job.restarts import AttemptKey
from durable_shuffle.recovery.pipeline.plan.plan import PipelineSettings
from durable_shuffle.recovery.pipeline.task.link import TaskLink
from durable_shuffle.recovery.pipeline.task.run_task import RunTask
from durable_shuffle.serialization.control import RecordCodec

RunAttempt = Callable[[TaskLink], None]
"""Runs one attempt to its end and reports all of it, the end included. Can be pickled."""
Hear = Callable[[TaskReport], object]
"""Takes a report in, from any thread; the reports of one attempt in their order."""

REPORTS: RecordCodec[TaskReport] = RecordCodec((TaskReport,))


class Launcher(Protocol):
    """Runs attempts at tasks, and hands on what they say. Used by one thread.

    What a supervisor says to attempts stands in the pipeline's command log, which each attempt
    reads for itself; `push` only makes that faster.

    Guarantees: an attempt whose process is gone without a terminal report gets a FAILED in its
    place. Not guaranteed: that a killed attempt is gone; its logs fence it. Or that it is silent.
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
        """Start an attempt.

        Args:
            slot: of the command log, from which on the attempt reads it (`TaskLink`).
        """

    def push(self, slot: int, record: bytes) -> None:
        """Pass a slot of the command log on to all attempts that have a line. May do nothing."""

    def kill(self, task: str, epoch: int) -> None:
        """End an attempt without asking it; fine if it is gone."""

    def close(self) -> None:
        """Kill everything and let go."""


MakeLauncher = Callable[[RunTask, PipelineSettings, Hear], Launcher]


class Threads:
    """Runs each attempt in a thread of this process: for tests and debuggers.

    A kill cannot end a thread: it cuts the line, so that the attempt ends at the next look at its
    orders, and what it says is not heard any more.

    Args:
        run_task: what a thread does.
        hear: gets the reports.
    """

    silence_seconds = math.inf
    slots: int | None = None

    def __init__(self, run_task: RunAttempt, hear: Hear) -> None:
        self._run_task, self._hear = run_task, hear
        self._links: dict[AttemptKey, TaskLink] = {}
        self._cut: set[AttemptKey] = set()

    def use(self, run_task: RunAttempt) -> None:
        self._run_task = run_task

    def start(self, task: str, epoch: int, slot: int) -> None:
        key = (task, epoch)
        ended = threading.Event()

        def send(report: TaskReport) -> None:
            if key in self._cut:
                link.lost()
                return
            if report.is_last:
                ended.set()
                self._links.pop(key, None)
            self._hear(report)

        link = self._links[key] = TaskLink(task, epoch, send, slot=slot)

        def run() -> None:
            try:
                self._run_task(link)
            finally:
                link.over()
                if not ended.is_set():
                    lost = Failure("lost", f"the thread of {task} ended without a word")
                    send(TaskReport(task, epoch, TaskPhase.FAILED, lost))

        threading.Thread(target=run, name=f"durable-shuffle-{task}", daemon=True).start()

    def push(self, slot: int, record: bytes) -> None:
        for link in list(self._links.values()):
            link.push(slot, record)

    def kill(self, task: str, epoch: int) -> None:
        self._cut.add((task, epoch))
        link = self._links.pop((task, epoch), None)
        if link is not None:
            link.lost()

    def close(self) -> None:
        for task, epoch in list(self._links):
            self.kill(task, epoch)
