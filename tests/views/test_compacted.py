"""A view goes on in the compacted stage exactly where it stopped in the one before."""

from collections.abc import Callable

import pytest

from durable_shuffle.shuffle.clock import RandomIds
from durable_shuffle.shuffle.compaction import compact_stage
from durable_shuffle.shuffle.counting_storage import CountingStorage
from durable_shuffle.shuffle.memory_storage import MemoryStorage
from durable_shuffle.shuffle.open_view import open_view
from durable_shuffle.shuffle.settings import Settings
from durable_shuffle.shuffle.testing.sealed_stage import SealedStage, sealed_stage
from durable_shuffle.shuffle.testing.small_stage import SeededIds
from durable_shuffle.shuffle.view import View

Open = Callable[..., View]
Numbers = Callable[..., list[int]]
Forget = Callable[[], None]


def compact(made: SealedStage) -> None:
    """Move everything."""
    done = compact_stage(made.stage, ids=RandomIds(), generation=1, settings=Settings())
    assert done.won


@pytest.mark.requirement("R-F135-15")
@pytest.mark.parametrize("count", [0, 1, 7, 39, 40, 41, 79, 80])
def test_a_position_from_before_holds(
    made: SealedStage, open_: Open, numbers: Numbers, other_process: Forget, count: int
) -> None:
    """Whatever was acknowledged by the old index: no record twice, none lost, in order."""
    view = open_()
    assert numbers(view, count) == made.of(0)[:count]
    view.ack()
    compact(made)
    other_process()
    view = open_()
    more = numbers(view, 5)
    view.ack()
    other_process()
    assert more + numbers(open_()) == made.of(0)[count:]


def test_a_view_that_is_open_reads_on(made: SealedStage, open_: Open, numbers: Numbers) -> None:
    """The originals stay: it notices nothing."""
    view = open_()
    first = numbers(view, 10)
    compact(made)
    assert first + numbers(view) == made.of(0)


def test_many_small_extents_come_by_few_requests(memory: MemoryStorage, ids: SeededIds) -> None:
    """A view of a compacted partition asks for its index, then for everything at once."""
    made = sealed_stage(memory, ids, producers=40, partitions=2, rows=4, chars=20)
    compact(made)
    counting = CountingStorage(memory)
    view = open_view(made.on(counting), 0, consumer="c", settings=Settings(), ids=ids)
    assert [row["n"] for row in view.records()] == made.of(0)
    assert counting.counts["read_range"] <= 4
