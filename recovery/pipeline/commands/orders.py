"""Internal commands: what the coordinator of a pipeline says to its tasks, as records. Pure.

One slot of the command log holds all that was decided in one step; every task takes in the same
slots in the same order. Slots arrive pushed or read, early, late, or twice; `SlotOrder` gives each
out once, without gaps. It compares the emitter's numbers, and so detects a log that lost a record,
and an emitter that goes on behind its successor. docs/format.md lists the fields.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from durable_shuffle.recovery.job.phases import CallOff, PassBarrier, StopTasks, Told
from durable_shuffle.recovery.pipeline.commands.requests import Description, Wanted
from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.errors import CorruptDataError


@dataclass(frozen=True, slots=True)
class StartTasks:
    """Attempts that may begin, with everything that they must agree on.

    It also allows them to write: it stands, so their coordinator held the newest generation.
    """

    KIND: ClassVar[str] = "START"
    tasks: tuple[str, ...]
    epoch: int
    positions: dict[str, bytes] = field(default_factory=dict)
    """Task -> where it begins, packed as `shuffle/read/position.py` does; of those that have no
    cursor and do not begin at the first record. All tasks of a consumer begin at one moment."""
    settings: dict[str, int | float] = field(default_factory=dict)
    """Settings in the place of those that the pipeline was made with."""


@dataclass(frozen=True, slots=True)
class Configure:
    """All tasks use these settings from here on."""

    KIND: ClassVar[str] = "CONFIGURE"
    settings: dict[str, int | float]
    """All that differ from those that the pipeline was made with."""


@dataclass(frozen=True, slots=True)
class Lead:
    """All that a coordinator's successor has to know; its first record, repeated. Not for tasks."""

    KIND: ClassVar[str] = "LEAD"
    given: Description
    """What this coordinator brought along."""
    handled: int
    """Slot of the request log, exclusive, below which requests are handled."""
    wanted: Wanted
    """What they add up to."""


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """What became of a request. Not for tasks."""

    KIND: ClassVar[str] = "ACK"
    request: int
    """Its slot in the request log."""
    refused: str = ""
    """Kind of the error, "" if it is taken over."""
    text: str = ""


InternalCommand = Lead | Acknowledge | StartTasks | Told | Configure
_BODIES: RecordCodec[InternalCommand] = RecordCodec(
    (Lead, Acknowledge, StartTasks, PassBarrier, CallOff, StopTasks, Configure)
)


@dataclass(frozen=True, slots=True)
class CommandSlot:
    """One slot of the command log."""

    KIND: ClassVar[str] = "COMMANDS"
    record_id: str
    coordinator: str
    """Random id of the emitter; the same in all its generations."""
    generation: int
    number: int
    """How many slots this emitter has won before."""
    commands: tuple[bytes, ...]
    """Control records, in their order."""


_STEPS: RecordCodec[CommandSlot] = RecordCodec((CommandSlot,))


@dataclass(frozen=True, slots=True)
class Decided:
    """One slot of the command log, decoded."""

    coordinator: str
    generation: int
    number: int
    commands: tuple[InternalCommand, ...]


def encode_slot(
    commands: tuple[InternalCommand, ...],
    *,
    record_id: str,
    coordinator: str,
    generation: int,
    number: int,
) -> bytes:
    """Return the record of one step."""
    bodies = tuple(_BODIES.encode(command) for command in commands)
    return _STEPS.encode(CommandSlot(record_id, coordinator, generation, number, bodies))


def decode_slot(data: bytes, *, name: str) -> Decided:
    """Return what one slot holds, all of it or nothing.

    Args:
        name: of the slot, for messages.

    Raises:
        CorruptDataError: not an intact record of a command log.
        IncompatibleError: intact, but of a version that is not known here.
    """
    step = _STEPS.decode(data, name=name)
    if step.generation < 1 or step.number < 0:
        raise CorruptDataError(
            f"{name}: generation={step.generation} number={step.number} of a command log"
        )
    commands = tuple(_BODIES.decode(body, name=name) for body in step.commands)
    return Decided(step.coordinator, step.generation, step.number, commands)


class SlotOrder:
    """Gives slots out in order, once each.

    Args:
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

    def take(self, slot: int, decided: Decided) -> Iterator[Decided]:
        """Take one slot in and yield what has its turn now.

        Raises:
            CorruptDataError: it cannot stand behind the slot before; it is not given out.
        """
        if slot >= self.next_slot:
            self._early[slot] = decided
        while (ready := self._early.get(self.next_slot)) is not None:
            _check(self._last, ready, self.next_slot)
            del self._early[self.next_slot]
            self._last = ready
            self.next_slot += 1
            yield ready


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
