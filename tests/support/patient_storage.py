"""A storage of two objects, and the retry layer over one on a clock that does not sleep."""

from small_stage import ManualClock

from durable_shuffle.shuffle.base.retry import Backoff
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.storage.retrying import RetryingStorage, StorageRetries

PATIENCE = StorageRetries(
    Backoff(4, 1.0, multiplier=2, cap_seconds=4), call_seconds=60, task_seconds=300
)


def filled() -> MemoryStorage:
    """Two objects."""
    storage = MemoryStorage()
    storage.put_if_absent("a", b"bytes")
    storage.put_if_absent("b", b"more")
    return storage


def patient(
    storage: Storage, retries: StorageRetries = PATIENCE
) -> tuple[RetryingStorage, ManualClock]:
    """The layer on a clock that does not sleep."""
    clock = ManualClock(0.0, [])
    return RetryingStorage(storage, retries, clock=clock, jitter=lambda: 0.0), clock
