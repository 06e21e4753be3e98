"""The job log of one stage: drivers that reuse it or release it, a writer that enters it.

A driver claims the job, reads its log to the end, looks at the stage's own log, and sends its
record to the slot behind what it knows. If the slot is taken, it takes in what stands there and
decides again. A writer of one stage claims nothing. Whoever won RELEASED, or finds it, puts RELEASE
into the stage's log and then deletes the data; `gc` gives up what was begun and never counted. A
create may land at any later time, also after its sender died. The model of `shuffle/log/job_log.py`
and `shuffle/release/stages.py`; claims are one step, since what races here is STAGE and RELEASED.

One fault of the storage is in it: while nobody is at work, the job log may lose RELEASED, if that
is its last record and the data is gone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from protocol.explorer import NO_DAMAGE, Step
from protocol.slots import put_if_absent, record_in, with_item

COUNTS_AGAIN: Final = "a released stage counts again"
COUNTED_GONE: Final = "the data of a stage that counts is deleted"
FALSE_SUCCESS: Final = "who enters a stage was told that it counts, and it was released before"
REUSES_GONE: Final = "a driver goes on with a stage whose own log says that it is released"
FENCED_WROTE: Final = "a driver wrote behind the CLAIM of a newer one"
LIVE_GIVEN_UP: Final = "a stage that counts is given up as never finished"

Role = Literal["reuser", "releaser", "collector", "writer"]
Phase = Literal["idle", "claimed", "looked", "sent", "carrying", "used", "done", "refused", "dead"]
_OVER: Final = ("used", "done", "refused", "dead")


class Record(NamedTuple):
    kind: Literal["CLAIM", "BEGUN", "STAGE", "RELEASED"]
    by: int
    """-1: who made the stage."""


class Actor(NamedTuple):
    role: Role
    phase: Phase
    known: int
    """How many records it has taken in."""


class JobModelState(NamedTuple):
    log: tuple[Record, ...]
    released: bool
    """RELEASE stands in the stage's log."""
    data: bool
    net: frozenset[tuple[int, Record]]
    """Creates whose sender died or got no answer."""
    actors: tuple[Actor, ...]
    crashes: int
    losses: int
    lost: int
    """Slot that lost RELEASED, -1 if none did."""


class Reading(NamedTuple):
    """What a job log says of the stage."""

    begun: bool
    counts: bool
    released: bool


