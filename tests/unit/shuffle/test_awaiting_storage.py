"""A task that started early stores nothing before its driver's records stand."""

import threading
from typing import Any

import pytest

from durable_shuffle.serialization.control import ControlRecord
from durable_shuffle.serialization.errors import CorruptDataError, UnavailableError
from durable_shuffle.shuffle.base.clock import SystemClock
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.typed_log import AnyRecord
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.write.awaited import Awaited, AwaitingStorage

JOB, STAGE = "job/log/", "job/s-1-2/log/"


def put(storage: MemoryStorage, prefix: str, slot: int, record_id: str) -> None:
    record = AnyRecord().encode(ControlRecord("ANY", {"record_id": record_id}))
    SlotLog(storage, prefix).append(slot, record)


def awaiting(
    storage: MemoryStorage, *records: Awaited, patience_seconds: float = 60.0
) -> AwaitingStorage:
    return AwaitingStorage(storage, records, clock=SystemClock(), patience_seconds=patience_seconds)


@pytest.mark.parametrize("verb", ["put", "put_if_absent", "delete"])
def test_the_first_write_waits_for_all_records_and_reads_do_not(verb: str) -> None:
    """In the order in which they come; slots may hold what others wrote."""
    storage = MemoryStorage()
    storage.put("old/there", [b"old"])
    held = awaiting(storage, Awaited(JOB, 3, "mine"), Awaited(STAGE, 1, "seal"))
    arguments: dict[str, tuple[Any, ...]] = {
        "put": ("new", [b"1"]),
        "put_if_absent": ("new", b"1"),
        "delete": (["old/there"],),
    }
    done = threading.Event()

    def write() -> None:
        getattr(held, verb)(*arguments[verb])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert held.read("old/there") == b"old"
    assert [info.key for info in held.list("old/")] == ["old/there"]
    for prefix, slot, record_id in ((JOB, 3, "another's"), (STAGE, 1, "seal")):
        put(storage, prefix, slot, record_id)
        assert not done.wait(0.3), "a record is missing still"
    put(storage, JOB, 4, "mine")
    writer.join(60)
    assert done.is_set()


def test_patience_ends_with_an_error_that_may_pass() -> None:
    """It names the slot; and the write is not made."""
    storage = MemoryStorage()
    held = awaiting(storage, Awaited(JOB, 3, "mine"), patience_seconds=0.0)
    with pytest.raises(UnavailableError, match="job/log/0000000003"):
        held.put("new/1", [b"1"])
    assert not list(storage.list("new/"))
    put(storage, JOB, 3, "mine")
    with pytest.raises(UnavailableError):
        held.put_if_absent("new", b"1")


def test_a_damaged_record_is_no_record() -> None:
    storage = MemoryStorage()
    storage.put(SlotLog(storage, JOB).key(3), [b"torn"])
    held = awaiting(storage, Awaited(JOB, 3, "mine"))
    with pytest.raises(CorruptDataError):
        held.put("new/1", [b"1"])
