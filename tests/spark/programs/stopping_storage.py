"""A folder as storage that stops consumers at a given record of their logs."""

import time
from collections.abc import Mapping
from pathlib import Path

from durable_shuffle.shuffle.log.layout import slot_name
from durable_shuffle.shuffle.storage import open as open_storage
from durable_shuffle.shuffle.storage.contract import Created, Exists, Storage
from durable_shuffle.shuffle.storage.local import LocalStorage


class StoppingStorage(LocalStorage):
    """Before it creates slot `slot` of a consumer's log, it creates file `stopped` and waits."""

    def __init__(self, root: str, slot: int, stopped: str) -> None:
        super().__init__(root)
        self._arguments = root, slot, stopped

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        """Wait at that slot, to be killed; create other objects."""
        _, slot, stopped = self._arguments
        if "/consumers/" in key and key.endswith(f"/{slot_name(slot)}"):
            Path(stopped).touch()
            time.sleep(300)
            raise TimeoutError("nobody killed this process")
        return super().put_if_absent(key, data)

    def __reduce__(self) -> tuple[type["StoppingStorage"], tuple[str, int, str]]:  # type: ignore[override]
        return StoppingStorage, self._arguments


def install(slot: int, stopped: str) -> None:
    """Make every folder that this process opens from now on stop its consumers."""

    def open_stopping(url: str, options: Mapping[str, object]) -> Storage:
        assert not options
        return StoppingStorage(url, slot, stopped)

    open_storage.open_backend = open_stopping
