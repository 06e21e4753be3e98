"""Following a driver process, with small scripts in the driver's place."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from durable_shuffle.bench.cluster.faults import session_processes
from durable_shuffle.bench.recovery_demo.runner import RecoveryRunner
from durable_shuffle.bench.recovery_demo.steps import Progress, Step
from durable_shuffle.bench.tpch.data import TpchFiles
from durable_shuffle.serialization.errors import UnavailableError
from durable_shuffle.shuffle.base.clock import SystemClock

# writes each argument as a line of the event file, then ends with the status it is told
_DRIVER = """
import os, sys
events, status, lines = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
with open(events, "a") as file:
    file.write("".join(line + "\\n" for line in lines))
print("last words", os.getpid())
sys.exit(status)
"""


class _Scripted(RecoveryRunner):
    """Starts the script above; everything else is the real thing."""

    def __init__(self, work: Path, status: int, lines: Sequence[str]) -> None:
        super().__init__(work, TpchFiles(work), self.listen, SystemClock())
        self._status, self._lines = status, lines
        self.notes: list[str] = []

    def listen(self, _step: Step, _progress: Progress, note: str) -> None:
        self.notes.append(note)

    def command(self, events: Path, steps: Sequence[Step]) -> list[str]:
        return [sys.executable, "-c", _DRIVER, str(events), str(self._status), *self._lines]


def test_run_that_outruns_its_kill_is_told_from_a_killed_one(tmp_path: Path) -> None:
    """A step that ends before a signal was sent has no kill, so the verdict can refuse it."""
    step = Step(4, "spark", "executor", "cheap", 0)
    lines = [
        '{"event": "ready", "seconds": 1.0}',
        '{"event": "run", "step": 4}',
        '{"event": "done", "step": 4, "seconds": 2.5, "total": null}',
    ]
    runner = _Scripted(tmp_path, 0, lines)
    (outcome,) = runner.run([step])
    assert outcome.step == step
    assert outcome.seconds == 2.5
    assert outcome.kill is None
    assert runner.notes == ["starting", "done"]


@pytest.mark.parametrize("status", [0, 3])
def test_driver_that_ends_early_is_an_error_with_its_last_words(
    tmp_path: Path, status: int
) -> None:
    """A driver that was not killed and left steps undone fails the run and shows its log."""
    runner = _Scripted(tmp_path, status, ['{"event": "ready", "seconds": 1.0}'])
    with pytest.raises(UnavailableError, match="last words") as caught:
        runner.run([Step(0, "durable", "none", "cheap", 0)])
    assert f"status={status}" in str(caught.value)
    pid = int(str(caught.value).rsplit("last words ", 1)[1].split()[0])
    assert session_processes(pid) == {}
