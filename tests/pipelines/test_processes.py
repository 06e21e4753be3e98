"""Whole pipelines whose tasks are processes: killed and stopped by the system, at gates."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pipeline_steps import Gated, GatedHooks, Numbers
from pipelines import PATIENCE_SECONDS, copying, epochs, prefix_of_all, published, until

from durable_shuffle.recovery.job.phases import JobPhase
from durable_shuffle.recovery.pipeline.lines.processes import LocalProcesses


def waiting(folder: Path, name: str) -> int:
    """The process that waits at a gate; waits for it."""
    found = until(lambda: list(folder.glob(f"{name}-*")), f"somebody at the gate {name}")
    return int(found[0].read_text())


@pytest.mark.sampled(1)
@pytest.mark.requirement("R-ARR-16")
@pytest.mark.requirement("R-F135-20")
@pytest.mark.requirement("R-F135-26")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_consumer_that_dies_restarts_alone(tmp_path: Path, how: signal.Signals) -> None:
    """Killed, or stopped for good, between reading and committing: only it starts again."""
    silence = {"heartbeat_seconds": 0.2, "silence_seconds": 20.0 if how == signal.SIGKILL else 4.0}
    pipeline = copying(tmp_path, Numbers(2), Gated(str(tmp_path), 100), producers=2, **silence)
    running = pipeline.start()
    pid = waiting(tmp_path, "row")
    assert isinstance(running.launcher, LocalProcesses)
    (victim,) = [name for name in epochs(running) if running.launcher.pid(name) == pid]
    os.kill(pid, how)
    (tmp_path / "go").touch()
    until(lambda: epochs(running)[victim] > 1, "a restart")
    until(lambda: running.phase is JobPhase.RUNNING and 100 in published(tmp_path), "row 100")
    if how == signal.SIGKILL:  # short silences may also end others, on a machine under load
        assert {name for name, epoch in epochs(running).items() if epoch > 1} == {victim}
    running.stop("DRAIN")
    assert running.wait(PATIENCE_SECONDS).phase is JobPhase.FINISHED
    assert prefix_of_all(published(tmp_path), 2)


@pytest.mark.sampled(1)
@pytest.mark.requirement("R-F46-5")
@pytest.mark.requirement("R-F46-14")
@pytest.mark.parametrize("where", ["prepare_to_shutdown", "snapshot", "shutdown"])
def test_a_kill_in_the_middle_of_a_hook(tmp_path: Path, where: str) -> None:
    """The successor carries the end out, with the same token; every row is published once."""
    pipeline = copying(tmp_path, Numbers(1), GatedHooks(str(tmp_path), where), commit_seconds=3600)
    running = pipeline.start()
    until(lambda: running.progress()["numbers-p0000"][1] > 20, "some rows")
    running.stop("DRAIN")
    os.kill(waiting(tmp_path, where), signal.SIGKILL)
    (tmp_path / "go").touch()
    result = running.wait(PATIENCE_SECONDS)
    assert result.phase is JobPhase.FINISHED
    assert result.restarts >= 1
    assert prefix_of_all(published(tmp_path), 1)
    tokens = (tmp_path / "effects").read_text().split()
    assert len(set(tokens)) == 2, "one per consumer task, however often it was called"
    if where == "shutdown":
        assert len(tokens) > 2


@pytest.mark.requirement("R-ARR-5")
@pytest.mark.requirement("R-F46-11")
def test_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    """Its tasks end by themselves; the next one goes on where the logs end."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom pipelines import copying\n"
        "from pipeline_steps import Numbers, Gated\n"
        "if __name__ == '__main__':\n"
        "    folder = Path(sys.argv[1])\n"
        "    copying(folder, Numbers(1), Gated(str(folder), -1)).run()\n"
    )
    script = tmp_path / "program.py"
    script.write_text(program)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    supervisor = subprocess.Popen([sys.executable, str(script), str(tmp_path)], env=environment)
    try:
        until(lambda: published(tmp_path).total() > 10, "rows of the first")
    finally:
        supervisor.kill()
        supervisor.wait()
    reached = published(tmp_path).total()
    running = copying(tmp_path, Numbers(1), Gated(str(tmp_path), -1)).start()
    until(lambda: running.launcher is not None, "the second's launcher")
    assert isinstance(running.launcher, LocalProcesses)
    until(lambda: published(tmp_path).total() > reached, "more rows")
    running.stop("DRAIN")
    assert running.wait(PATIENCE_SECONDS).phase is JobPhase.FINISHED
    assert prefix_of_all(published(tmp_path), 1)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while _tasks_of(script):
        assert time.monotonic() < deadline, "tasks of the dead supervisor go on"
        time.sleep(0.05)


def _tasks_of(script: Path) -> list[str]:
    """Processes that mention the program, by the system's own account."""
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in found.stdout.splitlines() if str(script) in line]


NO_GUARD = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from pipeline_steps import Numbers, same
from pipelines import copying
result = copying(Path(sys.argv[1]), Numbers(1, 20), same).run()
print(result.phase, result.cause)
"""


@pytest.mark.requirement("R-ARR-6")
def test_a_program_without_a_guard_is_told_so(tmp_path: Path) -> None:
    """It claims nothing a second time, and ends at once with the line to add."""
    script = tmp_path / "unguarded.py"
    script.write_text(NO_GUARD.format(paths=sys.path))
    ended = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert ended.stdout.startswith("failed lost: the process of ")
    assert '`if __name__ == "__main__":`' in ended.stdout
