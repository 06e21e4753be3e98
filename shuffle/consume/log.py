"""A consumer's log: reading its resume set, and holding it as the one view that may write.

Strategy: the end of the log is found in O(log n) requests, then records are read backwards to the
newest full one. Holding begins with winning an OPEN. From there on the holder writes only to its
own last slot + 1; losing that slot to another id is final. A record whose outcome is unknown is
sent again, byte for byte, before anything else is built.
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
"""A full record is at most so many slots behind the one before: opening reads at most as many
records, one more if the last is RELEASED, one more if CLOSED."""


def resume_log(slots: SlotLog) -> TypedLog[ConsumerRecord, ResumeSet]:
    """Return a consumer's log. `read_resume_set` reads it: backwards, to the newest full record."""
    return TypedLog(slots, CONSUMER_RECORDS, fold)


def read_resume_set(slots: SlotLog) -> ResumeSet:
    """Return what the log adds up to at its end.

    Raises:
        CorruptDataError: a record is damaged or cannot stand where it stands; names its key.
        IncompatibleError: a record was written by a newer version.
    """
    log, slot = resume_log(slots), slots.find_end()
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
    """Return what the consumer published so far, oldest first."""
    return read_resume_set(log).outputs


@dataclass(frozen=True, slots=True)
class Opening:
    """What a new OPEN shall say, given the resume set that it follows."""

    inputs: tuple[InputCursor, ...]
    dropped: int = 0
    dropped_exact: bool = True
    state: bytes | None = None
    """Of a consumer that has none."""


OpeningOf = Callable[[ResumeSet], Opening]


@dataclass(slots=True)
class HeldLog:
    """A consumer log in the hands of one view.

    Safe to call from several threads: a view may be released by the one that follows it.

    Every method that writes raises FencedError for good once another view holds the log, and
    OutcomeUnknownError while the storage does not say what became of a record: call `settle`, or
    the same method with the same arguments, until it does. Another record instead raises
    ConflictError, once, when the unknown one turns out to stand.
    """

    log: SlotLog
    state: ResumeSet
    """As of the last record that is known to stand."""
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)
    _unsettled: ConsumerRecord | None = field(default=None, init=False)
    _may_stand: bool = field(default=False, init=False)
    """Whether an earlier sending of the unsettled record may still land."""
    _fenced: str = field(default="", init=False)

    @property
    def slot(self) -> int:
        """The slot of the last own record."""
        return self.state.next_slot - 1

    @property
    def fenced(self) -> bool:
        """Whether another view is known to hold the log."""
        return bool(self._fenced)

    def write(self, record: ConsumerRecord) -> None:
        """Win the next slot for `record`, which must carry the id of this view's OPEN."""
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
        """Find out what became of a record of unknown outcome; nothing to do if there is none."""
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
                    self._unsettled = None  # every sending was refused: it does not stand
                    raise
                raise OutcomeUnknownError(
                    f"{error}; a sending of this record may still land: settle again"
                ) from error
            except BaseException:  # an interrupt, or a defect below: nothing is known
                self._may_stand = True
                raise
            self._unsettled, self._may_stand = None, False
            if isinstance(answer, Lost):
                self.fence(self._winner(slot, answer.existing))
                self.check()
            self.state = fold(self.state, record, name=self.log.key(slot))

    def whole(self) -> Whole | None:
        """Return what makes the next ACK a full record, None if it need not be one."""
        due = self.state.next_slot - self.state.full_slot >= FULL_EVERY
        return self.whole_now() if due else None

    def whole_now(self) -> Whole:
        """Return what makes a record a full one."""
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
        """Remember that another view holds the log."""
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
    """Win OPEN: from here on every older view of this consumer task is fenced.

    A record that came first is kept and read; only then the next slot is tried.

    Args:
        record_id: random id of this call.
        generation: the launcher's, never lower than that of a launcher before.
        opening: what OPEN shall say of the inputs, given what it follows; may raise to refuse.
        code: digest of the code that is given the records.

    Returns:
        The held log; or what it adds up to, and nothing was written, if the consumer has finished.

    Raises:
        FencedError: a launcher of a higher generation opened the log, or it is closed.
        ConflictError: too many rivals were faster.
        OutcomeUnknownError: OPEN may stand now or later. Opening again is safe.
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
