"""The conformance kit on a storage that is not on this machine: GCS, Azure, AWS, an NFS mount.

    export DURABLE_SHUFFLE_LIVE_URL=gs://bucket/scratch
    export DURABLE_SHUFFLE_LIVE_OPTIONS='{"token": "google_default"}'      # JSON, may be left out
    pytest -m live tests/storage/test_live_storage.py

The support table in docs/storage.md says for which storages this was done. What the tests write is
deleted again.
"""

import json
import os

import pytest
from around_storage import AroundStorage

URL = os.environ.get("DURABLE_SHUFFLE_LIVE_URL", "")

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not URL, reason="DURABLE_SHUFFLE_LIVE_URL names no storage"),
]


class TestLiveStorage(AroundStorage):
    """All laws."""

    @pytest.fixture
    def place(self) -> tuple[str, dict[str, object]]:
        return URL, json.loads(os.environ.get("DURABLE_SHUFFLE_LIVE_OPTIONS", "{}"))
