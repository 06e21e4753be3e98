"""What a new coordinator goes on from: reads the newest LEAD, and what came behind it.

A full record is never far: every coordinator begins with a LEAD and repeats it every so many slots.
Behind it, acknowledgements say which requests count.
"""

from dataclasses import dataclass, field, replace

from durable_shuffle.recovery.pipeline.commands.orders import (
    Acknowledge,
    Decided,
    Lead,
    decode_slot,
)
from durable_shuffle.recovery.pipeline.commands.requests import (
    REQUESTS,
    Description,
    ExternalCommand,
    Reconcile,
    listed,
)
from durable_shuffle.recovery.pipeline.commands.wanted import CommandHistory, Wanted, handle
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.log.slot_log import SlotLog

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
