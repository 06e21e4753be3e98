"""Driver and executors must run the same code: told by version and digest."""

from pathlib import Path

import pytest

import durable_shuffle
from durable_shuffle.jobs.running_code import (
    archive_name,
    code_in,
    code_of,
    package_sources,
    running_code,
)
from durable_shuffle.jobs.ship import make_archive
from durable_shuffle.jobs.tasks import check_code
from durable_shuffle.serialization.errors import IncompatibleError


def test_one_changed_byte_is_other_code() -> None:
    """Equal versions do not hide that a development copy differs."""
    sources = package_sources()
    code = code_of(sources)
    assert code.startswith(f"{durable_shuffle.__version__}-")
    changed = {**sources, "durable_shuffle/jobs/tasks.py": b"# changed"}
    assert code_of(changed) != code
    assert code_of({**sources, "durable_shuffle/jobs/added.py": b""}) != code


def test_archive_names_its_code(tmp_path: Path) -> None:
    """What is imported from the archive knows its code without reading it."""
    path = make_archive(tmp_path)
    inside = f"{path}/durable_shuffle/__init__.py"
    assert code_in(inside) == code_in(str(path)) == running_code()
    assert path.name == archive_name(running_code())
    assert code_in("/site-packages/durable_shuffle/__init__.py") is None


def test_other_code_is_refused() -> None:
    """The message shows both."""
    check_code(running_code())
    with pytest.raises(IncompatibleError, match=rf"{running_code()}.*driver 0\.0\.0-other"):
        check_code("0.0.0-other")
