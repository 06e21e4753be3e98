"""Pipelines steered from outside, their tasks threads of this process: what commands come to."""

import pytest
from complaining import Complaining
from operated import NAME
from pipelines import threads, until
from steered import WAIT, Operated, each_once

from durable_shuffle.recovery.job.phases import JobPhase, TaskReport
from durable_shuffle.recovery.pipeline.coordinator.control import Control
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.log.consumer_records import CONSUMER_RECORDS, Open
from durable_shuffle.shuffle.log.layout import ConsumerPath
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.storage.local import LocalStorage

IDS = RandomIds()


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


@pytest.mark.requirement("R-MZ-12")
def test_a_drop_is_for_good_and_reported_at_once(operated: Operated) -> None:
    """Again: harmless. A run that still mentions it does not start it."""
    operated.start({"copy": 1, "goes": 1})
    operated.more_rows("goes")
    outside = operated.client
    assert outside.drop("goes").text == "drops goes"
    assert outside.drop("goes").text == "drops goes"
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
