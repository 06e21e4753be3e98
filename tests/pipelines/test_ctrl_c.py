"""Ctrl-C at moments at which it is easily lost, or hits a process that is only just beginning."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pipeline_steps import Numbers
from pipelines import PATIENCE_SECONDS, copying, prefix_of_all, published, threads, until

from durable_shuffle.recovery.job.phases import JobPhase
from durable_shuffle.recovery.pipeline import pipeline as pipeline_module
from durable_shuffle.recovery.pipeline.running import RunningPipeline

WAIT = 60.0
OLDER = """
import os, signal, sys, threading, time
from multiprocessing import forkserver
from pathlib import Path
sys.path[:0] = {paths!r}
from pipeline_steps import Numbers, same
from pipelines import copying, published
folder = Path(sys.argv[1])

def interrupt():
    # both to all, while the fork server and the tasks begin
    while forkserver._forkserver._forkserver_pid is None:
        time.sleep(0.001)
    pid = forkserver._forkserver._forkserver_pid
    blocked = [x for x in Path(f"/proc/{{pid}}/status").read_text().splitlines() if "SigBlk" in x]
    print(int(blocked[0].split()[1], 16) >> 1 & 1, flush=True)
    while not published(folder):
        for number in (signal.SIGINT, signal.SIGTERM):
            for child in children(pid) | {{pid}}:
                try:
                    os.kill(child, number)
                except OSError:
                    pass
        time.sleep(0.002)
    running.stop("SUSPEND")

def children(pid):
    try:
        return set(map(int, Path(f"/proc/{{pid}}/task/{{pid}}/children").read_text().split()))
    except OSError:
        return set()

if __name__ == "__main__":
    pipeline = copying(folder, Numbers(1), same)
    threading.Thread(target=interrupt, daemon=True).start()
    running = pipeline.start()
    result = running.wait()
    print(result.phase, result.restarts, result.cause)
"""


def test_an_interrupt_that_another_thread_received(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that comes just before the main thread waits: nothing wakes that thread."""
    started: list[RunningPipeline] = []
    over = threading.Event()

    def noted(*arguments: Any) -> RunningPipeline:
        started.append(RunningPipeline(*arguments))
        return started[0]

    def interrupt() -> None:
        until(lambda: started and started[0].phase is JobPhase.RUNNING, "all run")
        until(lambda: published(tmp_path), "rows")
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        if not over.wait(WAIT):
            started[0].stop("CANCEL")

    monkeypatch.setattr(pipeline_module, "RunningPipeline", noted)
    other = threading.Thread(target=interrupt)
    other.start()
    try:
        result = copying(tmp_path, Numbers(1), lambda batch: batch).run(launcher=threads)
    finally:
        over.set()
        other.join()
    assert result.phase is JobPhase.SUSPENDED


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks at signal masks")
def test_processes_that_only_just_begin_survive_signals_to_all(tmp_path: Path) -> None:
    """The fork server, and tasks before they ignore signals: none falls, none is restarted."""
    script = tmp_path / "script.py"
    script.write_text(OLDER.format(paths=[p for p in sys.path if p]))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert done.stdout == "1\nsuspended 0 None\n", done.stdout + done.stderr
    assert prefix_of_all(published(tmp_path), 1) or published(tmp_path)


@pytest.fixture
def plain_signals() -> Iterator[None]:
    """The signals as a program in the foreground has them, whatever started this process."""
    plain: dict[int, Any] = {
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGINT: signal.default_int_handler,
    }
    before = {number: signal.signal(number, handler) for number, handler in plain.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("plain_signals")
@pytest.mark.parametrize(
    ("signals", "phase"),
    [
        ((signal.SIGTERM,), JobPhase.SUSPENDED),
        ((signal.SIGTERM, signal.SIGTERM), JobPhase.SUSPENDED),
        ((signal.SIGINT, signal.SIGINT), JobPhase.CANCELED),
    ],
)
def test_signals_to_a_program_that_runs_a_pipeline(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    signals: tuple[signal.Signals, ...],
    phase: JobPhase,
) -> None:
    """SIGTERM suspends, however often it comes; a second Ctrl-C cancels a suspend that hangs."""
    waits: list[int] = []
    wait = RunningPipeline.wait
    gate = threading.Event()

    def interrupted(self: RunningPipeline, timeout_seconds: float | None = None) -> Any:
        waits.append(1)
        if len(waits) <= len(signals):  # each while the main thread waits
            until(lambda: published(tmp_path) or len(waits) > 1, "rows")
            signal.raise_signal(signals[len(waits) - 1])
        gate.set()
        return wait(self, timeout_seconds)

    def held(batch: Any) -> Any:
        if waits and len(waits) > 1 and signals[0] is signal.SIGINT:
            gate.wait(WAIT)  # so that the suspend does not end before the second Ctrl-C
        return batch

    monkeypatch.setattr(RunningPipeline, "wait", interrupted)
    result = copying(tmp_path, Numbers(1), held).run(launcher=threads)
    assert result.phase is phase
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
