"""A slot log with its records and their fold: how every log is read and written.

Strategy: three parts make a log. `SlotLog` decides who holds a slot, a `RecordCodec` turns bytes
into records, and a pure fold says what the records add up to. A fold lives beside its records and
is tested without a storage.

A writer gives `decide` a function from state to record. The function is called again behind each
record of another author, so every record stands behind exactly the state that it was made from.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

from durable_shuffle.serialization.control import ControlRecord, decode_control, encode_control
from durable_shuffle.serialization.errors import ConflictError, CorruptDataError
from durable_shuffle.shuffle.log.slot_log import SlotLog, Won

NOTHING: Mapping[int, bytes | None] = MappingProxyType({})
MOST_LOST_SLOTS = 1000
"""`decide` gives up after so many slots in a row that others won."""


class Folded(Protocol):
    """What the records below a slot add up to."""

    @property
    def next_slot(self) -> int:
        """The slot behind these records."""


R = TypeVar("R")
S = TypeVar("S", bound=Folded)

Fold = Callable[[S, R, str], S]
"""Returns the state behind the record of slot `state.next_slot`. The text is the record's key, for
messages. Raises CorruptDataError if the record cannot stand there."""


class Codec(Protocol[R]):
    """What turns the bytes of a slot into a record, and back."""

    def encode(self, record: R) -> bytes:
        """Return the record as bytes; equal records are equal bytes."""

    def decode(self, data: bytes, name: str) -> R:
        """Return the record; errors name `name`."""


class AnyRecord:
    """The codec of a log whose kinds of records do not matter."""

    def encode(self, record: ControlRecord) -> bytes:
        return encode_control(record.kind, record.fields)

    def decode(self, data: bytes, name: str) -> ControlRecord:
        return decode_control(data, name=name)


@dataclass(frozen=True, slots=True)
class Tail(Generic[R]):
    """The end of a log whose last record holds all that its successors go on from."""

    next_slot: int
    last: R | None

    def followed_by(self, record: R, _name: str) -> "Tail[R]":
        """Return the end behind the record of `next_slot`. This is a fold."""
        return Tail(self.next_slot + 1, record)


@dataclass(frozen=True, slots=True)
class TypedLog(Generic[R, S]):
    """One log. Cheap; holds nothing that was read."""

    slots: SlotLog
    codec: Codec[R]
    fold: Fold[S, R]

    def key(self, slot: int) -> str:
        """Key of a slot's object."""
        return self.slots.key(slot)

    def record(self, slot: int) -> R | None:
        """Return the record in `slot`, None while the slot is empty."""
        data = self.slots.read(slot)
        return None if data is None else self.codec.decode(data, self.key(slot))

    def records(self, slot: int = 0) -> Iterator[tuple[int, R]]:
        """Yield (slot, record) from `slot` up to the first empty slot."""
        while (record := self.record(slot)) is not None:
            yield slot, record
            slot += 1

    def read(
        self,
        state: S,
        until: Callable[[S], bool] = lambda _: False,
        ahead: int = 0,
        *,
        first_too: bool = False,
        asked: Mapping[int, bytes | None] = NOTHING,
    ) -> S:
        """Return what `state` and the records behind it add up to.

        Args:
            until: the walk ends at the first state that it holds of, else at an empty slot.
            ahead: behind the first slot that holds a record, so many are asked for at once; the
                others one by one.
            first_too: the first slot is one of them, so an empty log is asked as often.
            asked: slots that the caller has read just now, and what stood there.

        Raises:
            CorruptDataError: a record is damaged or cannot stand where it stands.
            IncompatibleError: a record was written by a newer version.
        """
        begin = state.next_slot
        while not until(state):
            slot = state.next_slot
            if ahead and slot == begin + (not first_too) and slot not in asked:
                asked = self.slots.read_many(range(slot, slot + ahead))
            data = asked[slot] if slot in asked else self.slots.read(slot)
            if data is None:
                break
            state = self.fold(state, self.codec.decode(data, self.key(slot)), self.key(slot))
        return state

    def append(self, slot: int, record: R) -> R:
        """Try to put `record` into `slot`; return the record that stands there.

        It is `record` itself if and only if this call, or an earlier one with the same record, won.

        Raises:
            OutcomeUnknownError, UnavailableError: see `SlotLog.append`.
        """
        answer = self.slots.append(slot, self.codec.encode(record))
        if isinstance(answer, Won):
            return record
        return self.codec.decode(answer.existing, self.key(slot))

    def decide(self, state: S, propose: Callable[[S], R | None]) -> tuple[S, R | None]:
        """Append the record that `propose` makes of the log's state, behind exactly that state.

        Args:
            state: of the log up to some slot. The records behind it are met one by one.
            propose: returns the record to append, or None to stop. It is called again behind every
                slot that another author won.

        Returns:
            The state behind the last record that was met, and the record that was won; None if
            `propose` stopped, and then the state says why.

        Raises:
            ConflictError: others won too many slots in a row; nothing was written.
            OutcomeUnknownError, UnavailableError: see `SlotLog.append`.
        """
        for _ in range(MOST_LOST_SLOTS):
            wanted = propose(state)
            if wanted is None:
                return state, None
            record = self.append(state.next_slot, wanted)
            state = self.fold(state, record, self.key(state.next_slot))
            if record is wanted:
                return state, record
        raise ConflictError(
            f"others won {MOST_LOST_SLOTS} slots in a row, the last of them is "
            f"{self.key(state.next_slot - 1)!r}; try again"
        )

    def tail_at(self: "TypedLog[R, Tail[R]]", end: int) -> Tail[R]:
        """Return the log as it ended when `end` was its first empty slot.

        Raises:
            CorruptDataError: the last record is gone.
        """
        if end == 0:
            return Tail(0, None)
        record = self.record(end - 1)
        if record is None:
            raise CorruptDataError(f"a slot lost its record: key={self.key(end - 1)!r}")
        return Tail(end, record)
