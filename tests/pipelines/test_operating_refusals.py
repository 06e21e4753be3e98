"""Pipelines steered from outside: what is refused, and what a coordinator does not pass by."""

import pytest
from operated import NAME
from pipelines import threads, until
from steered import WAIT, Operated, each_once

from durable_shuffle.recovery.job.phases import JobPhase
from durable_shuffle.recovery.pipeline.client import PipelineClient
from durable_shuffle.recovery.pipeline.commands.requests import (
    Description,
    RunThis,
)
from durable_shuffle.serialization.errors import (
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
    NotReadyError,
)
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.log.layout import command_log_prefix
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.storage.local import LocalStorage

IDS = RandomIds()


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


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("operated", "module:function"),
        ("no_such_module:make", "with .operated, operated_badly.*nothing was imported"),
        ("subprocess:check_output", "with .operated, operated_badly.*nothing was imported"),
        ("operated.part:make", "cannot import 'operated.part'"),
        ("operated:nothing", "no function 'nothing'"),
        ("operated:make", "fails: TypeError"),
        (
            "operated:Path",
            "marked by durable_shuffle.pipelines.pipeline_factory.*it was not called",
        ),
        ("operated:FileSink", "marked by durable_shuffle.pipelines.pipeline_factory"),
        ("operated_badly:no_pipeline", "must return a Pipeline, found dict"),
        ("operated_badly:leaves", "fails: SystemExit"),
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
def test_the_older_of_two_coordinators_stops_itself(
    operated: Operated, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a command, and although none of its tasks fails; it says so once."""
    operated.start({"copy": 1}, commit_seconds=3600.0, append_seconds=3600.0)
    first = operated.running
    second = operated.pipeline({"copy": 1}).start(launcher=threads)
    assert first is not None
    result = first.wait(WAIT)
    assert result.phase is JobPhase.FAILED
    assert result.cause is not None
    assert result.cause.kind == "fenced"
    told = [record.message for record in caplog.records if "another coordinator" in record.message]
    last = next(i for i, message in enumerate(told) if "leads no more" in message)
    assert told[last + 1 :] == [], "its tasks are fenced, too, and that is no news"
    operated.running = second
    operated.more_rows("copy")
    assert operated.end().phase is JobPhase.FINISHED
    assert each_once(operated.rows("copy"))
