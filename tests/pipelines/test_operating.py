"""Pipelines steered from outside, their tasks threads of this process: what commands come to."""

import importlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from complaining import Complaining
from operated import NAME
from pipelines import threads, until

from durable_shuffle.recovery.command.external import (
    REQUESTS,
    Description,
    DropPart,
    ExternalCommand,
    Hello,
    InitComplete,
    RunThis,
    Settings,
)
from durable_shuffle.recovery.command.internal import StartTasks, decode_step
from durable_shuffle.recovery.command.status import STATUSES
from durable_shuffle.recovery.job_phase import JobPhase, JobResult, TaskReport
from durable_shuffle.recovery.pipeline import logs
from durable_shuffle.recovery.pipeline.client import PipelineClient
from durable_shuffle.recovery.pipeline.control import Control
from durable_shuffle.recovery.pipeline.pipeline import Pipeline, RunningPipeline
from durable_shuffle.recovery.task_phase import TaskPhase
from durable_shuffle.serialization.errors import (
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
    NotReadyError,
)
from durable_shuffle.shuffle.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.consumer_records import CONSUMER_RECORDS, Open
from durable_shuffle.shuffle.layout import (
    ConsumerPath,
    command_log_prefix,
    request_log_prefix,
    status_log_prefix,
)
from durable_shuffle.shuffle.local_storage import LocalStorage
from durable_shuffle.shuffle.slot_log import SlotLog

WAIT = 300.0
IDS = RandomIds()


