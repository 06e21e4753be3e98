"""Read a slot log that may be damaged: every slot, even beside damaged ones.

Strategy: slots are dense. If a listing shows a slot, or another record names it, all lower slots
must exist, and a missing one is a finding. A listing can only add findings, never remove one. If a
log ends in CLOSED, missing lower slots are no finding: they may have been deleted on purpose.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from durable_shuffle.serialization.errors import DurableShuffleError, ErrorKind
from durable_shuffle.shuffle.log.records import Closed
from durable_shuffle.shuffle.log.slot_log import SlotLog, slots_listed
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.verify.report import Finding, damage, finding_of

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Decoder(Protocol[R_co]):
    """Turns the bytes of a slot into a record."""

    def decode(self, data: bytes, name: str) -> R_co:
        """Return the record. Error messages contain `name`."""


_MOST_GAPS = 1000
"""At most about this many missing slots of one log are reported one by one."""


@dataclass(frozen=True, slots=True)
class LogCopy(Generic[R]):
    """Everything that could be read of one log."""

    log: SlotLog
    records: dict[int, R]
    """By slot, ascending, without slots that could not be read or decoded."""
    objects: int
    checked_bytes: int
    findings: tuple[Finding, ...]
    gaps: tuple[int, ...] = ()
    """Missing slots below the last one, whether or not they are findings."""

    @property
    def bad(self) -> list[int]:
        """Slots that are missing or cannot be read, ascending."""
        return sorted({*self.gaps, *(slot_of(finding) for finding in self.findings)})

    def last(self, *kinds: type[R]) -> R | None:
        """Return the newest record of these classes, or None."""
        records = [record for record in self.records.values() if isinstance(record, kinds)]
        return records[-1] if records else None


def copy_log(
    log: SlotLog,
    codec: Decoder[R],
    *,
    known: int = -1,
    first: int = 0,
    below: Iterable[int] = (),
) -> LogCopy[R]:
    """Read and decode a log to its end.

    Args:
        first: the slot to begin at; lower ones may be gone.
        known: a slot that must exist: reading does not stop before it. -1 if none is known.
        below: slots below `first` that are read as well, ascending. Of these, none must exist.
    """
    records: dict[int, R] = {}
    findings: list[Finding] = []
    gaps: list[Finding] = []
    objects = checked_bytes = 0
    older = iter(below)
    slot = next(older, first)
    while True:  # ends: at the first slot above `known` that is empty or cannot be read
        key = log.key(slot)
        try:
            data = log.read(slot)
        except DurableShuffleError as error:
            findings.append(finding_of(error, key, "a readable record"))
            if slot >= max(known, first):
                break
            slot = next(older, first) if slot < first else slot + 1
            continue
        if data is None and slot >= first:
            if slot > known:
                break
            gaps.append(Finding(key, ErrorKind.NOT_FOUND, "a record", "no such object"))
            if len(gaps) > _MOST_GAPS:  # `known` may be forged, so skip to it
                slot = max(slot, known - 1)
        elif data is not None:
            objects, checked_bytes = objects + 1, checked_bytes + len(data)
            try:
                records[slot] = codec.decode(data, key)
            except DurableShuffleError as error:
                expected = "an intact record of this version"
                findings.append(finding_of(error, key, expected, start=0, length=len(data)))
        slot = next(older, first) if slot < first else slot + 1
    closed = bool(records) and isinstance(list(records.values())[-1], Closed)
    return LogCopy(
        log,
        records,
        objects,
        checked_bytes,
        tuple(findings) if closed else (*gaps, *findings),
        tuple(slot_of(gap) for gap in gaps),
    )


def slot_of(finding: Finding) -> int:
    """Return the slot that a finding of a log is about."""
    return int(finding.key.rpartition("/")[2])


def repeated(log: LogCopy[Any]) -> tuple[Finding, ...]:
    """Return a finding for each slot that holds the same record as an earlier slot.

    Use it for logs in which every record has its own id: such a record was copied over another.
    """
    first: dict[str, int] = {}
    findings = []
    for slot, record in log.records.items():
        before = first.setdefault(record.record_id, slot)
        if before != slot and log.records[before] == record:
            findings.append(
                damage(
                    log.log.key(slot),
                    "a record_id of its own",
                    f"that of slot {before}: {record.record_id}",
                )
            )
    return tuple(findings)


def last_slots(storage: Storage, prefix: str) -> tuple[dict[str, int], tuple[Finding, ...]]:
    """Return the highest listed slot of every log below `prefix`, by the log's own prefix.

    If the listing fails, return no slots and a finding.
    """
    listed, problems = listed_slots(storage, prefix)
    return {log: max(slots) for log, slots in listed.items()}, problems


def listed_slots(storage: Storage, prefix: str) -> tuple[dict[str, set[int]], tuple[Finding, ...]]:
    """Return the listed slots of every log below `prefix`, by the log's own prefix.

    If the listing fails, return no slots and a finding.
    """
    try:
        return slots_listed([info.key for info in storage.list(prefix)]), ()
    except DurableShuffleError as error:
        return {}, (finding_of(error, prefix, "a listing, to look for gaps in logs"),)


def highest_slots(keys: Iterable[str]) -> dict[str, int]:
    """Return the highest slot of every log among the keys, by the log's own prefix."""
    return {log: max(slots) for log, slots in slots_listed(keys).items()}
