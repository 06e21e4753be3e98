"""What the tests of pipelines share."""

from pathlib import Path

import pytest
from one_consumer import OneConsumer


@pytest.fixture
def one(tmp_path: Path) -> OneConsumer:
    """A consumer on a storage of its own."""
    return OneConsumer(tmp_path)
