"""Plan the requests for a sequence of ranges: join near ranges, send a few requests at once.

A request costs as much time as the transfer of some hundred kilobytes. So ranges that are close
together in one object are fetched with one request that includes the gap. The order of the ranges
is kept, and only ranges that follow each other in that order are joined.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from durable_shuffle.shuffle.storage.contract import ByteRange, Storage

NEAR_BYTES = 64 * 1024
"""A gap of at most this many bytes is fetched too, instead of sending a second request."""

RUN_BYTES = 8 << 20
"""A joined request is at most this long, so that several requests fetch large data at once."""

REQUESTS_AT_ONCE = 16

GROUP_BYTES = 4 << 20
GROUPS_AT_ONCE = 8
"""What a reader fetches where requests take long, while it uses what came before."""

PIECE_BYTES = 16 << 20
"""A long range is fetched and held in pieces of at least this length. What its length is stated to
be may be forged: a sparse file of any length takes no space."""


@dataclass(frozen=True, slots=True)
class JoinedRange:
    """One request and the ranges that it serves."""

    where: ByteRange
    inside: tuple[ByteRange, ...]
    """In order; each within `where`."""

    def parts(self, data: memoryview) -> Iterator[tuple[ByteRange, memoryview]]:
        """Yield each range with its bytes, given those of the run."""
        for wanted in self.inside:
            start = wanted.start - self.where.start
            yield wanted, data[start : start + wanted.length]


def join_near(
    ranges: Iterable[ByteRange], *, near_bytes: int = NEAR_BYTES, run_bytes: int = RUN_BYTES
) -> Iterator[JoinedRange]:
    """Yield the requests for `ranges`, in order.

    Args:
        near_bytes: the widest gap inside a request, inclusive.
        run_bytes: the longest joined request, inclusive; a single range may be longer.
    """
    held: list[ByteRange] = []
    for wanted in ranges:
        if held and not can_join(
            held[0], held[-1], wanted, near_bytes=near_bytes, run_bytes=run_bytes
        ):
            yield _run(held)
            held = []
        held.append(wanted)
    if held:
        yield _run(held)


def can_join(
    first: ByteRange, last: ByteRange, wanted: ByteRange, *, near_bytes: int, run_bytes: int
) -> bool:
    """Return whether the request for `first` to `last` may be extended to fetch `wanted` too."""
    gap = wanted.start - (last.start + last.length)
    whole = wanted.start + wanted.length - first.start
    return wanted.key == first.key and 0 <= gap <= near_bytes and whole <= run_bytes


def read_runs(storage: Storage, runs: Sequence[JoinedRange]) -> list[memoryview]:
    """Return the bytes of every range of every run, in order."""
    contents = storage.read_ranges([run.where for run in runs])
    return [part for run, data in zip(runs, contents, strict=True) for _, part in run.parts(data)]


def read_pieces(storage: Storage, where: ByteRange, piece_bytes: int) -> Iterator[memoryview]:
    """Yield the bytes of a range in order, each piece fetched when it is asked for.

    One piece of no bytes if the range is empty, so that a missing object is noticed.
    """
    end = where.start + where.length
    for start in range(where.start, max(end, where.start + 1), piece_bytes):
        yield storage.read_range(where.key, start, min(piece_bytes, end - start))


def grouped(
    runs: Iterable[JoinedRange], *, most_bytes: int, at_once: int = REQUESTS_AT_ONCE
) -> Iterator[Sequence[JoinedRange]]:
    """Yield the runs, in order, in groups that are small enough to be fetched at once.

    Args:
        most_bytes: most bytes of a group, inclusive; a single run may be longer.
        at_once: most requests of a group.
    """
    group: list[JoinedRange] = []
    size = 0
    for run in runs:
        if group and (len(group) == at_once or size + run.where.length > most_bytes):
            yield group
            group, size = [], 0
        group.append(run)
        size += run.where.length
    if group:
        yield group


def _run(held: Sequence[ByteRange]) -> JoinedRange:
    first, last = held[0], held[-1]
    length = last.start + last.length - first.start
    return JoinedRange(ByteRange(first.key, first.start, length), tuple(held))
