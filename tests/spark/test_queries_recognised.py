"""The next run recognises ordinary queries: in another process and JVM, with other counters."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.soak)])
def test_second_run_runs_no_producer(programs: Any, tmp_path: Path, step: int) -> None:
    """Rows are Spark's in both runs. For any query, the second one runs no producer, and reads
    all that is stored without a Python process beside the driver."""
    tables, root = tmp_path / "tables", tmp_path / "root"
    first = programs.run("recognised", tables, root, 1, step, env={"PYTHONHASHSEED": "1"})
    second = programs.run("recognised", tables, root, 3, step, env={"PYTHONHASHSEED": "2"})
    assert first.pop("python_processes") > 0
    assert second.pop("python_processes") == 0
    assert [name for name, found in first.items() if not found["equal"]] == []
    assert [name for name, found in second.items() if not found["equal"]] == []
    assert [name for name, found in first.items() if not found["stages"]] == []
    assert {name: found["why"] for name, found in second.items() if found["ran"]} == {}
