"""Pipelines updated more than once: left out and brought back, and what is refused for good."""

import pytest
from operated import NAME
from pipelines import until
from steered import WAIT, Operated, each_once

from durable_shuffle.recovery.job.phases import JobPhase
from durable_shuffle.recovery.pipeline.status import STATUSES, Status
from durable_shuffle.serialization.errors import IncompatibleError, InvalidInputError
from durable_shuffle.shuffle.log.layout import status_log_prefix
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.storage.local import LocalStorage


@pytest.mark.requirement("R-MZ-10")
def test_a_consumer_that_is_left_out_and_named_again_goes_on(operated: Operated) -> None:
    """Three times; every row is there once, and the status knows it again."""
    operated.start({"copy": 1, "goes": 5})
    for _ in range(3):
        operated.more_rows("goes")
        assert operated.update({"copy": 1}) == "keeps numbers, copy; ends goes"
        until(lambda: operated.phase is JobPhase.RUNNING, "the rest runs")
        operated.more_rows("copy")
        text = operated.update({"copy": 1, "goes": 5})
        assert text == "keeps numbers, copy; starts goes"
        operated.more_rows("goes")
        until(lambda: operated.phase is JobPhase.RUNNING, "all run")

    def known() -> bool:
        parts = {part.part: part for part in operated.client.status().parts}
        return "goes" in parts and not parts["goes"].final

    until(known, "the status shows it")
    assert operated.end().phase is JobPhase.FINISHED
    for consumer in ("copy", "goes"):
        assert each_once(operated.rows(consumer))


@pytest.mark.requirement("R-MZ-6")
def test_progress_is_told_of_what_was_asked_for(operated: Operated) -> None:
    """A part that is not asked for any more is told of once more, as dropped, and never again,
    although its tasks report until they have ended."""
    operated.start({"copy": 1, "goes": 5})
    log = SlotLog(LocalStorage(operated.folder / "data"), status_log_prefix(NAME))

    def told() -> list[Status]:
        return [STATUSES.decode(data, name="x") for _, data in log.read_from()]

    until(lambda: any(one.part == "goes" for s in told() for one in s.reached), "its progress")
    operated.update({"copy": 1})
    until(lambda: any("goes" in status.dropped for status in told()), "the drop")
    operated.more_rows("copy")
    assert operated.end().phase is JobPhase.FINISHED
    statuses = told()
    first = next(n for n, status in enumerate(statuses) if "goes" in status.dropped)
    later = statuses[first:]
    assert len(later) > 1
    assert not [one for status in later for one in status.reached if one.part == "goes"]
    assert {one.part for status in later for one in status.reached} <= {"numbers", "copy"}


@pytest.mark.requirement("R-MZ-14")
def test_a_part_that_was_dropped_for_good_stays_so(operated: Operated) -> None:
    """A later description that names it starts nothing, whether the drop was completed or not."""
    operated.start({"copy": 1, "goes": 5})
    operated.more_rows("goes")
    assert operated.client.drop("goes").text == "drops goes"
    operated.update({"copy": 1, "goes": 5})
    until(lambda: operated.phase is JobPhase.RUNNING, "the rest runs")
    operated.more_rows("copy")
    operated.update({"copy": 2, "goes": 5})
    operated.more_rows("copy", tag=2)
    until(lambda: operated.phase is JobPhase.RUNNING, "all run")
    rows = len(operated.rows("goes"))
    operated.more_rows("copy")
    assert len(operated.rows("goes")) == rows
    assert operated.end().phase is JobPhase.FINISHED
    assert each_once(operated.rows("copy"))
    assert len(set(operated.rows("goes"))) == rows


@pytest.mark.requirement("R-MZ-10")
def test_another_input_is_refused_also_of_a_part_that_does_not_run(operated: Operated) -> None:
    """It is named, nothing changes, and a description that fits is taken afterwards."""
    operated.start({"copy": 1, "goes": 5})
    operated.more_rows("goes")
    operated.update({"copy": 1})
    until(lambda: operated.phase is JobPhase.RUNNING, "the rest runs")
    arguments = operated.arguments({"goes": 5})
    with pytest.raises(IncompatibleError, match=r"'goes' has read stage 'numbers.*give it another"):
        operated.client.update("operated_badly:other_input", arguments)
    before = operated.epochs
    operated.more_rows("copy")
    assert operated.epochs == before
    operated.update({"copy": 1, "goes": 5})
    operated.more_rows("goes")
    until(lambda: operated.phase is JobPhase.RUNNING, "all run")
    assert operated.end().phase is JobPhase.FINISHED
    for consumer in ("copy", "goes"):
        assert each_once(operated.rows(consumer))


@pytest.mark.requirement("R-MZ-10")
def test_an_update_that_cannot_be_sent_to_processes_is_refused(operated: Operated) -> None:
    """Before it is accepted: the same pipeline can be started again."""
    pipeline = operated.pipeline({"copy": 1})
    more = {"serve": True, "updates_from": ("operated", "operated_badly")}
    for _ in range(2):
        operated.running = pipeline.start(**more)
        until(lambda: operated.phase is JobPhase.RUNNING, "all run")
        with pytest.raises(InvalidInputError, match="consumer 'unsendable' cannot be sent"):
            operated.client.update("operated_badly:unsendable", operated.arguments({"copy": 2}))
        operated.more_rows("copy", tag=1)
        operated.running.stop("SUSPEND")
        assert operated.running.wait(WAIT).phase is JobPhase.SUSPENDED
    assert {tag for _, tag in operated.rows("copy")} == {1}


@pytest.mark.requirement("R-MZ-10")
def test_a_consumer_that_is_added_while_the_pipeline_is_suspended(operated: Operated) -> None:
    """The status is written meanwhile; it starts with the resume."""
    operated.start({"copy": 1})
    operated.more_rows("copy")
    operated.client.suspend()
    until(lambda: operated.phase is JobPhase.SUSPENDED, "the pause")
    text = operated.update({"copy": 1, "comes": 5}, "second")
    assert text == "keeps numbers, copy; starts comes"
    until(lambda: operated.client.status().version == "second", "the status says so")
    operated.client.resume()
    operated.more_rows("comes")
    until(lambda: operated.phase is JobPhase.RUNNING, "all run")
    assert operated.end().phase is JobPhase.FINISHED
    for consumer in ("copy", "comes"):
        assert each_once(operated.rows(consumer))
