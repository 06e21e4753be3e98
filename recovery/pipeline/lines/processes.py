"""Runs each attempt in a process of this machine. Implements `Launcher`.

Each attempt has a pipe: slots of the command log go in, reports come out. One thread per attempt
reads the pipe to its end. It then reports the end of the process, unless the attempt has already
done so. If there is a fork server (Linux), it has imported the package, so a restart needs no
imports. None of this is stored.
"""

import multiprocessing as mp
import os
import pickle
import select
import signal
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from durable_shuffle.recovery.job.phases import Failure, TaskPhase, TaskReport
from durable_shuffle.recovery.job.restarts import AttemptKey
from durable_shuffle.recovery.pipeline.lines.launcher import REPORTS, Hear, Launcher, RunAttempt
from durable_shuffle.recovery.pipeline.plan.plan import PipelinePlan
from durable_shuffle.recovery.pipeline.plan.settings import PipelineSettings
from durable_shuffle.recovery.pipeline.task.link import TaskLink
from durable_shuffle.serialization.errors import InvalidInputError

_PRELOAD = ["__main__", "durable_shuffle.recovery.pipeline.task.run_task"]
_JOIN_SECONDS = 5.0
_POLL_SECONDS = 10.0
"""How often a process looks for commands that were not pushed to it."""
_SLOT = struct.Struct("<Q")
_RAISED = 1
"""Exit code of a process that cannot import the main module; all others would meet that, too."""
_NO_GUARD = (
    "the program's main module, which each process imports, starts the pipeline again or fails: "
    'start it below `if __name__ == "__main__":`'
)
_SUPERVISORS = (signal.SIGINT, signal.SIGTERM)
"""Sent to all by a terminal or a service manager: the supervisor gets them and suspends."""


def check_no_child() -> None:
    """Refuse to start a pipeline where a process that was started by one imports its main module.

    Raises:
        InvalidInputError: it does, so the program has no guard.
    """
    if getattr(mp.current_process(), "_inheriting", False):
        raise InvalidInputError(f"a pipeline cannot start here: {_NO_GUARD}")


@dataclass(slots=True)
class _Running:
    process: BaseProcess
    pipe: Connection
    reader: threading.Thread = field(init=False)


class LocalProcesses:
    """Args:
    run_task: the function that a process runs.
    hear: receives the reports.
    heartbeat_seconds: how often a process reports that it is alive.
    silence_seconds: a process without a report for so long counts as lost.

    Raises:
        InvalidInputError: `run_task` cannot be pickled. It is pickled only to send it to a process,
            and never stored.
    """

    slots = None

    def __init__(
        self,
        run_task: RunAttempt,
        hear: Hear,
        *,
        heartbeat_seconds: float,
        silence_seconds: float,
    ) -> None:
        self.silence_seconds = silence_seconds
        method = "forkserver" if "forkserver" in mp.get_all_start_methods() else "spawn"
        self._context: Any = mp.get_context(method)
        if method == "forkserver":
            self._context.set_forkserver_preload(_PRELOAD)
        self._run_task, self._heartbeat_seconds = _packed(run_task), heartbeat_seconds
        self._hear = hear
        self._lock = threading.Lock()
        """Held while a pipe is written or closed: after that its number may be another file's."""
        self._running: dict[AttemptKey, _Running] = {}

    def check(self, run_task: RunAttempt) -> None:
        _packed(run_task)

    def use(self, run_task: RunAttempt) -> None:
        self._run_task = _packed(run_task)

    def start(self, task: str, epoch: int, slot: int) -> None:
        ours, theirs = self._context.Pipe(duplex=True)
        arguments = (self._run_task, task, epoch, slot, theirs, self._heartbeat_seconds)
        process = self._context.Process(
            target=_main, args=arguments, name=f"durable-shuffle-{task}", daemon=True
        )
        # until `_main` ignores them, they would end the process, or the fork server
        resource_tracker.ensure_running()  # its start would unblock them
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SUPERVISORS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()  # so that the reader sees its end
        running = _Running(process, ours)
        running.reader = threading.Thread(
            target=self._read,
            args=((task, epoch), running),
            name=f"{process.name}-reports",
            daemon=True,
        )
        with self._lock:
            self._running[task, epoch] = running
        running.reader.start()

    def push(self, slot: int, record: bytes) -> None:
        message = _SLOT.pack(slot) + record
        with self._lock:
            for running in self._running.values():
                # a process that does not read must not delay the others: it finds the gap itself
                if _has_room(running.pipe):
                    with suppress(OSError):  # it is gone; its reader reports that
                        running.pipe.send_bytes(message)

    def kill(self, task: str, epoch: int) -> None:
        with self._lock:
            running = self._running.pop((task, epoch), None)
            if running is not None:
                running.process.kill()
        if running is not None:
            running.reader.join(_JOIN_SECONDS)

    def pid(self, task: str) -> int | None:
        """Return the process id of the newest attempt, None if it ended. For tests and people."""
        with self._lock:
            epochs = [epoch for name, epoch in self._running if name == task]
            return self._running[task, max(epochs)].process.pid if epochs else None

    def close(self) -> None:
        for task, epoch in list(self._running):
            self.kill(task, epoch)

    def _read(self, key: AttemptKey, running: _Running) -> None:
        """Pass on the reports of a process until it ends, even if its own children live longer."""
        pipe, process, began, ended = running.pipe, running.process, False, False
        try:
            while pipe in wait([pipe, process.sentinel]):
                report = REPORTS.decode(pipe.recv_bytes(), name=f"a report of {key[0]}")
                began, ended = True, ended or report.is_last
                self._hear(report)
        except (EOFError, OSError):
            pass  # it closed its end
        finally:
            with self._lock:
                killed = self._running.pop(key, None) is None
                pipe.close()
            process.join(_JOIN_SECONDS)
            if not ended and not killed:
                self._hear(TaskReport(*key, TaskPhase.FAILED, _lost(key[0], process, began=began)))


