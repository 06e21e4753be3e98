"""Fold the records of a consumer log into a state: where and with what the next view starts. Pure.

Strategy: a full record holds the whole state, and later records are folded into it one by one. A
record after the newest OPEN that belongs to another view proves that the log is damaged; nothing is
guessed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.log.consumer_records import (
    Ack,
    Committed,
    ConsumerRecord,
    Ending,
    Finished,
    InputCursor,
    Open,
    OutputRef,
    PendingEffect,
    Prepared,
    Reserve,
    ResumeMode,
    State,
    ViewReleased,
)
from durable_shuffle.shuffle.log.records import Closed
from durable_shuffle.shuffle.read.position import (
    Positions,
    first_behind,
    ordinal_of,
    pack_positions,
    records_between,
    unpack_positions,
)

InputKey = tuple[str, int]
"""(a stage's folder below the job, subpartition)."""


@dataclass(frozen=True, slots=True)
class InputState:
    """The consumer task's progress in one input."""

    stage_slot: int
    acked: Positions
    reached: Positions
    """In approximate mode, the position up to which records may have been delivered; else `acked`.
    """


@dataclass(frozen=True, slots=True)
class ResumeSet:
    """Everything that the next view needs, and the next free slot of the log."""

    next_slot: int = 0
    epoch: int = 0
    generation: int = 0
    owner: str = ""
    """`record_id` of the newest OPEN; "" if there was none."""
    resume: ResumeMode = "exact"
    inputs: Mapping[InputKey, InputState] = field(default_factory=dict)
    outputs: tuple[OutputRef, ...] = ()
    state: State = None
    marker_floor: int = -1
    """Id of the highest checkpoint that a view had passed when it acknowledged; -1 if none."""
    pending: tuple[PendingEffect, ...] = ()
    dropped: int = 0
    dropped_exact: bool = True
    released: bool = False
    """Whether the newest view was released, and so wrote down what it had delivered."""
    ending: Ending | None = None
    """Set by PREPARED: from then on nothing is read any more."""
    finished: bool = False
    closed: bool = False
    full_slot: int = 0
    """Slot of the newest full record."""
    code: str = ""
    """Digest of the code that processes the newest view's records; "" if unknown."""


def is_full(record: ConsumerRecord) -> bool:
    """Return whether `record` holds the whole state, so that no earlier record is needed."""
    return isinstance(record, Open | Prepared | Finished) or (
        isinstance(record, Ack) and record.whole is not None
    )


def fold(before: ResumeSet, record: ConsumerRecord, name: str) -> ResumeSet:
    """Return the state after `record`, which is in slot `before.next_slot`.

    Args:
        before: the state before the record.
        name: the record's key, for messages.

    Raises:
        CorruptDataError: the record does not fit the state before it.
    """
    slot = before.next_slot + 1
    if before.closed:
        raise CorruptDataError(f"{name}: {record.KIND} stands behind CLOSED; run verify")
    if isinstance(record, Closed):
        return replace(before, next_slot=slot, closed=True)
    if before.finished:
        raise CorruptDataError(f"{name}: {record.KIND} stands behind FINISHED; run verify")
    if isinstance(record, Open):
        return _opened(before, record, name)
    whole = record.whole if isinstance(record, Ack | Prepared | Finished) else None
    if whole is not None and not before.owner and before.next_slot:
        assert not isinstance(record, Committed)
        before = replace(  # the fold begins here; earlier records were not read
            before,
            owner=record.record_id,
            epoch=record.epoch,
            generation=whole.generation,
            resume=whole.resume,
            inputs={k: _state(c, {}, name) for k, c in _by_key(record.inputs)},
            dropped=whole.dropped,
            dropped_exact=whole.dropped_exact,
            code=whole.code,
        )
    if record.record_id != before.owner or record.epoch != before.epoch:
        raise CorruptDataError(
            f"{name}: {record.KIND} of view {record.record_id} epoch {record.epoch} stands behind "
            f"the OPEN of view {before.owner!r} epoch {before.epoch}; run verify"
        )
    _check_ending(before, record, name)
    if isinstance(record, Committed):
        assert before.ending is not None
        ending = replace(before.ending, committed=True)
        return replace(before, next_slot=slot, pending=(), ending=ending)
    if isinstance(record, Reserve | ViewReleased):
        inputs = _reached(before.inputs, record, name)
        return replace(
            before, next_slot=slot, inputs=inputs, released=isinstance(record, ViewReleased)
        )
    inputs = _acknowledged(before.inputs, record, name)
    if whole is not None:
        inputs = _reached(inputs, Reserve(record.record_id, record.epoch, whole.reached), name)
    return replace(
        before,
        next_slot=slot,
        inputs=inputs,
        outputs=record.outputs if whole else (*before.outputs, *record.outputs),
        state=record.state,
        marker_floor=record.marker_floor,
        pending=record.pending,
        released=False,
        ending=record.ending if isinstance(record, Prepared) else before.ending,
        finished=isinstance(record, Finished),
        full_slot=before.next_slot if whole else before.full_slot,
    )


def _check_ending(before: ResumeSet, record: ConsumerRecord, name: str) -> None:
    """Refuse records that must not follow PREPARED or COMMITTED, and COMMITTED without PREPARED."""
    if before.ending is None:
        # if the fold begins at FINISHED, an unread record may have set an ending
        fits = not isinstance(record, Committed)
    elif before.ending.committed:
        fits = isinstance(record, ViewReleased | Finished)
    else:
        fits = isinstance(record, ViewReleased | Committed)
    if not fits:
        where = "no PREPARED" if before.ending is None else f"{before.ending}"
        raise CorruptDataError(f"{name}: {record.KIND} stands behind {where}; run verify")


def _opened(before: ResumeSet, record: Open, name: str) -> ResumeSet:
    first = not before.owner  # the first record of the log, or the first that was read
    if not first and record.ending != before.ending:
        raise CorruptDataError(
            f"{name}: OPEN says {record.ending} of the end, the records before it say "
            f"{before.ending}; run verify"
        )
    if not first and (
        record.epoch != before.epoch + 1
        or record.generation < before.generation
        or record.record_id == before.owner
    ):
        raise CorruptDataError(
            f"{name}: OPEN of epoch {record.epoch} generation {record.generation} stands behind "
            f"epoch {before.epoch} generation {before.generation}; run verify"
        )
    return ResumeSet(
        next_slot=before.next_slot + 1,
        epoch=record.epoch,
        generation=record.generation,
        owner=record.record_id,
        resume=record.resume,
        inputs={k: _state(c, {}, name) for k, c in _by_key(record.inputs)},
        outputs=record.outputs,
        state=record.state,
        marker_floor=record.marker_floor,
        pending=record.pending,
        dropped=record.dropped,
        dropped_exact=record.dropped_exact,
        ending=record.ending,
        full_slot=before.next_slot,
        code=record.code,
    )


def _acknowledged(
    inputs: Mapping[InputKey, InputState], record: Ack | Prepared | Finished, name: str
) -> dict[InputKey, InputState]:
    moved = dict(inputs)
    for key, moved_to in _by_key(record.inputs):
        if key not in inputs:
            raise CorruptDataError(f"{name}: {record.KIND} names an input that OPEN does not")
        known = inputs[key]
        acked = _state(moved_to, {} if record.whole else known.acked, name).acked
        _refuse_behind(known.acked, acked, f"{name}: {record.KIND}")
        moved[key] = InputState(moved_to.stage_slot, acked, _later(known.reached, acked))
    return moved


def _refuse_behind(acked: Positions, now: Positions, name: str) -> None:
    """Refuse positions that lie before what was acknowledged: rows would be given again."""
    behind = first_behind(acked, now)
    if behind is not None:
        raise CorruptDataError(
            f"{name} goes back: producer={behind} from {acked[behind].next_ordinal} to "
            f"{ordinal_of(now, behind)}; run verify"
        )


def fold_all(start: ResumeSet, records: Iterable[tuple[str, ConsumerRecord]]) -> ResumeSet:
    """Return the state after all (name, record) pairs, folded into `start` in order."""
    for name, record in records:
        start = fold(start, record, name=name)
    return start


@dataclass(frozen=True, slots=True)
class Start:
    """Where a new view starts, and how many records the consumer has dropped in all."""

    inputs: Mapping[InputKey, Positions]
    dropped: int
    dropped_exact: bool


def start_of(state: ResumeSet, resume: ResumeMode) -> Start:
    """Decide where the next view starts.

    "exact" starts after the last acknowledged record: no record is lost, and records that were
    delivered since then are delivered again. "approximate" starts after every record that may have
    been delivered: no record is delivered twice, and records that were not acknowledged are dropped
    and counted. The count is exact if the view before was released, else an upper bound.
    """
    if resume == "exact" or state.resume == "exact":
        return Start(
            {k: s.acked for k, s in state.inputs.items()}, state.dropped, state.dropped_exact
        )
    lost = sum(records_between(s.acked, s.reached) for s in state.inputs.values())
    return Start(
        {k: s.reached for k, s in state.inputs.items()},
        state.dropped + lost,
        state.dropped_exact and (state.released or not lost),
    )


def cursor(key: InputKey, stage_slot: int, positions: Positions) -> InputCursor:
    """Return the cursor of one input, as a record stores it."""
    folder, subpartition = key
    return InputCursor(folder, subpartition, stage_slot, pack_positions(positions))


def _by_key(cursors: Iterable[InputCursor]) -> list[tuple[InputKey, InputCursor]]:
    return [((c.stage, c.subpartition), c) for c in cursors]


def _state(cursor: InputCursor, acked: Positions, name: str) -> InputState:
    moved = {**acked, **unpack_positions(cursor.positions, name=name)}
    return InputState(cursor.stage_slot, moved, moved)


def _reached(
    inputs: Mapping[InputKey, InputState], record: Reserve | ViewReleased, name: str
) -> dict[InputKey, InputState]:
    moved = dict(inputs)
    for key, moved_to in _by_key(record.inputs):
        if key not in inputs:
            raise CorruptDataError(f"{name}: {record.KIND} names an input that OPEN does not")
        # VIEW_RELEASED may go back below what was reserved: it says exactly what was delivered
        known = inputs[key]
        said = unpack_positions(moved_to.positions, name=name)
        released = isinstance(record, ViewReleased)
        reached = {**known.acked, **said} if released else _later(known.reached, said)
        _refuse_behind(known.acked, reached, f"{name}: {record.KIND}")
        moved[key] = replace(known, reached=reached)
    return moved


def _later(earlier: Positions, other: Positions) -> Positions:
    merged = dict(earlier)
    for producer, position in other.items():
        if producer not in merged or merged[producer].next_ordinal <= position.next_ordinal:
            merged[producer] = position
    return merged
