"""What the tests of pipelines share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from one_consumer import OneConsumer
from steered import Operated


@pytest.fixture
def one(tmp_path: Path) -> OneConsumer:
    """A consumer on a storage of its own."""
    return OneConsumer(tmp_path)


@pytest.fixture
def operated(tmp_path: Path) -> Iterator[Operated]:
    """A pipeline that is cancelled at the end, however that is reached."""
    found = Operated(tmp_path)
    yield found
    if found.running is not None and not found.running.ended:
        found.end("CANCEL")
