"""An appender's log whose old slots go, while attempts that were given up may still write.

The stage's log says up to which slot all data of this log was consumed and deleted: the floor. It
never goes back. Below it, slots with an APPEND go, one by one, in any order; slots with an OPEN
stay. So an attempt that was superseded still meets the OPEN by which it was: it holds its own next
slot, and whatever stands there first is either its own record or that OPEN. It never has to look at
the floor, and an APPEND costs one request as before.

Who opens must know where the log ends, and a slot that reads as empty may be one that is gone. So
it looks at the floor behind an OPEN that it won, and begins again if that is above. Where it begins
to read, at the floor or at slot 0, is a matter of requests.

A reader that follows the log may have paused while slots went whose rows it does not need. An empty
slot says nothing to it until it has looked at the floor.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from protocol.explorer import NO_DAMAGE, Step
from protocol.slots import with_item

FENCED_WROTE: Final = "an attempt's record counts behind the OPEN of a newer one"
WON_NOTHING: Final = "an attempt believes in a record that no reader will read"
READ_LITTER: Final = "a reader takes rows that do not count"

Phase = Literal["idle", "looked", "opens", "opened", "owns", "over"]


class Record(NamedTuple):
    kind: Literal["OPEN", "APPEND"]
    by: int


class Attempt(NamedTuple):
    phase: Phase = "idle"
    slot: int = 0
    """The next slot that it tries."""
    won: frozenset[int] = frozenset()
    """Slots of records that it believes in."""
    appends: int = 0
    """How many it may still send."""
    opens: int = 2


class TrimState(NamedTuple):
    truth: tuple[Record, ...]
    """All records that ever won the end of the log."""
    deleted: frozenset[int]
    litter: frozenset[tuple[int, Record]]
    """Records that won a deleted slot."""
    floor: int
    flying: frozenset[tuple[int, Record]]
    """Creates of the dead, which land at any time, or never."""
    attempts: tuple[Attempt, ...]
    crashes: int
    reader: int = 0
    """The slot that a reader asks for next."""

    def stored(self, slot: int) -> Record | None:
        """Return what a read of the slot returns."""
        found = next((record for at, record in self.litter if at == slot), None)
        if found is not None or slot >= len(self.truth) or slot in self.deleted:
            return found
        return self.truth[slot]

    def create(self, slot: int, record: Record) -> tuple["TrimState", bool]:
        """Return the state behind a create, and whether it won."""
        if self.stored(slot) is not None:
            return self, False
        if slot == len(self.truth):
            return self._replace(truth=(*self.truth, record)), True
        return self._replace(litter=self.litter | {(slot, record)}), True


@dataclass(frozen=True, slots=True)
class TrimModel:
    attempts: int = 2
    appends: int = 2
    crashes: int = 1

    opens_stay: bool = True
    """Off: slots with an OPEN go like all others."""
    looks_behind_its_open: bool = True
    """Off: who won an OPEN believes it."""
    floor_first: bool = True
    """Off: slots go before the stage's log says so."""
    follows: bool = False
    """Whether a reader follows the log."""
    reader_looks: bool = True
    """Off: an empty slot is the end to it."""

    def initial(self) -> TrimState:
        none = frozenset[tuple[int, Record]]()
        attempts = (Attempt(appends=self.appends),) * self.attempts
        return TrimState((), frozenset(), none, 0, none, attempts, self.crashes)

    def damage(self, state: TrimState) -> tuple[str, ...]:
        found, owner = [], -1
        for record in state.truth:
            owner = record.by if record.kind == "OPEN" else owner
            if record.by != owner:
                found.append(FENCED_WROTE)
        for who, me in enumerate(state.attempts):
            if any(slot >= len(state.truth) or state.truth[slot].by != who for slot in me.won):
                found.append(WON_NOTHING)
        if any(record.kind == "APPEND" and slot < state.reader for slot, record in state.litter):
            found.append(READ_LITTER)
        return tuple(found)

    def steps(self, state: TrimState) -> Iterator[Step[TrimState]]:
        for who, me in enumerate(state.attempts):
            yield from self._act(state, who, me)
            if state.crashes and me.phase in ("opens", "owns"):
                record = Record("OPEN" if me.phase == "opens" else "APPEND", who)
                dead = self._become(state, who, me._replace(phase="over"))._replace(crashes=0)
                flying = state.flying | {(me.slot, record)}
                yield f"{who} dies, {record.kind} flies", dead._replace(flying=flying), NO_DAMAGE
        if state.floor < len(state.truth):  # all consumers have passed what was appended
            yield "the floor rises", state._replace(floor=len(state.truth)), NO_DAMAGE
        below = state.floor if self.floor_first else len(state.truth)
        for slot in set(range(below)) - state.deleted:
            if state.truth[slot].kind == "APPEND" or not self.opens_stay:
                yield f"slot {slot} goes", state._replace(deleted=state.deleted | {slot}), ()
        if self.follows:
            there = state.stored(state.reader) is not None
            if there or (self.reader_looks and state.reader < state.floor):
                reader = state.reader + 1 if there else state.floor
                yield f"the reader goes to {reader}", state._replace(reader=reader), NO_DAMAGE
        for slot, record in sorted(state.flying):
            after = state._replace(flying=state.flying - {(slot, record)})
            yield f"late: {record} at {slot}", after.create(slot, record)[0], NO_DAMAGE

    def _act(self, state: TrimState, who: int, me: Attempt) -> Iterator[Step[TrimState]]:
        match me.phase:
            case "idle":
                for start in {0, state.floor}:
                    me = me._replace(phase="looked", slot=start)
                    yield f"{who} reads from {start}", self._become(state, who, me), NO_DAMAGE
            case "looked":
                while state.stored(me.slot) is not None:
                    me = me._replace(slot=me.slot + 1)
                me = me._replace(phase="opens")
                yield f"{who} finds the end: {me.slot}", self._become(state, who, me), ()
            case "opens" if me.opens:
                after, own = state.create(me.slot, Record("OPEN", who))
                phase: Phase = "opened" if own else "looked"
                me = me._replace(phase=phase, opens=me.opens - own)
                yield f"{who} {'wins' if own else 'loses'} OPEN", self._become(after, who, me), ()
            case "opened" if self.looks_behind_its_open and state.floor > me.slot:
                yield (
                    f"{who} is below the floor",
                    self._become(state, who, me._replace(phase="idle")),
                    (),
                )
            case "opened":
                me = me._replace(phase="owns", slot=me.slot + 1, won=me.won | {me.slot})
                yield f"{who} owns the log", self._become(state, who, me), ()
            case "opens":
                yield f"{who} gives up", self._become(state, who, me._replace(phase="over")), ()
            case "owns" if me.appends:
                after, own = state.create(me.slot, Record("APPEND", who))
                mine = me._replace(slot=me.slot + 1, won=me.won | {me.slot}, appends=me.appends - 1)
                then = mine if own else me._replace(phase="over")
                yield (
                    f"{who} {'wins' if own else 'loses'} APPEND",
                    self._become(after, who, then),
                    (),
                )

    def _become(self, state: TrimState, who: int, me: Attempt) -> TrimState:
        return state._replace(attempts=with_item(state.attempts, who, me))


def all_over(state: TrimState) -> bool:
    """Whether every attempt is dead, was fenced, or has appended all that it wanted."""
    return all(me.phase == "over" or not me.appends for me in state.attempts)


def all_read(state: TrimState) -> bool:
    """Whether all is over, and the reader is at the end."""
    return all_over(state) and state.reader == len(state.truth)


def trimmed(state: TrimState) -> bool:
    """Whether slots went, and all is over."""
    return bool(state.deleted) and all_over(state)
