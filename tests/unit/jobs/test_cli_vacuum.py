"""`durable-shuffle vacuum`: says what no run uses any more, and deletes it only if told to."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored_job import stored_stage

from durable_shuffle.serialization.errors import FencedError
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.log.job_log import JobLog, read_job
from durable_shuffle.shuffle.storage.local import LocalStorage

Run = Callable[..., Any]
DAY = 86_400
SHORT = ("--runs", "1", "--unused-for", "2d")


@pytest.fixture
def log(tmp_path: Path) -> JobLog:
    """A job with an old stage, an old one that no run can find again, and new ones."""
    storage, now = LocalStorage(tmp_path), SystemClock().wall()
    log = JobLog.claim(storage, "nightly", RandomIds().new_id())
    for fingerprint, age, lasts in (
        ("a", 9 * DAY, "while_used"),
        ("b", DAY, "unrecognised"),
        ("c", DAY, "while_used"),
        ("d", 0, "while_used"),
    ):
        stored_stage(
            log,
            storage,
            job="nightly",
            name="orders",
            fingerprint=fingerprint * 32,
            created_wall_seconds=now - age,
            lasts=lasts,  # type: ignore[arg-type]
        )
    return JobLog.claim(storage, "nightly", RandomIds().new_id())


def files(root: Path) -> set[Path]:
    return {p for p in root.rglob("*") if p.is_file()}


def test_dry_by_default(log: JobLog, tmp_path: Path, run: Run) -> None:
    """It shows the stages with the reason, changes nothing and fences nobody."""
    before = files(tmp_path)
    shown = run("vacuum", tmp_path, "nightly", *SHORT)
    assert shown.exit_code == 0
    assert "orders-aaaaaaaa" in shown.stdout
    assert "no later run can find it again" in shown.stdout
    assert "nothing was changed" in shown.stdout
    assert "orders-cccccccc" not in shown.stdout
    document = json.loads(run("vacuum", tmp_path, "nightly", *SHORT, "--json").stdout)
    assert [stage["fingerprint"][0] for stage in document["stages"]] == ["a", "b"]
    assert files(tmp_path) == before
    log.check_owner()


def test_delete(log: JobLog, tmp_path: Path, run: Run) -> None:
    """It asks; with --yes the stages go for good, and a driver that runs the job is fenced."""
    assert run("vacuum", tmp_path, "nightly", *SHORT, "--delete").exit_code == 2
    done = run("vacuum", tmp_path, "nightly", *SHORT, "--delete", "--yes")
    assert done.exit_code == 0, done.output
    assert " freed" in done.stdout
    state = read_job(LocalStorage(tmp_path), "nightly")
    assert [path.fingerprint[0] for path in state.order] == ["c", "d"]
    assert not [p for p in files(tmp_path) if "orders-a" in str(p) and p.suffix == ".seg"]
    with pytest.raises(FencedError):
        log.check_owner()
    again = run("vacuum", tmp_path, "nightly", *SHORT, "--delete", "--yes")
    assert (again.exit_code, again.stdout.strip()) == (0, "nothing to delete")
    assert run("verify", tmp_path, "nightly").exit_code == 0


def test_defaults_keep_what_was_used_lately(log: JobLog, tmp_path: Path, run: Run) -> None:
    """Of three runs and seven days: only what nobody can find again goes."""
    document = json.loads(run("vacuum", tmp_path, "nightly", "--json").stdout)
    assert [stage["fingerprint"][0] for stage in document["stages"]] == ["b"]
    more = ("--runs", "0", "--unused-for", "0s", "--no-keep-newest")
    document = json.loads(run("vacuum", tmp_path, "nightly", *more, "--json").stdout)
    assert [stage["fingerprint"][0] for stage in document["stages"]] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("command", "left"),
    [
        (("vacuum", *SHORT, "--delete", "--yes"), "cd"),
        (("release", "--older-than", "2d", "--yes"), "bcd"),
        (("gc", "--older-than", "2d", "--delete"), "abcd"),
    ],
)
def test_a_wrong_clock_deletes_nothing_more(
    log: JobLog,
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    left: str,
) -> None:
    """This machine is 30 days ahead: ages follow the storage's clock, as those of drivers do."""
    wall, young = SystemClock.wall, tmp_path / "nightly" / "preflight" / RandomIds().new_id()
    young.parent.mkdir(exist_ok=True)
    young.write_bytes(b"left by a driver that died just now")
    name, *options = command
    monkeypatch.setattr(SystemClock, "wall", lambda clock: wall(clock) + 30 * DAY)
    done = run(name, tmp_path, "nightly", *options)
    assert done.exit_code == 0, done.output
    state = read_job(LocalStorage(tmp_path), "nightly")
    assert "".join(path.fingerprint[0] for path in state.order) == left
    assert list(young.parent.iterdir()) == [young]
