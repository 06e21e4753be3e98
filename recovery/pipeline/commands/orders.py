"""Internal commands: from the coordinator of a pipeline to its tasks, in one order.

One slot of the command log holds all commands of one step. Every task reads the same slots in the
same order. Slots are pushed or read, and may arrive early, late, or twice; `SlotOrder` returns each
slot once, without gaps. It compares the emitter's numbers, and so detects a log that lost a record,
and an emitter that writes after its successor. docs/internals/format.md lists the fields.

A new coordinator reads the newest LEAD and everything after it. The newest LEAD is never far back:
every coordinator begins with one and repeats it every so many slots. After the LEAD,
acknowledgements say which requests count.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

from durable_shuffle.recovery.job.phases import CallOff, PassBarrier, StopTasks, Told
from durable_shuffle.recovery.pipeline.commands.requests import (
    REQUESTS,
    AllowRelease,
    Description,
    DropPart,
    ExternalCommand,
    Wanted,
    handle,
)
from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.errors import CorruptDataError, InvalidInputError
from durable_shuffle.shuffle.log.slot_log import SlotLog


@dataclass(frozen=True, slots=True)
class StartTasks:
    """Attempts that may begin, with everything that they must agree on.

    This record also allows them to write: it won its slot, so their coordinator led at that moment.
    """

    KIND: ClassVar[str] = "START"
    tasks: tuple[str, ...]
    epoch: int
    positions: dict[str, bytes] = field(default_factory=dict)
    """Task -> where it begins, packed as in `shuffle/read/position.py`. Only for tasks that have no
    cursor and do not begin at the first record. All tasks of a consumer begin at one moment."""
    settings: dict[str, int | float] = field(default_factory=dict)
    """Settings that replace those of the pipeline."""


@dataclass(frozen=True, slots=True)
class ApplySettings:
    """All tasks use these settings from here on."""

    KIND: ClassVar[str] = "APPLY_SETTINGS"
    settings: dict[str, int | float]
    """All settings that differ from those of the pipeline."""


@dataclass(frozen=True, slots=True)
class Lead:
    """All that a successor has to know: a coordinator's first record, repeated. Not for tasks."""

    KIND: ClassVar[str] = "LEAD"
    given: Description
    """The description that this coordinator was started with."""
    handled: int
    """First slot of the request log that is not handled yet."""
    wanted: Wanted
    """The state that the handled requests add up to."""

    def __post_init__(self) -> None:
        if self.handled < 0:
            raise InvalidInputError(f"LEAD.handled is a slot, found={self.handled}")


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a request. Not for tasks."""

    KIND: ClassVar[str] = "ANSWER"
    request: int
    """Its slot in the request log."""
    refused: str = ""
    """Kind of the error; "" if the request was accepted."""
    text: str = ""


InternalCommand = Lead | Answered | StartTasks | Told | ApplySettings
_BODIES: RecordCodec[InternalCommand] = RecordCodec(
    (Lead, Answered, StartTasks, PassBarrier, CallOff, StopTasks, ApplySettings)
)


@dataclass(frozen=True, slots=True)
class CommandSlot:
    """One slot of the command log."""

    KIND: ClassVar[str] = "COMMANDS"
    record_id: str
    coordinator: str
    """Random id of the emitter; it is the same in all its generations."""
    generation: int
    number: int
    """How many slots this emitter had won before."""
    commands: tuple[bytes, ...]
    """Control records, in order."""


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
    """Return the content of one slot, completely or not at all.

    Args:
        name: of the slot, for messages.

    Raises:
        CorruptDataError: the data is not an intact record of a command log.
        IncompatibleError: the data is intact, but its version is unknown.
    """
    step = _STEPS.decode(data, name=name)
    if step.generation < 1 or step.number < 0:
        raise CorruptDataError(
            f"{name}: generation={step.generation} number={step.number} of a command log"
        )
    commands = tuple(_BODIES.decode(body, name=name) for body in step.commands)
    return Decided(step.coordinator, step.generation, step.number, commands)


class SlotOrder:
    """Returns slots in order, each once.

    Args:
        first: the slot that is returned first.
    """

    def __init__(self, first: int) -> None:
        self.next_slot = first
        """The next slot that is missing."""
        self._early: dict[int, Decided] = {}
        self._last: Decided | None = None

    @property
    def has_gap(self) -> bool:
        """Whether a later slot waits for a missing one."""
        return bool(self._early)

    def take(self, slot: int, decided: Decided) -> Iterator[Decided]:
        """Take one slot in and yield the slots that are next in order.

        Raises:
            CorruptDataError: the slot cannot follow the one before it; it is not returned.
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


