"""Puts what arrives from a command log back into its order. Pure.

Strategy: slots arrive pushed or read, early, late, or twice; they are given out once each, without
gaps. No line is trusted to keep an order. What the emitter numbered is checked against what came
before: a log that lost a record, or an emitter that goes on behind its successor, is found out.
"""

from collections.abc import Iterator

from durable_shuffle.recovery.command.internal import Decided
from durable_shuffle.serialization.errors import CorruptDataError


class SlotOrder:
    """Args:
    first: the slot that is given out first.
    """

    def __init__(self, first: int) -> None:
        self.next_slot = first
        """The slot that is missing now."""
        self._early: dict[int, Decided] = {}
        self._last: Decided | None = None

    @property
    def has_gap(self) -> bool:
        """Whether something waits behind a slot that is missing."""
        return bool(self._early)

    def take(self, slot: int, found: Decided) -> Iterator[tuple[int, Decided]]:
        """Take one slot in and yield what has its turn now.

        Raises:
            CorruptDataError: it cannot stand behind the slot before; it is not given out.
        """
        if slot >= self.next_slot:
            self._early[slot] = found
        while (ready := self._early.get(self.next_slot)) is not None:
            _check(self._last, ready, self.next_slot)
            del self._early[self.next_slot]
            self._last = ready
            self.next_slot += 1
            yield self.next_slot - 1, ready


def _check(before: Decided | None, after: Decided, slot: int) -> None:
    if before is None:
        return
    same = before.coordinator == after.coordinator
    if same and (after.number != before.number + 1 or after.generation < before.generation):
        raise CorruptDataError(
            f"slot {slot} of a command log: expected number={before.number + 1} of generation "
            f"{before.generation} or higher, found number={after.number} of generation "
            f"{after.generation}"
        )
    if not same and (after.number != 0 or after.generation <= before.generation):
        raise CorruptDataError(
            f"slot {slot} of a command log: another coordinator begins with number=0 and a "
            f"generation above {before.generation}, found number={after.number} of generation "
            f"{after.generation}"
        )