class Operated:
    """A pipeline under way, and the terminal that steers it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: RunningPipeline | None = None

    def start(self, tags: dict[str, int], **more: Any) -> "Operated":
        self.running = self.pipeline(tags, **more).start(launcher=threads, serve=True)
        until(lambda: self.phase in (JobPhase.RUNNING, JobPhase.FAILED), "all tasks run")
        return self

    def pipeline(self, tags: dict[str, int], **more: Any) -> Pipeline:
        # as it is imported now: an update imports it anew
        make = importlib.import_module("operated").make
        return make(str(self.folder), tags, **more)  # type: ignore[no-any-return]

    @property
    def phase(self) -> JobPhase:
        assert self.running is not None
        return self.running.phase

    @property
    def client(self) -> PipelineClient:
        return PipelineClient(NAME, str(self.folder / "data"), wait_seconds=WAIT)

    def arguments(self, tags: dict[str, int], **more: Any) -> dict[str, Any]:
        return {"folder": str(self.folder), "tags": tags, **more}

    def update(self, tags: dict[str, int], version: str = "", **more: Any) -> str:
        return self.client.update("operated:make", self.arguments(tags, **more), version).text

    def rows(self, consumer: str) -> list[tuple[int, int]]:
        """(number, tag) of every published row, read without any of our code."""
        files = sorted((self.folder / consumer).glob("part-*.json"))
        lines = [json.loads(x) for f in files for x in f.read_text().splitlines()]
        return [(line["n"], line.get("tag", 0)) for line in lines]

    def more_rows(self, consumer: str, tag: int | None = None) -> None:
        """Wait until there are rows that are not there now."""
        before = len(self.rows(consumer))

        def more() -> bool:
            rows = self.rows(consumer)
            return len(rows) > before and (tag is None or any(t == tag for _, t in rows))

        until(more, f"more rows of {consumer}")

    @property
    def epochs(self) -> dict[str, int]:
        assert self.running is not None
        machine = self.running._supervisor.machine
        return {name: state.epoch for name, state in machine.tasks.items()}

    def end(self, mode: str = "DRAIN") -> JobResult:
        assert self.running is not None
        self.running.stop(mode)
        return self.running.wait(WAIT)


@pytest.fixture
def operated(tmp_path: Path) -> Iterator[Operated]:
    """A pipeline that is cancelled at the end, however that is reached."""
    found = Operated(tmp_path)
    yield found
    if found.running is not None and not found.running.ended:
        found.end("CANCEL")


def each_once(rows: list[tuple[int, int]]) -> bool:
    """Whether the numbers are there from 0 on, each once."""
    return Counter(n for n, _ in rows) == Counter(range(len(rows)))


def test_suspended_resumed_and_drained_from_outside(operated: Operated) -> None:
    """The coordinator stays while nothing runs; every row is there once."""
    operated.start({"copy": 1})
    outside = operated.client
    for _ in range(2):
        operated.more_rows("copy")
        outside.suspend()
        until(lambda: operated.phase is JobPhase.SUSPENDED, "the pause")
        until(lambda: outside.status().phase == "suspended", "the status says so")
        outside.resume()
        until(lambda: operated.phase is JobPhase.RUNNING, "the resume")
    outside.drain()
    assert operated.running is not None
    assert operated.running.wait(WAIT).phase is JobPhase.FINISHED
    assert each_once(operated.rows("copy"))
    assert outside.status().phase == "finished"


@pytest.mark.requirement("R-MZ-10")
@pytest.mark.requirement("R-MZ-11")
def test_an_update_touches_what_changed_and_nothing_else(operated: Operated) -> None:
    """The same: same epoch. Another step: goes on at its cursor with its state. New: starts.
    Not mentioned: ends, and keeps what it published."""
    operated.start({"stays": 1, "changes": 1, "goes": 1})
    operated.more_rows("changes")
    before = operated.epochs
    text = operated.update({"stays": 1, "changes": 2, "comes": 5}, "second")
    assert text == "keeps numbers, stays; replaces changes; starts comes; ends goes"
    operated.more_rows("changes", tag=2)
    operated.more_rows("comes")
    operated.more_rows("stays")
    until(lambda: operated.phase is JobPhase.RUNNING, "all tasks run")
    after = operated.epochs
    same = [task for task in before if task.startswith(("numbers", "stays"))]
    assert {task: after[task] for task in same} == {task: before[task] for task in same}
    assert all(after[t] > before[t] for t in before if t.startswith("changes"))
    for task in (t for t in before if t.startswith("changes")):
        at = ConsumerPath(NAME, "changes", task)
        log = SlotLog(LocalStorage(operated.folder / "data"), at.log_prefix)
        records = [CONSUMER_RECORDS.decode(data, name="x") for _, data in log.read_from()]
        views = [record.epoch for record in records]
        assert views == sorted(views), "no record of an older view behind a newer one's"
        (second,) = [n for n, r in enumerate(records) if isinstance(r, Open) and r.epoch == 2]
        assert records[second].inputs, "it goes on where the first one stopped"
    gone = len(operated.rows("goes"))
    operated.more_rows("stays")
    assert len(operated.rows("goes")) == gone
    until(lambda: operated.client.status().dropped == ("goes",), "the report")
    until(lambda: operated.client.status().version == "second", "the version")
    status = operated.client.status()
    assert {part.part for part in status.parts} == {"numbers", "stays", "changes", "comes"}
    assert operated.end().phase is JobPhase.FINISHED
    for consumer in ("stays", "changes", "comes"):
        assert each_once(operated.rows(consumer))
    tags = dict(operated.rows("changes"))
    switched = [n for n in sorted(tags) if tags[n] == 2]
    assert switched
    assert 0 not in switched, "it did not begin anew"


@pytest.mark.requirement("R-MZ-10")
def test_the_same_description_changes_nothing(operated: Operated) -> None:
    """No attempt is started, however often it is said."""
    operated.start({"copy": 1})
    before = operated.epochs
    for _ in range(2):
        assert operated.update({"copy": 1}) == "keeps numbers, copy"
    operated.more_rows("copy")
    assert operated.epochs == before


@pytest.mark.requirement("R-MZ-10")
@pytest.mark.parametrize("change", ["partitions", "key", "schema"])
def test_what_does_not_fit_is_refused_by_both_versions(operated: Operated, change: str) -> None:
    """Nothing has changed; a description that fits is taken afterwards."""
    operated.start({"copy": 1}, version="first")
    before = operated.epochs
    arguments = operated.arguments({"copy": 2}, change=change)
    with pytest.raises(IncompatibleError, match=r"(?s)version 'first' has .*version 'bad' has"):
        operated.client.update("operated_badly:make", arguments, "bad")
    operated.more_rows("copy")
    assert operated.epochs == before
    assert operated.update({"copy": 2}, "good") == "keeps numbers; replaces copy"
    operated.more_rows("copy", tag=2)
    assert operated.end().phase is JobPhase.FINISHED
    assert each_once(operated.rows("copy"))


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("operated", "module:function"),
        ("no_such_module:make", "cannot import 'no_such_module'"),
        ("operated:nothing", "no function 'nothing'"),
        ("operated:make", "fails: TypeError"),
        ("builtins:dict", "must return a Pipeline, found dict"),
        ("sys:exit", "fails: SystemExit"),
    ],
)
def test_descriptions_that_are_none_are_refused(
    operated: Operated, factory: str, says: str
) -> None:
    """With the reason; the pipeline goes on, and restarts as it was."""
    operated.start({"copy": 1})
    with pytest.raises(InvalidInputError, match=says):
        operated.client.update(factory)
    before = operated.epochs
    operated.client.restart("copy")
    until(lambda: operated.epochs["copy-k0000"] > before["copy-k0000"], "the restart")
    operated.more_rows("copy")


def test_a_description_of_another_pipeline_is_refused(operated: Operated) -> None:
    """By name or place."""
    operated.start({"copy": 1})
    with pytest.raises(InvalidInputError, match="expected 'operated', found 'other'"):
        operated.update({"copy": 1}, name="other")


@pytest.mark.requirement("R-MZ-12")
def test_a_drop_is_for_good_and_reported_at_once(operated: Operated) -> None:
    """Again, or of what there is not: said, and harmless. A run that still mentions it does not
    start it."""
    operated.start({"copy": 1, "goes": 1})
    operated.more_rows("goes")
    outside = operated.client
    assert outside.drop("goes").text == "drops goes"
    for part in ("goes", "nobody"):
        assert "nothing to drop" in outside.drop(part).text
    until(lambda: "goes" in outside.status().dropped, "the report")
    operated.more_rows("copy")
    assert operated.end("SUSPEND").phase is JobPhase.SUSPENDED
    gone = operated.rows("goes")
    operated.start({"copy": 1, "goes": 1})
    operated.more_rows("copy")
    assert operated.epochs["goes-k0000"] > 0
    until(lambda: _final(operated, "goes"), "it is reported as over")
    assert operated.end().phase is JobPhase.FINISHED
    assert operated.rows("goes") == gone
    assert each_once(gone) or len(set(gone)) == len(gone)


def _final(operated: Operated, part: str) -> bool:
    return any(found.final for found in operated.client.status().parts if found.part == part)


@pytest.mark.requirement("R-MZ-21")
def test_what_has_finished_is_not_started_and_still_reported(operated: Operated) -> None:
    """A second run of a pipeline that ended: no task runs, the report says all is done."""
    operated.start({"copy": 1}, upto=50)
    until(lambda: len(operated.rows("copy")) == 50, "all rows")
    assert operated.end().phase is JobPhase.FINISHED

    started: list[str] = []

    def watching(run_task: Any, settings: Any) -> Any:
        launcher: Any = threads(run_task, settings)
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


@pytest.mark.requirement("R-MZ-20")
def test_settings_change_for_all_tasks_by_one_command(operated: Operated) -> None:
    """Running tasks and those that start later; a setting that is none is refused."""
    operated.start({"copy": 1, "other": 1}, commit_seconds=3600.0)
    with pytest.raises(InvalidInputError, match="found='colour'"):
        operated.client.configure(colour=3)
    with pytest.raises(InvalidInputError, match="commit_seconds"):
        operated.client.configure(commit_seconds=-1)
    assert not operated.rows("copy")
    operated.client.configure(commit_seconds=0.05)
    operated.more_rows("copy")
    operated.more_rows("other")
    before = operated.epochs
    operated.client.restart("copy")  # its tasks get them with their START
    until(lambda: operated.epochs["copy-k0000"] > before["copy-k0000"], "the restart")
    operated.more_rows("copy")


class Shifted(SystemClock):
    """A clock that can be put forward."""

    offset = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + type(self).offset


@pytest.mark.requirement("R-MZ-15")
def test_ten_complaining_workers_make_one_restart(
    operated: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the delay and not before, with one new epoch for all of them."""
    heard: list[str] = []
    complain = Control.complain

    def listen(self: Control, report: TaskReport, part: str, now: float) -> None:
        complain(self, report, part, now)
        heard.append(report.task)

    monkeypatch.setattr(Control, "complain", listen)
    monkeypatch.setattr(Shifted, "offset", 0.0)
    (operated.folder / "complaints").mkdir()
    pipeline = operated.pipeline({}, partitions=10, complaint_seconds=3600.0)
    operated.running = Complaining.added_to(pipeline, operated.folder).start(
        launcher=threads, serve=True, clock=Shifted()
    )
    until(lambda: operated.phase is JobPhase.RUNNING, "all tasks run")
    before = operated.epochs
    complaints = operated.folder / "complaints"
    until(lambda: len(list(complaints.glob("copy*"))) == 10, "all have rows")
    (operated.folder / "complain").touch()
    until(lambda: len(heard) == 10, "ten complaints")
    assert len(set(heard)) == 10
    operated.more_rows("copy")
    assert operated.epochs == before, "not before its time"
    monkeypatch.setattr(Shifted, "offset", 3601.0)
    until(
        lambda: all(e > before[t] for t, e in operated.epochs.items() if t.startswith("copy")),
        "the restart",
    )
    until(lambda: operated.phase is JobPhase.RUNNING, "all tasks run")
    epochs = {e for t, e in operated.epochs.items() if t.startswith("copy")}
    assert epochs == {before["copy-k0000"] + 1}, "one generation, not ten"
    assert operated.epochs["numbers-p0000"] == before["numbers-p0000"]


