"""Internal commands: what the coordinator of a pipeline says to its tasks, in one order.

One slot of the command log holds all that was decided in one step; every task takes in the same
slots in the same order. Slots arrive pushed or read, early, late, or twice; `SlotOrder` gives each
out once, without gaps. It compares the emitter's numbers, and so detects a log that lost a record,
and an emitter that goes on behind its successor. docs/format.md lists the fields.

Two coordinators may both think that they lead. The log decides: an `Emitter` that meets a slot of a
higher generation is fenced for good and emits nothing more; it passes slots of a lower one.

A new coordinator reads the newest LEAD, and what came behind it. LEAD is never far: every
coordinator begins with one and repeats it every so many slots. Behind it, acknowledgements say
which requests count.
"""

from collections.abc import Iterator
from contextlib import contextmanager
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
from durable_shuffle.serialization.errors import CorruptDataError, FencedError
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.log.slot_log import Lost, SlotLog


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


class Emitter:
    """Used by one thread.

    Args:
        coordinator: random id of the coordinator that emits.
        generation: that it won in the job log.
        end: the first slot that was found empty; default: it is looked for.
    """

    def __init__(
        self,
        log: SlotLog,
        coordinator: str,
        generation: int,
        ids: IdSource,
        end: int | None = None,
    ) -> None:
        self._log, self._coordinator, self._ids = log, coordinator, ids
        self._generation = generation
        self._next_slot = log.find_end() if end is None else end
        self._broken: Exception | None = None
        self.number = 0
        """How many slots it has won."""

    def lead(self, generation: int) -> None:
        """Emit under a newer generation of the same coordinator from here on."""
        self._generation = generation

    def begin(self, *commands: InternalCommand) -> bool:
        """Try to win the slot at the end of the log; False if an older coordinator was faster.

        What was read of the log then was not all. Raises: as `emit`.
        """
        return self._won(self._record(commands))

    def emit(self, *commands: InternalCommand) -> tuple[int, bytes]:
        """Win a slot for commands that were decided in one step; return the slot and its record.

        Raises:
            FencedError: a newer coordinator emits. For good.
            CorruptDataError, IncompatibleError: the slot holds what cannot be there. For good.
            OutcomeUnknownError, UnavailableError: of the storage. For good, since the record may
                still stand.
        """
        with self._for_good():
            record = self._record(commands)
            while not self._won(record):
                pass  # ends: every turn passes a record of an older coordinator
        return self._next_slot - 1, record

    def check(self) -> None:
        """Look whether anybody else emits; one request.

        Raises:
            FencedError, CorruptDataError, IncompatibleError: as `emit`.
        """
        record = None if self._broken else self._log.read(self._next_slot)
        with self._for_good():
            if record is not None:
                self._pass(record)

    @contextmanager
    def _for_good(self) -> Iterator[None]:
        """Whatever is raised inside is raised again by every later call."""
        if self._broken is not None:
            raise self._broken
        try:
            yield
        except Exception as error:
            self._broken = error
            raise

    def _record(self, commands: tuple[InternalCommand, ...]) -> bytes:
        return encode_slot(
            commands,
            record_id=self._ids.new_id(),
            coordinator=self._coordinator,
            generation=self._generation,
            number=self.number,
        )

    def _won(self, record: bytes) -> bool:
        """Try to win the next slot; if it is an older coordinator's, go behind it."""
        answer = self._log.append(self._next_slot, record)
        if isinstance(answer, Lost):
            self._pass(answer.existing)
            return False
        self._next_slot += 1
        self.number += 1
        return True

    def _pass(self, existing: bytes) -> None:
        """Go behind a record of an older coordinator."""
        key = self._log.key(self._next_slot)
        slot = decode_slot(existing, name=key)
        if slot.generation > self._generation:
            raise FencedError(
                f"another coordinator leads: mine=generation {self._generation}, "
                f"newest=generation {slot.generation}: {key!r}; this one must stop"
            )
        if self.number or slot.generation == self._generation:
            raise CorruptDataError(
                f"a log lost a record: {key!r} holds generation {slot.generation} behind mine, "
                f"{self._generation}; run verify"
            )
        self._next_slot += 1


LEAD_EVERY = 64
"""A LEAD is at most so many slots behind the one before."""


@dataclass(slots=True)
class Succession:
    """What a coordinator knows of what was asked for."""

    given: Description
    handled: int = 0
    """Slot of the next request."""
    wanted: Wanted = field(default_factory=Wanted)

    def take(self, command: ExternalCommand) -> None:
        """The next request counts."""
        self.wanted = handle(self.wanted, command).wanted
        self.handled += 1

    def refuse(self) -> None:
        """The next request does not count."""
        self.handled += 1

    def carried_out(self, command: DropPart | AllowRelease) -> None:
        """It was done to the end: nobody has to do it again."""
        self.wanted = self.wanted.without(command)

    def lead(self) -> Lead:
        """Return what a successor has to know."""
        return Lead(self.given, self.handled, self.wanted)


def succeed(commands: SlotLog, requests: SlotLog, given: Description) -> tuple[Succession, int]:
    """Return the state for a coordinator that brings `given`, and the log's end.

    With the same description as the coordinator before, it goes on with what was asked for since.
    With another one, it thereby asks for that one.

    Raises:
        CorruptDataError, IncompatibleError: a record that cannot be understood; it is not passed.
    """
    end = commands.find_end()
    lead: Lead | None = None
    tail: list[Acknowledge] = []
    for slot, data in commands.read_back(end):
        said = decode_slot(data, name=commands.key(slot)).commands
        tail += [command for command in reversed(said) if isinstance(command, Acknowledge)]
        lead = next((command for command in said if isinstance(command, Lead)), None)
        if lead is not None:
            break
    if lead is None:
        if end:
            raise CorruptDataError(f"a command log must begin with LEAD: {commands.key(0)!r}")
        return Succession(given), end
    succession = Succession(given, lead.handled, lead.wanted)
    for acknowledged in reversed(tail):
        _replay(succession, acknowledged, requests)
    # a stop was of the run that it ended; to start is to want it running
    succession.wanted = replace(succession.wanted, stop=None)
    if lead.given != given:  # or it would rise again in the next coordinator with `given`
        succession.wanted = replace(succession.wanted, run=None)
    return succession, end


def _replay(succession: Succession, done: Acknowledge, requests: SlotLog) -> None:
    """Take in a request that an earlier coordinator acknowledged."""
    if done.request < succession.handled:
        return
    key, data = requests.key(done.request), requests.read(done.request)
    if data is None or done.request != succession.handled:
        raise CorruptDataError(f"a request was acknowledged that is not there: {key!r}")
    if done.refused:
        succession.refuse()
    else:
        succession.take(REQUESTS.decode(data, name=key))
