"""The purge of a job log's own slots, with no clock and no listing that anybody trusts.

The owner of the job puts a floor beside the log: a slot, and what the slots below it add up to.
Only then do slots below it go, one by one, in any order. A reader may begin anywhere, at slot 0
too, because a listing may show it no snapshot and no floor. So a slot that reads as empty is the
end of the log, or is deleted; a create may win a slot that somebody had won before; and whoever
reads on there meets such litter. So whoever won a slot, lost one, or read some therefore looks at
the floor before they believe it: if it stands behind the first of these slots, they read again from
the floor. A driver may win a few slots before it looks, if it looks before anybody relies on them;
the fold voids those that it won behind the CLAIM of a newer driver.

Two floors stand by turns: the lower one is deleted and put again, so that the other can be seen. A
driver that dies, or stands still, may have its DELETE land at any later time, on a floor that
others have put since. So both are raised, and slots go only below both of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from protocol.explorer import NO_DAMAGE, Step
from protocol.slots import with_item

WRONG_VIEW: Final = "an owner believes what the records do not say"
FENCED_WROTE: Final = "a driver's record counts behind the CLAIM of a newer one"
WON_NOTHING: Final = "a driver believes in a record that no reader will read"
FENCED_DELETED: Final = "a driver found itself the owner after another had claimed the job"

Phase = Literal[
    "idle", "read", "claims", "claimed", "decides", "wrote", "reread", "checks", "done", "over"
]
_BELIEVES: Final = ("decides", "done")


class Record(NamedTuple):
    kind: Literal["CLAIM", "WRITE"]
    by: int


class Driver(NamedTuple):
    phase: Phase = "idle"
    slot: int = 0
    """The first slot of which it knows no record."""
    sure: int = 0
    """It believes what it knows of the slots below."""
    owner: int = -1
    """By the records that it knows."""
    mine: bool = False
    """Whether it owned the job when it read the log to the end, for a check."""
    claims: int = 2
    """How many it may still send."""
    writes: int = 0
    """How many it won since it was sure."""


class FloorState(NamedTuple):
    truth: tuple[Record, ...]
    """All records that ever won the end of the log."""
    deleted: frozenset[int]
    litter: frozenset[tuple[int, Record]]
    """Records that won a deleted slot."""
    floors: tuple[tuple[int, int], ...]
    """Slots, and the owners below them; (0, -1) where none stands."""
    deletes: frozenset[int]
    """Floors whose DELETE is on its way."""
    late_deletes: int
    shown: bool
    flying: frozenset[tuple[int, Record]]
    drivers: tuple[Driver, ...]
    crashes: int

    def stored(self, slot: int) -> Record | None:
        """Return what a read of the slot returns."""
        found = next((record for at, record in self.litter if at == slot), None)
        if found is not None or slot >= len(self.truth) or slot in self.deleted:
            return found
        return self.truth[slot]

    def create(self, slot: int, record: Record) -> tuple["FloorState", bool]:
        """Return the state behind a create, and whether it won."""
        if self.stored(slot) is not None:
            return self, False
        if slot == len(self.truth):
            return self._replace(truth=(*self.truth, record)), True
        return self._replace(litter=self.litter | {(slot, record)}), True


def _counting(records: tuple[Record, ...], who: int) -> int:
    """Return how many records of a driver stand behind its own CLAIM."""
    wrote = Record("WRITE", who)
    return sum(r == wrote and owner_of(records[:at]) == who for at, r in enumerate(records))


def owner_of(records: tuple[Record, ...]) -> int:
    return next((record.by for record in reversed(records) if record.kind == "CLAIM"), -1)


@dataclass(frozen=True, slots=True)
class FloorModel:
    drivers: int = 2
    crashes: int = 1
    writes: int = 1
    """Slots that a driver wins before it looks at the floors."""

    looks_when_it_wins: bool = True
    """Off: whoever won a slot believes it."""
    looks_when_it_reads: bool = True
    """Off: an empty slot is the end of the log, and what it read or lost to is the log's."""
    floor_first: bool = True
    """Off: slots that a driver has read are deleted before a floor says so."""
    late_deletes: int = 0
    """How many drivers die between their look at the floors and the new floor."""
    below_both: bool = True
    """Off: slots go below the higher of the two floors."""
    one_stands: bool = True
    """Off: there is one floor, which is deleted and put again."""
    fold_voids: bool = True
    """Off: a record of an older driver counts behind the CLAIM of a newer one."""

    def initial(self) -> FloorState:
        drivers = (Driver(),) * self.drivers
        none = frozenset[tuple[int, Record]]()
        floors, late = ((0, -1), (0, -1)), self.late_deletes
        return FloorState(
            (), frozenset(), none, floors, frozenset(), late, True, none, drivers, self.crashes
        )

    def damage(self, state: FloorState) -> tuple[str, ...]:
        found, truth = [], state.truth
        for slot, record in enumerate(truth):
            if record.kind == "WRITE" and owner_of(truth[:slot]) != record.by:
                found += [] if self.fold_voids else [FENCED_WROTE]
        for who, me in enumerate(state.drivers):
            if me.phase in _BELIEVES and me.owner != owner_of(truth[: me.slot]):
                found.append(WRONG_VIEW)
            if me.phase == "done" and _counting(truth, who) < max(1, me.writes):
                found.append(WON_NOTHING)
        return tuple(found)

    def steps(self, state: FloorState) -> Iterator[Step[FloorState]]:
        for who, me in enumerate(state.drivers):
            if me.phase == "idle":
                for start in range(len(state.truth) + 1):
                    owner = owner_of(state.truth[:start])
                    me = me._replace(slot=start, sure=start, owner=owner)
                    read = self._walk(state, me)._replace(phase="read")
                    yield f"{who} reads from {start}", self._become(state, who, read), NO_DAMAGE
            elif me.phase != "over":
                yield from self._act(state, who, me)
                yield from self._dies(state, who, me)
        yield from self._purge(state)
        for slot, record in sorted(state.flying):
            after = state._replace(flying=state.flying - {(slot, record)})
            yield f"late: {record} at {slot}", after.create(slot, record)[0], NO_DAMAGE
        for name in sorted(state.deletes):
            floors = with_item(state.floors, name, (0, -1))
            after = state._replace(floors=floors, deletes=state.deletes - {name})
            yield f"late: DELETE of floor {name}", after, NO_DAMAGE

    def _act(self, state: FloorState, who: int, me: Driver) -> Iterator[Step[FloorState]]:
        match me.phase:
            case "read" | "reread" | "checks":
                yield self._believes_its_read(state, who, me)
            case "claimed" | "wrote":
                yield self._believes_its_win(state, who, me)
                if me.phase == "wrote" and me.writes < self.writes:
                    yield self._send(state, who, me, Record("WRITE", who), "wrote")
            case "claims" if me.claims:
                record = Record("CLAIM", who)
                yield self._send(state, who, me._replace(claims=me.claims - 1), record, "claimed")
            case "decides" if me.owner == who:
                yield self._send(state, who, me, Record("WRITE", who), "wrote")
                yield self._read_on(state, who, me, "checks")
            case "done":
                return
            case _:
                yield f"{who} gives up", self._become(state, who, me._replace(phase="over")), ()

    def _send(
        self, state: FloorState, who: int, me: Driver, record: Record, won: Phase
    ) -> Step[FloorState]:
        after, own = state.create(me.slot, record)
        found = after.stored(me.slot)
        assert found is not None
        owner = found.by if found.kind == "CLAIM" else me.owner
        back: Phase = "read" if record.kind == "CLAIM" else "reread"
        claims = me.claims + (record.kind == "CLAIM" and not own)
        phase = won if own else back
        writes = me.writes + (own and record.kind == "WRITE")
        me = me._replace(slot=me.slot + 1, owner=owner, phase=phase, claims=claims, writes=writes)
        text = f"{who} {'wins' if own else 'loses'} {record.kind} at {me.slot - 1}"
        return text, self._become(after, who, me), NO_DAMAGE

    def _believes_its_win(self, state: FloorState, who: int, me: Driver) -> Step[FloorState]:
        if self.looks_when_it_wins and self._floor(state)[0] > me.sure:
            again: Phase = "read" if me.phase == "claimed" else "reread"
            return self._read_floor(state, who, me, again)
        me = me._replace(phase="decides" if me.phase == "claimed" else "done", sure=me.slot)
        return f"{who} is sure", self._become(state, who, me), NO_DAMAGE

    def _believes_its_read(self, state: FloorState, who: int, me: Driver) -> Step[FloorState]:
        if self.looks_when_it_reads and self._floor(state)[0] > me.sure:
            return self._read_floor(state, who, me, me.phase)
        if me.phase != "checks":
            me = me._replace(phase="claims" if me.phase == "read" else "decides", sure=me.slot)
            return f"{who} believes", self._become(state, who, me), NO_DAMAGE
        damage = (FENCED_DELETED,) if me.owner == who and not me.mine else NO_DAMAGE
        after = self._become(state, who, me._replace(phase="over"))
        return f"{who} checks that it owns the job: {me.owner == who}", after, damage

    def _read_floor(
        self, state: FloorState, who: int, me: Driver, phase: Phase
    ) -> Step[FloorState]:
        slot, owner = self._floor(state)
        me = me._replace(slot=slot, sure=slot, owner=owner, writes=0)
        text, after, damage = self._read_on(state, who, me, phase)
        return f"{text} from the floor", after, damage

    def _read_on(self, state: FloorState, who: int, me: Driver, phase: Phase) -> Step[FloorState]:
        me = self._walk(state, me)._replace(phase=phase, mine=owner_of(state.truth) == who)
        return f"{who} reads to {me.slot}", self._become(state, who, me), NO_DAMAGE

    def _walk(self, state: FloorState, me: Driver) -> Driver:
        while (record := state.stored(me.slot)) is not None:
            owner = record.by if record.kind == "CLAIM" else me.owner
            me = me._replace(slot=me.slot + 1, owner=owner)
        return me

    def _floor(self, state: FloorState) -> tuple[int, int]:
        return max(state.floors) if state.shown else (0, -1)

    def _purge(self, state: FloorState) -> Iterator[Step[FloorState]]:
        highest, lowest = max(state.floors)[0], min(state.floors)[0]
        below = lowest if self.below_both else highest
        for who, me in enumerate(state.drivers):
            if me.phase in _BELIEVES and me.owner == who:
                if not self.floor_first:
                    below = max(below, me.slot)
                elif me.slot > lowest:
                    name = state.floors.index(min(state.floors))
                    floors = with_item(state.floors, name, (me.slot, me.owner))
                    after = state._replace(floors=floors)
                    yield f"{who} puts floor {me.slot} as {name}", after, NO_DAMAGE
                    if state.late_deletes:
                        dead = self._become(state, who, me._replace(phase="over"))
                        dead = dead._replace(deletes=state.deletes | {name}, late_deletes=0)
                        yield f"{who} dies, its DELETE of floor {name} on its way", dead, NO_DAMAGE
        for slot in set(range(min(below, len(state.truth)))) - state.deleted:
            yield f"slot {slot} goes", state._replace(deleted=state.deleted | {slot}), NO_DAMAGE
        if not self.one_stands and highest:
            yield "the floor goes, or comes", state._replace(shown=not state.shown), NO_DAMAGE

    def _dies(self, state: FloorState, who: int, me: Driver) -> Iterator[Step[FloorState]]:
        sends = me.phase == "claims" or (me.phase == "decides" and me.owner == who)
        if not state.crashes or not sends:
            return
        record = Record("CLAIM" if me.phase == "claims" else "WRITE", who)
        dead = self._become(state, who, me._replace(phase="over"))._replace(crashes=0)
        flying = state.flying | {(me.slot, record)}
        yield f"{who} dies, its {record.kind} on its way", dead._replace(flying=flying), NO_DAMAGE

    def _become(self, state: FloorState, who: int, me: Driver) -> FloorState:
        return state._replace(drivers=with_item(state.drivers, who, me))


def all_over(state: FloorState) -> bool:
    """Whether everybody knows what came of it, or is dead."""
    return all(me.phase in ("done", "over") for me in state.drivers)


def purged(state: FloorState) -> bool:
    """Whether slots went, and everybody knows what came of it."""
    return bool(state.deleted) and all_over(state)
