"""A queue between extents and one view at a time: the subpartition cases, credit, takeover.

Records are frames of numbers put together by the test; a feed of the test's own plays the producer
that may write more later. What is asserted are numbers that come out, not fields of buffers.
"""

import struct
import zlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    FencedError,
    NotFoundError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.read.buffer_queue import BufferQueue, QueuedBuffer
from durable_shuffle.shuffle.read.extents import Extent
from durable_shuffle.shuffle.read.feed import EndOfInput
from durable_shuffle.shuffle.storage.contract import ByteRange
from durable_shuffle.shuffle.storage.memory import MemoryStorage

HEADER, NUMBER = 24, 8
BUFFER = HEADER + 4 * NUMBER
"""A record of four numbers fills a buffer."""


def frame(body: bytes, *, kind: int = 1, flags: int = 0, rows: int = 1) -> bytes:
    """One frame, put together by hand; bodies are multiples of 8 here."""
    first = b"\x89DSF" + struct.pack("<BBHIII", kind, flags, 0, rows, len(body), zlib.crc32(body))
    return first + struct.pack("<I", zlib.crc32(first)) + body


def record(*numbers: int, flags: int = 0) -> bytes:
    body = b"".join(n.to_bytes(NUMBER, "little") for n in numbers)
    return frame(body, flags=flags, rows=0 if flags else 1)


def marker() -> bytes:
    return frame(b"m" * 8, kind=3, rows=0)


class Partition:
    """A subpartition that a test writes to, and the feed of it."""

    producers = 1

    def __init__(
        self, *, prefetch: bool = False, memory: int = 4 * BUFFER, size: int = BUFFER
    ) -> None:
        self.storage = MemoryStorage()
        self.settings = Settings(
            view_memory_bytes=memory, view_buffer_bytes=size, view_prefetch=prefetch
        )
        self.extents: list[Extent] = []
        self.given = 0
        self.rows = 0
        self.ended = False
        self.queue = BufferQueue(self.storage, self, self.settings, {})

    def write(self, *records: bytes) -> None:
        """Append one extent."""
        key, data = f"s{len(self.extents)}", b"".join(records)
        rows = sum(not r[5] & 1 and r[4] != 3 for r in records)
        self.storage.put(key, [data])
        self.extents.append(Extent(0, 0, key, 0, 0, 0, len(data), self.rows, rows))
        self.rows += rows

    def poll(self) -> Extent | EndOfInput | None:
        if self.given < len(self.extents):
            self.given += 1
            return self.extents[self.given - 1]
        return EndOfInput(("FINITE",)) if self.ended else None

    def take(self, owner: str, count: int = 1000) -> bytes:
        """Poll up to `count` buffers and join them."""
        found = b""
        for _ in range(count):
            queued = self.queue.poll(owner)
            if not isinstance(queued, QueuedBuffer):
                break
            found += bytes(queued.buffer.data)
        return found


@pytest.mark.requirement("R-F135-9")
@pytest.mark.requirement("R-F135-5")
def test_a_new_view_begins_with_sequence_0_full_credit_and_a_trim_if_one_is_due() -> None:
    """The first view trims nothing; the one that follows in the middle of a record does."""
    partition = Partition()
    partition.write(record(0, 1, 2, 3, 42), record(8, 9))
    queue = partition.queue
    queue.attach("v1")
    first = queue.poll("v1")
    assert isinstance(first, QueuedBuffer)
    assert (first.sequence, bytes(first.buffer.data)[:4]) == (0, b"\x89DSF")
    assert queue.in_flight_bytes > 0
    queue.attach("v2")
    assert queue.trimmed_bytes == 0
    second = queue.poll("v2")
    assert isinstance(second, QueuedBuffer)
    assert (second.sequence, bytes(second.buffer.data)) == (0, record(8, 9))
    assert queue.trimmed_bytes == NUMBER


@pytest.mark.requirement("R-F135-6")
def test_a_superseded_view_takes_nothing_from_its_successor() -> None:
    """It is told so and no buffer is gone."""
    partition = Partition()
    partition.write(record(1), record(2), record(3))
    partition.queue.attach("v1")
    partition.queue.attach("v2")
    for _ in range(3):
        with pytest.raises(FencedError, match="mine=v1 newest=v2"):
            partition.queue.poll("v1")
    assert partition.take("v2") == record(1) + record(2) + record(3)


