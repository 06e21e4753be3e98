"""Records of a pipeline that no writer writes, but that somebody stored."""

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from small_stage import SeededIds

from durable_shuffle.recovery.pipeline.commands.requests import AllowRelease
from durable_shuffle.recovery.pipeline.coordinator.stage_work import allow_release
from durable_shuffle.serialization.errors import InvalidInputError


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
