"""The example plug-in, as a user has it: a distribution of its own, installed, with its own tests.

Its tests run in a process of their own, in a folder outside this checkout, where nothing of this
suite's configuration reaches them.
"""

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sealed_stage import sealed_stage
from small_stage import SeededIds, read_rows

from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.stage import require_seal

EXAMPLE = Path(__file__).parents[1] / "example_plugin"
PAGE = Path(__file__).parents[2] / "docs" / "internals" / "storage.md"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip installed the plug-in from its sources."""
    source, target = tmp_path_factory.mktemp("source") / "plugin", tmp_path_factory.mktemp("site")
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    command += ["--disable-pip-version-check", "--target", str(target), str(source)]
    subprocess.run(command, check=True, cwd=source)
    return target


@pytest.fixture
def run(site: Path, tmp_path: Path) -> Run:
    """Run a module where the plug-in is installed, in an empty folder."""

    def run_module(*arguments: str, first: Path | None = None) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(map(str, [*([first] if first else []), site]))
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=tmp_path,
            env={**env, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )

    return run_module


def run_its_tests(
    run: Run, folder: Path, only: str = "", **more: Path
) -> subprocess.CompletedProcess[str]:
    """Run the plug-in's own tests, all or those that `only` names, from a folder of their own."""
    shutil.copy(EXAMPLE / "test_sqlite_storage.py", folder)
    chosen = ("-k", only) if only else ()
    return run("pytest", "-q", "-p", "no:cacheprovider", "test_sqlite_storage.py", *chosen, **more)


def test_its_own_test_file_of_30_lines_proves_it(run: Run, tmp_path: Path) -> None:
    """All laws of the kit ran and passed; none was skipped."""
    assert len((EXAMPLE / "test_sqlite_storage.py").read_text().splitlines()) <= 30
    done = run_its_tests(run, tmp_path)
    found = re.search(r"(\d+) passed(.*) in ", done.stdout)
    assert done.returncode == 0, done.stdout[-5000:]
    assert found, done.stdout
    assert found[2] == "", "nothing was skipped or expected to fail"
    assert int(found[1]) >= 60


def test_a_run_that_asks_gets_fixtures(run: Run, tmp_path: Path) -> None:
    """Only with the line of the page in a conftest.py are the fixtures there, and a law that fails
    says what it compared."""
    (line,) = re.findall(r"```python title=\"conftest.py\"\n(.*?)```", PAGE.read_text(), re.DOTALL)
    test = "def test_seeded(durable_shuffle_seed):\n    assert durable_shuffle_seed >= 0\n"
    (tmp_path / "test_seeded.py").write_text(test)
    command = ("pytest", "-q", "-p", "no:cacheprovider", "test_seeded.py")
    assert "fixture 'durable_shuffle_seed' not found" in run(*command).stdout
    (tmp_path / "conftest.py").write_text(line)
    assert "1 passed" in run(*command).stdout
    (tmp_path / "conftest.py").write_text(
        f"{line}\n"
        "def pytest_configure():\n"
        "    from durable_shuffle.shuffle.testing import storage_conformance as kit\n"
        "    assert type(kit.__loader__).__name__ == 'AssertionRewritingHook', kit.__loader__\n"
    )
    assert "1 passed" in run(*command).stdout


@pytest.mark.parametrize(
    ("right", "wrong", "law"),
    [
        (
            "INSERT INTO objects VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            "INSERT OR REPLACE INTO objects VALUES (?, ?, ?)",
            "race_of_processes",
        ),
        ("start + length > found[0][0]", "start > found[0][0]", "outside_is_corruption"),
    ],
    ids=["replace", "range"],
)
def test_the_kit_notices_a_broken_plug_in(
    run: Run, tmp_path: Path, right: str, wrong: str, law: str
) -> None:
    """A plug-in that breaks a law fails that law's test."""
    broken = tmp_path / "broken"
    broken.mkdir()
    source = (EXAMPLE / "sqlite_storage.py").read_text()
    assert right in source
    (broken / "sqlite_storage.py").write_text(source.replace(right, wrong))
    done = run_its_tests(run, tmp_path, law, first=broken)
    failed = re.findall(r"^(?:FAILED|ERROR) \S+::(\S+)", done.stdout, re.MULTILINE)
    assert done.returncode == 1, done.stdout[-3000:]
    assert any(law in name for name in failed), failed


def test_its_urls_work_everywhere(run: Run, tmp_path: Path) -> None:
    """The command line opens its URL, and all laws hold there too; other URLs are its own error."""
    url = f"sqlite://{tmp_path}/objects.db"
    check = ("durable_shuffle.jobs.cli", "storage-check", url, "--processes", "2", "--rounds", "3")
    done = run(*check)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "may be used for durable shuffles from any number of processes" in done.stdout
    done = run("durable_shuffle.jobs.cli", "storage-check", "sqlite://relative.db")
    assert done.returncode == 2
    assert "expected sqlite:///absolute/path" in done.stderr + done.stdout


def test_the_page_shows_this_very_file() -> None:
    """What docs/internals/storage.md prints is what was run here."""
    shown = re.findall(r"```python title=\S+\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert (EXAMPLE / "test_sqlite_storage.py").read_text() in shown


def test_a_stage_is_stored_in_it(
    site: Path, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers write, the seal is won, and readers get every row, through the plug-in's URL."""
    monkeypatch.syspath_prepend(str(site))
    from durable_shuffle.shuffle.storage.open import open_storage

    storage = open_storage(f"sqlite://{tmp_path}/objects.db")
    sealed = sealed_stage(storage, SeededIds(random.Random(seed)), producers=3, partitions=2)
    for k in range(2):
        rows = read_rows(sealed.stage, require_seal(sealed.stage), k, Settings())
        assert [row["n"] for row in rows] == sealed.of(k)
    assert storage.description == f"sqlite://{tmp_path}/objects.db"
