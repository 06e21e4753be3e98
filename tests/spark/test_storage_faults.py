"""A storage that fails one call in five changes no result: here, and for the suite in soak."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]


@pytest.mark.requirement("R-F232-21", "R-F232-24")
@pytest.mark.parametrize("storage_faults", [0.2], indirect=True)
def test_rows_are_right_and_the_report_counts_what_it_took(
    session: SparkSession, root: str, storage_faults: float
) -> None:
    """Producers, driver and readers meet faults; the next driver reuses; retries are counted."""
    df = session.range(0, 5000, 1, 4).selectExpr("id % 97 AS k", "id AS v")
    expected = sorted(map(tuple, df.collect()))
    retries = 0
    for decision in ("computed", "reused"):
        shuffle = DurableShuffle(session, root, job="tests")
        back = shuffle.repartition(df, 5, "k")
        assert sorted(map(tuple, back.collect())) == expected
        (stage,) = shuffle.report().stages
        assert stage.action == decision
        retries += stage.storage_retries
        assert stage.map_tasks_rerun == 0
        assert (stage.storage_retries > 0) == (stage.storage_wait_seconds > 0)
    assert retries > 0
    assert shuffle.report().total()["storage_retries"] == stage.storage_retries


def test_report_of_a_sound_storage_counts_no_retries(session: SparkSession, root: str) -> None:
    """Counts start at zero, unless the whole run uses a storage that fails."""
    shuffle = DurableShuffle(session, root, job="tests")
    shuffle.durable(session.range(0, 10, 1, 2))
    if "DURABLE_SHUFFLE_STORAGE_FAULTS" not in os.environ:
        assert shuffle.report().total()["storage_retries"] == 0


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.requirement("R-F232-21")
def test_whole_spark_suite_on_a_storage_that_fails(seed: int, tmp_path: Path) -> None:
    """Every Spark test passes while 20% of all storage calls fail, half after taking effect."""
    env = {
        **os.environ,
        "DURABLE_SHUFFLE_STORAGE_FAULTS": "0.2",
        "DURABLE_SHUFFLE_SEED": str(seed),
        "HYPOTHESIS_PROFILE": "ci",
    }
    command = [sys.executable, "-m", "pytest", "tests/spark", "-m", "spark and not soak", "-q"]
    command += ["--ignore=tests/spark/test_demo.py"]  # runs in processes without faults
    command += ["--timeout=1800", "-o", "faulthandler_timeout=0"]
    command += [f"--basetemp={tmp_path / 'inner'}"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:]
