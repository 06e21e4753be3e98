"""The slot log, the one primitive: a dense sequence of small immutable objects.

Strategy: a record is encoded once; the same bytes are sent for a slot until the storage says who
holds it (`RetryingStorage` sends them again; there is no loop here). Every record carries a random
id of its author, so identical bytes mean that the author's earlier try won and the reply was lost.
Why these rules and not weaker ones: docs/internals/decisions/001-slot-log-protocol.md.

A record is stored bound to its key (`serialization.control.bound`): decoding refuses an intact
record of another slot, log, stage or job. Nothing but `SlotLog` reads or writes a slot.

A slot that lost its record reads as empty, so a log may seem to end there. A reader that takes a
snapshot of an appender's log uses `whole_end`, which lists the log once. The listing makes it
refuse or look further, and proves nothing. A writer that wins the lost slot learns it at the next
slot, see `refuse_older`. Only objects outside of a log can tell that its last records are lost.
"""

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

from durable_shuffle.serialization.control import bound
from durable_shuffle.serialization.errors import CorruptDataError, NotFoundError
from durable_shuffle.shuffle.base.side_by_side import each_at_once
from durable_shuffle.shuffle.log.layout import slot_name
from durable_shuffle.shuffle.storage.contract import Created, Storage, listed_after
from durable_shuffle.shuffle.storage.local import is_far


@dataclass(frozen=True, slots=True)
class Won:
    """The slot holds our bytes."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The slot holds another author's bytes."""

    existing: bytes


@dataclass(frozen=True, slots=True)
class SlotLog:
    """One log under `prefix` (ends with '/'). Slots count from 0 without gaps.

    Not guaranteed: that a record read is the last one. Only an empty slot behind it says so.
    """

    storage: Storage
    prefix: str

    def key(self, slot: int) -> str:
        """Key of a slot's object."""
        return self.prefix + slot_name(slot)

    def append(self, slot: int, record: bytes) -> Won | Lost:
        """Try to put `record` into `slot`.

        The caller has seen `slot - 1` (or `slot` is 0), which keeps the log dense.

        Raises:
            OutcomeUnknownError: still unknown when the storage's patience ended. The record may
                stand in the slot now or later: read the slot first, and delete nothing that the
                record names.
            UnavailableError: the storage refused every sending, a full disk for example.
        """
        key = self.key(slot)
        stored = bound(record, key)
        answer = self.storage.put_if_absent(key, stored)
        if isinstance(answer, Created) or answer.existing == stored:
            return Won()
        return Lost(bound(answer.existing, key))

    def mend(self, slot: int, record: bytes) -> None:
        """Put a record into a slot whose own record is damaged or lost. For repairs and releases.

        A rival that wins the slot does the same repair, or is a late writer.
        """
        self.storage.delete([self.key(slot)])
        self.append(slot, record)

    def read(self, slot: int) -> bytes | None:
        """Return the record in `slot`, None while the slot is empty."""
        key = self.key(slot)
        try:
            return bound(self.storage.read(key), key)
        except NotFoundError:
            return None

    def read_many(self, slots: range) -> dict[int, bytes | None]:
        """Return what `read` gives for each of the slots, which are asked for at once."""
        return dict(
            zip(slots, each_at_once(self.read, slots, far=is_far(self.storage)), strict=True)
        )

    def read_from(self, slot: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield (slot, record) from `slot` up to the first empty slot."""
        while (record := self.read(slot)) is not None:
            yield slot, record
            slot += 1

    def read_back(self, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield (slot, record) from the slot before `end` back to the first one.

        Raises:
            CorruptDataError: a slot in the middle of the log is empty; names it.
        """
        for slot in reversed(range(end)):
            if (record := self.read(slot)) is None:
                raise self._hole(slot)
            yield slot, record

    def find_end(self, hint: int = 0, first: int = 0) -> int:
        """Return the first empty slot, in O(log distance) requests from `hint`.

        Not guaranteed: that nothing stands behind it, in a log that lost a record.

        Args:
            first: slots below it may be gone. It holds a record itself, unless it is 0.
        """
        hint = max(hint, first)
        if self.read(hint) is None:
            if hint and self.read(hint - 1) is not None:
                return hint
            low, high = first if first else -1, max(first, hint - 1)
        else:
            low, step = hint, 1
            while self.read(low + step) is not None:
                low, step = low + step, step * 2
            high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            if self.read(middle) is None:
                high = middle
            else:
                low = middle
        return high

    def whole_end(self, first: int = 0) -> int:
        """Return the first empty slot, after a check that none before it is lost. Lists once.

        Args:
            first: slots below it are not looked at, and may be gone.

        Raises:
            CorruptDataError: a slot in the middle of the log is empty; names it.
        """
        slots = self.listed(first)
        self.refuse_holes(slots, first)
        end = max([first, *(slot + 1 for slot in slots)])
        while self.read(end) is not None:
            end += 1
        return end

    def listed(self, first: int = 0) -> set[int]:
        """Return the slots from `first` on that a listing shows."""
        behind = listed_after(self.storage, self.prefix, self.key(first - 1) if first else "")
        found = slots_listed(info.key for info in behind)
        return found.get(self.prefix, set())

    def refuse_holes(self, listed: Set[int], first: int = 0) -> None:
        """Refuse a log if a slot below a listed one has no record.

        Args:
            first: slots below it may be gone.

        Raises:
            CorruptDataError: names the first such slot.
        """
        for slot in range(first, max(listed, default=0)):
            if slot not in listed and self.read(slot) is None:
                raise self._hole(slot)

    def refuse_hole(self, end: int) -> None:
        """Refuse an empty slot if the slot behind it holds a record.

        Raises:
            CorruptDataError: the record of slot `end` is lost.
        """
        if self.read(end + 1) is not None and self.read(end) is None:
            raise self._hole(end)

    def _hole(self, slot: int) -> CorruptDataError:
        return CorruptDataError(
            f"a slot in the middle of a log lost its record: {self.key(slot)!r} is missing and "
            "later slots are there; run `durable-shuffle verify`"
        )


def slots_listed(keys: Iterable[str]) -> dict[str, set[int]]:
    """Return the slots among the keys, by the prefix of their log."""
    slots: dict[str, set[int]] = {}
    for key in keys:
        prefix, _, name = key.rpartition("/")
        if name.isascii() and name.isdecimal() and name == slot_name(int(name)):
            slots.setdefault(f"{prefix}/", set()).add(int(name))
    return slots


def refuse_older(log: SlotLog, slot: int, *, found: int, mine: int) -> None:
    """Refuse a record that nobody can have written behind the caller's: the log had a hole.

    Args:
        slot: holds the record; the slot before holds the caller's newest one.
        found: the record's epoch or generation.
        mine: the caller's. A record behind the caller's has a higher one.

    Raises:
        CorruptDataError: the record is older; names both slots.
    """
    if found <= mine:
        raise CorruptDataError(
            f"a log lost a record: {log.key(slot - 1)!r} was empty when number {mine} won it, and "
            f"{log.key(slot)!r} holds a record of number {found}; run verify"
        )
