"""A successor seeks to where it starts, also where that was reserved, or passed in raw bytes."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from sealed_stage import Measured, sealed_stage
from small_stage import SeededIds

from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.storage.memory import MemoryStorage

SETTINGS = Settings(
    view_memory_bytes=8192, view_buffer_bytes=2048, view_prefetch=False, reserve_records=1
)
FRAME_RECORDS = 13
"""In a frame of the stages below; a segment has 17 such frames."""


@pytest.mark.requirement("R-F135-16")
@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("percent", [1, 50, 99])
def test_an_approximate_view_seeks_to_what_was_reserved(
    memory: MemoryStorage,
    ids: SeededIds,
    numbers: Callable[..., list[int]],
    other_process: Callable[[], None],
    percent: int,
    released: bool,
) -> None:
    """It reads two frames at most, in pieces, to its first record: the one behind the dropped."""
    made = sealed_stage(memory, ids, producers=1, partitions=1, rows=2000, chars=300)
    everything = made.of(0)
    how: dict[str, Any] = {"consumer": "c", "resume": "approximate"}
    how |= {"settings": SETTINGS, "ids": ids}
    view = open_view(made.stage, 0, **how)
    count = len(everything) * percent // 100
    numbers(view, count)
    view.ack(view.position)
    numbers(view, 3)
    if released:
        view.release()
    other_process()
    measured = Measured(memory)
    view = open_view(made.on(measured), 0, **how)
    dropped = view.statistics().records_dropped
    assert dropped == 3 if released else 3 <= dropped <= 3 + FRAME_RECORDS
    assert numbers(view, 1) == everything[count + dropped : count + dropped + 1]
    assert measured.read_bytes <= 2 * SETTINGS.view_memory_bytes
    assert measured.counts["read_range"] <= 8


@pytest.mark.requirement("R-F135-15")
@pytest.mark.parametrize("rows", [300, 3000])
def test_raw_buffers_are_gone_on_with_where_they_were_acknowledged(
    memory: MemoryStorage, ids: SeededIds, other_process: Callable[[], None], rows: int
) -> None:
    """Each view acknowledges what two buffers hold: none reads its way there from the segment's
    start, whatever was acknowledged."""
    made = sealed_stage(memory, ids, producers=1, partitions=1, rows=rows, chars=300)
    settings = Settings(view_memory_bytes=32768, view_buffer_bytes=16384, view_prefetch=False)
    how: dict[str, Any] = {"consumer": "c", "settings": settings, "ids": ids}
    measured = Measured(memory)
    views, got = 0, 0
    while True:
        before = measured.read_bytes
        view = open_view(made.on(measured), 0, **how)
        buffers = list(itertools.islice(view.buffers(), 2))
        views += 1
        if not buffers:
            break
        view.ack()
        # one more than two, since it begins with the last buffer of the view before
        assert measured.read_bytes - before <= 3 * settings.view_buffer_bytes
        assert view.acknowledged.records > got
        got = view.acknowledged.records
        other_process()
    assert got == rows
    assert views > rows * 300 // (2 * settings.view_buffer_bytes)