def test_commands_during_a_stop(operated: Operated) -> None:
    """A second way to end is refused, an update of what ends for good too."""
    operated.start({"copy": 1})
    outside = operated.client
    outside.suspend()
    with pytest.raises(InvalidInputError, match="stops by SUSPEND already, DRAIN comes too late"):
        outside.drain()
    outside.suspend()
    assert "replaces copy" in operated.update({"copy": 7}), "it counts once it goes on"
    outside.resume()
    operated.more_rows("copy", tag=7)
    until(lambda: operated.phase is JobPhase.RUNNING, "all tasks run")
    waiting = operated.client
    waiting.drain()
    slot = waiting.append(RunThis(IDS.new_id(), Description("operated:make", "", "")))
    assert slot > 0
    assert operated.running is not None
    assert operated.running.wait(WAIT).phase is JobPhase.FINISHED
    assert each_once(operated.rows("copy"))


def test_nobody_answers(operated: Operated) -> None:
    """An unknown pipeline; one that nobody runs. A stop is not kept for the next run."""
    with pytest.raises(NotFoundError, match="no pipeline 'operated' was ever run"):
        _ = operated.client
    operated.start({"copy": 1})
    assert operated.end("SUSPEND").phase is JobPhase.SUSPENDED
    waits = PipelineClient(NAME, str(operated.folder / "data"), wait_seconds=0)
    with pytest.raises(NotReadyError, match="one that comes later will refuse it"):
        waits.suspend()
    with pytest.raises(NotReadyError, match="the next one takes it up"):
        waits.configure(commit_rows=7)
    operated.start({"copy": 1})
    operated.more_rows("copy")
    assert operated.client.restart("copy").request == 2, "the suspend was refused before"


