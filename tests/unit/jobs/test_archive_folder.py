"""A driver's archive goes with its process, or with the next driver's start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from durable_shuffle.jobs.deploy.archive_folder import remove_left_folders
from durable_shuffle.shuffle.base.clock import SystemClock

PROGRAM = """
import os, sys
from durable_shuffle.jobs.deploy.archive_folder import archive_folder
folder = archive_folder()
assert archive_folder() == folder
(folder / "package.zip").write_bytes(b"x" * 1000)
if sys.argv[1] == "forks" and not os.fork():
    sys.exit()
if sys.argv[1] == "forks":
    os.wait()
print(folder, flush=True)
sys.stdin.read(1)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
assert (folder / "package.zip").exists()
"""


def started(above: Path, how: str) -> tuple["subprocess.Popen[str]", Path]:
    """Start a process that makes its folder and waits; return it and the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(above), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


@pytest.mark.parametrize("how", ["ends", "forks"])
def test_the_folder_goes_with_its_process(tmp_path: Path, how: str) -> None:
    """Not with a process that it forked."""
    process, folder = started(tmp_path, how)
    assert (folder / "package.zip").exists()
    process.communicate("x", timeout=60)
    assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_what_killed_drivers_left_goes_with_the_next_start(tmp_path: Path) -> None:
    """Folders of living drivers, young ones and those of others stay."""
    killed, gone = started(tmp_path, "killed")
    killed.communicate("x", timeout=60)
    alive, stays = started(tmp_path, "ends")
    other = tmp_path / "durable-shuffle-data"
    other.mkdir()
    now = SystemClock().wall()
    remove_left_folders(tmp_path, now)
    assert gone.exists(), "it is young"
    remove_left_folders(tmp_path, now + 7200)
    assert (gone.exists(), stays.exists(), other.exists()) == (False, True, True)
    alive.communicate("x", timeout=60)
    assert list(tmp_path.iterdir()) == [other]