@pytest.mark.requirement("R-F135-12")
def test_the_skip_ends_in_a_buffer_and_there_is_no_more_data() -> None:
    """Nothing comes until more is written."""
    partition = Partition()
    partition.write(record(0, 1, 2, 3, 42))
    partition.queue.attach("v1")
    partition.take("v1", 1)
    partition.queue.attach("v2")
    assert partition.take("v2") == b""
    partition.write(record(8, 9))
    assert partition.take("v2") == record(8, 9)


@pytest.mark.requirement("R-F135-12")
def test_the_skip_ends_in_a_buffer_and_there_is_more_data() -> None:
    partition = Partition()
    partition.write(record(0, 1, 2, 3, 42), record(8, 9))
    partition.queue.attach("v1")
    partition.take("v1", 1)
    partition.queue.attach("v2")
    assert partition.take("v2") == record(8, 9)


@pytest.mark.requirement("R-F135-12")
def test_starting_with_a_full_record_skips_nothing() -> None:
    partition = Partition()
    partition.write(record(0, 1, 2, 3), record(42, 8, 9))
    partition.queue.attach("v1")
    partition.queue.attach("v2")
    assert partition.take("v2", 1) == record(0, 1, 2, 3)
    partition.queue.attach("v3")
    assert partition.take("v3") == record(42, 8, 9)


@pytest.mark.requirement("R-F135-12")
def test_starting_behind_whole_records_skips_nothing() -> None:
    """The view before stopped at a record's end: the next record comes, and later ones."""
    partition = Partition()
    partition.write(record(0, 1, 2, 3, 42), record(8, 9, 10))
    partition.queue.attach("v1")
    assert partition.take("v1", 3) == record(0, 1, 2, 3, 42) + record(8, 9, 10)
    partition.write(record(11))
    partition.queue.attach("v2")
    assert partition.take("v2") == record(11)