def test_garbage_among_the_requests_is_refused(operated: Operated) -> None:
    """It gets its answer, and the next command is heard."""
    operated.start({"copy": 1})
    outside = operated.client
    slot = outside._requests.find_end()
    outside._requests.append(slot, b"rubbish")
    assert outside.restart("copy").request == slot + 1
    with pytest.raises(InvalidInputError, match="no source or consumer 'nobody'"):
        outside.restart("nobody")


@pytest.mark.parametrize("where", ["before", "meanwhile"])
def test_garbage_in_the_command_log_is_refused(operated: Operated, where: str) -> None:
    """Not passed: a coordinator that meets it ends, and says where it stands."""
    operated.start({"copy": 1})
    storage = LocalStorage(operated.folder / "data")
    log = SlotLog(storage, command_log_prefix(NAME))
    assert operated.running is not None
    if where == "before":
        assert operated.end("SUSPEND").phase is JobPhase.SUSPENDED
        log.append(log.find_end(), b"rubbish")
        operated.start({"copy": 1})
    else:
        while True:
            log.append(log.find_end(), b"rubbish")
            if operated.running.ended or log.read(log.find_end() - 1) == b"rubbish":
                break
    result = operated.running.wait(WAIT)
    assert result.phase is JobPhase.FAILED
    assert result.cause is not None
    assert result.cause.kind == "corrupt_data"
    assert "operated/commands/" in result.cause.text
    rows = operated.rows("copy")
    assert each_once(rows) or len(set(rows)) == len(rows)


@pytest.mark.requirement("R-MZ-19")
def test_the_older_of_two_coordinators_stops_itself(operated: Operated) -> None:
    """Without a command, and although none of its tasks fails."""
    operated.start({"copy": 1}, commit_seconds=3600.0, append_seconds=3600.0)
    first = operated.running
    second = operated.pipeline({"copy": 1}).start(launcher=threads)
    assert first is not None
    result = first.wait(WAIT)
    assert result.phase is JobPhase.FAILED
    assert result.cause is not None
    assert result.cause.kind == "fenced"
    operated.running = second
    operated.more_rows("copy")
    assert operated.end().phase is JobPhase.FINISHED
    assert each_once(operated.rows("copy"))


