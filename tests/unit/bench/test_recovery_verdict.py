"""What the demo lets pass and what it refuses: each check is shown to fail on its own."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from durable_shuffle.bench.recovery_demo.demo import DemoOptions, run_demo
from durable_shuffle.bench.recovery_demo.steps import Progress, plan_steps
from durable_shuffle.bench.recovery_demo.table import figures_table
from durable_shuffle.bench.recovery_demo.verdict import Figures, exit_status, failures
from durable_shuffle.serialization.errors import InvalidInputError

CALM = Figures(
    producers="python",
    fault="none",
    shuffle="durable",
    rows_expected=100,
    rows_found=100,
    rows_differing=0,
    map_tasks=16,
    map_tasks_run=16,
    map_tasks_reused=0,
    map_tasks_again=0,
    spark_map_tasks=0,
    committed_at_kill=0,
    reduced_at_kill=0,
    reduce_tasks=12,
    fault_fired=False,
    seconds=5.0,
    seconds_lost=0.0,
)
EXECUTOR = replace(
    CALM, fault="executor", fault_fired=True, committed_at_kill=16, reduced_at_kill=3
)
DRIVER = replace(
    CALM,
    fault="driver",
    fault_fired=True,
    committed_at_kill=12,
    map_tasks_run=4,
    map_tasks_reused=12,
)
SPARK = replace(EXECUTOR, shuffle="spark", map_tasks_run=22, map_tasks_again=6, spark_map_tasks=22)
GOOD = [CALM, EXECUTOR, DRIVER, SPARK]


def test_verdict_of_a_good_run_is_zero() -> None:
    """Equal rows, nothing run again and faults in the middle pass, also where Spark repeats."""
    assert failures(GOOD) == []
    assert exit_status(GOOD) == 0


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (replace(CALM, rows_differing=1), "rows differ"),
        (replace(CALM, rows_found=99), "rows differ"),
        (replace(CALM, rows_expected=0, rows_found=0), "found no rows"),
        (replace(SPARK, rows_differing=2), "rows differ"),
        (replace(EXECUTOR, map_tasks_again=1), "1 committed map tasks ran again"),
        (replace(DRIVER, map_tasks_reused=11, map_tasks_run=5), "were not reused"),
        (replace(DRIVER, map_tasks_run=3), "do not add up"),
        (replace(EXECUTOR, fault_fired=False), "did not fire"),
        (replace(DRIVER, fault_fired=False), "did not fire"),
        (replace(SPARK, fault_fired=False), "did not fire"),
        (replace(EXECUTOR, reduced_at_kill=0), "not in the middle: 0 of 12"),
        (replace(EXECUTOR, reduced_at_kill=12), "not in the middle: 12 of 12"),
        (replace(DRIVER, committed_at_kill=0), "not in the middle: 0 of 16"),
        (
            replace(DRIVER, committed_at_kill=16, map_tasks_run=0, map_tasks_reused=16),
            "not in the middle: 16 of 16",
        ),
        (replace(CALM, spark_map_tasks=8), "Spark shuffled a second time"),
        (replace(SPARK, spark_map_tasks=0), "Spark did not shuffle"),
    ],
)
def test_verdict_of_one_bad_figure_names_the_check(bad: Figures, words: str) -> None:
    """One bad line among good ones gives status 1 and a message with the run and the check."""
    found = failures([*GOOD, bad])
    assert len(found) == 1
    assert words in found[0]
    assert found[0].startswith(f"{bad.shuffle} shuffle, python map tasks")
    assert exit_status([*GOOD, bad]) == 1


def test_verdict_of_nothing_is_a_failure() -> None:
    """A run without figures proves nothing."""
    assert failures([]) == ["nothing ran"]
    assert exit_status([]) == 1


@pytest.mark.parametrize(
    ("fault", "map_done", "reduce_done", "due"),
    [
        ("executor", 16, 0, False),
        ("executor", 16, 3, True),
        ("executor", 16, 11, True),
        ("executor", 16, 12, False),
        ("driver", 11, 0, False),
        ("driver", 12, 0, True),
        ("driver", 15, 0, True),
        ("driver", 16, 0, False),
        ("none", 12, 3, False),
        ("rerun", 12, 3, False),
    ],
)
def test_kill_is_due_only_in_the_middle_of_its_phase(
    *, fault: str, map_done: int, reduce_done: int, due: bool
) -> None:
    """A signal is never sent before the first or after the last task of the phase."""
    assert Progress(map_done, 16, reduce_done, 12).kill_is_due(fault) is due  # type: ignore[arg-type]


def test_plan_starts_again_right_after_each_killed_driver() -> None:
    """Every killed driver is followed by a re-run of its job; no other runs share a job."""
    steps = plan_steps({"cheap": 0, "expensive": 9}, executors=True)
    assert [s.number for s in steps] == list(range(16))
    for step, following in pairwise(steps):
        if step.fault == "driver":
            assert (following.fault, following.shuffle) == ("rerun", step.shuffle)
            assert following.job == step.job
    firsts = [s.job for s in steps if s.shuffle == "durable" and s.fault != "rerun"]
    assert len(set(firsts)) == len(firsts) == 6
    quick = plan_steps({"cheap": 0}, executors=False)
    assert [s.number for s in quick] == list(range(6))
    assert {s.fault for s in quick} == {"none", "driver", "rerun"}


def test_table_fits_a_terminal_and_shows_every_line() -> None:
    """The table of large runs is at most 80 columns wide and cuts nothing off."""
    console = Console(width=80, record=True, force_terminal=False)
    large = [replace(f, rows_expected=1_500_000, rows_found=1_500_000) for f in GOOD]
    missed = replace(SPARK, rows_differing=7, fault_fired=False)
    console.print(figures_table([*large, missed], "title"))
    text = console.export_text()
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    assert "executor reduce 3/12" in text
    assert "driver map 12/16" in text
    assert "7 differ" in text
    assert "not fired" in text


def test_a_scale_of_nothing_is_refused(tmp_path: Path) -> None:
    """It is no wish for the default."""
    options = DemoOptions(scale=0.0, data=tmp_path / "data", work=tmp_path / "work")
    with pytest.raises(InvalidInputError, match="scale"):
        run_demo(options, Console(quiet=True))
