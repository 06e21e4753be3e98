"""The one emitter of a pipeline's internal commands, and what a new coordinator goes on from.

Two coordinators may both think that they lead. The log decides: an emitter that meets a slot of a
higher generation is fenced for good and emits nothing more; it passes slots of a lower one.

A new coordinator reads the newest LEAD, and what came behind it. LEAD is never far: every
coordinator begins with one and repeats it every so many slots. Behind it, acknowledgements say
which requests count.
"""

from dataclasses import dataclass, field, replace

from durable_shuffle.recovery.pipeline.commands.orders import (
    Acknowledge,
    Decided,
    InternalCommand,
    Lead,
    decode_slot,
    encode_slot,
)
from durable_shuffle.recovery.pipeline.commands.requests import (
    REQUESTS,
    CommandHistory,
    Description,
    ExternalCommand,
    Reconcile,
    Wanted,
    handle,
    listed,
)
from durable_shuffle.serialization.errors import CorruptDataError, FencedError
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.log.slot_log import SlotLog, Won


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
        self._number = 0
        self._next_slot = log.find_end() if end is None else end
        self._broken: Exception | None = None

    @property
    def number(self) -> int:
        """How many slots it has won."""
        return self._number

    def lead(self, generation: int) -> None:
        """Emit under a newer generation of the same coordinator from here on."""
        self._generation = generation

    def begin(self, *commands: InternalCommand) -> bool:
        """Try to win the slot at the end of the log; False if an older coordinator was faster.

        What was read of the log then was not all. Raises: as `emit`.
        """
        record = self._record(commands)
        answer = self._log.append(self._next_slot, record)
        if not isinstance(answer, Won):
            self._pass(answer.existing)
            return False
        self._next_slot += 1
        self._number += 1
        return True

    def emit(self, *commands: InternalCommand) -> tuple[int, bytes]:
        """Win a slot for commands that were decided in one step; return the slot and its record.

        Raises:
            FencedError: a newer coordinator emits. For good.
            CorruptDataError, IncompatibleError: the slot holds what cannot be there. For good.
            OutcomeUnknownError, UnavailableError: of the storage. For good, since the record may
                still stand.
        """
        if self._broken is not None:
            raise self._broken
        try:
            return self._emit(commands)
        except Exception as error:
            self._broken = error
            raise

    def check(self) -> None:
        """Look whether anybody else emits; one request.

        Raises:
            FencedError, CorruptDataError, IncompatibleError: as `emit`.
        """
        if self._broken is not None:
            raise self._broken
        found = self._log.read(self._next_slot)
        if found is not None:
            try:
                self._pass(found)
            except Exception as error:
                self._broken = error
                raise

    def _emit(self, commands: tuple[InternalCommand, ...]) -> tuple[int, bytes]:
        record = self._record(commands)
        while True:  # ends: every turn passes a record of an older coordinator
            answer = self._log.append(self._next_slot, record)
            if isinstance(answer, Won):
                self._next_slot += 1
                self._number += 1
                return self._next_slot - 1, record
            self._pass(answer.existing)

    def _record(self, commands: tuple[InternalCommand, ...]) -> bytes:
        return encode_slot(
            commands,
            record_id=self._ids.new_id(),
            coordinator=self._coordinator,
            generation=self._generation,
            number=self._number,
        )

    def _pass(self, existing: bytes) -> None:
        """Go behind a record of an older coordinator."""
        key = self._log.key(self._next_slot)
        found = decode_slot(existing, name=key)
        if found.generation > self._generation:
            raise FencedError(
                f"another coordinator leads: mine=generation {self._generation}, "
                f"newest=generation {found.generation}: {key!r}; this one must stop"
            )
        if self._number or found.generation == self._generation:
            raise CorruptDataError(
                f"a log lost a record: {key!r} holds generation {found.generation} behind mine, "
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
    history: CommandHistory = field(default_factory=CommandHistory)
    wanted: Wanted = field(default_factory=Wanted)

    def take(self, command: ExternalCommand, wanted: Wanted) -> None:
        """A request counts; `wanted` is the state behind it."""
        if isinstance(command, Reconcile):
            self.history.replace(listed(command))
        else:
            self.history.add(command)
        self.wanted = wanted
        self.handled += 1

    def refuse(self) -> None:
        """A request does not count."""
        self.handled += 1

    def lead(self) -> Lead:
        """Return what a successor has to know."""
        return Lead(
            self.given,
            self.handled,
            tuple(REQUESTS.encode(command) for command in self.history.commands),
        )


def succeed(commands: SlotLog, requests: SlotLog, given: Description) -> tuple[Succession, int]:
    """Return the state for a coordinator that brings `given`, and the log's end.

    With the same description as the coordinator before, it goes on with what was asked for since.
    With another one, it thereby asks for that one.

    Raises:
        CorruptDataError, IncompatibleError: a record that cannot be understood; it is not passed.
    """
    end = commands.find_end()
    tail: list[Decided] = []
    lead: Lead | None = None
    for slot in reversed(range(end)):
        data = commands.read(slot)
        if data is None:
            raise CorruptDataError(
                f"a slot in the middle of a log is missing: {commands.key(slot)!r}"
            )
        tail.append(decode_slot(data, name=commands.key(slot)))
        lead = next((c for c in tail[-1].commands if isinstance(c, Lead)), None)
        if lead is not None:
            break
    if lead is None and end:
        raise CorruptDataError(f"a command log must begin with LEAD: {commands.key(0)!r}")
    found = Succession(given)
    if lead is None:
        return found, end
    name = f"LEAD below {commands.key(end)!r}"
    found.handled = lead.handled
    found.history = CommandHistory(tuple(REQUESTS.decode(d, name=name) for d in lead.history))
    for command in found.history.commands:
        found.wanted = handle(found.wanted, command).wanted
    for decided in reversed(tail):
        for said in decided.commands:
            if isinstance(said, Acknowledge):
                _replay(found, said, requests)
    # a stop was of the run that it ended; to start is to want it running
    found.wanted = replace(found.wanted, stop=None)
    if lead.given != given:
        found.wanted = replace(found.wanted, run=None)
        found.history.forget_run()  # or it would rise again in the next coordinator with `given`
    return found, end


def _replay(found: Succession, done: Acknowledge, requests: SlotLog) -> None:
    """Take in a request that an earlier coordinator acknowledged."""
    if done.request < found.handled:
        return
    data = requests.read(done.request)
    if data is None or done.request != found.handled:
        raise CorruptDataError(
            f"a request was acknowledged that is not there: {requests.key(done.request)!r}"
        )
    if done.refused:
        found.refuse()
        return
    command = REQUESTS.decode(data, name=requests.key(done.request))
    found.take(command, handle(found.wanted, command).wanted)
