"""`durable-shuffle pipeline`, in this process: documents, texts, exit codes."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from forged_record import forge
from operated import NAME, make
from pipelines import threads, until
from typer.testing import CliRunner

from durable_shuffle.jobs.cli import pipeline as commands
from durable_shuffle.jobs.cli.app import app
from durable_shuffle.recovery.job.phases import JobPhase
from durable_shuffle.recovery.pipeline.running import RunningPipeline
from durable_shuffle.recovery.pipeline.status import (
    STATUSES,
    PartView,
    Restarted,
    Status,
    StatusView,
    TaskStatus,
)
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.layout import command_log_prefix, status_log_prefix
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.storage.local import LocalStorage

Run = Callable[..., Result]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningPipeline]:
    """A pipeline under way in this process."""
    found = make(str(tmp_path), {"copy": 1}, version="first").start(launcher=threads, serve=True)
    until(lambda: found.phase is JobPhase.RUNNING, "all tasks run")
    yield found
    if not found.ended:
        found.stop("CANCEL")
    found.wait(300)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Calls a command of the pipeline."""

    def call(command: str, *arguments: str, name: str = NAME) -> Result:
        words = ["pipeline", command, str(tmp_path / "data"), name, *arguments]
        return CliRunner().invoke(app, words)

    return call


def test_commands_answer(running: RunningPipeline, run: Run) -> None:
    """One line for people, a document for programs; refusals are misuse."""
    assert run("configure", "commit_rows=9").stdout == "done\n"
    done = json.loads(run("restart", "copy", "--json").stdout)
    assert done == {"request": 1, "text": ""}
    refused = run("restart", "nobody", "--json")
    assert refused.exit_code == 2
    assert json.loads(refused.stdout)["error"]["kind"] == "invalid_input"
    for bad in (
        ("configure", "commit_rows"),
        ("configure", "a=b"),
        ("configure", "commit_rows=-1"),
    ):
        assert run(*bad).exit_code == 2
    assert run("allow-release", "numbers", "--upto", "x").exit_code == 2
    assert "segments" in run("allow-release", "numbers", "--upto", "0:1").stdout
    assert run("drop", "nobody").exit_code == 2
    assert run("update", "nothing").exit_code == 2
    for command in ("suspend", "resume", "cancel"):
        assert run(command).exit_code == 0
    assert running.wait(300).phase is JobPhase.CANCELED


def test_an_unknown_pipeline_is_a_failure(running: RunningPipeline, run: Run) -> None:
    for command in ("status", "drain"):
        found = run(command, name="other")
        assert found.exit_code == 1
        assert "not_found" in found.stderr


def test_status_once_and_live(
    running: RunningPipeline, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same facts as text, as a document, and as documents line by line until Ctrl-C."""
    until(lambda: "running" in run("status").stdout, "a status")
    text = run("status").stdout
    assert "version     first" in text
    assert "copy     2 running  1" in text
    found = json.loads(run("status", "--json").stdout)
    assert {part["part"]: len(part["tasks"]) for part in found["parts"]} == {
        "numbers": 1,
        "copy": 2,
    }
    for more in ((), ("--json",)):
        monkeypatch.setattr(commands, "SystemClock", lambda: _Twice())
        live = run("status", "--watch", *more)
        assert live.exit_code == 0
        if more:
            lines = [json.loads(line) for line in live.stdout.splitlines()]
            assert [line["name"] for line in lines] == [NAME, NAME]
        else:
            assert "copy" in live.stdout


class _Twice:
    """A clock on which somebody presses Ctrl-C during the second pause."""

    left = 1

    def sleep(self, _: float) -> None:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1


def test_status_for_people() -> None:
    """Restarts with their causes, what was dropped, what nobody knows as '-'."""
    part = PartView(
        "copy",
        (TaskStatus("copy-k0000", "running", 1), TaskStatus("copy-k0001", "starting", 7)),
        None,
        12,
        final=False,
        lag_records=3,
        lag_seconds=None,
    )
    restart = Restarted("copy-k0001", 1, "lost: the process of copy-k0001 ended", 0.0)
    view = StatusView("p", "scheduling", 7, "v2", 3.4, (part,), ("gone",), (restart,))
    text = commands.status_text(view)
    assert "last word   3 s ago" in text
    assert "copy  1 running, 1 starting  1-7    -        12       3    -" in text
    assert "dropped: gone" in text
    assert "1970-01-01 00:00:00Z  copy-k0001  1      lost: the process" in text


@pytest.mark.parametrize("seconds", [1e300, math.nan, math.inf, -1.0])
@pytest.mark.parametrize("whose", ["status", "restart"])
def test_a_status_of_no_time_is_damage(tmp_path: Path, whose: str, seconds: float) -> None:
    """The command names the record; it does not end as a defect."""
    storage = LocalStorage(tmp_path)
    JobLog.claim(storage, "p", "b" * 32)
    SlotLog(storage, command_log_prefix("p")).append(0, b"of no interest")
    log = SlotLog(storage, status_log_prefix("p"))
    restarts = (Restarted("copy-k0001", 1, "lost", 0.0),)
    status = Status(
        "a" * 32, 1, whole=True, phase="running", version="", wall_seconds=0.0, restarts=restarts
    )
    log.append(0, STATUSES.encode(status))

    def change(fields: dict[str, Any]) -> dict[str, object]:
        if whose == "status":
            return {"wall_seconds": seconds}
        return {"restarts": [{**fields["restarts"][0], "wall_seconds": seconds}]}

    forge(log, 0, change)
    told = CliRunner().invoke(app, ["pipeline", "status", str(tmp_path), "p"])
    assert (told.exit_code, log.key(0) in told.output) == (1, True), told.output
    assert "corrupt_data" in told.output


def test_run_to_the_end(tmp_path: Path) -> None:
    """A pipeline by reference in this terminal; what is none is misuse."""

    def call(*words: str) -> Result:
        return CliRunner().invoke(app, ["pipeline", "run", *words])

    assert call("operated").exit_code == 2
    assert call("operated:make", "--arguments", "7").exit_code == 2
    found: dict[str, Any] = {"folder": str(tmp_path)}
    done = call("finite:make", "--arguments", json.dumps(found), "--url", "data", "--json")
    assert done.exit_code == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["phase"] == "finished"
    url = str(tmp_path / "data")
    rows = CliRunner().invoke(app, ["cat", url, "finite", "n", "--format", "csv"])
    assert rows.stdout.split() == ["n", *map(str, range(20))]
    assert rows.stderr == ""
    shown = CliRunner().invoke(app, ["inspect", url, "finite", "n", "--json"])
    stage = json.loads(shown.stdout)["stage"]
    assert (stage["rows"], stage["producers"][0]["end"]) == (20, "FINITE")
    assert [one["lag"] for one in stage["consumers"]] == [0]
    failed = call("finite:make", "--arguments", json.dumps(found | {"broken": True}))
    assert failed.exit_code == 1
    assert "broken" in failed.stdout
