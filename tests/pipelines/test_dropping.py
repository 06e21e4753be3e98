"""A drop of a consumer whose last rows are prepared and not published: nothing of them is lost."""

from pathlib import Path
from typing import Any

import pytest
from operated import NAME, make

from durable_shuffle.recovery.pipeline.client import PipelineClient
from durable_shuffle.recovery.pipeline.commands.requests import Description, DropPart
from durable_shuffle.recovery.pipeline.coordinator.logs import PipelineLogs
from durable_shuffle.recovery.pipeline.plan.updates import PreparedPlan
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.consume.log import read_resume_set
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.log.consumer_records import Ending
from durable_shuffle.shuffle.log.layout import ConsumerPath
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.storage.local import LocalStorage

IDS = RandomIds()
TASKS = ("goes-k0000", "goes-k0001")
EFFECT = b"rows that only the sink can publish"


class Place:
    """A pipeline with a consumer `goes` of two tasks, and nothing that runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.storage = folder, LocalStorage(folder / "data")
        self.logs, self.prepared = self.led()
        self.published: list[bytes] = []

    def led(self, **tags: int) -> tuple[PipelineLogs, PreparedPlan]:
        """A coordinator that leads from here on."""
        plan = make(str(self.folder), tags or {"copy": 1, "goes": 1}).plan
        given = Description("operated:make", "", "given", "digest")
        logs = PipelineLogs(plan, given, packages={"operated"}, clock=SystemClock(), ids=IDS)
        prepared = logs.claim().prepared
        assert prepared is not None
        return logs, prepared

    def view(self, task: str) -> View:
        consumer = self.prepared.plan.consumers["goes"]
        return open_view(
            self.prepared.stage(self.storage, consumer.reads),
            self.prepared.plan.tasks[task].index,
            consumer="goes",
            task=task,
            on_effect=lambda _, payload: self.published.append(payload),
        )

    def prepare(self, task: str) -> None:
        """Bring a task to PREPARED, and let it die there."""
        ending = Ending("DRAIN", 1, committed=False)
        self.view(task).task.prepare({}, ending, state=b"state", effect=EFFECT)

    def publish(self, task: str) -> None:
        """Open the task again, as its consumer does when it is started."""
        self.view(task).task.commit()

    def accepted_drop(self) -> Any:
        """Ask for a drop that is accepted, and not carried out yet; return its command."""
        client = PipelineClient(NAME, str(self.folder / "data"), wait_seconds=0)
        client.append(DropPart(IDS.new_id(), "goes"))
        request = self.logs.next_request()
        assert request is not None
        self.logs.answer(request, None, "drops goes", ())
        return request.command

    def log(self, task: str) -> SlotLog:
        return SlotLog(self.storage, ConsumerPath(NAME, "goes", task).log_prefix)

    def finished(self, task: str) -> bool:
        return read_resume_set(self.log(task)).finished


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place(tmp_path)
    assert tuple(t for t, at in found.prepared.plan.tasks.items() if at.owner == "goes") == TASKS
    return found


@pytest.mark.parametrize("tags", [{"copy": 1, "goes": 1}, {"copy": 1}])
def test_a_drop_of_what_is_prepared_is_refused_until_it_is_published(
    place: Place, tags: dict[str, int]
) -> None:
    """Also of a part that an update has left out; the refusal says what to do."""
    place.prepare(TASKS[1])
    logs, prepared = place.led(**tags)
    ends = [place.log(task).find_end() for task in TASKS]
    with pytest.raises(InvalidInputError, match=r"'goes' .*start it once.*goes-k0001"):
        logs.check_part("goes", prepared)
    assert [place.log(task).find_end() for task in TASKS] == ends
    place.publish(TASKS[1])
    assert place.published == [EFFECT]
    logs.check_part("goes", prepared)
    logs.drop(DropPart(IDS.new_id(), "goes"), prepared)
    assert place.finished(TASKS[1])


def test_a_drop_that_meets_what_was_prepared_meanwhile_is_given_up(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """The request was accepted before. Nothing is written, no later coordinator tries again."""
    command = place.accepted_drop()
    place.prepare(TASKS[1])
    place.logs.drop(command, place.prepared)
    assert "not dropped" in caplog.text
    assert [place.log(task).find_end() for task in TASKS] == [0, 2]
    logs, prepared = place.led()
    begin = logs.start(prepared, 5, list(prepared.plan.tasks)).finished
    assert not begin, "it is started, and so it publishes"


def test_a_successor_gives_such_a_drop_up(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Its predecessor fell between the answer and the work; the pipeline starts all the same."""
    place.accepted_drop()
    place.prepare(TASKS[0])
    logs, prepared = place.led()
    assert "not dropped" in caplog.text
    assert not logs.start(prepared, 5, list(prepared.plan.tasks)).finished
    place.publish(TASKS[0])
    assert place.published == [EFFECT]
