"""Sessions of users from events in any order: a reducer that resumes in the middle of its input.

A session is a run of one user's events with at most `gap` between neighbours. Strategy: an event is
an interval of no length; intervals of a user that are at most `gap` apart become one. That gives
the same sessions in whatever order events come, so the state is just the intervals so far, and a
new batch is merged into them with one sort.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.serialization.errors import InvalidInputError

_BATCH_EVENTS = 262_144
"""Events gathered before they are merged: a merge sorts all sessions so far."""

Longs = npt.NDArray[np.int64]
Intervals = tuple[Longs, Longs, Longs, Longs]
"""User, first and last microsecond, number of events; ordered by user and time."""

SESSION_SCHEMA = pa.schema(
    [
        ("user", pa.int64()),
        ("session_start", pa.timestamp("us", "UTC")),
        ("session_end", pa.timestamp("us", "UTC")),
        ("events", pa.int64()),
    ]
)


class Sessions:
    """A `ResumableReducer` over events with columns `user` (long) and `at` (timestamp).

    All rows of a user must come to one reducer. Yields SESSION_SCHEMA, at the end of the input.

    Args:
        gap_seconds: the longest pause within a session, inclusive.
    """

    def __init__(self, gap_seconds: float) -> None:
        if not gap_seconds >= 0:
            raise InvalidInputError(f"gap_seconds must not be negative, found={gap_seconds!r}")
        self._gap = round(gap_seconds * 1_000_000)
        self._sessions = _nothing()
        self._users: list[Longs] = []
        self._times: list[Longs] = []

    def process(self, batch: pa.RecordBatch) -> None:
        """Take events."""
        if batch.column("user").null_count or batch.column("at").null_count:
            raise InvalidInputError("an event must have a user and a time, found a null")
        self._users.append(batch.column("user").cast(pa.int64()).to_numpy())
        at = batch.column("at").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        self._times.append(at.to_numpy())
        if sum(map(len, self._users)) >= _BATCH_EVENTS:
            self._settle()

    def snapshot(self) -> bytes:
        """Return all sessions so far as one Arrow stream."""
        self._settle()
        sink = pa.BufferOutputStream()
        batch = pa.record_batch(list(self._sessions), names=["user", "start", "end", "events"])
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        state: bytes = sink.getvalue().to_pybytes()
        return state

    def restore(self, state: bytes) -> None:
        """Go on from a snapshot."""
        table = pa.ipc.open_stream(state).read_all()
        user, start, end, events = (column.to_numpy() for column in table.columns)
        self._sessions, self._users, self._times = (user, start, end, events), [], []

    def finish(self) -> pa.RecordBatch:
        """Return every session."""
        self._settle()
        user, start, end, events = (pa.array(part) for part in self._sessions)
        instant = SESSION_SCHEMA.field("session_start").type
        columns = [user, start.cast(instant), end.cast(instant), events]
        return pa.RecordBatch.from_arrays(columns, schema=SESSION_SCHEMA)

    def _settle(self) -> None:
        if not self._users:
            return
        user, at = np.concatenate(self._users), np.concatenate(self._times)
        self._users, self._times = [], []
        new = (user, at, at, np.ones(len(user), np.int64))
        self._sessions = merged(self._sessions, new, self._gap)


def merged(some: Intervals, others: Intervals, gap: int) -> Intervals:
    """Return the intervals of both, joined where those of a user are at most `gap` apart."""
    user, start, end, events = (np.concatenate(pair) for pair in zip(some, others, strict=True))
    if not len(user):
        return _nothing()
    order = np.lexsort((start, user))
    user, start, end, events = user[order], start[order], end[order], events[order]
    reached = _running_end(user, end)
    begins = np.ones(len(user), dtype=bool)
    begins[1:] = (user[1:] != user[:-1]) | (start[1:] - reached[:-1] > gap)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(user)) - 1
    return user[first], start[first], reached[last], np.add.reduceat(events, first)


def _running_end(user: Longs, end: Longs) -> Longs:
    """Return for each interval the latest end among those of its user up to it."""
    # ends by rank, so that one number holds the user's turn and the end, and a maximum runs over it
    by_end = np.argsort(end, kind="stable")
    rank = np.empty(len(end), np.int64)
    rank[by_end] = np.arange(len(end))
    turn = np.cumsum(np.diff(user, prepend=user[:1]) != 0)
    highest = np.maximum.accumulate(turn * len(end) + rank)
    running: Longs = end[by_end[highest % len(end)]]
    return running


def _nothing() -> Intervals:
    return (np.zeros(0, np.int64),) * 4
