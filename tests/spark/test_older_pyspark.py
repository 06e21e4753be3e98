"""PySpark 3.5, in an environment of its own: rows as Spark's own, stored rows found again."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = ("test_differential.py", "test_identity_matrix.py", "test_query.py", "test_heal.py")
"""Random programs, what must not be found again, whole queries, lost data."""

pytestmark = [pytest.mark.spark, pytest.mark.soak]


@pytest.fixture(scope="module")
def compatibility() -> ModuleType:
    """`scripts/compatibility.py`."""
    place = ROOT / "scripts" / "compatibility.py"
    spec = importlib.util.spec_from_file_location("compatibility", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("file", FILES)
def test_pyspark_35(compatibility: ModuleType, file: str) -> None:
    """The same tests as on the newest PySpark; those of newer features say so and are skipped."""
    own = compatibility.environment(
        "3.5", "3.5-3.11", sys.executable, compatibility.needed_by_tests()
    )
    assert " on 3.11" in compatibility.exact_versions(own)
    command = [own, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/spark/{file}"]
    environment = {**os.environ, "PYSPARK_PYTHON": str(own)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
