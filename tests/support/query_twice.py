"""Programs that two drivers run, one after the other."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from scripts_loaded import load_script

from durable_shuffle.bench.tpch.data import generate_all


def runs_twice(programs: Any, root: str, folder: Path) -> None:
    """The second driver runs no producer and has the same rows as the first."""
    data = generate_all(folder, 0.01).folder
    (folder / "runs").mkdir()
    first, second = (programs.run("query_driver", root, data, folder, -1, "q03") for _ in range(2))
    assert first["rows"] == second["rows"]
    assert first["rows"]
    assert sum(stage["map_tasks_run"] for stage in first["stages"]) > 0
    assert sum(stage["map_tasks_run"] for stage in second["stages"]) == 0


def readme_runs_twice(root: str, folder: Path) -> None:
    """README's first program, with another URL: its second run reuses what the first one stored."""
    source = Path(__file__).parents[2]
    text = load_script("installed").program((source / "README.md").read_text())
    (folder / "program.py").write_text(text.replace("./shuffle-data", root))
    assert root in (folder / "program.py").read_text()
    environment = {**os.environ, "PYTHONPATH": str(source / "src"), "SPARK_LOCAL_IP": "127.0.0.1"}
    for word in ("computed", "reused"):
        command = [sys.executable, "program.py"]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert done.stdout.startswith("1000\n")
        assert f" {word} " in done.stdout
