"""A producer's log: whose data counts.

The first record that names an attempt, COMMIT or ABORT, is its fate; any later one is void. Before
the seal the first COMMIT counts. An attempt reads the log from slot 0 and goes on past others'
ABORTs; failure alone is never a reason to delete (docs/decisions/001-slot-log-protocol.md).
"""

from dataclasses import dataclass

from durable_shuffle.serialization.control import decode_control
from durable_shuffle.serialization.errors import (
    AbortedError,
    CorruptDataError,
    FencedError,
)
from durable_shuffle.shuffle.records import PRODUCER_RECORDS, Abort, Closed, Commit
from durable_shuffle.shuffle.slot_log import SlotLog, Won


@dataclass(frozen=True, slots=True)
class Committed:
    """The COMMIT that counts (or counted when it was read) and where it stands."""

    slot: int
    commit: Commit


def decode(log: SlotLog, slot: int, data: bytes) -> Commit | Abort | Closed:
    """Decode one record of a producer log."""
    record = PRODUCER_RECORDS.decode(data, name=log.key(slot))
    if not isinstance(record, (Commit, Abort, Closed)):
        raise CorruptDataError(f"not a producer record: key={log.key(slot)!r}")
    return record


def read_log(log: SlotLog) -> list[Commit | Abort | Closed]:
    """Return all records in slot order."""
    return [decode(log, slot, data) for slot, data in log.read_from()]


def counting_commit(records: list[Commit | Abort | Closed], *, after: int = -1) -> Committed | None:
    """Return the first COMMIT whose attempt was not aborted before it. Pure.

    Args:
        after: slot of a COMMIT whose data cannot be read: only those behind it count.
    """
    aborted: set[str] = set()
    for slot, record in enumerate(records):
        if isinstance(record, Abort):
            aborted.add(record.attempt)
        elif isinstance(record, Commit) and slot > after and record.record_id not in aborted:
            return Committed(slot, record)
    return None


def commit_attempt(log: SlotLog, commit: Commit, *, after: int = -1) -> Committed:
    """Commit an attempt, or return the COMMIT that came first.

    The caller owns `commit.record_id` and sends nothing else under it. If the returned commit is
    another attempt's, ours never counts and never will: the caller may delete its segments.

    Args:
        after: as in `counting_commit`: a repair goes on past COMMITs up to this slot.

    Raises:
        AbortedError: a cleaner aborted this attempt; nothing it wrote counts.
        FencedError: the stage was released; nothing it wrote counts.
        OutcomeUnknownError: the commit may stand now or later; nothing may be deleted.
        UnavailableError: the storage refused the commit; still, failure is no reason to delete.
    """
    data = PRODUCER_RECORDS.encode(commit)
    aborted: set[str] = set()
    slot = 0
    while True:  # ends: every turn passes one existing record of a finite log
        answer = log.append(slot, data)
        if isinstance(answer, Won):
            return Committed(slot, commit)
        record = decode(log, slot, answer.existing)
        if isinstance(record, Commit):
            if slot > after and record.record_id not in aborted:
                return Committed(slot, record)
            slot += 1
            continue
        if isinstance(record, Closed):
            raise FencedError(
                f"the stage was released while a producer ran: producer={commit.producer} "
                f"attempt={commit.record_id} cause={record.cause}; stop"
            )
        aborted.add(record.attempt)
        if record.attempt == commit.record_id:
            raise AbortedError(
                f"this producer attempt was aborted before it committed: "
                f"producer={commit.producer} attempt={commit.record_id} cause={record.cause}"
            )
        slot += 1


def abort_attempt(log: SlotLog, attempt: str, record_id: str, cause: str) -> bool:
    """Make ABORT the fate of `attempt` unless it has one; return True if its fate is ABORT.

    Only after True may anybody but the attempt itself delete its segments.
    """
    data = PRODUCER_RECORDS.encode(Abort(record_id, attempt, cause))
    slot = 0
    while True:  # ends: every turn passes one existing record of a finite log
        existing = log.read(slot)
        if existing is None:
            answer = log.append(slot, data)
            if isinstance(answer, Won):
                return True
            existing = answer.existing
        record = decode(log, slot, existing)
        if isinstance(record, Commit) and record.record_id == attempt:
            return False
        if isinstance(record, Abort) and record.attempt == attempt:
            return True
        if isinstance(record, Closed):
            return True
        slot += 1


def close_log(log: SlotLog, record_id: str, cause: str) -> None:
    """Put CLOSED behind the last record of a batch producer's or a log producer's log, unless it is
    there; from then on nobody can write."""
    data = PRODUCER_RECORDS.encode(Closed(record_id, cause))
    slot = log.find_end()
    while True:  # ends: every turn passes one existing record of a finite log
        if slot:
            last = decode_control(log.read(slot - 1) or b"", name=log.key(slot - 1))
            if last.kind == Closed.KIND:
                return
        if isinstance(log.append(slot, data), Won):
            return
        slot += 1
