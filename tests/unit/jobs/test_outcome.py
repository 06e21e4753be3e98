"""`durable-shuffle run` learns which error ended a program, also before its DurableShuffle(...)."""

import os
import subprocess
import sys
from pathlib import Path

from durable_shuffle.jobs.outcome import VARIABLE, told

PROGRAM = """
from durable_shuffle import Settings
raise LookupError("no such path")
"""


def test_an_error_before_the_first_job_is_told(tmp_path: Path) -> None:
    """As a wrong input path is: `spark.read` fails before anything of this library runs."""
    file = tmp_path / "facts"
    paths = os.pathsep.join(sys.path)
    env = {**os.environ, VARIABLE: str(file), "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True)
    assert "no such path" in done.stderr
    assert told(file.read_text()) == {
        "kind": "",
        "types": ["LookupError", "Exception", "BaseException", "object"],
    }
