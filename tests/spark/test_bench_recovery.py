"""The recovery benchmark as users start it, and its page as a browser shows it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from browser import open_page

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


def test_a_kill_is_measured_and_shown(tmp_path: Path, seed: int) -> None:
    """An executor dies in the reduce stage, no map task runs again, and Chromium shows the kill."""
    figures, page = tmp_path / "bench.json", tmp_path / "bench.html"
    command = [
        *(sys.executable, "-m", "durable_shuffle.jobs.cli", "bench", "recovery"),
        *("--workload", "W4", "--fault", "F2", "--against", "", "--scale", "0.03"),
        *("--seed", str(seed), "--work", str(tmp_path / "work")),
        *("--json", str(figures), "--html", str(page)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(figures.read_text())
    assert document["passed"]
    assert document["schedule"][0] == f"kill schedule, --seed {seed}:"
    for line in document["schedule"]:
        assert line in done.stdout
    hurt = {f["fault"]: f for f in document["figures"]}["F2"]
    assert hurt["fault_fired"]
    assert hurt["maps_again"] == hurt["committed_again"] == 0
    assert hurt["rows_found"] == hurt["rows_expected"] > 0
    assert hurt["rows_differing"] == hurt["records_twice"] == hurt["records_missing"] == 0
    assert hurt["operations"]["PUT"] >= 2 * hurt["maps"]  # a segment and a commit each

    opened = open_page(page, picture=tmp_path / "page.png")
    assert opened.complaints == []
    assert opened.dom.count('data-mark="fault"') == 1
    assert "SIGKILL of an executor among the reduce tasks" in opened.dom
    assert (tmp_path / "page.png").stat().st_size > 20_000
