"""Where a process finds Delta, Iceberg and a PySpark that they run on."""

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from scripts_loaded import load_script

ROOT = Path(__file__).parents[2]


def table_formats() -> ModuleType:
    """Return the script that fetches both formats, as a module."""
    return load_script("table_formats")


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
