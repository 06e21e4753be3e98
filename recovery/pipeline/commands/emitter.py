"""The one emitter of a pipeline's internal commands, and what a new coordinator goes on from.

Two coordinators may both think that they lead. The log decides: an emitter that meets a slot of a
higher generation is fenced for good and emits nothing more; it passes slots of a lower one.

A new coordinator reads the newest LEAD, and what came behind it. LEAD is never far: every
coordinator begins with one and repeats it every so many slots. Behind it, acknowledgements say
which requests count.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from durable_shuffle.recovery.pipeline.commands.orders import (
    Acknowledge,
    InternalCommand,
    Lead,
    decode_slot,
    encode_slot,
)
from durable_shuffle.recovery.pipeline.commands.requests import (
    REQUESTS,
    AllowRelease,
    Description,
    DropPart,
    ExternalCommand,
    Wanted,
    handle,
)
from durable_shuffle.serialization.errors import CorruptDataError, FencedError
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.log.slot_log import Lost, SlotLog


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
