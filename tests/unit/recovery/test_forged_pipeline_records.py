"""Records of a pipeline that no writer writes, but that somebody stored."""

import random
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
from small_stage import SeededIds

from durable_shuffle.recovery.pipeline.commands.orders import Lead, encode_slot, succeed
from durable_shuffle.recovery.pipeline.commands.requests import (
    REQUESTS,
    AllowRelease,
    Description,
    ResumeIt,
    Wanted,
)
from durable_shuffle.recovery.pipeline.coordinator.stage_work import allow_release
from durable_shuffle.recovery.pipeline.plan.positions import SourcePosition, positions_of
from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource
from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.errors import CorruptDataError, InvalidInputError
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.storage.memory import MemoryStorage

GIVEN = Description("module:function", "", "given", "digest")


@pytest.mark.parametrize("handled", [-1, 3, 2**40, 2**64 - 1])
def test_a_coordinator_that_handled_requests_that_are_none(handled: int) -> None:
    """A successor would pass over the next requests for ever."""
    memory, ids = MemoryStorage(), SeededIds(random.Random(1))
    commands, requests = SlotLog(memory, "flow/commands/"), SlotLog(memory, "flow/requests/")
    for slot in range(2):
        requests.append(slot, REQUESTS.encode(ResumeIt(ids.new_id())))

    def lead(count: int) -> None:
        said = Lead(GIVEN, 2, Wanted())
        object.__setattr__(said, "handled", count)
        step = encode_slot((said,), record_id=ids.new_id(), coordinator="c", generation=1, number=0)
        memory.delete([commands.key(0)])
        commands.append(0, step)

    lead(2)
    assert succeed(commands, requests, GIVEN)[0].handled == 2
    lead(handled)
    with pytest.raises(CorruptDataError, match="flow/commands/"):
        succeed(commands, requests, GIVEN)


@pytest.mark.parametrize("source", [SimpleNamespace(), IteratorSource(cast("Any", None))])
@pytest.mark.parametrize(("stored", "position"), [("1", 2), (3, "4"), (b"5", "6"), (7, 7)])
def test_a_source_that_goes_on_from_a_position_of_another_type(
    source: object, stored: int | str | bytes, position: object
) -> None:
    """It cannot be known whether that is forward; the message shows both."""
    data = RecordCodec((SourcePosition,)).encode(SourcePosition(stored, 0))
    found = positions_of(source, data, name="in", producer=0, stored_in=cast("Any", None))
    assert found.start == stored
    with pytest.raises(InvalidInputError, match=re.escape(f"from {stored!r} to {position!r}")):
        found.take(position)


@pytest.mark.parametrize("producer", ["1" * 5000, "-1", "2", "", "²"])
def test_a_request_to_release_names_a_producer_that_is_none(producer: str) -> None:
    """It is refused before anything is read, however many digits it has."""
    stage = SimpleNamespace(elsewhere=None, producers=2)
    prepared: Any = SimpleNamespace(plan=SimpleNamespace(name="flow", stages={"in": stage}))
    command = AllowRelease("a" * 32, "in", {producer: 1})
    with pytest.raises(InvalidInputError, match="no such producer"):
        allow_release(
            prepared,
            cast("Any", None),
            command,
            generation=1,
            ids=SeededIds(random.Random(1)),
        )
