"""Where a process finds Delta, Iceberg and a PySpark that they run on."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "table_formats.py"


def table_formats() -> ModuleType:
    """Return the script that fetches both formats, as a module."""
    spec = importlib.util.spec_from_file_location("table_formats", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found() -> tuple[str, str, dict[str, str]]:
    """Return the minor version of PySpark, the jars, and the variables of a process that uses them.

    Skips the test if they were not fetched; in CI that is a failure.
    """
    formats = table_formats()
    minor = formats.installed() if formats.installed() in formats.JARS else formats.NEWEST
    missing = formats.missing(minor)
    if missing:
        text = f"{missing} is missing: run {Path(sys.executable).name} scripts/table_formats.py"
        assert not os.environ.get("CI"), text
        pytest.skip(text)
    environment = formats.environment(minor)
    folders = [environment.pop("PYTHONPATH", ""), str(ROOT / "src")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    return minor, ",".join(map(str, formats.jars_of(minor))), environment
