"""The race itself: failures of racers are told, and the caller's script is not run again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from durable_shuffle.serialization.errors import UnavailableError
from durable_shuffle.shuffle.storage.contract import Created, Exists
from durable_shuffle.shuffle.storage.create_race import race_processes, race_threads
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.memory import MemoryStorage


class Failing(MemoryStorage):
    """Fails in the third round."""

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        if key.endswith("000002"):
            raise UnavailableError("the disk is on fire")
        return super().put_if_absent(key, data)


def test_threads_pass_on_the_cause() -> None:
    """The first failure is reported, not the barrier that it broke."""
    with pytest.raises(UnavailableError, match="the disk is on fire"):
        race_threads(Failing(), "a/", racers=4, rounds=5)


def test_processes_pass_on_the_cause(tmp_path: Path) -> None:
    """A racer's own error reaches the caller with its class."""
    (tmp_path / "root").write_text("a file where the folder should be")
    with pytest.raises(UnavailableError, match=r"racer \d: InvalidInputError: .*is a file"):
        race_processes(LocalStorage(tmp_path / "root"), "a/", racers=2, rounds=2)


def test_scripts_without_a_main_guard_run_once(tmp_path: Path) -> None:
    """Racing from a plain script does not start the script again in every racer."""
    script = tmp_path / "plain.py"
    script.write_text(
        "import sys\n"
        "from durable_shuffle.shuffle.storage.create_race import race_processes\n"
        "from durable_shuffle.shuffle.storage.local import LocalStorage\n"
        "print('script runs')\n"
        "rounds = race_processes(LocalStorage(sys.argv[1]), 'a/', racers=2, rounds=3)\n"
        "print([sum(claim.created for claim in claims) for claims in rounds])\n"
    )
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "root")],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.stdout == "script runs\n[1, 1, 1]\n", run.stderr