@pytest.mark.requirement("R-MZ-9")
@pytest.mark.requirement("R-MZ-5")
@pytest.mark.parametrize("k", range(5))
def test_a_full_list_that_is_cut_off_changes_nothing(operated: Operated, k: int) -> None:
    """After every number of its commands; the whole list then counts at once."""
    operated.start({"copy": 1, "goes": 1}, version="first")
    before, outside = operated.epochs, operated.client

    def commands(session: str) -> list[ExternalCommand]:
        wanted = operated.arguments({"copy": 2})
        return [
            RunThis(IDS.new_id(), Description("no:such", "", "x"), session),
            Settings(IDS.new_id(), {"commit_seconds": 0.07}, session),
            RunThis(
                IDS.new_id(), Description("operated:make", json.dumps(wanted), "third"), session
            ),
        ]

    session = IDS.new_id()
    whole = [Hello(IDS.new_id(), session), *commands(session), InitComplete(IDS.new_id(), session)]
    assert len(whole) == 5
    for command in whole[:k]:
        outside._ask(command)
    outside.restart("copy", "to see that it is alive")  # any other command is heard meanwhile
    until(lambda: operated.epochs["copy-k0000"] > before["copy-k0000"], "the restart")
    operated.more_rows("goes")
    assert {t: e for t, e in operated.epochs.items() if t.startswith("goes")} == {
        t: e for t, e in before.items() if t.startswith("goes")
    }
    assert all(tag == 1 for _, tag in operated.rows("copy"))

    text = outside.reconcile(commands).text
    assert text == "keeps numbers; replaces copy; ends goes", "the last description counts"
    operated.more_rows("copy", tag=2)
    until(lambda: "third" in operated.client.status().version, "the version")
    if k:
        late = InitComplete(IDS.new_id(), session)
        with pytest.raises(InvalidInputError, match="another one began after it"):
            outside._ask(late)


@pytest.mark.requirement("R-MZ-8")
def test_after_a_reconnect_everything_is_reported_again(operated: Operated) -> None:
    """Parts that nothing has happened to since, too."""
    operated.start({"copy": 1}, upto=40)
    until(lambda: len(operated.rows("copy")) == 40, "all rows")
    wanted = json.dumps(operated.arguments({"copy": 1}, upto=40))

    def commands(session: str) -> list[ExternalCommand]:
        return [RunThis(IDS.new_id(), Description("operated:make", wanted, ""), session)]

    log = SlotLog(LocalStorage(operated.folder / "data"), status_log_prefix(NAME))
    until(log.find_end, "the first report")
    seen = log.find_end()
    operated.client.reconcile(commands)

    def all_again() -> bool:
        records = [STATUSES.decode(data, name="x") for _, data in log.read_from(seen)]
        told = [{one.part for one in record.reached} for record in records if record.whole]
        return {"numbers", "copy"} in told

    until(all_again, "a whole report")


@pytest.mark.requirement("R-MZ-16")
def test_a_release_moves_where_later_starts_begin(operated: Operated) -> None:
    """Data that all have committed goes; a restart does not ask for it. Who comes later begins at
    what is left, and from then on nothing goes that he may still need."""
    operated.start({"copy": 1}, upto=400, append_rows=20)
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
    with pytest.raises(InvalidInputError, match="closed"):
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


def requests_of(folder: Path) -> list[ExternalCommand]:
    log = SlotLog(LocalStorage(folder / "data"), request_log_prefix(NAME))
    return [REQUESTS.decode(data, name="x") for _, data in log.read_from()]


def test_every_command_is_one_record(operated: Operated) -> None:
    """That is all that a terminal does."""
    operated.start({"copy": 1})
    outside = operated.client
    calls: list[Callable[[], Any]] = [
        lambda: outside.restart("copy"),
        lambda: outside.configure(commit_rows=7),
        lambda: outside.drop("nobody"),
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
    session = IDS.new_id()
    wanted = json.dumps(operated.arguments({"copy": 1, "comes": 1}))
    command: ExternalCommand = DropPart(IDS.new_id(), "comes")
    if then == "reconnect":
        outside.append(Hello(IDS.new_id(), session))
        description = Description("operated:make", wanted, "")
        outside.append(RunThis(IDS.new_id(), description, session))
        command = InitComplete(IDS.new_id(), session)
    last = outside.append(command)
    gate.go.set()
    outside._wait(last)
    until(lambda: operated.phase is JobPhase.RUNNING, "all tasks run")
    log = SlotLog(LocalStorage(operated.folder / "data"), command_log_prefix(NAME))
    steps = [decode_step(data, name="x") for _, data in log.read_from()]
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