LEAD_EVERY = 64
"""At most so many slots lie between two LEADs."""


@dataclass(slots=True)
class Succession:
    """A coordinator's knowledge of the requests."""

    given: Description
    handled: int = 0
    """Slot of the next request."""
    wanted: Wanted = field(default_factory=Wanted)

    def take(self, command: ExternalCommand) -> None:
        """Count the next request."""
        self.wanted = handle(self.wanted, command).wanted
        self.handled += 1

    def refuse(self) -> None:
        """Do not count the next request."""
        self.handled += 1

    def carried_out(self, command: DropPart | AllowRelease) -> None:
        """Forget a command that is complete: nobody has to carry it out again."""
        self.wanted = self.wanted.without(command)

    def lead(self) -> Lead:
        """Return everything that a successor has to know."""
        return Lead(self.given, self.handled, self.wanted)


def succeed(commands: SlotLog, requests: SlotLog, given: Description) -> tuple[Succession, int]:
    """Return the state for a coordinator that is started with `given`, and the log's end.

    If the coordinator before had the same description, the new one continues with the requests
    since then. If it had a different one, starting with `given` is a request to run `given`.

    Raises:
        CorruptDataError, IncompatibleError: a record cannot be understood, and is not skipped.
    """
    end = commands.find_end()
    lead: Lead | None = None
    tail: list[Answered] = []
    for slot, data in commands.read_back(end):
        said = decode_slot(data, name=commands.key(slot)).commands
        tail += [command for command in reversed(said) if isinstance(command, Answered)]
        lead = next((command for command in said if isinstance(command, Lead)), None)
        if lead is not None:
            break
    if lead is None:
        if end:
            raise CorruptDataError(f"a command log must begin with LEAD: {commands.key(0)!r}")
        return Succession(given), end
    if lead.handled:
        _stored(requests, lead.handled - 1, commands)
    succession = Succession(given, lead.handled, lead.wanted)
    for acknowledged in reversed(tail):
        _replay(succession, acknowledged, requests, commands)
    # a stop concerned the run that it ended; starting a coordinator is a request to run
    succession.wanted = replace(succession.wanted, stop=None)
    if lead.given != given:  # otherwise the next coordinator with `given` would run it again
        succession.wanted = replace(succession.wanted, run=None)
    return succession, end


def _replay(succession: Succession, done: Answered, requests: SlotLog, commands: SlotLog) -> None:
    """Apply a request that an earlier coordinator acknowledged."""
    if done.request < succession.handled:
        return
    key = requests.key(done.request)
    if done.request != succession.handled:
        raise CorruptDataError(f"a request was acknowledged out of order: {key!r}")
    data = _stored(requests, done.request, commands)
    if done.refused:
        succession.refuse()
    else:
        succession.take(REQUESTS.decode(data, name=key))


def _stored(requests: SlotLog, slot: int, commands: SlotLog) -> bytes:
    data = requests.read(slot)
    if data is None:
        raise CorruptDataError(
            f"a request was handled that is not there: {requests.key(slot)!r}, as "
            f"{commands.prefix!r} says"
        )
    return data
