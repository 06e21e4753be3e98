"""Acknowledgements: one record over position, outputs and state; then the effect."""

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest
from sealed_stage import SealedStage, left_over, slots_of

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
)
from durable_shuffle.shuffle.consume.log import read_outputs
from durable_shuffle.shuffle.consume.outputs import read_output, write_output
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.log.consumer_records import OutputRef
from durable_shuffle.shuffle.read.position import Position, ProducerPosition
from durable_shuffle.shuffle.storage.memory import MemoryStorage

Open = Callable[..., View]
Numbers = Callable[..., list[int]]
Forget = Callable[[], None]
OUTPUT = pa.schema([("n", pa.int64())])
ANY = "job/consumers/"


def publish(view: View, numbers: list[int]) -> OutputRef:
    return write_output(view.task, OUTPUT, [pa.record_batch([numbers], schema=OUTPUT)])


def kinds(storage: MemoryStorage) -> list[str]:
    return [kind for kind, _ in slots_of(storage)]


@pytest.mark.parametrize("leave_at", [1, 2, 3])
def test_a_loop_that_was_left_goes_on_with_the_next_row(
    made: SealedStage, open_: Open, numbers: Numbers, leave_at: int
) -> None:
    """Leaving a loop over records in the middle of a batch leaves nothing of it out."""
    view, got = open_(), []
    while not view.at_end:
        got += numbers(view, leave_at)
        view.ack()
    assert got == made.of(0)


def test_position_after_acknowledges_rows_inside_a_batch(
    made: SealedStage, open_: Open, numbers: Numbers, other_process: Forget
) -> None:
    """Two rows of the second batch are done: the next view begins with the third."""
    view = open_()
    batches = iter(view)
    first, second = next(batches), next(batches)
    assert second.num_rows > 2
    view.ack(view.position_after(2))
    with pytest.raises(InvalidInputError, match="rows="):
        view.position_after(second.num_rows + 1)
    other_process()
    assert numbers(open_()) == made.of(0)[first.num_rows + 2 :]


# -- bad positions: refused, nothing written


def test_positions_that_are_not_this_views_are_refused(
    made: SealedStage, open_: Open, numbers: Numbers, memory: MemoryStorage
) -> None:
    """Never delivered, backwards, of another partition, of no producer, below 0."""
    view = open_()
    numbers(view, 5)
    early = view.position
    numbers(view, 5)
    view.ack()
    other = open_(1)
    numbers(other, 3)
    stage, known = early.stage, dict(view.position.producers)
    before = kinds(memory)
    bad = {
        "never handed out": Position(stage, 0, {0: ProducerPosition(11)}),
        "never handed": Position(stage, 0, {**known, 1: ProducerPosition(1)}),
        "forward only": early,
        "producer=0": Position(stage, 0, {}),
        "another input": other.position,
        "of another input": Position("elsewhere", 0, known),
        "producer=9": Position(stage, 0, {**known, 9: ProducerPosition(0)}),
        "producer=1": Position(stage, 0, {**known, 1: ProducerPosition(-1)}),
    }
    for text, position in bad.items():
        with pytest.raises(InvalidInputError, match=text):
            view.ack(position)
    view.release()
    with pytest.raises(InvalidInputError, match="was released"):
        view.ack()
    with pytest.raises(InvalidInputError, match="was released"):
        numbers(view, 1)
    assert kinds(memory) == before
    assert open_().acknowledged.records == 10


def test_an_unfinished_consumer_cannot_finish(open_: Open, numbers: Numbers) -> None:
    view = open_()
    numbers(view, 5)
    with pytest.raises(InvalidInputError, match="end of its input"):
        view.finish()


# -- outputs


@pytest.mark.requirement("R-F135-21")
def test_outputs_count_with_the_record_that_names_them(
    open_: Open, numbers: Numbers, memory: MemoryStorage, other_process: Forget
) -> None:
    """Written and not acknowledged is not published; two in one record come together."""
    view = open_()
    first = numbers(view, 4)
    view.ack(outputs=[publish(view, first[:2]), publish(view, first[2:])])
    lost = publish(view, numbers(view, 3))
    other_process()
    view = open_()
    assert [o.rows for o in view.outputs] == [2, 2]
    read = [
        n for o in view.outputs for b in read_output(memory, o, OUTPUT) for n in b[0].to_pylist()
    ]
    assert read == first
    assert read_outputs(view.task.held.log) == view.outputs
    assert left_over(memory) == {lost.key}


