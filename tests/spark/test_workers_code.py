"""Workers prove which version of the user's code they run: rows of other code are never stored."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

EDITED = """
import json
from pathlib import Path
import pandas as pd
RATE = json.loads(Path(__file__).with_name("rate.json").read_text())
def shifted(x):
    return x + 1
def rated(x):
    return x * RATE
def of_group(rows):
    return pd.DataFrame({"y": shifted(rows["id"])})
def pair(x):
    return x, shifted(x)
"""
PROGRAM = Path(__file__).parent / "programs/reload_driver.py"
OLD, NEW = [1, 2, 3, 4], [1000, 1001, 1002, 1003]


def driver(folder: Path, root: str, mode: str) -> dict[str, Any]:
    """The output of a driver process."""
    source = Path(__file__).parents[2] / "src"
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), root, mode],
        env={
            **os.environ,
            "PYTHONPATH": str(source),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """A folder with the user's module, and the file that the module reads on import."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "edited.py").write_text(EDITED)
    (folder / "rate.json").write_text("3")
    return folder


@pytest.mark.soak
def test_module_edited_and_loaded_anew(module: Path, root: str) -> None:
    """Reused workers hold the old module. Stored rows are those of the new module, and a process
    that starts with the new module reuses them."""
    edited = driver(module, root, "edits")
    rated, anew = [0, 3, 6, 9], [0, 7, 14, 21]
    for name, rows in edited["rows"].items():
        wanted = anew if name == "rate anew" else rated if "rate" in name else NEW
        assert rows == wanted, name
    fresh = driver(module, root, "fresh")
    for name, rows in fresh["rows"].items():
        assert rows == (anew if "rate" in name else NEW), name
    assert [run for run in fresh["runs"] if run[1] != "reused"] == []


@pytest.mark.soak
def test_executors_with_another_file(module: Path, root: str) -> None:
    """Workers that find another file under the module's name are refused by name, however the
    function runs; plain Spark continues."""
    found = driver(module, root, "ships")["rows"]
    assert found.pop("plain") == found.pop("plain, RDD") == OLD
    for name, refusal in found.items():
        assert str(refusal).startswith("IncompatibleError: "), (name, refusal)
        assert "module edited differs between the driver and this Python worker" in refusal, name
