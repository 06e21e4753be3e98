"""A batch producer's log: whose data counts.

The first record that names an attempt, COMMIT or ABORT, is its fate. Any later one is void, and so
is every record behind CLOSED. Only `ProducerState` knows this rule. Before the seal the first
COMMIT counts. Failure alone is never a reason to delete
(docs/internals/decisions/001-slot-log-protocol.md).
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from durable_shuffle.serialization.control import ControlRecord
from durable_shuffle.serialization.errors import (
    AbortedError,
    CorruptDataError,
    FencedError,
    NotFoundError,
)
from durable_shuffle.shuffle.log.records import (
    PRODUCER_RECORDS,
    Abort,
    Closed,
    Commit,
    ProducerRecord,
)
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.typed_log import AnyRecord, Tail, TypedLog

HELD_BYTES = 64 << 20
"""Most bytes of extents of all producers of a stage that a driver holds."""
_READ_AHEAD = 64
"""COMMITs whose extents are held at a time, if they were left out."""


@dataclass(frozen=True, slots=True)
class CommittedAttempt:
    """A COMMIT that counts, or counted when it was read, and its slot."""

    slot: int
    commit: Commit
    """Its extents are b"" if they were left out; no COMMIT of a sealed stage has none."""

    def light(self, producers: int) -> "CommittedAttempt":
        """Return it without extents if those of all `producers` may be over HELD_BYTES."""
        if len(self.commit.extents) * producers <= HELD_BYTES:
            return self
        return replace(self, commit=replace(self.commit, extents=b""))


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What a producer's log says."""

    next_slot: int = 0
    fates: Mapping[str, CommittedAttempt | Abort] = field(default_factory=dict)
    """Attempt -> the first record that names it, in slot order."""
    closed: Closed | None = None
    """The stage was released: nobody commits any more."""

    def fate(self, attempt: str) -> Commit | Abort | Closed | None:
        """Return the attempt's fate. CLOSED says that it never commits, None that it still may."""
        fate = self.fates.get(attempt, self.closed)
        return fate.commit if isinstance(fate, CommittedAttempt) else fate

    def commits(self, *, after: int = -1) -> list[CommittedAttempt]:
        """Return the COMMITs behind slot `after` that decide an attempt's fate, in slot order."""
        return [
            fate
            for fate in self.fates.values()
            if isinstance(fate, CommittedAttempt) and fate.slot > after
        ]

    def counting(self, *, after: int = -1) -> CommittedAttempt | None:
        """Return the COMMIT that counts before the seal, None if there is none yet.

        Args:
            after: slot of a COMMIT whose data cannot be read. Only COMMITs behind it count.
        """
        return next(iter(self.commits(after=after)), None)


def with_fate(state: ProducerState, record: ProducerRecord, _name: str = "") -> ProducerState:
    """Return the state behind the record of slot `state.next_slot`. Pure."""
    slot, state = state.next_slot, replace(state, next_slot=state.next_slot + 1)
    if state.closed is not None:
        return state
    if isinstance(record, Closed):
        return replace(state, closed=record)
    named = record.attempt if isinstance(record, Abort) else record.record_id
    if named in state.fates:
        return state
    fate = record if isinstance(record, Abort) else CommittedAttempt(slot, record)
    return replace(state, fates={**state.fates, named: fate})


def producer_state(records: Mapping[int, Any]) -> ProducerState:
    """Return what the readable records of a damaged log add up to. Pure.

    Args:
        records: by slot; slots that cannot be read are left out.
    """
    state = ProducerState()
    for slot, record in sorted(records.items()):
        state = with_fate(replace(state, next_slot=slot), record)
    return state


def commit_log(slots: SlotLog) -> TypedLog[ProducerRecord, ProducerState]:
    """Return a batch producer's log, to be read from `ProducerState()` on."""
    return TypedLog(slots, PRODUCER_RECORDS, with_fate)


def read_producer(slots: SlotLog) -> ProducerState:
    """Return what a batch producer's log says."""
    return commit_log(slots).read(ProducerState())


