"""What the records of a stage log add up to. Pure.

A record counts or not by what stands before it alone, so that everyone who reads as far sees the
same. SEAL says what counts; a REPLACE changes it for some producers, a COMPACT changes the index.
Either is void if its author was aborted before, or if its base, the SEAL or REPLACE that its index
was made from, is no longer the newest: its index would name what was replaced. Of COMPACTs the
first of a base counts. Why so: `tests/protocol_model/protocol/compact_model.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.log.records import (
    TABLES,
    Abort,
    Closed,
    Compact,
    Damaged,
    Register,
    Release,
    ReleaseUpto,
    Replace,
    Seal,
)

TAG_BYTES = 32


@dataclass(frozen=True, slots=True)
class StageState:
    """What a stage log says, up to its first empty slot."""

    seal: Seal | None = None
    """The seal as REPLACEs have changed it, with the index of the compaction that counts."""
    seal_slot: int = 0
    """Slot of the SEAL or REPLACE that counts: the base of whoever changes the index next."""
    compact: Compact | None = None
    """The compaction that counts."""
    replaced: Seal | None = None
    """As `seal`, with the index of the commits, whether or not there is a compaction."""
    counted: Mapping[str, Compact | Replace] = field(default_factory=dict)
    """All COMPACTs and REPLACEs that count or did, by id: what they name stays until release."""
    void: Mapping[str, str] = field(default_factory=dict)
    """Ids of compactions and repairs that never count, each with the cause."""
    damaged: Mapping[int, int] = field(default_factory=dict)
    """Producers whose data cannot be read, with the highest slot whose COMMIT is known to be bad:
    the one that counts, or one above it."""
    release: Release | None = None
    closed: Closed | None = None
    """Set once a released stage's data is gone."""
    next_slot: int = 1
    register: Register | None = None
    """Who is registered; None if nobody ever was."""
    upto: ReleaseUpto | None = None
    """What was released of a stage of log producers; None if nothing was."""

    @property
    def over(self) -> Release | Closed | None:
        """What says that the stage was released, None if it was not."""
        return self.release or self.closed

    def released_below(self, producers: int) -> tuple[int, ...]:
        """Return per producer that appends the slot below which data went, 0 if none did.

        Raises:
            CorruptDataError: RELEASE_UPTO is of another number of producers.
        """
        if self.upto is None:
            return (0,) * producers
        slots = numbers(self.upto.upto)
        if len(slots) != producers:
            raise CorruptDataError(
                f"a RELEASE_UPTO does not fit its stage: record={self.upto.record_id} "
                f"slots={slots} M={producers}"
            )
        return tuple(slots)


def with_record(state: StageState, record: Any, name: str) -> StageState:
    """Return the state behind the record of slot `state.next_slot`, of any kind.

    Args:
        name: the record's key, for messages.

    Raises:
        CorruptDataError: a REPLACE or DAMAGED that does not fit the seal, or a second SEAL.
    """
    slot = state.next_slot
    state = replace(state, next_slot=slot + 1)
    match record:
        case Seal():
            if state.replaced is not None:
                raise CorruptDataError(
                    f"a stage log holds a second SEAL, and nobody seals a sealed stage: "
                    f"{name!r}, base of what counts: slot {state.seal_slot}; run verify"
                )
            return replace(
                state, seal=record, replaced=record, seal_slot=slot, compact=None, damaged={}
            )
        case Abort(attempt=attempt) if attempt not in state.counted:
            return replace(state, void={**state.void, attempt: record.cause})
        case Replace() | Compact():
            return _changed(state, slot, record, name)
        case Damaged() if state.replaced is not None:
            still = _still(state.replaced, record, name)
            return replace(state, damaged={**state.damaged, **still})
        case Release():
            return replace(state, release=record)
        case Register():
            return replace(state, register=record)
        case ReleaseUpto():
            return replace(state, upto=record)
        case Closed():
            return replace(state, closed=record)
    return state


def _changed(state: StageState, slot: int, record: Replace | Compact, name: str) -> StageState:
    if record.record_id in state.counted:
        return state
    before = state.replaced
    if before is None or too_late(state, record) or record.record_id in state.void:
        cause = state.void.get(record.record_id, "another record came first")
        return replace(state, void={**state.void, record.record_id: cause})
    counted = {**state.counted, record.record_id: record}
    if isinstance(record, Compact):
        seal = replace(before, index=record.index, index_bytes=record.index_bytes)
        return replace(state, seal=seal, compact=record, counted=counted)
    seal = replaced_seal(before, record, name)
    now = numbers(seal.commit_slots)
    damaged = {p: at for p, at in state.damaged.items() if now[p] <= at}
    return replace(
        state,
        seal=seal,
        replaced=seal,
        seal_slot=slot,
        compact=None,
        counted=counted,
        damaged=damaged,
    )


def too_late(state: StageState, record: Replace | Compact) -> bool:
    """Return whether a record that stands before keeps `record` from counting.

    Any REPLACE does that behind its base, and for a COMPACT another COMPACT.
    """
    if record.base != state.seal_slot:
        return True
    return isinstance(record, Compact) and state.compact is not None


def replaced_seal(seal: Seal, record: Replace, key: str) -> Seal:
    """Return the seal with what a REPLACE changes.

    Args:
        key: of the record, for messages.

    Raises:
        CorruptDataError: it does not name one value per producer, or producers that there are not.
    """
    producers = numbers(record.producers)
    changed: dict[str, Any] = {}
    for name, size in TABLES:
        values, table = getattr(record, name), bytearray(getattr(seal, name))
        if len(values) != size * len(producers) or max(producers, default=-1) >= seal.producers:
            raise CorruptDataError(
                f"a REPLACE does not fit its seal: key={key!r} {name} has "
                f"{len(values)} bytes for {len(producers)} producers of {seal.producers}"
            )
        for n, p in enumerate(producers):
            table[size * p : size * (p + 1)] = values[size * n : size * (n + 1)]
        changed[name] = bytes(table)
    return replace(
        seal,
        index=record.index,
        index_bytes=record.index_bytes,
        rows=record.rows,
        data_bytes=record.data_bytes,
        memory_bytes=record.memory_bytes,
        **changed,
    )


def _still(seal: Seal, record: Damaged, name: str) -> dict[int, int]:
    """Return what a DAMAGED says of producers of which no COMMIT above the named one counts."""
    producers, slots = numbers(record.producers), numbers(record.commit_slots)
    if len(producers) != len(slots) or max(producers, default=-1) >= seal.producers:
        raise CorruptDataError(
            f"a DAMAGED does not fit its seal: key={name!r} producers={producers} "
            f"commit_slots={slots} M={seal.producers}"
        )
    now = numbers(seal.commit_slots)
    return {p: at for p, at in zip(producers, slots, strict=True) if now[p] <= at}


def numbers(data: bytes) -> list[int]:
    """Return packed little-endian u4 values; an incomplete one at the end is left out."""
    return [int(n) for n in np.frombuffer(data[: len(data) // 4 * 4], dtype="<u4")]
