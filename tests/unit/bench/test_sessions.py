"""Sessions against a walk over each user's sorted events, cut and resumed anywhere."""

import itertools
from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_shuffle.bench.sessions.sessions import SESSION_SCHEMA, Sessions
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.rows.reducers import ResumableReducer

EVENTS = st.lists(st.tuples(st.integers(-2, 3), st.integers(0, 60)), max_size=60)


def batch_of(events: list[tuple[int, int]]) -> pa.RecordBatch:
    seconds = pa.array([at * 1_000_000 for _, at in events], pa.int64())
    users = pa.array([user for user, _ in events], pa.int64())
    return pa.record_batch([users, seconds.cast(pa.timestamp("us", "UTC"))], names=["user", "at"])


def walked(events: list[tuple[int, int]], gap: int) -> list[tuple[int, int, int, int]]:
    by_user = defaultdict(list)
    for user, at in events:
        by_user[user].append(at)
    found = []
    for user, times in by_user.items():
        first = last = None
        count = 0
        for at in sorted(times):
            if last is not None and at - last > gap:
                found.append((user, first, last, count))
                first, count = None, 0
            first, last, count = at if first is None else first, at, count + 1
        found.append((user, first, last, count))
    return sorted(found)  # type: ignore[type-var]


def rows_of(batch: pa.RecordBatch) -> list[tuple[int, int, int, int]]:
    user, start, end, events = batch.columns
    seconds = [
        [micros // 1_000_000 for micros in column.cast(pa.int64()).to_pylist()]
        for column in (start, end)
    ]
    return sorted(zip(user.to_pylist(), *seconds, events.to_pylist(), strict=True))


@given(EVENTS, st.integers(0, 12), st.lists(st.integers(0, 60), max_size=5))
def test_sessions_equal_a_walk(events: list[tuple[int, int]], gap: int, cuts: list[int]) -> None:
    """Merged batch by batch, through a snapshot at every cut, sessions are those of the walk."""
    reducer = Sessions(gap)
    edges = [0, *sorted(cuts), len(events)]
    for start, end in itertools.pairwise(edges):
        reducer.process(batch_of(events[start:end]))
        state = reducer.snapshot()
        reducer = Sessions(gap)
        reducer.restore(state)
    found = reducer.finish()
    assert found.schema == SESSION_SCHEMA
    assert rows_of(found) == walked(events, gap)


def test_a_long_session_covers_later_short_ones() -> None:
    """Intervals inside a longer one of an earlier batch join it."""
    reducer = Sessions(10)
    for events in ([(1, at) for at in range(0, 101, 10)], [(1, 15), (1, 65)], [(2, 65)]):
        reducer.process(batch_of(events))
        reducer.snapshot()
    assert rows_of(reducer.finish()) == [(1, 0, 100, 13), (2, 65, 65, 1)]


def test_contract_and_bad_input() -> None:
    """It is a resumable reducer; nulls and negative gaps are refused."""
    assert isinstance(Sessions(1), ResumableReducer)
    with pytest.raises(InvalidInputError, match="gap_seconds"):
        Sessions(-1)
    columns = [pa.array([None], pa.int64()), batch_of([(1, 1)]).column("at")]
    with pytest.raises(InvalidInputError, match="found a null"):
        Sessions(1).process(pa.record_batch(columns, names=["user", "at"]))
