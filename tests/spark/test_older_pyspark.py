"""PySpark 3.5, in an environment of its own: rows as Spark's own, stored rows found again."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from scripts_loaded import load_script

ROOT = Path(__file__).resolve().parents[2]
FILES = ("test_differential.py", "test_jvm_encoder.py", "test_query_plans.py", "test_heal.py")
"""Random programs, rows of all types, whole queries, lost data."""

pytestmark = [pytest.mark.spark, pytest.mark.soak]


@pytest.fixture(scope="module")
def compatibility() -> ModuleType:
    """`scripts/compatibility.py`."""
    return load_script("compatibility")


@pytest.mark.parametrize("file", FILES)
def test_pyspark_35(compatibility: ModuleType, file: str) -> None:
    """The same tests as on the newest PySpark."""
    own = compatibility.environment(
        "3.5", "3.5-3.11", sys.executable, compatibility.needed_by_tests()
    )
    assert " on 3.11" in compatibility.exact_versions(own)
    command = [own, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/spark/{file}"]
    environment = {**os.environ, "PYSPARK_PYTHON": str(own)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
