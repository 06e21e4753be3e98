"""Pipelines steered from outside: reconnects, what is reported, and where consumers begin."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from operated import NAME
from pipelines import threads, until
from steered import WAIT, Operated, each_once

from durable_shuffle.recovery.job.phases import JobPhase, TaskPhase
from durable_shuffle.recovery.pipeline.commands.orders import StartTasks, decode_slot
from durable_shuffle.recovery.pipeline.commands.requests import (
    REQUESTS,
    ChangeSettings,
    Description,
    DropPart,
    ExternalCommand,
    Reconcile,
    RunThis,
)
from durable_shuffle.recovery.pipeline.coordinator import logs
from durable_shuffle.recovery.pipeline.status import STATUSES
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.log.layout import (
    command_log_prefix,
    request_log_prefix,
    status_log_prefix,
)
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.storage.local import LocalStorage

IDS = RandomIds()


def requests_of(folder: Path) -> list[ExternalCommand]:
    log = SlotLog(LocalStorage(folder / "data"), request_log_prefix(NAME))
    return [REQUESTS.decode(data, name="x") for _, data in log.read_from()]


class Gate:
    """Holds a call of the companion up until it is let go."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.inside, self.go = threading.Event(), threading.Event()
        self.shut = False

    def __call__(self, *args: Any, **more: Any) -> Any:
        if self.shut:
            self.inside.set()
            assert self.go.wait(WAIT)
        return self._call(*args, **more)


@pytest.mark.requirement("R-MZ-21")
def test_what_has_finished_is_not_started_and_still_reported(operated: Operated) -> None:
    """A second run of a pipeline that ended: no task runs, the report says all is done."""
    operated.start({"copy": 1}, upto=50)
    until(lambda: len(operated.rows("copy")) == 50, "all rows")
    assert operated.end().phase is JobPhase.FINISHED

    started: list[str] = []

    def watching(run_task: Any, settings: Any, hear: Any) -> Any:
        launcher: Any = threads(run_task, settings, hear)
        start = launcher.start
        launcher.start = lambda *a: (started.append(a[0]), start(*a))
        return launcher

    again = operated.pipeline({"copy": 1}, upto=50).start(launcher=watching)
    assert again.wait(WAIT).phase is JobPhase.FINISHED
    assert not started
    assert {part.part: part.final for part in operated.client.status().parts} == {
        "numbers": True,
        "copy": True,
    }


@pytest.mark.requirement("R-MZ-9")
@pytest.mark.requirement("R-MZ-5")
@pytest.mark.parametrize("k", range(4))
def test_a_full_list_counts_whole_or_not_at_all(operated: Operated, k: int) -> None:
    """With a bad command behind each number of good ones it changes nothing; then it counts."""
    operated.start({"copy": 1, "goes": 1}, version="first")
    before, outside = operated.epochs, operated.client
    wanted = json.dumps(operated.arguments({"copy": 2}))
    whole: list[ExternalCommand] = [
        RunThis(IDS.new_id(), Description("no:such", "", "x")),
        ChangeSettings(IDS.new_id(), {"commit_seconds": 0.07}),
        RunThis(IDS.new_id(), Description("operated:make", wanted, "third")),
    ]
    bad = ChangeSettings(IDS.new_id(), {"no_such_setting": 1})
    with pytest.raises(InvalidInputError, match="no_such_setting"):
        outside.reconcile([*whole[:k], bad, *whole[k:]])
    outside.restart("copy", "to see that it is alive")
    until(lambda: operated.epochs["copy-k0000"] > before["copy-k0000"], "the restart")
    operated.more_rows("goes")
    assert {t: e for t, e in operated.epochs.items() if t.startswith("goes")} == {
        t: e for t, e in before.items() if t.startswith("goes")
    }
    assert all(tag == 1 for _, tag in operated.rows("copy"))

    text = outside.reconcile(whole).text
    assert text == "keeps numbers; replaces copy; ends goes", "the last description counts"
    operated.more_rows("copy", tag=2)
    until(lambda: "third" in operated.client.status().version, "the version")


@pytest.mark.requirement("R-MZ-8")
def test_after_a_reconnect_everything_is_reported_again(operated: Operated) -> None:
    """Parts that nothing has happened to since, too."""
    operated.start({"copy": 1}, upto=40)
    until(lambda: len(operated.rows("copy")) == 40, "all rows")
    wanted = json.dumps(operated.arguments({"copy": 1}, upto=40))

    log = SlotLog(LocalStorage(operated.folder / "data"), status_log_prefix(NAME))
    until(log.find_end, "the first report")
    seen = log.find_end()
    operated.client.reconcile([RunThis(IDS.new_id(), Description("operated:make", wanted, ""))])

    def all_again() -> bool:
        records = [STATUSES.decode(data, name="x") for _, data in log.read_from(seen)]
        told = [{one.part for one in record.reached} for record in records if record.whole]
        return {"numbers", "copy"} in told

    until(all_again, "a whole report")


