"""What the tests of the shuffle layer share."""

import random

import pytest
from small_stage import SeededIds

from durable_shuffle.shuffle.storage.memory import MemoryStorage


@pytest.fixture
def draw(seed: int) -> random.Random:
    """Chooses anew in each run, in CI the same."""
    print("seed", seed)
    return random.Random(seed)


@pytest.fixture
def storage() -> MemoryStorage:
    """An empty storage."""
    return MemoryStorage()


@pytest.fixture
def ids() -> SeededIds:
    """Ids that are the same in every run."""
    return SeededIds(random.Random(0))