def _lost(task: str, process: BaseProcess, *, began: bool) -> Failure:
    text = f"the process of {task} ended without a word, exit code {process.exitcode}"
    if began or process.exitcode != _RAISED:
        return Failure("lost", text)
    return Failure("lost", f"{text}: {_NO_GUARD}; standard error says more", retry=False)


def _packed(run_task: RunAttempt) -> bytes:
    """Return it as it is sent to processes; its modules may be reloaded before they start."""
    try:
        return pickle.dumps(run_task)
    except Exception as error:
        raise InvalidInputError(
            f"{_unsendable(run_task)} cannot be sent to a process: {error}; define functions and "
            "classes at the top of a module"
        ) from error


def _unsendable(run_task: RunAttempt) -> str:
    """Name the part of a plan that cannot be pickled."""
    plan = getattr(run_task, "plan", None)
    if isinstance(plan, PipelinePlan):
        sources = [(f"source {s.name!r}", s.source) for s in plan.sources.values()]
        steps = [(f"the step of consumer {c.name!r}", c.step) for c in plan.consumers.values()]
        sinks = [(f"the sink of consumer {c.name!r}", c.sink) for c in plan.consumers.values()]
        for what, part in (*sources, *steps, *sinks):
            try:
                pickle.dumps(part)
            except Exception:  # noqa: BLE001 - the caller reports the error itself
                return what
    return "a source, step or sink"


def _has_room(pipe: Connection) -> bool:
    """Return whether a message of usual size can be sent without waiting."""
    ready = select.poll()
    ready.register(pipe.fileno(), select.POLLOUT)
    return bool(ready.poll(0))


def _main(
    run_task: bytes,
    task: str,
    epoch: int,
    slot: int,
    pipe: Connection,
    heartbeat_seconds: float,
) -> None:
    """Run in the new process."""
    for number in _SUPERVISORS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SUPERVISORS)
    lock, over = threading.Lock(), threading.Event()

    def send(report: TaskReport) -> None:
        with lock:
            try:
                pipe.send_bytes(REPORTS.encode(report))
            except OSError:
                link.lost()

    link = TaskLink(task, epoch, send, slot=slot, poll_seconds=_POLL_SECONDS)

    def listen() -> None:
        try:
            while True:
                message = pipe.recv_bytes()
                (slot,) = _SLOT.unpack_from(message)
                link.push(slot, message[_SLOT.size :])
        except (EOFError, OSError):
            link.lost()

    def beat() -> None:
        while not over.wait(heartbeat_seconds):
            link.alive()

    threading.Thread(target=listen, daemon=True).start()
    threading.Thread(target=beat, daemon=True).start()
    try:
        run: RunAttempt = pickle.loads(run_task)
        run(link)
    except BaseException as error:  # noqa: BLE001 - for example, its code is not importable
        link.failed(error, 0)
    finally:
        over.set()
        with lock:
            pass  # the report is sent if possible
        os._exit(0)  # threads of user code must not keep a finished task alive


def local_processes(run_task: RunAttempt, settings: PipelineSettings, hear: Hear) -> Launcher:
    """Return the default launcher: a process of this machine per task."""
    return LocalProcesses(
        run_task,
        hear,
        heartbeat_seconds=settings.heartbeat_seconds,
        silence_seconds=settings.silence_seconds,
    )