@pytest.mark.requirement("R-MZ-16")
def test_a_release_moves_where_later_starts_begin(operated: Operated) -> None:
    """Data that all have committed goes; a restart does not ask for it. Who comes later begins at
    what is left, and from then on nothing goes that he may still need."""
    operated.start({"copy": 1}, upto=400, append_rows=20, release_seconds=0)
    until(lambda: len(operated.rows("copy")) == 400, "all rows")
    outside = operated.client

    def went() -> bool:
        segments = int(outside.allow_release("numbers").text.split()[0])
        return segments > 0

    until(went, "a release of committed data")
    before = operated.epochs
    operated.client.restart("copy")
    until(lambda: operated.epochs["copy-k0000"] > before["copy-k0000"], "the restart")
    operated.update({"copy": 1, "late": 1}, upto=400, append_rows=20)
    until(lambda: operated.phase is JobPhase.RUNNING and "late-k0000" in operated.epochs, "late")
    outside.allow_release("numbers")
    with pytest.raises(InvalidInputError, match="writes no stage 'nothing'"):
        outside.allow_release("nothing")
    with pytest.raises(InvalidInputError, match="no such producer"):
        outside.allow_release("numbers", {7: 1})
    assert operated.end().phase is JobPhase.FINISHED
    assert each_once(operated.rows("copy"))
    late = sorted(n for n, _ in operated.rows("late"))
    assert late == list(range(400 - len(late), 400))
    assert len(late) < 400


@pytest.mark.requirement("R-MZ-4")
def test_a_consumer_that_begins_at_the_latest(operated: Operated) -> None:
    """All its tasks begin at one moment: its rows are those of whole appends behind it."""
    operated.start({"copy": 1}, partitions=3)
    operated.more_rows("copy")
    operated.update({"copy": 1, "late": 1}, partitions=3, starts={"late": "latest"})
    operated.more_rows("late")
    assert operated.end().phase is JobPhase.FINISHED
    late = sorted(n for n, _ in operated.rows("late"))
    assert each_once(operated.rows("copy"))
    last = len(operated.rows("copy"))
    assert late == list(range(late[0], last)), "one cut through all partitions, nothing missing"
    assert late[0] > 0


def test_every_command_is_one_record(operated: Operated) -> None:
    """That is all that a terminal does."""
    operated.start({"copy": 1})
    outside = operated.client
    calls: list[Callable[[], Any]] = [
        lambda: outside.restart("copy"),
        lambda: outside.configure(commit_rows=7),
        lambda: outside.drop("copy"),
        outside.suspend,
        outside.resume,
        lambda: outside.allow_release("numbers"),
        outside.cancel,
    ]
    for n, call in enumerate(calls, 1):
        call()
        assert len(requests_of(operated.folder)) == n
    assert operated.running is not None
    assert operated.running.wait(WAIT).phase is JobPhase.CANCELED


@pytest.mark.requirement("R-MZ-5")
@pytest.mark.requirement("R-MZ-13")
@pytest.mark.parametrize("then", ["drop", "reconnect"])
def test_a_slow_look_up(operated: Operated, then: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run, and while its start is looked up: a drop, after which nothing of it runs; or another
    terminal that wants the same, which starts it once."""
    gate = Gate(logs.first_look)
    monkeypatch.setattr(logs, "first_look", gate)
    operated.start({"copy": 1})
    gate.shut = True
    operated.update({"copy": 1, "comes": 1})
    assert gate.inside.wait(WAIT)
    outside = operated.client
    wanted = json.dumps(operated.arguments({"copy": 1, "comes": 1}))
    command: ExternalCommand = DropPart(IDS.new_id(), "comes")
    if then == "reconnect":
        run = RunThis(IDS.new_id(), Description("operated:make", wanted, ""))
        command = Reconcile(IDS.new_id(), (REQUESTS.encode(run),))
    last = outside.append(command)
    gate.go.set()
    outside._wait(last)
    until(lambda: operated.phase is JobPhase.RUNNING, "all tasks run")
    log = SlotLog(LocalStorage(operated.folder / "data"), command_log_prefix(NAME))
    steps = [decode_slot(data, name="x") for _, data in log.read_from()]
    starts = [c for step in steps for c in step.commands if isinstance(c, StartTasks)]
    assert sum("comes-k0000" in start.tasks for start in starts) == 1
    assert operated.running is not None
    if then == "reconnect":
        operated.more_rows("comes")
    else:
        states = operated.running._supervisor.machine.tasks
        until(lambda: states["comes-k0000"].phase is TaskPhase.FINISHED, "it is over")
        before = operated.epochs["comes-k0000"]
        operated.more_rows("copy")
        assert operated.epochs["comes-k0000"] == before
    assert operated.end().phase is JobPhase.FINISHED
    assert each_once(operated.rows("copy"))


@pytest.mark.requirement("R-MZ-22")
@pytest.mark.requirement("R-F46-22")
def test_a_storage_that_hangs_does_not_hold_the_loop_up(
    operated: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the companion waits for it, reports are taken in and stops are answered."""
    gate = Gate(logs.PipelineLogs.next_request)
    monkeypatch.setattr(logs.PipelineLogs, "next_request", lambda self: gate(self))
    operated.start({"copy": 1})
    gate.shut = True
    assert gate.inside.wait(WAIT)
    assert operated.running is not None
    operated.running.stop("SUSPEND")
    assert operated.phase is JobPhase.STOPPING
    with pytest.raises(InvalidInputError, match="comes too late"):
        operated.running.stop("DRAIN")
    gate.go.set()
    assert operated.running.wait(WAIT).phase is JobPhase.SUSPENDED
