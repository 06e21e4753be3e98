"""Acknowledgements whose reply is lost, late or refused: the same bytes, or nothing."""

from collections.abc import Callable

import pyarrow as pa
import pytest
from sealed_stage import SealedStage, left_over, slots_of
from small_stage import patient

from durable_shuffle.serialization.errors import (
    ConflictError,
    InvalidInputError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.consume.outputs import write_output
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.log.consumer_records import OutputRef
from durable_shuffle.shuffle.storage.contract import Created, Exists
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.testing.faulty_storage import FaultyStorage, Rule

Open = Callable[..., View]
Numbers = Callable[..., list[int]]
OUTPUT = pa.schema([("n", pa.int64())])
ANY = "job/consumers/"


def publish(view: View, numbers: list[int]) -> OutputRef:
    return write_output(view.task, OUTPUT, [pa.record_batch([numbers], schema=OUTPUT)])


def kinds(storage: MemoryStorage) -> list[str]:
    return [kind for kind, _ in slots_of(storage)]


@pytest.mark.requirement("R-F135-21")
def test_a_lost_reply_of_an_acknowledgement_is_read_back(
    made: SealedStage, open_: Open, numbers: Numbers, memory: MemoryStorage
) -> None:
    """The record stands although no answer came: sent again it has won, and is no rival."""
    faulty = FaultyStorage(memory, [Rule("put_if_absent", ANY, "after", 2, "lost_reply")])
    view = open_(storage=patient(faulty))
    numbers(view, 5)
    view.ack()
    assert faulty.fired == 1
    numbers(view)
    view.finish()
    assert kinds(memory) == ["OPEN", "ACK", "FINISHED"]


class Delayed(MemoryStorage):
    """Loses replies of creates of slots while told to, and may let one land late."""

    def __init__(self, below: MemoryStorage) -> None:
        super().__init__()
        self._objects, self._written = below._objects, below._written
        self.mode, self.flying = "ok", ("", b"")

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        if key.rsplit("/", 1)[1].isdigit() and self.mode != "ok":
            if self.mode == "unknown":
                self.flying = key, data
                raise OutcomeUnknownError("lost")
            if self.mode == "forbidden":
                raise InvalidInputError("403 ExpiredToken")
            raise UnavailableError("down")
        return super().put_if_absent(key, data)

    def land(self) -> None:
        assert super().put_if_absent(*self.flying) == Created()


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("lands", [False, True])
def test_an_acknowledgement_of_unknown_outcome_is_sent_again_as_the_same_bytes(
    open_: Open, numbers: Numbers, memory: MemoryStorage, lands: bool, large: bool
) -> None:
    """The same call again settles it, whether or not the first sending landed meanwhile."""
    storage = Delayed(memory)
    view = open_(storage=storage)
    numbers(view, 5)
    output, state = publish(view, [1]), b"s" * (100 if large else 10)
    storage.mode = "unknown"
    with pytest.raises(OutcomeUnknownError):
        view.ack(outputs=[output], state=state)
    sent = storage.flying[1]
    if lands:
        storage.land()
    storage.mode = "ok"
    view.ack(outputs=[output], state=state)
    assert kinds(memory) == ["OPEN", "ACK"]
    assert memory.read(storage.flying[0]) == sent
    assert (view.acknowledged.records, view.state, view.outputs) == (5, state, (output,))
    assert left_over(memory) == set()


@pytest.mark.parametrize("refusal", ["down", "forbidden"])
def test_another_acknowledgement_never_takes_the_slot_of_an_unknown_one(
    made: SealedStage, open_: Open, numbers: Numbers, memory: MemoryStorage, refusal: str
) -> None:
    """Unknown, then refused: the first sending may still land, and it does."""
    storage = Delayed(memory)
    view = open_(storage=storage)
    numbers(view, 5)
    storage.mode = "unknown"
    with pytest.raises(OutcomeUnknownError):
        view.ack()
    storage.mode = refusal
    with pytest.raises(OutcomeUnknownError):  # not "unavailable": that would say it does not stand
        view.ack()
    numbers(view, 5)
    storage.mode = "ok"
    storage.land()
    with pytest.raises(ConflictError, match="now stands"):
        view.ack()
    assert view.acknowledged.records == 5
    view.ack()
    numbers(view)
    view.finish()
    assert open_().acknowledged.records == len(made.of(0))


@pytest.mark.parametrize("refusal", ["down", "forbidden"])
def test_an_outage_leaves_the_view_as_it_was(
    open_: Open, numbers: Numbers, memory: MemoryStorage, refusal: str
) -> None:
    """Every sending was refused: later another position may be acknowledged."""
    storage = Delayed(memory)
    view = open_(storage=storage)
    numbers(view, 5)
    storage.mode = refusal
    with pytest.raises((UnavailableError, InvalidInputError)):
        view.ack()
    storage.mode = "ok"
    numbers(view, 2)
    view.ack()
    assert view.acknowledged.records == 7


# -- effects
