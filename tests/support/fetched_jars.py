"""The jars that `scripts/test_jars.py` fetches."""

import os
from pathlib import Path
from types import ModuleType

import pytest
from scripts_loaded import load_script


def fetched(name: str) -> Path:
    """Return a jar by its name in the script. Skips the test if it was not fetched; fails in CI."""
    found = _script()
    path: Path = found.path_of(getattr(found, name))
    if not path.exists():
        text = f"{path.name} is missing: run scripts/test_jars.py"
        assert not os.environ.get("CI"), text
        pytest.skip(text)
    return path


def fetched_for_yarn() -> list[Path]:
    """Return the jars that a whole YARN needs, fetched when they are missing."""
    script = _script()
    for jar in script.YARN_JARS:
        if not script.path_of(jar).exists():
            script.fetch(jar)
    return [fetched("HADOOP"), *map(script.path_of, script.YARN_JARS)]


def _script() -> ModuleType:
    return load_script("test_jars")
