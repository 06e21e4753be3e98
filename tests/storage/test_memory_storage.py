"""The reference storage keeps the contract and refuses to leave its process."""

import pickle

import pytest

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.testing.storage_conformance import OneProcessConformance


class TestMemoryStorage(OneProcessConformance):
    """All laws, with the dictionary itself as the way around the storage."""

    @pytest.fixture
    def storage(self) -> MemoryStorage:
        return MemoryStorage()

    def raw_write(self, storage: Storage, key: str, content: bytes) -> None:
        assert isinstance(storage, MemoryStorage)
        storage._objects[key] = content
        storage._written[key] = 1.0

    def raw_read(self, storage: Storage, key: str) -> bytes | None:
        assert isinstance(storage, MemoryStorage)
        return storage._objects.get(key)


def test_refuses_to_be_pickled() -> None:
    """A copy elsewhere would be another store that also says "created"."""
    with pytest.raises(InvalidInputError, match="one process"):
        pickle.dumps(MemoryStorage())


def test_keeps_its_own_copy_of_the_bytes() -> None:
    """A buffer that its writer changes afterwards does not change the object."""
    storage = MemoryStorage()
    content = bytearray(b"abc")
    storage.put("a", [content])
    content[:] = b"xyz"
    assert storage.read("a") == b"abc"
