"""The jars that `scripts/test_jars.py` fetches."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "test_jars.py"


def fetched(name: str) -> Path:
    """Return a jar by its name in the script. Skips the test if it was not fetched; fails in CI."""
    found = _script()
    path: Path = found.path_of(getattr(found, name))
    if not path.exists():
        text = f"{path.name} is missing: run scripts/test_jars.py"
        assert not os.environ.get("CI"), text
        pytest.skip(text)
    return path


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("test_jars_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass asks for the module
    spec.loader.exec_module(module)
    return module
