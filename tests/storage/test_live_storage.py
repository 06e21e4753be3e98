"""The conformance kit on a storage that is not on this machine: GCS, Azure, AWS, an NFS mount.

    export DURABLE_SHUFFLE_LIVE_URL=gs://bucket/scratch
    export DURABLE_SHUFFLE_LIVE_OPTIONS='{"token": "google_default"}'      # JSON, may be left out
    pytest -m live tests/storage/test_live_storage.py

The support table in docs/storage.md says for which storages this was done. What the tests write is
deleted again.
"""

import json
import os
from collections.abc import Iterator

import pytest

from durable_shuffle.serialization.errors import NotFoundError
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.open import open_backend
from durable_shuffle.shuffle.testing.storage_conformance import StorageConformance

URL = os.environ.get("DURABLE_SHUFFLE_LIVE_URL", "")

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not URL, reason="DURABLE_SHUFFLE_LIVE_URL names no storage"),
]


class TestLiveStorage(StorageConformance):
    """All laws; a second storage object with connections of its own is the way around the first."""

    race_rounds = 3

    @pytest.fixture
    def storage(self) -> Iterator[Storage]:
        options = json.loads(os.environ.get("DURABLE_SHUFFLE_LIVE_OPTIONS", "{}"))
        url = f"{URL.rstrip('/')}/conformance-{RandomIds().new_id()}"
        self.around = open_backend(url, options)
        yield open_backend(url, options)
        self.around.delete([info.key for info in self.around.list("")])

    def raw_write(self, storage: Storage, key: str, content: bytes) -> None:
        self.around.delete([key])
        self.around.put(key, [content])

    def raw_read(self, storage: Storage, key: str) -> bytes | None:
        try:
            return self.around.read(key)
        except NotFoundError:
            return None
