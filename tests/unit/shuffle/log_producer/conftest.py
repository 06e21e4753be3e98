"""A stage of two log producers, and what opens one."""

import random
from typing import Any

import pytest
from log_producers import PARTITIONS, Open
from small_log import SCHEMA
from small_stage import SMALL, SeededIds, new_stage

from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.write.log_producer import LogProducer


@pytest.fixture
def ids(seed: int) -> SeededIds:
    return SeededIds(random.Random(seed))


@pytest.fixture
def stage(ids: SeededIds) -> StageHandle:
    """A stage of two log producers."""
    return new_stage(
        MemoryStorage(), ids, SCHEMA, partitions=PARTITIONS, producers=2, writing="log"
    )


@pytest.fixture
def open_producer(stage: StageHandle, ids: SeededIds) -> Open:
    """Return what opens producer 0; `storage` may stand in for the stage's."""

    def opened(*, generation: int = 1, storage: Any = None, producer: int = 0) -> LogProducer:
        return LogProducer.open(
            StageHandle(storage or stage.storage, stage.path, stage.describe),
            producer,
            record_id=ids.new_id(),
            generation=generation,
            settings=SMALL,
        )

    return opened
