"""A local session whose tasks would run another Python is refused with the way out."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from durable_shuffle.jobs.deploy.preflight import check_worker_python
from durable_shuffle.serialization.errors import InvalidInputError


def session(python: str) -> Any:
    return cast("Any", SimpleNamespace(sparkContext=SimpleNamespace(pythonExec=python)))


def script(folder: Path, text: str) -> str:
    path = folder / "python-of-workers"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_our_own_python_is_not_even_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.run", None)
    check_worker_python(session(sys.executable))


def test_another_python_with_all_that_is_needed(tmp_path: Path) -> None:
    check_worker_python(session(script(tmp_path, f'exec "{sys.executable}" "$@"')))


def test_a_python_without_pyarrow(tmp_path: Path) -> None:
    python = script(tmp_path, "echo \"ModuleNotFoundError: No module named 'pyarrow'\" >&2; exit 1")
    with pytest.raises(InvalidInputError) as caught:
        check_worker_python(session(python))
    assert python in str(caught.value)
    assert "No module named 'pyarrow'" in str(caught.value)
    assert f"PYSPARK_PYTHON={sys.executable}" in str(caught.value)


def test_a_python_that_is_not_there() -> None:
    with pytest.raises(InvalidInputError, match="no-such-python"):
        check_worker_python(session("/nowhere/no-such-python"))
