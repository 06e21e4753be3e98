"""The demo as users start it: the test checks only its exit status and its figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


@pytest.mark.soak
@pytest.mark.parametrize("full", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_demo_survives_its_kills_and_says_so(tmp_path: Path, *, full: bool) -> None:
    """The kills hit during the run, all rows are DuckDB's, and no committed producer ran again."""
    figures, faults = tmp_path / "demo.json", ["none", "driver"] + ["executor"] * full
    command = [
        *(sys.executable, "-m", "durable_shuffle.jobs.cli", "demo", "--scale", "0.01"),
        *("--json", str(figures), "--data", str(tmp_path / "data"), "--work", str(tmp_path / "w")),
        *["--full"] * full,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(figures.read_text())
    assert document["passed"]
    assert document["failures"] == []
    lines = {(f["shuffle"], f["fault"]): f for f in document["figures"]}
    assert set(lines) == {(s, f) for s in ("durable", "spark") for f in faults}
    for line in lines.values():
        assert line["rows_found"] == line["rows_expected"] == 15_000  # orders at this scale
        assert line["rows_differing"] == 0
        if line["fault"] != "none":
            assert line["fault_fired"]
    for fault in faults:
        assert lines["durable", fault]["map_tasks_again"] == 0
        assert lines["durable", fault]["spark_map_tasks"] == 0
    if full:
        assert 1 <= lines["durable", "executor"]["reduced_at_kill"] < 12
    killed = lines["durable", "driver"]
    assert 1 <= killed["committed_at_kill"] < 16
    assert killed["map_tasks_reused"] >= killed["committed_at_kill"]
    assert killed["map_tasks_run"] == 16 - killed["map_tasks_reused"] >= 1
    assert lines["spark", "driver"]["map_tasks_again"] >= 1  # the baseline really lost tasks