def read_commit(slots: SlotLog, slot: int, attempt: str) -> CommittedAttempt:
    """Return the COMMIT of `attempt` in the slot that SEAL or REPLACE names.

    Raises:
        NotFoundError, CorruptDataError: it cannot be read, or is none.
    """
    record = commit_log(slots).record(slot)
    if record is None:
        raise NotFoundError(f"a COMMIT that SEAL or REPLACE names is gone: {slots.key(slot)!r}")
    if not isinstance(record, Commit) or record.record_id != attempt:
        raise CorruptDataError(
            f"not the COMMIT of attempt {attempt}, as SEAL or REPLACE says: {slots.key(slot)!r}"
        )
    return CommittedAttempt(slot, record)


def with_extents(
    commits: Iterable[tuple[SlotLog, CommittedAttempt]], *, threads: int
) -> Iterator[CommittedAttempt]:
    """Yield the COMMITs in order, and read those again whose extents were left out.

    Args:
        commits: each with the log that it was read from.

    Raises:
        NotFoundError, CorruptDataError: one of them cannot be read any more.
    """

    def read(item: tuple[SlotLog, CommittedAttempt]) -> CommittedAttempt:
        slots, committed = item
        return read_commit(slots, committed.slot, committed.commit.record_id)

    ahead = iter(commits)
    with ThreadPoolExecutor(threads) as pool:  # it starts a thread when one is needed
        while some := list(itertools.islice(ahead, _READ_AHEAD)):
            again = pool.map(read, [item for item in some if not item[1].commit.extents])
            for _, committed in some:
                yield committed if committed.commit.extents else next(again)


def commit_attempt(slots: SlotLog, commit: Commit, *, after: int = -1) -> CommittedAttempt:
    """Commit an attempt, or return the COMMIT that came first.

    The caller owns `commit.record_id` and sends nothing else under it. If the returned commit is
    another attempt's, ours never counts and never will: the caller may delete its segments.

    Args:
        after: as in `ProducerState.counting`.

    Raises:
        AbortedError: a cleaner aborted this attempt; nothing it wrote counts.
        FencedError: the stage was released; nothing it wrote counts.
        ConflictError: others won too many slots in a row; nothing was written.
        OutcomeUnknownError: the commit may stand now or later; nothing may be deleted.
        UnavailableError: the storage refused the commit; still, failure is no reason to delete.
    """

    def unless_decided(state: ProducerState) -> Commit | None:
        if state.counting(after=after) is not None:
            return None
        fate = state.fate(commit.record_id)
        if isinstance(fate, Closed):
            raise FencedError(
                f"the stage was released while a producer ran: producer={commit.producer} "
                f"attempt={commit.record_id} cause={fate.cause}; stop"
            )
        if isinstance(fate, Abort):
            raise AbortedError(
                f"this producer attempt was aborted before it committed: "
                f"producer={commit.producer} attempt={commit.record_id} cause={fate.cause}"
            )
        return commit

    # from slot 0 and without a look: as a rule the log is empty, and one request decides
    state, own = commit_log(slots).decide(ProducerState(), unless_decided)
    if own is not None:
        return CommittedAttempt(state.next_slot - 1, commit)
    committed = state.counting(after=after)
    assert committed is not None  # else `unless_decided` proposed
    return committed


def abort_attempt(slots: SlotLog, attempt: str, record_id: str, cause: str) -> bool:
    """Make ABORT the fate of `attempt` unless it has one; return True if its fate is ABORT.

    Only after True may anybody but the attempt itself delete its segments.
    """

    def decided(state: ProducerState) -> bool:
        return state.fate(attempt) is not None

    log, abort = commit_log(slots), Abort(record_id, attempt, cause)
    state = log.read(ProducerState(), until=decided)
    state, _ = log.decide(state, lambda state: None if decided(state) else abort)
    return not isinstance(state.fate(attempt), Commit)


def close_log(slots: SlotLog, record_id: str, cause: str, hint: int = 0) -> None:
    """Put CLOSED behind the last record of a batch producer's or an appender's log, unless it
    stands. Behind it nobody can write.

    Args:
        hint: no slot from it to the end is gone.
    """
    log = TypedLog(slots, AnyRecord(), Tail.followed_by)
    closed = ControlRecord(Closed.KIND, {"record_id": record_id, "cause": cause})

    def unless_closed(tail: Tail[ControlRecord]) -> ControlRecord | None:
        return None if tail.last is not None and tail.last.kind == Closed.KIND else closed

    log.decide(log.tail_at(slots.find_end(hint)), unless_closed)
