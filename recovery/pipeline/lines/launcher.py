"""The interface that runs a pipeline's tasks and connects each task to its supervisor.

`Threads` implements the contract in this process, for tests and debuggers.
"""

import math
import threading
from collections.abc import Callable
from typing import Protocol

from durable_shuffle.recovery.job.phases import Failure, TaskPhase, TaskReport
from durable_shuffle.recovery.job.restarts import AttemptKey
from durable_shuffle.recovery.pipeline.plan.settings import PipelineSettings
from durable_shuffle.recovery.pipeline.task.link import TaskLink
from durable_shuffle.recovery.pipeline.task.run_task import RunTask
from durable_shuffle.serialization.control import RecordCodec

RunAttempt = Callable[[TaskLink], None]
"""Runs one attempt to its end and reports everything, including the end. Picklable."""
Hear = Callable[[TaskReport], object]
"""Receives reports, from any thread; the reports of one attempt arrive in order."""

REPORTS: RecordCodec[TaskReport] = RecordCodec((TaskReport,))


class Launcher(Protocol):
    """Runs attempts at tasks and passes on their reports. Used by one thread.

    The supervisor writes its commands into the pipeline's command log, and each attempt reads the
    log itself; `push` only makes this faster.

    Guarantees: if the process of an attempt ends without a terminal report, the launcher reports
    FAILED instead. Not guaranteed: that a killed attempt is gone (its logs fence it), or silent.
    """

    @property
    def silence_seconds(self) -> float:
        """An attempt without a report for so long counts as lost; inf: never."""

    def check(self, run_task: RunAttempt) -> None:
        """Refuse a function that cannot be sent to attempts. Callable from any thread.

        Raises:
            InvalidInputError: says which part of the plan cannot be sent.
        """

    def use(self, run_task: RunAttempt) -> None:
        """Start new attempts with this function; running attempts are not affected."""

    @property
    def slots(self) -> int | None:
        """How many attempts can run at once now; None: any number. Asked often."""

    def start(self, task: str, epoch: int, slot: int) -> None:
        """Start an attempt.

        Args:
            slot: first slot of the command log that the attempt reads (`TaskLink`).
        """

    def push(self, slot: int, record: bytes) -> None:
        """Push a slot of the command log to all attempts that are connected. May do nothing."""

    def kill(self, task: str, epoch: int) -> None:
        """End an attempt without asking it; does nothing if the attempt is gone."""

    def close(self) -> None:
        """Kill all attempts and release all resources."""


MakeLauncher = Callable[[RunTask, PipelineSettings, Hear], Launcher]


class Threads:
    """Runs each attempt in a thread of this process: for tests and debuggers.

    A kill cannot end a thread: it cuts the connection. The attempt ends when it next looks for
    commands, and its reports are ignored.

    Args:
        run_task: the function that a thread runs.
        hear: receives the reports.
    """

    silence_seconds = math.inf
    slots: int | None = None

    def __init__(self, run_task: RunAttempt, hear: Hear) -> None:
        self._run_task, self._hear = run_task, hear
        self._links: dict[AttemptKey, TaskLink] = {}
        self._cut: set[AttemptKey] = set()

    def check(self, run_task: RunAttempt) -> None:
        pass  # nothing is sent anywhere

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