@pytest.mark.requirement("R-F135-21")
def test_outputs_and_effects_outlive_full_records(
    made: SealedStage, open_: Open, numbers: Numbers, memory: MemoryStorage, other_process: Forget
) -> None:
    """80 acknowledgements, a full one among them: every output is still published, in order."""
    view, written = open_(), []
    for _ in range(80):
        output = publish(view, numbers(view, 1))
        view.ack(outputs=[output], state=b"%d" % len(written))
        written.append(output)
    assert [n for n, (_, f) in enumerate(slots_of(memory)) if f.get("whole")] == [64]
    assert read_outputs(view.task.held.log) == tuple(written)
    other_process()
    view = open_()
    assert view.outputs == tuple(written)
    assert view.state == b"79"


def test_an_output_is_published_once(open_: Open, numbers: Numbers, memory: MemoryStorage) -> None:
    """Twice in one record, or again in a later one, also by a later view, is refused."""
    view = open_()
    output = publish(view, numbers(view, 2))
    with pytest.raises(InvalidInputError, match="published once"):
        view.ack(outputs=[output, output])
    view.ack(outputs=[output])
    with pytest.raises(InvalidInputError, match="published once"):
        view.ack(outputs=[output])
    with pytest.raises(InvalidInputError, match="published once"):
        open_().ack(outputs=[output])
    assert kinds(memory) == ["OPEN", "ACK", "OPEN"]


def test_a_damaged_missing_or_swapped_output_is_an_error(
    open_: Open, numbers: Numbers, memory: MemoryStorage
) -> None:
    view = open_()
    one, other = publish(view, numbers(view, 2)), publish(view, numbers(view, 2))
    swapped = replace(one, key=other.key)
    assert len(list(read_output(memory, swapped, OUTPUT))) == 1  # same length, other rows: its own
    content = memory.read(one.key)
    memory.delete([one.key])
    with pytest.raises(NotFoundError, match=one.key):
        list(read_output(memory, one, OUTPUT))
    memory.put(one.key, [memory.read(other.key)])
    with pytest.raises(CorruptDataError, match=one.key):
        list(read_output(memory, one, OUTPUT))
    memory.delete([one.key])
    memory.put(one.key, [content])
    with pytest.raises(CorruptDataError, match=r"rows delivered are not rows committed.*output="):
        list(read_output(memory, replace(one, rows=3), OUTPUT))


# -- state


def test_state_is_kept_inline_or_by_reference_and_replaced_objects_go(
    open_: Open, memory: MemoryStorage, other_process: Forget
) -> None:
    """64 bytes are the record's own; one more is an object; None forgets it; unset keeps it."""
    view = open_()
    for size, objects in ((64, 0), (65, 1), (100, 1), (3, 0), (200, 1)):
        view.ack(state=b"s" * size)
        assert view.state == b"s" * size
        view.ack()
        other_process()
        view = open_()
        assert view.state == b"s" * size
        assert len([i for i in memory.list(ANY) if "/state/" in i.key]) == objects
        assert left_over(memory) == set()
    view.ack(state=None)
    assert view.state is None
    assert left_over(memory) == set()
    with pytest.raises(InvalidInputError, match="a state is bytes"):
        view.ack(state="text")


def test_a_state_object_that_is_not_what_was_acknowledged_is_an_error(
    open_: Open, memory: MemoryStorage
) -> None:
    view = open_()
    view.ack(state=b"s" * 100)
    (key,) = [i.key for i in memory.list(ANY) if "/state/" in i.key]
    memory.delete([key])
    with pytest.raises(NotFoundError, match=key):
        _ = view.state
    memory.put(key, [b"t" * 100])
    with pytest.raises(CorruptDataError, match=key):
        _ = view.state


def test_finish_replaces_a_state_object_too(
    open_: Open, numbers: Numbers, memory: MemoryStorage
) -> None:
    view = open_()
    view.ack(state=b"s" * 100)
    numbers(view)
    view.finish(state=b"t" * 100)
    assert open_().state == b"t" * 100
    assert left_over(memory) == set()


# -- replies that are lost
