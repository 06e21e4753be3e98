"""A join query that two drivers answer, one after the other."""

from pathlib import Path
from typing import Any

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
