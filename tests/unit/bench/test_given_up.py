"""A peer that fails is given up with its reason; what others measured stays."""

from dataclasses import replace
from pathlib import Path

import pytest
from bench_figures import GOOD

from durable_shuffle.bench.cluster.event_file import in_short
from durable_shuffle.bench.matrix.given_up import calm_job, kept_runs, unproven
from durable_shuffle.bench.matrix.matrix import RecoveryOptions, plan_steps
from durable_shuffle.bench.matrix.spark_runner import Results, Run, SparkRunner
from durable_shuffle.bench.workloads.cases import plan_cells
from durable_shuffle.bench.workloads.step import Step
from durable_shuffle.serialization.errors import UnavailableError
from durable_shuffle.shuffle.base.clock import SystemClock

# does every step of its list in no time, until one of the peer that it is told to fail with
_DRIVER = """
import json, sys
events, steps, bad, told = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], sys.argv[4]
def say(**line):
    with open(events, "a") as file:
        file.write(json.dumps(line) + "\\n")
say(event="ready", settings={"a": "b"})
for step in steps:
    say(event="run", step=step["number"], at=1.0)
    if step["peer"] == bad:
        if told:
            say(event="failed", error=told)
        print("last words")
        sys.exit(3)
    say(event="done", step=step["number"], at=2.0, seconds=1.0, total=None, detected=None)
"""


class _Scripted(SparkRunner):
    """Starts the script above; everything else is the real thing."""

    def __init__(self, work: Path, bad: str, told: str) -> None:
        self.lines: list[str] = []
        super().__init__(work, SystemClock(), self.lines.append)
        self.folder, self.bad, self.told, self.started = work, bad, told, 0

    def command(self, python: str, events: Path, listed: str, module: str) -> list[str]:
        del module
        self.started += 1
        return [python, "-c", _DRIVER, str(events), listed, self.bad, self.told]


def planned(peers: list[str], rounds: int = 1) -> list[Step]:
    """Steps of runs without a fault; the script cannot be killed."""
    options = RecoveryOptions(faults=("F0",), peers=tuple(peers), rounds=rounds)
    return plan_steps(options, plan_cells(["W4"], ["F0"], peers)[0])[0]


@pytest.mark.parametrize("told", ["must be a BlockingShuffleManager", ""])
@pytest.mark.parametrize("bad", ["checkpoint", "ess"])
def test_others_go_on_without_it(tmp_path: Path, bad: str, told: str) -> None:
    """Also those that shared a driver with it; its reason is what the driver said."""
    steps = planned(["native", "checkpoint", "ess", "buckets"], rounds=2)
    runner = _Scripted(tmp_path, bad, told)
    results = runner.run(steps)
    assert results.failed == {bad: told or "the driver ended: status=3"}
    runs, refused = kept_runs(steps, results)
    assert {(r.step.peer, r.step.round) for r in runs} == {
        (peer, number)
        for peer in ("durable", "native", "checkpoint", "ess", "buckets")
        for number in (0, 1)
        if peer != bad
    }
    assert all(run.finished for run in runs)
    reason = f"failed: {results.failed[bad]}"
    assert refused == [(f"W4 F0 {bad}, round {n}", reason) for n in (0, 1)]
    assert results.settings["native"] == {"a": "b"}
    assert any(f"{bad} is given up" in line for line in runner.lines)


def test_this_project_may_not_fail(tmp_path: Path) -> None:
    """Then there is nothing to compare with, and the end of the log is what is needed."""
    with pytest.raises(UnavailableError, match=r"no executors.*\n.*last words"):
        _Scripted(tmp_path, "durable", "no executors").run(planned(["native"]))


def test_a_job_without_its_calm_run_is_left_out() -> None:
    """Seconds lost cannot be told; a job of two runs of which one is missing counts neither."""
    options = RecoveryOptions(faults=("F4",), peers=("native",))
    steps, _ = plan_steps(options, plan_cells(["W4"], ["F4"], ["native"])[0])
    every = [Run(step, 0.0, finished=step.run == 2 or step.fault == "F0") for step in steps]
    assert kept_runs(steps, Results(every))[1] == []
    for gone in steps:
        left = [run for run in every if run.step != gone]
        runs, refused = kept_runs(steps, Results(left, {gone.peer: "it died"}))
        dropped = [s.cell.name for s in steps if s.peer == gone.peer]
        dropped = [n for n in dropped if gone.fault == "F0" or n == gone.cell.name]
        assert refused == [(name, "failed: it died") for name in dict.fromkeys(dropped)]
        assert {run.step.cell.name for run in runs}.isdisjoint(dropped)
        assert calm_job(gone) == f"W4-F0-{gone.peer}-0"


@pytest.mark.parametrize(
    ("taken_in", "why"),
    [
        (None, "did not say"),
        (0, "took in 0 bytes of 1,000"),
        (99, "went another way"),
        (100, None),
        (2000, None),
    ],
)
def test_figures_of_a_service_need_its_own_count(taken_in: int | None, why: str | None) -> None:
    """A client that quietly fell back to Spark's shuffle must not be shown as the service."""
    told = unproven(replace(GOOD, map_bytes=1000, taken_in=taken_in), has_service=True)
    assert (told is None) if why is None else (told is not None and why in told)
    assert unproven(replace(GOOD, taken_in=None), has_service=False) is None


def test_an_error_of_the_jvm_is_one_line() -> None:
    """Its stack is in the driver's log."""
    error = RuntimeError("An error occurred.\n: java.lang.X: why\n\tat a.b(C.java)\n\t... 3 more\n")
    assert in_short(error) == "RuntimeError: An error occurred. : java.lang.X: why"
