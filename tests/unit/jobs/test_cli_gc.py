"""`gc` on files: what it shows, what it takes, and how it says that something is unknown."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from littered_job import LitteredJob, littered_job

from durable_shuffle.serialization.errors import FencedError
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.storage.local import LocalStorage


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the job lies."""
    return tmp_path


@pytest.fixture
def littered(root: Path) -> LitteredJob:
    """Litter of six kinds in a folder, and two files of killed writers, one of them old."""
    job = littered_job(LocalStorage(root), RandomIds())
    folder = root / job.sealed.path.segments_prefix / "00"
    folder.mkdir(exist_ok=True)
    for age, name in ((3 * 86_400, "a"), (0, "b")):
        file = folder / f".{name * 32}.tmp"
        file.write_bytes(b"half")
        os.utime(file, (file.stat().st_mtime - age,) * 2)
    return job


def files(root: Path) -> set[str]:
    """All files, hidden ones too."""
    return {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()}


def test_gc_shows_and_changes_nothing(
    root: Path, littered: LitteredJob, run: Callable[..., Any]
) -> None:
    """Without --delete every orphan is named, with why, and all stays."""
    before = files(root)
    result = run("gc", root, "job", "--older-than", "0s")
    assert result.exit_code == 0
    assert "its attempt has no COMMIT" in result.stdout
    assert "nothing was changed" in result.stdout
    found = json.loads(run("gc", root, "job", "--older-than", "0s", "--json").stdout)
    hidden = {key for key in before if key.endswith(".tmp")}
    assert {one["key"] for one in found["orphans"]} == littered.goes | hidden
    assert (found["deleted"], found["generation"], found["unknown"]) == (False, None, [])
    assert files(root) == before
    littered.log.check_owner()  # nobody claimed


def test_gc_deletes_what_it_showed(
    root: Path, littered: LitteredJob, run: Callable[..., Any]
) -> None:
    """Young temporary files stay, the driver is fenced, a second run finds nothing."""
    young = [key for key in files(root) if key.endswith(f".{'b' * 32}.tmp")]
    old = [key for key in files(root) if key.endswith(f".{'a' * 32}.tmp")]
    by_age = {key for key in littered.goes if "/preflight/" in key or "/reports/" in key}
    found = json.loads(run("gc", root, "job", "--delete", "--json").stdout)
    assert {one["key"] for one in found["orphans"]} == (littered.goes - by_age) | set(old)
    assert found["freed"]["objects"] == len(littered.goes) - len(by_age) + len(old)
    left = files(root)
    assert by_age | set(young) <= left
    assert not left & (littered.goes - by_age)
    assert not left & set(old)
    for key, content in littered.stays.items():
        assert (root / key).read_bytes() == content
    with pytest.raises(FencedError):
        littered.log.check_owner()
    again = run("gc", root, "job", "--delete", "--older-than", "0s")
    assert again.exit_code == 0
    assert "left behind by a killed writer" in again.stdout
    assert "nothing to collect" in run("gc", root, "job", "--delete").stdout


def test_gc_says_what_is_odd_and_exits_with_1(
    root: Path, littered: LitteredJob, run: Callable[..., Any]
) -> None:
    """The stage with an unknown object keeps its litter; the others lose theirs."""
    prefix = littered.sealed.path.prefix
    (root / prefix / "notes.txt").write_text("mine")
    kept = {key for key in files(root) if key.startswith(prefix)}
    result = run("gc", root, "job", "--delete", "--older-than", "0s")
    assert result.exit_code == 1
    assert f"unknown: {prefix}notes.txt: not a name that belongs here" in result.stdout
    assert {key for key in files(root) if key.startswith(prefix)} == kept
    assert not files(root) & {key for key in littered.goes if not key.startswith(prefix)}
    found = json.loads(run("gc", root, "job", "--json").stdout)
    assert prefix + "notes.txt" in {one["key"] for one in found["unknown"]}


def test_gc_of_a_damaged_job_log_touches_nothing(
    root: Path, littered: LitteredJob, run: Callable[..., Any]
) -> None:
    """It does not even claim the job."""
    (root / "job/log/0000000001").write_bytes(b"?")
    before = files(root)
    result = run("gc", root, "job", "--delete")
    assert result.exit_code == 1
    assert "corrupt_data" in result.output
    assert files(root) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["nightly"], "no job 'nightly'"), (["job", "--older-than", "soon"], "--older-than takes")],
)
def test_gc_refuses_misuse(
    root: Path, littered: LitteredJob, run: Callable[..., Any], arguments: list[str], message: str
) -> None:
    """A job that is not there, an age that is none."""
    result = run("gc", root, *arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_gc_of_a_claimed_job_without_stages(root: Path, run: Callable[..., Any]) -> None:
    """There is nothing, and that is fine."""
    JobLog.claim(LocalStorage(root), "fresh", "0" * 32)
    result = run("gc", root, "fresh", "--delete")
    assert result.exit_code == 0
    assert "nothing to collect, 2 objects are live" in result.stdout
