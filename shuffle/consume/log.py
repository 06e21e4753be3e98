"""A consumer's log: read its resume set, or hold it as the only view that may write.

Strategy: list the log, because a lost slot looks like its end, then read records backwards to the
newest full one. A view holds the log once it has won an OPEN. From then on it writes only to the
slot after its own last record; if another id wins that slot, the view has lost the log for good. A
record with an unknown outcome is sent again, byte for byte, before any other record is built.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from durable_shuffle.serialization.errors import (
    ConflictError,
    CorruptDataError,
    DurableShuffleError,
    FencedError,
    OutcomeUnknownError,
)
from durable_shuffle.shuffle.consume.resume_set import ResumeSet, cursor, fold, fold_all, is_full
from durable_shuffle.shuffle.log.consumer_records import (
    CONSUMER_RECORDS,
    ConsumerRecord,
    InputCursor,
    Open,
    OutputRef,
    ResumeMode,
    Whole,
)
from durable_shuffle.shuffle.log.records import Closed
from durable_shuffle.shuffle.log.slot_log import Lost, SlotLog, refuse_older
from durable_shuffle.shuffle.log.typed_log import TypedLog

FULL_EVERY = 64
"""Most slots from one full record to the next, so that opening reads at most as many records: one
more if the last is VIEW_RELEASED, and one more if it is CLOSED."""


def resume_log(slots: SlotLog) -> TypedLog[ConsumerRecord, ResumeSet]:
    """Return a consumer's log. To read it use `read_resume_set`, which reads few records only."""
    return TypedLog(slots, CONSUMER_RECORDS, fold)


def read_resume_set(slots: SlotLog) -> ResumeSet:
    """Return the state at the end of the log.

    Raises:
        CorruptDataError: a record is damaged, missing, or does not fit the records before it; the
            message names its key.
        IncompatibleError: a record was written by a newer version.
    """
    log, slot = resume_log(slots), slots.whole_end()
    tail: list[tuple[str, ConsumerRecord]] = []
    while slot:
        slot -= 1
        record = log.record(slot)
        if record is None:
            raise CorruptDataError(f"a slot in the middle of a log is missing: {log.key(slot)!r}")
        tail.append((log.key(slot), record))
        if is_full(record):
            break
    if tail and not is_full(tail[-1][1]):
        raise CorruptDataError(f"a consumer log must begin with OPEN: {log.key(0)!r}")
    return fold_all(ResumeSet(next_slot=slot), reversed(tail))


def read_outputs(log: SlotLog) -> tuple[OutputRef, ...]:
    """Return the outputs that the consumer has published so far, oldest first."""
    return read_resume_set(log).outputs


@dataclass(frozen=True, slots=True)
class Opening:
    """The content of a new OPEN that depends on the resume set before it."""

    inputs: tuple[InputCursor, ...]
    dropped: int = 0
    dropped_exact: bool = True
    state: bytes | None = None
    """The first state; ignored if the consumer has one."""


OpeningOf = Callable[[ResumeSet], Opening]


