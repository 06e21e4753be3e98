"""Snapshots of a job log, and the purge of a released stage.

A snapshot is an object beside the log. Its name is a slot; its content is what the slots below add
up to. Everyone who has read so far may write one at any time, and it may land at any later time. A
reader begins at any snapshot that it sees, or at slot 0, and takes in the records behind it. So a
snapshot decides nothing: a driver wins its record in a slot, and meets every record that it has not
read.

The stage was made by a writer that claims nothing. `purger` forgets a released stage, so that
snapshots get smaller; a request of somebody who knew the stage may still be on its way.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from protocol.explorer import NO_DAMAGE, Step
from protocol.slots import put_if_absent, record_in, with_item

WRONG_VIEW: Final = "somebody believes what the records that they read do not say"
FENCED_WROTE: Final = "a driver wrote behind the CLAIM of a newer one"
WON_NOTHING: Final = "a driver won a slot that no reader will read"
COUNTS_AGAIN: Final = "a stage counts again although it was released"

Role = Literal["reuser", "releaser", "writer", "purger"]
Phase = Literal["idle", "claims", "decides", "sent", "done", "refused", "dead"]
_OVER: Final = ("done", "refused", "dead")
_RECORD_OF: Final = {
    "reuser": "STAGE",
    "writer": "STAGE",
    "releaser": "RELEASED",
    "purger": "PURGED",
}


class Record(NamedTuple):
    kind: str
    by: int


class View(NamedTuple):
    """What records add up to."""

    owner: int = -1
    counts: bool = False
    released: bool = False


class Snapshot(NamedTuple):
    slot: int
    view: View


class Actor(NamedTuple):
    role: Role
    phase: Phase = "idle"
    slot: int = 0
    """Of the first record that it has not read."""
    view: View = View()
    snapshots: int = 1
    """How many it may still write."""


class SnapshotState(NamedTuple):
    log: tuple[Record | None, ...]
    """None: the slot was deleted."""
    snapshots: frozenset[Snapshot]
    flying: frozenset[Snapshot | tuple[int, Record]]
    """Creates whose sender died or got no answer."""
    actors: tuple[Actor, ...]
    crashes: int


@dataclass(frozen=True, slots=True)
class SnapshotModel:
    roles: tuple[Role, ...] = ("reuser", "releaser")
    crashes: int = 1

    settled_only: bool = True
    """Off: a snapshot counts its author's record before the author knows that it was won."""
    names_slot: bool = True
    """Off: a reader of a snapshot goes on at the end of the log."""
    obeys_fence: bool = True
    """Off: a driver goes on behind the CLAIM of another."""
    keeps_slots: bool = True
    """Off: slots below a snapshot are deleted at once."""
    keeps_released: bool = True
    """Off: a snapshot leaves out what was released."""
    waits: bool = True
    """Off: a released stage is purged while somebody who knew it may be alive."""

    def initial(self) -> SnapshotState:
        log = (Record("CLAIM", -1), Record("STAGE", -1))
        actors = tuple(Actor(role) for role in self.roles)
        return SnapshotState(log, frozenset(), frozenset(), actors, self.crashes)

    def after(self, view: View, record: Record) -> View:
        """The fold."""
        match record.kind:
            case "CLAIM":
                return view._replace(owner=record.by)
            case "STAGE" if not view.released:
                return view._replace(counts=True)
            case "RELEASED":
                return view._replace(counts=False, released=True)
            case "PURGED":
                return view._replace(released=False)
        return view

    def damage(self, state: SnapshotState) -> tuple[str, ...]:
        found, view, released = [], View(), False
        views = [view]
        for record in state.log:
            if record is not None:
                me = state.actors[record.by].role if record.by >= 0 else "writer"
                if record.kind != "CLAIM" and me != "writer" and view.owner != record.by:
                    found.append(FENCED_WROTE)
                view = self.after(view, record)
                released = released or record.kind == "RELEASED"
                if released and view.counts:
                    found.append(COUNTS_AGAIN)
            views.append(view)
        if None not in state.log:
            read = [a for a in state.actors if a.phase not in ("idle", "dead")]
            if any(a.slot >= len(views) or a.view != views[a.slot] for a in read):
                found.append(WRONG_VIEW)
        return tuple(found)

    def steps(self, state: SnapshotState) -> Iterator[Step[SnapshotState]]:
        for who, me in enumerate(state.actors):
            if me.phase == "idle":
                yield from self._begin(state, who, me)
            elif me.phase not in _OVER:
                yield from self._dies(state, who, me)
                yield self._step(state, who, me)
                yield from self._snapshot(state, who, me)
        for item in sorted(state.flying, key=repr):
            after = state._replace(flying=state.flying - {item})
            if isinstance(item, Snapshot):
                yield f"late: snapshot {item.slot} lands", _put(after, item), NO_DAMAGE
            else:
                slot, record = item
                yield f"late: {record} at slot {slot}", *self._land(after, slot, record)
        if not self.keeps_slots:
            for slot in sorted({s.slot for s in state.snapshots}):
                log = (state.log[0], *(None,) * (slot - 1), *state.log[slot:])
                if log != state.log:
                    yield f"slots below {slot} are deleted", state._replace(log=log), NO_DAMAGE

    def _begin(self, state: SnapshotState, who: int, me: Actor) -> Iterator[Step[SnapshotState]]:
        """Begin at slot 0 or at any snapshot, and read to the end."""
        for start in (Snapshot(0, View()), *sorted(state.snapshots)):
            slot, view = start
            if start.slot and not self.names_slot:
                slot = len(state.log)
            while (record := record_in(state.log, slot)) is not None:
                slot, view = slot + 1, self.after(view, record)
            phase: Phase = "decides" if me.role == "writer" else "claims"
            ready = me._replace(phase=phase, slot=slot, view=view)
            text = f"{me.role} {who} reads from {start.slot} to {slot}"
            yield text, self._become(state, who, ready), NO_DAMAGE

    def _step(self, state: SnapshotState, who: int, me: Actor) -> Step[SnapshotState]:
        if me.phase == "claims":
            return self._send(state, who, me, Record("CLAIM", who), "decides")
        if me.phase == "sent":
            return self._send(state, who, me, self._record(who, me), "done")
        if me.role != "writer" and me.view.owner != who and self.obeys_fence:
            return self._ends(state, who, me, "refused", "is fenced")
        counts, released = me.view.counts, me.view.released
        wanted = {
            "reuser": counts,
            "writer": not released,
            "releaser": counts,
            "purger": released and self._nobody_knows_it(state, who),
        }
        if not wanted[me.role]:
            return self._ends(state, who, me, "refused", "has nothing to do")
        return self._ends(state, who, me, "sent", f"sends {self._record(who, me)}")

    def _send(
        self, state: SnapshotState, who: int, me: Actor, record: Record, won: Phase
    ) -> Step[SnapshotState]:
        after, damage = self._land(state, me.slot, record)
        found = record_in(after.log, me.slot)
        assert found is not None
        phase = won if found == record else "claims" if record.kind == "CLAIM" else "decides"
        me = me._replace(phase=phase, slot=me.slot + 1, view=self.after(me.view, found))
        text = f"{me.role} {who} {'wins' if found == record else 'loses'} {record.kind}"
        return text, self._become(after, who, me), damage

    def _land(
        self, state: SnapshotState, slot: int, record: Record
    ) -> tuple[SnapshotState, tuple[str, ...]]:
        if slot < len(state.log) and state.log[slot] is None:
            return state._replace(log=with_item(state.log, slot, record)), (WON_NOTHING,)
        return state._replace(log=put_if_absent(state.log, slot, record)[0]), NO_DAMAGE

    def _dies(self, state: SnapshotState, who: int, me: Actor) -> Iterator[Step[SnapshotState]]:
        if state.crashes:
            dead = self._become(state, who, me._replace(phase="dead"))
            if me.phase in ("sent", "claims"):
                record = self._record(who, me) if me.phase == "sent" else Record("CLAIM", who)
                dead = dead._replace(flying=state.flying | {(me.slot, record)})
            yield f"{me.role} {who} dies", dead._replace(crashes=state.crashes - 1), NO_DAMAGE

    def _snapshot(self, state: SnapshotState, who: int, me: Actor) -> Iterator[Step[SnapshotState]]:
        if not me.snapshots:
            return
        slot, view = me.slot, me.view
        if me.phase == "sent" and not self.settled_only:
            slot, view = slot + 1, self.after(view, self._record(who, me))
        if not self.keeps_released:
            view = view._replace(released=False)
        snapshot = Snapshot(slot, view)
        after = self._become(state, who, me._replace(snapshots=0))
        yield f"{who} puts snapshot {slot}", _put(after, snapshot), NO_DAMAGE
        late = after._replace(flying=after.flying | {snapshot})
        yield f"{who} sends snapshot {slot}", late, NO_DAMAGE

    def _nobody_knows_it(self, state: SnapshotState, purger: int) -> bool:
        """Whether the horizon has passed: all who met the stage before its release are gone."""
        if not self.waits:
            return True
        others = (a for n, a in enumerate(state.actors) if n != purger)
        alive = [a for a in others if a.phase not in _OVER and a.role in ("writer", "reuser")]
        asked = [r for item in state.flying if not isinstance(item, Snapshot) for r in item[1:]]
        unread = ((a.phase == "idle" and a.role != "writer") or a.view.released for a in alive)
        return all(unread) and all(record.kind != "STAGE" for record in asked)

    def _record(self, who: int, me: Actor) -> Record:
        return Record(_RECORD_OF[me.role], who)

    def _ends(
        self, state: SnapshotState, who: int, me: Actor, phase: Phase, what: str
    ) -> Step[SnapshotState]:
        after = self._become(state, who, me._replace(phase=phase))
        return f"{me.role} {who} {what}", after, NO_DAMAGE

    def _become(self, state: SnapshotState, who: int, me: Actor) -> SnapshotState:
        return state._replace(actors=with_item(state.actors, who, me))


def _put(state: SnapshotState, snapshot: Snapshot) -> SnapshotState:
    """A name is taken once: a snapshot that stands is not replaced."""
    if any(s.slot == snapshot.slot for s in state.snapshots):
        return state
    return state._replace(snapshots=state.snapshots | {snapshot})


def all_over(state: SnapshotState) -> bool:
    """Whether everybody knows what came of it, or is dead."""
    return all(me.phase in _OVER for me in state.actors)