@pytest.mark.requirement("R-F135-12")
@pytest.mark.requirement("R-F135-14")
def test_a_long_record_fills_buffers_and_there_is_no_more_data() -> None:
    """All of them are swallowed, each gives back its credit and takes its number."""
    partition = Partition(memory=2 * BUFFER)
    partition.write(record(*range(40)))
    partition.queue.attach("v1")
    partition.take("v1", 1)
    partition.queue.attach("v2")
    assert partition.take("v2") == b""
    assert partition.queue.in_flight_bytes == 0
    partition.write(record(100))
    queued = partition.queue.poll("v2")
    assert isinstance(queued, QueuedBuffer)
    swallowed = -(-(HEADER + 40 * NUMBER) // BUFFER) - 1
    assert (queued.sequence, bytes(queued.buffer.data)) == (swallowed, record(100))


@pytest.mark.requirement("R-F135-12")
def test_a_long_record_with_more_data_is_trimmed_and_so_is_the_one_behind_it() -> None:
    """100 comes; the view stops in the middle of 101; the next one begins with 200."""
    partition = Partition(size=BUFFER)
    long = record(*range(9))
    partition.write(long, record(100), record(101, *[0] * 30, 102), record(200, 201, 202))
    partition.queue.attach("v1")
    partition.take("v1", 1)
    partition.queue.attach("v2")
    got = partition.take("v2", 2)
    assert got.startswith(record(100))
    assert got != record(100)  # it stops inside the next one
    assert len(got) < len(record(100)) + len(record(101, *[0] * 30, 102))
    partition.queue.attach("v3")
    assert partition.take("v3") == record(200, 201, 202)
    partition.write(record(203))
    assert partition.take("v3") == record(203)


@pytest.mark.requirement("R-F135-12")
def test_a_long_record_that_ends_with_its_buffer_is_skipped_to_there() -> None:
    """The last of its buffers holds nothing else; what follows comes whole."""
    partition = Partition()
    long = record(*range(11))  # 24 + 88 = two buffers exactly
    assert len(long) == 2 * BUFFER
    partition.write(long, record(100), record(101), record(102))
    partition.queue.attach("v1")
    assert len(partition.take("v1", 1)) == BUFFER
    partition.queue.attach("v2")
    assert partition.take("v2") == record(100) + record(101) + record(102)


@pytest.mark.requirement("R-F135-13")
def test_a_marker_in_the_middle_of_a_record_does_not_end_the_skip() -> None:
    """It comes in its order; the first data behind it is a whole record."""
    partition = Partition()
    partition.write(record(1, 2, 3, 4, flags=1), marker(), record(5, 6), record(100))
    partition.queue.attach("v1")
    partition.take("v1", 1)
    partition.queue.attach("v2")
    assert partition.take("v2") == marker() + record(100)


@pytest.mark.requirement("R-F135-14")
@pytest.mark.requirement("R-F135-29")
@pytest.mark.parametrize("prefetch", [False, True])
def test_records_of_many_buffers_pass_through_the_least_credit(prefetch: bool) -> None:
    """One buffer out and one being fetched: it neither hangs nor takes more."""
    partition = Partition(prefetch=prefetch, memory=2 * BUFFER)
    records = [record(*range(n)) for n in (1, 40, 3, 17)]
    partition.write(*records)
    partition.ended = True
    queue = partition.queue
    queue.attach("v1")
    got = b""
    while isinstance(queued := queue.poll("v1"), QueuedBuffer):
        got += bytes(queued.buffer.data)
        assert queue.in_flight_bytes < 2 * BUFFER + HEADER
    assert got == b"".join(records)
    queue.close(keep=False)


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    extents=st.integers(1, 4),
    buffer=st.integers(1, 400),
    switches=st.lists(st.integers(1, 12), max_size=5),
)
@pytest.mark.requirement("R-F135-12")
@pytest.mark.requirement("R-F135-16")
def test_views_that_take_over_anywhere_lose_only_the_records_they_split(
    sizes: Sequence[int], extents: int, buffer: int, switches: Sequence[int]
) -> None:
    """Every view gets whole records, but for its last; no record comes to two views."""
    partition = Partition(memory=4 * buffer, size=buffer)
    records = [record(*([n] * size)) for n, size in enumerate(sizes)]
    step = -(-len(records) // extents)
    for start in range(0, len(records), step):
        partition.write(*records[start : start + step])
    partition.ended = True
    got: list[bytes] = []
    for n, count in enumerate([*switches, 10_000]):
        partition.queue.attach(f"v{n}")
        got.append(partition.take(f"v{n}", count))
    at = 0
    for n, data in enumerate(got):
        while data and at < len(records):
            if data.startswith(records[at]):
                data = data[len(records[at]) :]
            else:
                assert n < len(got) - 1
                assert records[at].startswith(data)  # a record that this view got half
                data = b""
            at += 1
        assert data == b""
    assert at == len(records)


# -- faults


class Interrupted(MemoryStorage):
    """Ctrl-C in the middle of the second fetch."""

    fetches = 0

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        self.fetches += 1
        if self.fetches == 2:
            raise KeyboardInterrupt
        return super().read_ranges(ranges)


@pytest.mark.parametrize("prefetch", [False, True])
def test_after_an_interrupted_fetch_nothing_is_left_out(prefetch: bool) -> None:
    """The extents of that fetch are gone from the feed: going on would lose them silently."""
    partition = Partition(prefetch=prefetch, memory=2 * BUFFER)
    for n in range(6):
        partition.write(record(n, 0, 0, 0))
    partition.ended = True
    storage = Interrupted()
    for extent in partition.extents:
        storage.put(extent.key, [partition.storage.read(extent.key)])
    queue = BufferQueue(storage, partition, partition.settings, {})
    queue.attach("v1")
    with pytest.raises(KeyboardInterrupt):
        list(iter(lambda: queue.poll("v1"), None))
    assert queue.failed
    for _ in range(2):
        with pytest.raises(UnavailableError, match="open the view again"):
            queue.poll("v1")
    queue.close(keep=False)


def test_a_missing_segment_is_an_error_again_and_again() -> None:
    """Asking once more does not step over it."""
    partition = Partition()
    partition.write(record(1))
    partition.write(record(2))
    partition.storage.delete(["s0"])
    partition.queue.attach("v1")
    for _ in range(3):
        with pytest.raises(NotFoundError, match="s0"):
            partition.queue.poll("v1")


def test_an_extent_that_ends_inside_a_record_is_corrupt() -> None:
    """The extent's length and its frames must agree."""
    partition = Partition()
    partition.write(record(1, 2)[:-8])
    partition.queue.attach("v1")
    with pytest.raises(CorruptDataError, match="ends inside a frame"):
        partition.take("v1")
