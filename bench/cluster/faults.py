"""Kills processes of one Spark application, and nothing else.

Strategy: the driver process is started as the leader of a session of its own; its JVM, the
executors and their Python workers inherit that session, also when their parent is gone. Only
members of the session are ever signalled. Every wait is bounded.
"""

import os
import random
import signal
import subprocess
from collections.abc import Callable, Collection
from pathlib import Path

from durable_shuffle.serialization.errors import NotFoundError, UnavailableError
from durable_shuffle.shuffle.base.clock import Clock

EXECUTOR = "CoarseGrainedExecutorBackend"
"""Part of the command line of a process that does tasks."""
_DRIVER_JVM = "org.apache.spark.deploy.SparkSubmit"
_POLL_SECONDS = 0.02
_GONE_BOUND_SECONDS = 60.0


def session_processes(session: int) -> dict[int, str]:
    """Return pid -> command line of the live processes of a session."""
    found = {}
    for pid, command in _all_processes().items():
        try:
            if command and os.getsid(pid) == session:
                found[pid] = command
        except (ProcessLookupError, PermissionError):
            continue  # it ended meanwhile, or is not ours
    return found


def kill_one_executor(
    session: int,
    clock: Clock,
    draw: random.Random | None = None,
    mark: str = EXECUTOR,
    among: Collection[int] | None = None,
) -> int:
    """SIGKILL an executor of the session and return its pid once it is dead.

    Args:
        draw: chooses which; without it, it is the oldest.
        mark: part of an executor's command line.
        among: processes that do tasks, where no mark tells them.

    Raises:
        NotFoundError: the session has no executor.
        UnavailableError: it would not die.
    """
    victim = choose_executor(session, draw, mark, among)
    os.kill(victim, signal.SIGKILL)
    _await_gone(lambda: victim in session_processes(session), f"executor pid={victim}", clock)
    return victim


def choose_executor(
    session: int,
    draw: random.Random | None = None,
    mark: str = EXECUTOR,
    among: Collection[int] | None = None,
) -> int:
    """Return the process of an executor of the session; arguments as for `kill_one_executor`.

    Raises:
        NotFoundError: the session has no executor.
    """
    executors = [
        pid
        for pid, command in session_processes(session).items()
        if (mark in command if among is None else pid in among)
    ]
    if not executors:
        raise NotFoundError(f"no executor process to kill: session={session}")
    # pids rise with age, if they have not wrapped
    return min(executors) if draw is None else draw.choice(sorted(executors))


def kill_driver(
    process: subprocess.Popen[bytes], clock: Clock, *, jvm: bool = True
) -> tuple[int, ...]:
    """SIGKILL the driver, its JVM too, and return their pids once both are dead.

    Its executors are left to notice by themselves; `end_session` waits for them.

    Args:
        jvm: it has one, as drivers of Spark have.

    Raises:
        NotFoundError: the driver has no JVM.
        UnavailableError: they would not die.
    """
    session = process.pid
    jvms = [p for p, command in session_processes(session).items() if _DRIVER_JVM in command]
    if jvm and not jvms:
        raise NotFoundError(f"no driver JVM to kill: session={session}")
    for pid in jvms:
        os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait()
    _await_gone(lambda: any(p in session_processes(session) for p in jvms), "driver JVM", clock)
    return (process.pid, *jvms)


def signal_session(session: int, number: int) -> list[int]:
    """Send a signal to every process of a session; return which got it."""
    found = []
    for pid in session_processes(session):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
        found.append(pid)
    return found


def end_session(session: int, clock: Clock, *, patience_seconds: float) -> int:
    """Return, with no process of the session left, how many had to be killed.

    Args:
        patience_seconds: how long they may take to end by themselves.

    Raises:
        UnavailableError: some would not die.
    """
    deadline = clock.monotonic() + patience_seconds
    while (left := session_processes(session)) and clock.monotonic() < deadline:
        clock.sleep(_POLL_SECONDS)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    _await_gone(lambda: bool(session_processes(session)), f"session {session}", clock)
    return len(left)


def _await_gone(is_there: Callable[[], bool], what: str, clock: Clock) -> None:
    deadline = clock.monotonic() + _GONE_BOUND_SECONDS
    while is_there():
        if clock.monotonic() > deadline:
            raise UnavailableError(f"{what} is alive {_GONE_BOUND_SECONDS:.0f} s after SIGKILL")
        clock.sleep(_POLL_SECONDS)


def _all_processes() -> dict[int, str]:
    """Return pid -> command line; a dead process that nobody waited for has an empty one."""
    proc = Path("/proc")
    if not (proc / "self" / "cmdline").exists():
        return _ask_ps()
    found = {}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue  # it ended meanwhile
            found[int(entry.name)] = line.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def _ask_ps() -> dict[int, str]:
    done = subprocess.run(
        ["ps", "-A", "-o", "pid=,stat=,command="], capture_output=True, text=True, check=True
    )
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    return {int(ws[0]): ws[2] for ws in lines if len(ws) == 3 and not ws[1].startswith("Z")}
