"""Delta Lake and Apache Iceberg tables with their real jars, in a separate process.

Both formats exist for older versions of PySpark only, so the program `tables_driver.py` runs on
such a one, which `scripts/table_formats.py` fetches.
"""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from table_cases import HISTORIES

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]
SCRIPT = Path(__file__).parents[2] / "scripts" / "table_formats.py"
ROWS = [
    f"{history.name}, {step.what}: {read}"
    for history in HISTORIES
    for step in history.steps
    for read in step.found
]


def table_formats() -> ModuleType:
    """Return the script that fetches both formats, as a module."""
    spec = importlib.util.spec_from_file_location("table_formats", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer_of(program: str, programs: Any, folder: Path) -> dict[str, Any]:
    """Run a program that reads tables of both formats, and return its answer."""
    formats = table_formats()
    minor = formats.installed() if formats.installed() in formats.JARS else formats.NEWEST
    missing = formats.missing(minor)
    if missing:
        text = f"{missing} is missing: run {Path(sys.executable).name} scripts/table_formats.py"
        assert not os.environ.get("CI"), text
        pytest.skip(text)
    environment = formats.environment(minor)
    folders = [environment.pop("PYTHONPATH", ""), str(SCRIPT.parents[1] / "src")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    jars = ",".join(map(str, formats.jars_of(minor)))
    answer: dict[str, Any] = programs.run(program, folder, jars, env=environment)
    assert answer["spark"].startswith(minor)
    return answer


@pytest.fixture(scope="module")
def seen(programs: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program found wrong, by row."""
    return answer_of("tables_driver", programs, tmp_path_factory.mktemp("tables"))


def test_there_are_enough_rows() -> None:
    """The matrix of both formats covers operations in both directions."""
    decisions = [d for h in HISTORIES for step in h.steps for d in step.found.values()]
    assert len(decisions) >= 80
    assert min(decisions.count("fresh"), decisions.count("reuse")) >= 35


@pytest.mark.parametrize("row", ROWS)
def test_histories(seen: dict[str, Any], row: str) -> None:
    """After each operation a read finds its stage if its rows are the same, and Spark's rows."""
    history, _, rest = row.partition(", ")
    assert seen[history][rest] == []


def test_tables_on_connect(programs: Any, tmp_path: Path) -> None:
    """The provider of each table is asked, as Delta prints as Parquet there."""
    pytest.importorskip("grpc")
    found = answer_of("tables_connect", programs, tmp_path)["found"]
    assert len(found) == 13
    assert {step: wrong for step, wrong in found.items() if wrong} == {}
