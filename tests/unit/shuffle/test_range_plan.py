"""Requests for ranges: each byte once and in order, few requests, memory bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_shuffle.shuffle.storage.contract import ByteRange
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.storage.range_plan import JoinedRange, grouped, join_near, read_runs

SIZE = 300
RANGES = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, SIZE), st.integers(0, 80)).map(
        lambda drawn: ByteRange(drawn[0], drawn[1], min(drawn[2], SIZE - drawn[1]))
    ),
    max_size=40,
)


def plan(*places: tuple[str, int, int], near: int = 10, most: int = 100) -> list[tuple[int, int]]:
    """Return (start, length) of the requests for ranges of these keys, starts and lengths."""
    ranges = [ByteRange(*place) for place in places]
    return [
        (run.where.start, run.where.length)
        for run in join_near(ranges, near_bytes=near, run_bytes=most)
    ]


@pytest.mark.parametrize(
    ("places", "requests"),
    [
        ((), []),
        ((("a", 5, 3),), [(5, 3)]),
        ((("a", 0, 5), ("a", 5, 5), ("a", 20, 5)), [(0, 25)]),
        ((("a", 0, 5), ("a", 16, 5)), [(0, 5), (16, 5)]),
        ((("a", 0, 5), ("b", 5, 5)), [(0, 5), (5, 5)]),
        ((("a", 10, 5), ("a", 0, 5)), [(10, 5), (0, 5)]),
        ((("a", 0, 5), ("a", 3, 5)), [(0, 5), (3, 5)]),
        ((("a", 0, 60), ("a", 60, 40), ("a", 100, 1)), [(0, 100), (100, 1)]),
        ((("a", 0, 500), ("a", 500, 1)), [(0, 500), (500, 1)]),
    ],
    ids=["none", "one", "near", "far", "other", "back", "overlap", "long", "whole"],
)
def test_near_ranges_of_one_object_are_one_request(
    places: tuple[tuple[str, int, int], ...], requests: list[tuple[int, int]]
) -> None:
    """Only neighbours in order, of one object, with a small gap, up to a length."""
    assert plan(*places) == requests


@given(ranges=RANGES, near=st.integers(0, 100), most=st.integers(1, 400))
def test_any_plan_reads_the_right_bytes(ranges: list[ByteRange], near: int, most: int) -> None:
    """Every range comes once, in order, with its own bytes, by no more requests than ranges."""
    storage = MemoryStorage()
    content = {key: bytes((n * 7 + ord(key)) % 251 for n in range(SIZE)) for key in "ab"}
    for key, data in content.items():
        storage.put(key, [data])
    runs = list(join_near(ranges, near_bytes=near, run_bytes=most))
    assert [one for run in runs for one in run.inside] == ranges
    assert all(run.where.length <= most for run in runs if len(run.inside) > 1)
    found = [bytes(part) for part in read_runs(storage, runs)]
    assert found == [content[r.key][r.start : r.start + r.length] for r in ranges]


@given(lengths=st.lists(st.integers(1, 50), max_size=40), most=st.integers(1, 100))
def test_groups_are_bounded(lengths: list[int], most: int) -> None:
    """At most so many requests and bytes at once; one that is too long comes alone."""
    runs = [JoinedRange(where := ByteRange("a", 0, n), (where,)) for n in lengths]
    groups = [list(group) for group in grouped(runs, most_bytes=most, at_once=4)]
    assert [run for group in groups for run in group] == runs
    for group in groups:
        assert 1 <= len(group) <= 4
        assert len(group) == 1 or sum(run.where.length for run in group) <= most