@dataclass(frozen=True, slots=True)
class JobModel:
    roles: tuple[Role, ...] = ("reuser", "releaser")
    counts: bool = True
    """The stage counts at the start; else it was begun."""
    crashes: int = 1
    losses: int = 0

    fold_voids: bool = True
    """Off: STAGE behind RELEASED counts."""
    append_refuses: bool = True
    """Off: STAGE is sent behind a RELEASED that its author knows."""
    decides_first: bool = True
    """Off: a release deletes without a RELEASED in the job log."""
    obeys_fence: bool = True
    """Off: a driver goes on behind the CLAIM of another."""
    gives_up_begun_only: bool = True
    """Off: a collector does not look whether the stage counts meanwhile."""
    looks_at_stage: bool = True
    """Off: reuse goes by the job log alone."""

    def initial(self) -> JobModelState:
        log = (Record("CLAIM", -1), Record("STAGE" if self.counts else "BEGUN", -1))
        actors = tuple(Actor(role, "idle", 0) for role in self.roles)
        return JobModelState(
            log=log,
            released=False,
            data=True,
            net=frozenset(),
            actors=actors,
            crashes=self.crashes,
            losses=self.losses,
            lost=-1,
        )

    def read(self, log: tuple[Record, ...]) -> Reading:
        begun = counts = released = False
        for record in log:
            if record.kind == "BEGUN":
                begun = True
            elif record.kind == "STAGE" and not (released and self.fold_voids):
                begun, counts = False, True
            elif record.kind == "RELEASED":
                begun, counts, released = False, False, True
        return Reading(begun, counts, released)

    def damage(self, state: JobModelState) -> tuple[str, ...]:
        found, reading = [], self.read(state.log)
        if reading.released and reading.counts:
            found.append(COUNTS_AGAIN)
        if reading.counts and not state.data and state.lost < 0:
            found.append(COUNTED_GONE)
        for slot, (kind, by) in enumerate(state.log):
            if kind in ("CLAIM", "BEGUN") or by < 0:
                continue
            me, before = state.actors[by], state.log[:slot]
            newest = max(s for s, r in enumerate(before) if r.kind == "CLAIM")
            if me.role != "writer" and before[newest].by != by:
                found.append(FENCED_WROTE)
            if me.role == "collector" and self.read(before).counts:
                found.append(LIVE_GIVEN_UP)
            if me.phase == "used" and self.read(before).released:
                found.append(FALSE_SUCCESS)
            if me.role == "reuser" and me.phase == "used" and 0 <= state.lost <= slot:
                found.append(REUSES_GONE)
        return tuple(found)

    def steps(self, state: JobModelState) -> Iterator[Step[JobModelState]]:
        for who, me in enumerate(state.actors):
            if me.phase in _OVER:
                continue
            if me.phase != "idle" and state.crashes:
                dead = self._become(state, who, me._replace(phase="dead"))
                if me.phase == "sent":
                    dead = dead._replace(net=state.net | {(me.known, self._record(who, me))})
                yield f"{me.role} {who} dies", dead._replace(crashes=state.crashes - 1), NO_DAMAGE
            yield self._step(state, who, me)
        for slot, record in state.net:
            log, won = put_if_absent(state.log, slot, record)
            after = state._replace(log=log, net=state.net - {(slot, record)})
            done = "lands" if won else "is refused"
            yield f"late: {record.kind} of {record.by} {done} in slot {slot}", after, NO_DAMAGE
        idle = all(me.phase in ("idle", *_OVER) for me in state.actors) and not state.net
        if state.losses and idle and not state.data and state.log[-1].kind == "RELEASED":
            slot = len(state.log) - 1
            after = state._replace(log=state.log[:slot], losses=state.losses - 1, lost=slot)
            yield f"the job log loses RELEASED in slot {slot}", after, NO_DAMAGE

    def _step(self, state: JobModelState, who: int, me: Actor) -> Step[JobModelState]:
        if me.phase == "idle":
            if me.role != "writer":
                state = state._replace(log=(*state.log, Record("CLAIM", who)))
            ready = self._become(state, who, me._replace(phase="claimed", known=len(state.log)))
            return f"{me.role} {who} begins", ready, NO_DAMAGE
        if me.phase == "carrying":
            return self._carry(state, who, me)
        if me.phase == "sent":
            return self._answer(state, who, me)
        reading = self.read(state.log[: me.known])
        if me.role in ("reuser", "writer"):
            if me.phase == "claimed" and me.role == "reuser":
                return self._look(state, who, me, reading)
            if reading.released and self.append_refuses:
                return self._ends(state, who, me, "refused", "finds it released")
        elif reading.released or not self.decides_first:
            return self._ends(state, who, me, "carrying", "goes on with the release")
        elif me.role == "collector" and not reading.begun and self.gives_up_begun_only:
            return self._ends(state, who, me, "done", "finds that it counts")
        return self._ends(state, who, me, "sent", f"sends {self._record(who, me).kind}")

    def _look(
        self, state: JobModelState, who: int, me: Actor, reading: Reading
    ) -> Step[JobModelState]:
        if not reading.counts or (state.released and self.looks_at_stage):
            return self._ends(state, who, me, "refused", "makes another stage")
        return self._ends(state, who, me, "looked", "wants to reuse")

    def _answer(self, state: JobModelState, who: int, me: Actor) -> Step[JobModelState]:
        record = self._record(who, me)
        log, _ = put_if_absent(state.log, me.known, record)
        state = state._replace(log=log)
        found = record_in(log, me.known)
        if found == record:
            won: Phase = "used" if record.kind == "STAGE" else "carrying"
            return self._ends(state, who, me._replace(known=me.known + 1), won, "wins")
        me = me._replace(known=me.known + 1)
        fenced = found is not None and found.kind == "CLAIM" and me.role != "writer"
        if fenced and self.obeys_fence:
            return self._ends(state, who, me, "refused", "is fenced")
        return self._ends(state, who, me, "looked", "lost its slot and decides again")

    def _carry(self, state: JobModelState, who: int, me: Actor) -> Step[JobModelState]:
        if not state.released:
            return f"{who} puts RELEASE into the stage's log", state._replace(released=True), ()
        if state.data:
            return f"{who} deletes the data", state._replace(data=False), NO_DAMAGE
        return self._ends(state, who, me, "done", "is done")

    def _record(self, who: int, me: Actor) -> Record:
        return Record("STAGE" if me.role in ("reuser", "writer") else "RELEASED", who)

    def _ends(
        self, state: JobModelState, who: int, me: Actor, phase: Phase, what: str
    ) -> Step[JobModelState]:
        after = self._become(state, who, me._replace(phase=phase))
        return f"{me.role} {who} {what}", after, NO_DAMAGE

    def _become(self, state: JobModelState, who: int, me: Actor) -> JobModelState:
        return state._replace(actors=with_item(state.actors, who, me))


def all_over(state: JobModelState) -> bool:
    """Whether everybody knows what came of it, or is dead."""
    return all(me.phase in _OVER for me in state.actors)
