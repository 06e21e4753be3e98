"""The conformance kit on a storage of another process: a second object is the way around it."""

from collections.abc import Iterator

import pytest

from durable_shuffle.serialization.errors import NotFoundError
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.open import open_backend
from durable_shuffle.shuffle.testing.storage_conformance import StorageConformance


class AroundStorage(StorageConformance):
    """All laws. A subclass has a fixture `place`: the URL and the options of the storage."""

    race_rounds = 3

    @pytest.fixture
    def storage(self, place: tuple[str, dict[str, object]]) -> Iterator[Storage]:
        url, options = f"{place[0].rstrip('/')}/conformance-{RandomIds().new_id()}", place[1]
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
