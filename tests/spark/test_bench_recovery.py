"""The recovery benchmark as users start it, and its page as a browser shows it."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from browser import open_page
from prometheus_page import served

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


def recovery(folder: Path, *arguments: str, **environment: str) -> tuple[dict[str, Any], str]:
    """Run the command; return its document and what it printed."""
    figures = folder / "bench.json"
    command = [
        *(sys.executable, "-m", "durable_shuffle.jobs.cli", "bench", "recovery"),
        *("--work", str(folder / "work"), "--json", str(figures), *arguments),
    ]
    env = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(figures.read_text()), done.stdout


@pytest.mark.soak
def test_a_kill_is_measured_and_shown(tmp_path: Path, seed: int) -> None:
    """An executor dies in the reduce stage, no map task runs again, and Chromium shows the kill."""
    page = tmp_path / "bench.html"
    document, printed = recovery(
        tmp_path,
        *("--workload", "W4", "--fault", "F2", "--against", "", "--scale", "0.03"),
        *("--seed", str(seed), "--html", str(page)),
    )
    assert document["passed"]
    assert document["schedule"][0] == f"kill schedule, --seed {seed}:"
    for line in document["schedule"]:
        assert line in printed
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


@pytest.mark.s3
@pytest.mark.soak
@pytest.mark.parametrize("workload", ["W5", "W4"])
def test_a_killed_driver_is_measured_behind_a_late_network(tmp_path: Path, workload: str) -> None:
    """No map task runs again, of rows that are consumed and of a stage; a disk's faults are
    refused there."""
    document, printed = recovery(
        tmp_path,
        *("--workload", workload, "--fault", "F4", "--against", "", "--scale", "0.01"),
        *("--storage", "late"),
    )
    assert document["passed"]
    assert document["storage"] == "S3 on this machine, 30 ms late"
    (hurt,) = (f for f in document["figures"] if f["fault"] == "F4")
    assert hurt["fault_fired"]
    assert hurt["committed_again"] == hurt["maps_again"] == 0
    assert hurt["rows_found"] == hurt["rows_expected"] > 0
    assert "exception" not in printed
    with pytest.raises(AssertionError, match="F6 is about files on a disk"):
        recovery(tmp_path, "--fault", "F6", "--storage", "late")


@pytest.mark.soak
def test_what_each_of_sparks_own_ways_keeps(tmp_path: Path, seed: int) -> None:
    """A kill, a decommission and a dead driver, counted; a system that fails is left out.

    The service is none: something listens, but the class of its client is not in the jar.
    """
    jar = tmp_path / "client.jar"
    with zipfile.ZipFile(jar, "w") as file:
        file.writestr("empty.txt", "")
    with served("metrics_LocalFlushSize_Count 0\n") as address:
        document, printed = recovery(
            tmp_path,
            *("--fault", "F2,F4,F11", "--against", "native,ess,fallback,buckets,celeborn"),
            *("--scale", "0.03", "--seed", str(seed)),
            CELEBORN_MASTER=address,
            CELEBORN_CLIENT_JAR=str(jar),
            CELEBORN_METRICS=f"http://{address}/",
        )
    assert document["passed"]
    assert {r["cell"] for r in document["refused"]} == {
        f"W4 {fault} celeborn" for fault in ("F0", "F2", "F4", "F11")
    }
    assert all("SparkShuffleManager" in r["why"] for r in document["refused"])
    assert "W4 F0 celeborn: failed: " in printed
    again = {(f["fault"], f["peer"]): f["maps_again"] for f in document["figures"]}
    nothing = {("F2", "ess"), ("F11", "ess"), ("F11", "fallback")}
    nothing |= {(f, p) for f in ("F2", "F4", "F11") for p in ("durable", "buckets")}
    everything = {("F4", p) for p in ("native", "ess", "fallback")}
    some = {("F2", "native"), ("F2", "fallback"), ("F11", "native")}
    assert {cell: again[cell] for cell in nothing} == dict.fromkeys(nothing, 0)
    assert {cell: again[cell] for cell in everything} == dict.fromkeys(everything, 8)
    assert all(0 < again[cell] < 8 for cell in some), again
    assert len(again) == 4 * 5
    for f in document["figures"]:
        assert f["rows_found"] == f["rows_expected"] > 0
        assert f["rows_differing"] == f["records_twice"] == f["records_missing"] == 0
        if f["fault"] == "F11":
            assert "the executor ended by itself" in f["evidence"]
        if f["fault"] in ("F2", "F4", "F11"):  # a fault must not wait for Spark's next heartbeat
            waited = re.search(r"the last ([\d.]+) s before", f["evidence"])
            assert waited is not None
            assert float(waited[1]) < 5
    settings = {p["name"]: p["settings"] for p in document["peers"]}
    assert settings["ess"]["spark.shuffle.service.enabled"] == "true"
