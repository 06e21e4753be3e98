"""What tests of views share: a sealed stage in memory and a short way to open views of it."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sealed_stage import SealedStage, sealed_stage
from small_stage import ManualClock, SeededIds

from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.open_view import forget_views, open_view
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.memory import MemoryStorage

Open = Callable[..., View]

READING = Settings(
    view_memory_bytes=8192, view_buffer_bytes=2048, view_prefetch=False, inline_state_bytes=64
)


@pytest.fixture
def ids(seed: int) -> SeededIds:
    """Ids that repeat with the seed of the run."""
    return SeededIds(random.Random(seed))


@pytest.fixture
def memory() -> MemoryStorage:
    """A storage of one process."""
    return MemoryStorage()


@pytest.fixture
def made(memory: MemoryStorage, ids: SeededIds) -> SealedStage:
    """Two producers, two partitions, 80 rows each, several frames, two segments."""
    return sealed_stage(memory, ids)


@pytest.fixture
def other_process() -> Iterator[Callable[[], None]]:
    """Return what makes all views so far those of another process: nothing here knows of them."""

    def forget() -> None:
        forget_views()

    forget()
    yield forget
    forget()


@pytest.fixture
def open_(made: SealedStage, ids: SeededIds) -> Open:
    """Return what opens a view of partition 0, on a storage of choice."""

    def opening(k: int = 0, *, storage: Storage | None = None, **how: Any) -> View:
        stage = made.stage if storage is None else made.on(storage)
        options = {"consumer": "c", "settings": READING, "ids": ids, "clock": ManualClock(0.0, [])}
        return open_view(stage, k, **{**options, **how})

    return opening


@pytest.fixture
def numbers() -> Callable[..., list[int]]:
    """Return what reads the numbers of up to `count` more rows of a view."""

    def read(view: View, count: int | None = None) -> list[int]:
        found: list[int] = []
        if count == 0:
            return found
        for row in view.records():
            found.append(row["n"])
            if len(found) == count:
                break
        return found

    return read
