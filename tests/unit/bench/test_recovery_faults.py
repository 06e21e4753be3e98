"""Killing processes of one session only, with real processes in place of Spark's."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from durable_shuffle.bench.cluster.faults import (
    end_session,
    kill_driver,
    kill_one_executor,
    session_processes,
)
from durable_shuffle.serialization.errors import NotFoundError
from durable_shuffle.shuffle.base.clock import SystemClock

Sessions = tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]

# a parent that starts one child per word, says so, and waits for them
_PARENT = """
import os, subprocess, sys
wait = "import sys; print('up', flush=True); sys.stdin.read()"
children = [
    subprocess.Popen([sys.executable, "-c", wait, w], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for w in os.environ["WORDS"].split()
]
for child in children:
    child.stdout.readline()
print("ready", flush=True)
for child in children:
    child.wait()
"""


def _start(*words: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", _PARENT],
        env={**os.environ, "WORDS": " ".join(words)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.fixture
def two_sessions() -> Iterator[Sessions]:
    """Two look-alikes of a driver: each has a JVM and two executors."""
    words = (
        "org.apache.spark.deploy.SparkSubmit",
        "CoarseGrainedExecutorBackend-0",
        "CoarseGrainedExecutorBackend-1",
    )
    ours, others = _start(*words), _start(*words)
    yield ours, others
    for process in (ours, others):
        process.kill()
        process.wait()
        end_session(process.pid, SystemClock(), patience_seconds=0.0)


def _words(session: int) -> list[str]:
    """Ask the operating system another way: the last word of each live process of a session."""
    done = subprocess.run(
        ["ps", "ww", "-s", str(session), "-o", "stat=,args="],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    # a zombie, and in brackets a process that is just about to become one
    return sorted(line[-1] for line in lines if line[0][0] != "Z" and line[1][0] != "[")


def test_executor_killed_takes_one_of_this_session_only(two_sessions: Sessions) -> None:
    """One executor of ours is dead when the call returns; everybody else lives."""
    ours, others = two_sessions
    before = _words(others.pid)
    pid = kill_one_executor(ours.pid, SystemClock())
    assert pid not in session_processes(ours.pid)
    assert sum("Executor" in w for w in _words(ours.pid)) == 1, _words(ours.pid)
    assert _words(others.pid) == before


def test_driver_killed_leaves_its_executors_to_be_ended(two_sessions: Sessions) -> None:
    """Driver and JVM die by SIGKILL, the orphans stay in the session until it is ended."""
    ours, others = two_sessions
    before = _words(others.pid)
    pids = kill_driver(ours, SystemClock())
    assert ours.returncode == -signal.SIGKILL
    assert len(pids) == 2
    assert not set(pids) & set(session_processes(ours.pid))
    end_session(ours.pid, SystemClock(), patience_seconds=0.0)
    assert _words(ours.pid) == []
    assert _words(others.pid) == before


def test_nothing_to_kill_is_an_error() -> None:
    """A session without an executor is an error, never a silent success."""
    process = _start("something-else")
    try:
        with pytest.raises(NotFoundError, match="no executor"):
            kill_one_executor(process.pid, SystemClock())
        with pytest.raises(NotFoundError, match="no driver JVM"):
            kill_driver(process, SystemClock())
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        end_session(process.pid, SystemClock(), patience_seconds=0.0)
    assert os.getpid() not in session_processes(process.pid)


def test_workers_without_a_mark_are_named(two_sessions: Sessions) -> None:
    """Of the processes named, one of this session dies; a driver without a JVM dies alone."""
    ours, others = two_sessions
    before = _words(others.pid)
    named = [p for p in session_processes(ours.pid) if p != ours.pid][:1]
    pid = kill_one_executor(ours.pid, SystemClock(), among=[*named, *session_processes(others.pid)])
    assert [pid] == named
    assert _words(others.pid) == before
    kill_driver(ours, SystemClock(), jvm=False)
    assert ours.returncode == -signal.SIGKILL
