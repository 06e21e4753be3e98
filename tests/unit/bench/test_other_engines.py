"""Engines other than Spark's JVM: what they refuse, and a run of each under each of its faults."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from durable_shuffle.bench.matrix.collect import collect
from durable_shuffle.bench.matrix.figures import Figures, failures
from durable_shuffle.bench.matrix.matrix import RecoveryOptions, plan_steps
from durable_shuffle.bench.matrix.spark_runner import SparkRunner
from durable_shuffle.bench.peers.installed import below, version
from durable_shuffle.bench.peers.other_engines import ENGINE_DRIVER, ENGINES
from durable_shuffle.bench.peers.systems import PEERS
from durable_shuffle.bench.workloads.cases import plan_cells
from durable_shuffle.bench.workloads.faults import FAULTS
from durable_shuffle.bench.workloads.oracle import Oracle
from durable_shuffle.bench.workloads.step import Step
from durable_shuffle.shuffle.base.clock import SystemClock

ONE_PROCESS = ("daft", "sail", "polars")
NAMES = tuple(peer.name for peer in ENGINES)


@pytest.mark.parametrize("name", NAMES)
def test_faults_that_make_no_sense_are_refused(name: str) -> None:
    """A process without workers can be killed as a whole only; none has this project's storage."""
    cells, refused = plan_cells(["W1", "W4", "W5"], list(FAULTS), [name], {})
    faults = {c.fault for c in cells if c.peer == name}
    assert faults == ({"F0", "F4"} if name in ONE_PROCESS else {"F0", "F1", "F2", "F4"})
    assert {c.workload for c in cells if c.peer == name} == {"W1", "W4"}
    told = {why for c, why in refused if c.peer == name}
    assert all(len(why) > 20 for why in told)


def test_an_engine_that_is_not_there_says_how_to_get_it() -> None:
    """With the extra that brings it, and the variable that names another Python."""
    gone = replace(PEERS["ray"], packages=("no-such-engine",))
    assert gone.absent({}) == (
        "not installed: no-such-engine: pip install 'durable-shuffle[rivals]'; "
        "PYTHON_FOR_RAY=<path> names another Python that has it"
    )
    assert (
        gone.absent({"PYTHON_FOR_RAY": "/no/python"})
        == "PYTHON_FOR_RAY names no Python: /no/python"
    )


def test_a_package_that_is_too_new_is_refused_by_name() -> None:
    """Sail does not start with a newer PySpark than it knows."""
    newest = version("pyspark")
    assert newest is not None
    peer = replace(PEERS["sail"], packages=("pyspark",), too_new={"pyspark": (4, 0)})
    assert peer.absent({}) == (
        f"does not start with pyspark {newest}: 'pyspark<4.0'; "
        "PYTHON_FOR_SAIL=<path> names another Python that has it"
    )
    assert replace(peer, too_new={"pyspark": (99,)}).absent({}) is None
    assert below("4.1.4", (4, 2))
    assert not below("4.2.0", (4, 2))
    assert not below("10.0", (4, 2))
    assert below("4.2rc1", (4, 3))


def test_versions_are_those_of_the_python_that_runs_it(tmp_path: Path) -> None:
    """A Python without the package has none, whatever this one has."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')  # -S: no installed packages
    bare.chmod(0o755)
    peer = replace(PEERS["dask"], packages=("pyarrow",))
    assert peer.absent({}) is None
    assert "not installed: pyarrow" in str(peer.absent({"PYTHON_FOR_DASK": str(bare)}))
    assert peer.versions({"PYTHON_FOR_DASK": sys.executable}) == f"pyarrow {version('pyarrow')}"


def test_an_engine_that_does_not_start_says_why(tmp_path: Path) -> None:
    """The parent learns the reason, not only that its process has ended."""
    step = Step(0, 0, "W4", "F0", "no-such-engine", 1, 0.01, 0, 1, 1)
    events = tmp_path / "events.jsonl"
    command = [sys.executable, "-m", ENGINE_DRIVER, str(tmp_path), str(events)]
    steps = json.dumps([step.to_dict()])
    done = subprocess.run([*command, steps], capture_output=True, check=False)
    assert done.returncode == 1
    (line,) = events.read_text().splitlines()
    assert json.loads(line)["event"] == "failed"
    assert "on_no_such_engine" in json.loads(line)["error"]


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("workload", ["W1", "W2", "W4"])
@pytest.mark.parametrize("name", NAMES)
def test_an_engine_gives_the_right_rows_under_its_faults(
    name: str, workload: str, tmp_path: Path, seed: int
) -> None:
    """Each fault hits the run, no row is wrong, and work is counted that was done again."""
    absent = PEERS[name].absent(os.environ)
    if absent is not None:
        pytest.skip(absent)
    faults = ("F1", "F2", "F4") if workload == "W4" else ()
    figures = _measured(name, workload, faults, tmp_path, seed)
    assert failures(list(figures.values())) == []
    if workload == "W4" and name in ONE_PROCESS:
        assert figures["F4"].maps_again == figures["F4"].maps


def _measured(
    name: str, workload: str, faults: tuple[str, ...], work: Path, seed: int
) -> dict[str, Figures]:
    """Run one peer without the one that it is compared with."""
    cells, _ = plan_cells([workload], faults, [name], {})
    options = RecoveryOptions(scale=0.02, seed=seed)
    steps, _ = plan_steps(options, [c for c in cells if c.peer == name])
    results = SparkRunner(work, SystemClock(), print).run(steps)
    assert results.failed == {}
    figures, _ = collect(work, results.runs, Oracle(options.scale, seed))
    return {f.fault: f for f in figures}
