"""Runs each attempt in a thread of this process: for tests and for looking at it in a debugger.

Implements `Launcher`. A kill cannot end a thread: it cuts the line, so that the attempt
ends at the next look at its orders, and what it says is not heard any more.
"""

import math
import queue
import threading

from durable_shuffle.recovery.job.phases import Failure, TaskPhase, TaskReport
from durable_shuffle.recovery.job.restarts import AttemptKey
from durable_shuffle.recovery.pipeline.commands.orders import decode_slot
from durable_shuffle.recovery.pipeline.lines.launcher import RunAttempt
from durable_shuffle.recovery.pipeline.task.link import TaskLink


class Threads:
    """Starts a thread per attempt.

    Args:
        run_task: what a thread does.
    """

    silence_seconds = math.inf
    slots: int | None = None

    def __init__(self, run_task: RunAttempt) -> None:
        self._run_task = run_task
        self._reports: queue.SimpleQueue[TaskReport | None] = queue.SimpleQueue()
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
            self._reports.put(report)

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
        found = decode_slot(record, name=f"slot {slot} of the command log")
        for link in list(self._links.values()):
            link.take(slot, found)

    def kill(self, task: str, epoch: int) -> None:
        self._cut.add((task, epoch))
        link = self._links.pop((task, epoch), None)
        if link is not None:
            link.lost()

    def receive(self, timeout_seconds: float) -> list[TaskReport]:
        found = []
        try:
            found.append(self._reports.get(timeout=timeout_seconds))
            while True:
                found.append(self._reports.get_nowait())
        except queue.Empty:
            said = (report for report in found if report is not None)
            return [r for r in said if (r.task, r.epoch) not in self._cut]

    def wake(self) -> None:
        self._reports.put(None)

    def close(self) -> None:
        for task, epoch in list(self._links):
            self.kill(task, epoch)