@dataclass(slots=True)
class HeldLog:
    """A consumer log that one view holds.

    Safe to call from several threads, because a newer view may release an older one.

    Once another view holds the log, every method that writes raises FencedError for good. While the
    outcome of a record is unknown, these methods raise OutcomeUnknownError: call `settle`, or the
    same method with the same arguments, until the outcome is known. If the caller writes a
    different record instead, and the unknown record turns out to be in the log, `write` raises
    ConflictError once and does not write the new record.
    """

    log: SlotLog
    state: ResumeSet
    """The state after the last record that is known to be in the log."""
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)
    _unsettled: ConsumerRecord | None = field(default=None, init=False)
    _may_stand: bool = field(default=False, init=False)
    """Whether an earlier try of the unsettled record may still take effect."""
    _fenced: str = field(default="", init=False)

    @property
    def slot(self) -> int:
        """The slot of this view's last record."""
        return self.state.next_slot - 1

    @property
    def fenced(self) -> bool:
        """Whether another view is known to hold the log."""
        return bool(self._fenced)

    def write(self, record: ConsumerRecord) -> None:
        """Win the next slot for `record`, which must carry the id of this view's OPEN.

        Raises: see the class.
        """
        with self._lock:
            self.check()
            if self._unsettled is not None:
                same = record == self._unsettled
                self.settle()
                if same:
                    return
                raise ConflictError(
                    f"a record of unknown outcome had to be settled first and now stands: "
                    f"{self.log.key(self.slot)!r}; look at the position, then go on"
                )
            self._unsettled = record
            self.settle()

    def settle(self) -> None:
        """Send a record with an unknown outcome again until the outcome is known; if there is none,
        do nothing."""
        with self._lock:
            self.check()
            record = self._unsettled
            if record is None:
                return
            slot = self.state.next_slot
            try:
                answer = self.log.append(slot, CONSUMER_RECORDS.encode(record))
            except DurableShuffleError as error:
                self._may_stand = self._may_stand or isinstance(error, OutcomeUnknownError)
                if not self._may_stand:
                    self._unsettled = None  # every try was refused: it is not in the log
                    raise
                raise OutcomeUnknownError(
                    f"{error}; a sending of this record may still land: settle again"
                ) from error
            except BaseException:  # an interrupt or a bug: the outcome is unknown
                self._may_stand = True
                raise
            self._unsettled, self._may_stand = None, False
            if isinstance(answer, Lost):
                self.fence(self._winner(slot, answer.existing))
                self.check()
            self.state = fold(self.state, record, name=self.log.key(slot))

    def whole(self) -> Whole | None:
        """Return the fields that make the next ACK a full record; None if it need not be full."""
        due = self.state.next_slot - self.state.full_slot >= FULL_EVERY
        return self.whole_now() if due else None

    def whole_now(self) -> Whole:
        """Return the fields that make a record full."""
        state = self.state
        reached = tuple(
            cursor(key, known.stage_slot, known.reached) for key, known in state.inputs.items()
        )
        return Whole(
            state.generation,
            state.resume,
            state.dropped,
            state.dropped_exact,
            reached if state.resume == "approximate" else (),
            state.code,
        )

    def fence(self, by: str) -> None:
        """Remember that another view, described by `by`, holds the log."""
        self._fenced = self._fenced or by

    def look(self) -> None:
        """Ask the storage whether another view holds the log.

        Raises:
            FencedError: it does.
        """
        with self._lock:
            self.check()
            if self._unsettled is None:
                data = self.log.read(self.state.next_slot)
                if data is not None:
                    self.fence(self._winner(self.state.next_slot, data))
            self.check()

    def check(self) -> None:
        """Raise FencedError if another view is known to hold the log."""
        if self._fenced:
            raise FencedError(
                f"this view is no longer the consumer's: view={self.state.owner} "
                f"epoch={self.state.epoch} log={self.log.prefix!r}: {self._fenced}; stop"
            )

    def _winner(self, slot: int, data: bytes) -> str:
        record = CONSUMER_RECORDS.decode(data, self.log.key(slot))
        if not isinstance(record, Closed):
            refuse_older(self.log, slot, found=record.epoch, mine=self.state.epoch)
        if isinstance(record, Open):
            return f"view {record.record_id} opened epoch {record.epoch}"
        return f"{record.KIND} of {record.record_id} stands in slot {slot}"


def hold(
    log: SlotLog,
    *,
    record_id: str,
    generation: int,
    consumer: str,
    task: str,
    resume: ResumeMode,
    opening: OpeningOf,
    code: str = "",
) -> HeldLog | ResumeSet:
    """Win OPEN, which fences every older view of this consumer task.

    If another record wins the slot, read that record and try the next slot.

    Args:
        record_id: random id of this call.
        generation: the launcher's generation, never lower than that of an earlier launcher.
        opening: returns the content of OPEN for the resume set before it; may raise to refuse.
        code: digest of the code that processes the records; "" keeps the earlier one.

    Returns:
        The held log. If the consumer has finished, its resume set, and nothing was written.

    Raises:
        FencedError: a launcher of a higher generation opened the log, or the log is closed.
        ConflictError: other writers won too many slots.
        OutcomeUnknownError: OPEN may take effect now or later. Opening again is safe.
    """
    before = read_resume_set(log)

    def unless_over(state: ResumeSet) -> Open | None:
        if state.generation > generation:
            raise FencedError(
                f"a launcher of generation {state.generation} opened this consumer, mine is "
                f"{generation}: log={log.prefix!r}; stop"
            )
        if state.closed:
            raise FencedError(f"this consumer's log is closed: {log.prefix!r}; stop")
        if state.finished:
            return None
        said = opening(state)
        return Open(
            record_id=record_id,
            generation=generation,
            epoch=state.epoch + 1,
            consumer=consumer,
            task=task,
            resume=resume,
            inputs=said.inputs,
            outputs=state.outputs,
            state=said.state if state.state is None else state.state,
            marker_floor=state.marker_floor,
            pending=state.pending,
            dropped=said.dropped,
            dropped_exact=said.dropped_exact,
            ending=state.ending,
            code=code or state.code,
        )

    state, opened = resume_log(log).decide(before, unless_over)
    return state if opened is None else HeldLog(log, state)
