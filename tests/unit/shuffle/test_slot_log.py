"""The slot log: one winner per slot, a bounded search for the end, no hole taken for it."""

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.log.slot_log import Lost, SlotLog, Won
from durable_shuffle.shuffle.storage.contract import ObjectInfo
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.storage.retrying import CountingStorage


def filled(slots: int) -> CountingStorage:
    """A storage whose log holds the slots 0 to `slots` - 1, written without the library."""
    storage = MemoryStorage()
    for slot in range(slots):
        storage.put_if_absent(f"log/{slot:010d}", b"record %d" % slot)
    return CountingStorage(storage)


def test_append_creates_the_padded_object(storage: MemoryStorage) -> None:
    """Slot 12 is the object 0000000012 with exactly the record's bytes."""
    assert SlotLog(storage, "log/").append(12, b"x") == Won()
    assert [(i.key, i.size_bytes) for i in storage.list("")] == [("log/0000000012", 1)]


def test_the_second_append_loses_and_gets_the_winners_bytes(storage: MemoryStorage) -> None:
    """Nothing is overwritten."""
    log = SlotLog(storage, "log/")
    assert log.append(0, b"first") == Won()
    assert log.append(0, b"second") == Lost(b"first")
    assert log.read(0) == b"first"


def test_the_same_bytes_win_again(storage: MemoryStorage) -> None:
    """Identical bytes are the author's own earlier try."""
    log = SlotLog(storage, "log/")
    assert log.append(0, b"mine") == Won()
    assert log.append(0, b"mine") == Won()


def test_an_empty_slot_reads_as_none(storage: MemoryStorage) -> None:
    """Missing is None; a record of zero bytes is a record."""
    log = SlotLog(storage, "log/")
    assert log.read(0) is None
    log.append(0, b"")
    assert log.read(0) == b""


def test_read_from_stops_at_the_first_empty_slot() -> None:
    """Slots come in order, with their numbers; what stands behind a gap is not read."""
    storage = filled(3)
    storage.put_if_absent("log/0000000004", b"behind the gap")
    log = SlotLog(storage, "log/")
    assert list(log.read_from()) == [(s, b"record %d" % s) for s in range(3)]
    assert list(log.read_from(2)) == [(2, b"record 2")]
    assert list(log.read_from(3)) == []


@given(slots=st.integers(0, 300), hint=st.integers(0, 600))
def test_find_end_is_right_from_any_hint(slots: int, hint: int) -> None:
    """The first empty slot is found from a hint below, at and above it, in few requests."""
    storage = filled(slots)
    assert SlotLog(storage, "log/").find_end(hint) == slots
    distance = abs(slots - hint) if hint < slots else hint
    assert storage.counts["read"] <= 3 + 2 * max(1, distance).bit_length()
    assert storage.counts["list"] == 0


@given(slots=st.integers(1, 60), lost=st.sets(st.integers(0, 59), max_size=5))
def test_whole_end_refuses_a_hole_and_names_the_first(slots: int, lost: set[int]) -> None:
    """Slots that are missing at the end cannot be told; one before another record is named."""
    storage = filled(slots)
    lost = {slot for slot in lost if slot < slots}
    storage.delete([f"log/{slot:010d}" for slot in lost])
    left = [slot for slot in range(slots) if slot not in lost]
    holes = [slot for slot in lost if left and slot < left[-1]]
    log = SlotLog(storage, "log/")
    if holes:
        with pytest.raises(CorruptDataError, match=f"log/{min(holes):010d}"):
            log.whole_end()
    else:
        assert log.whole_end() == len(left)


class Behind(MemoryStorage):
    """A storage whose listings leave the newest and some other objects out."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        found = list(super().list(prefix))
        return iter(found[:-3:2])


def test_a_listing_that_is_behind_is_no_proof() -> None:
    """What it leaves out is read; nothing is refused and no record is missed."""
    storage = Behind()
    log = SlotLog(storage, "log/")
    for slot in range(11):
        log.append(slot, b"record %d" % slot)
    assert log.whole_end() == 11


def test_a_hole_at_the_end_that_was_found_is_refused() -> None:
    """A record behind the first empty slot: unless that slot was filled meanwhile."""
    storage = filled(9)
    log = SlotLog(storage, "log/")
    log.refuse_hole(9)
    log.refuse_hole(4)
    storage.delete(["log/0000000004"])
    with pytest.raises(CorruptDataError, match=r"log/0000000004.*run `durable-shuffle verify`"):
        log.refuse_hole(4)


@pytest.mark.parametrize("slots", [0, 1, 2, 1000])
def test_find_end_without_a_hint(slots: int) -> None:
    """From 0 it takes at most twice the logarithm of the length."""
    storage = filled(slots)
    assert SlotLog(storage, "log/").find_end() == slots
    assert storage.counts["read"] <= 2 + 2 * slots.bit_length()


def test_eight_threads_append_to_one_slot_and_one_wins(storage: MemoryStorage) -> None:
    """All losers get the winner's bytes; 100 rounds."""
    log = SlotLog(storage, "log/")
    for slot in range(100):
        barrier, answers = threading.Barrier(8), [None] * 8

        def append(i: int, slot=slot, barrier=barrier, answers=answers) -> None:
            barrier.wait(60)
            answers[i] = log.append(slot, b"thread %d" % i)

        threads = [threading.Thread(target=append, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        winners = [i for i, answer in enumerate(answers) if answer == Won()]
        assert len(winners) == 1
        record = b"thread %d" % winners[0]
        assert answers.count(Lost(record)) == 7
        assert storage.read(f"log/{slot:010d}") == record
