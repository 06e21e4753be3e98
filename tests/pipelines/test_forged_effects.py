"""A pending effect whose record no writer wrote: what fails, and as what."""

from dataclasses import replace
from typing import Any

from forged_record import forge
from one_consumer import NAME, TASK, OneConsumer, Plain

from durable_shuffle.recovery.job.phases import TaskPhase
from durable_shuffle.recovery.pipeline.plan.sinks import PARKED, FileSink, Parked
from durable_shuffle.serialization.errors import UnavailableError
from durable_shuffle.shuffle.log.layout import ConsumerPath
from durable_shuffle.shuffle.log.slot_log import SlotLog


class Down(FileSink):
    """A sink that cannot publish now."""

    def publish(self, parked: Parked) -> None:
        raise UnavailableError("the sink is down")


def without_number(fields: dict[str, Any]) -> dict[str, object]:
    (effect,) = fields["pending"]
    parked = PARKED.decode(effect["payload"], name="x")
    return {"pending": [{**effect, "payload": PARKED.encode(replace(parked, token="none"))}]}


def test_a_failed_publish_is_told_whatever_the_stored_token_is(one: OneConsumer) -> None:
    """The cause is the sink's, and the commit that it left is known without the token."""
    one.write(4)
    down = Down(str(one.folder / "out"), "json")
    for _ in range(2):  # by who made the commit, and by who finds it pending
        report = one.attempt(Plain([]), sink=down)[-1]
        assert report.failure is not None
        assert (report.phase, report.commit) == (TaskPhase.FAILED, 1)
        assert "the sink is down" in report.failure.text
    log = SlotLog(one.storage, ConsumerPath(NAME, "use", TASK).log_prefix)
    forge(log, log.find_end() - 1, without_number)
    report = one.attempt(Plain([]), sink=down)[-1]
    assert report.failure is not None
    assert (report.phase, report.commit) == (TaskPhase.FAILED, 1)
    assert "the sink is down" in report.failure.text
