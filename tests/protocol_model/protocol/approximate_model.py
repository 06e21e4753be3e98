"""A consumer that resumes approximately: it reserves before it delivers, and drops what it must.

What consumer_model.py does not hold: RESERVE, VIEW_RELEASED and full ACKs. Attempts win OPEN,
reserve, deliver, acknowledge, release, crash; a create of a sender that died may land at any later
time, or never. A successor reads the log back to its newest full record only, as the code does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from protocol.explorer import NO_DAMAGE, Step
from protocol.slots import put_if_absent, with_item

DELIVERED_TWICE: Final = "a record was delivered twice"
DROPPED_UNCOUNTED: Final = "a record was neither acknowledged nor counted as dropped"
RELEASE_INEXACT: Final = "dropped is called exact, and is not"


@dataclass(frozen=True, slots=True)
class ApproximateSetup:
    """How many actors and faults there are, and which rules hold."""

    records: int = 3
    attempts: int = 2
    crashes: int = 1
    chunk: int = 2
    """Most records reserved ahead."""
    reserves_first: bool = True
    """Off: records are delivered and reserved afterwards."""
    full_keeps_reserved: bool = True
    """Off: a full ACK says what is acknowledged, not what is reserved."""
    starts_at_reserved: bool = True
    """Off: OPEN starts at what was acknowledged."""
    released_by_owner: bool = True
    """Off: VIEW_RELEASED of a superseded view counts, wherever the log stands."""


class Record(NamedTuple):
    kind: Literal["OPEN", "RESERVE", "ACK", "FULL", "VIEW_RELEASED"]
    author: int
    acked: int
    reached: int
    dropped: int = 0
    exact: bool = True


class Attempt(NamedTuple):
    phase: Literal["idle", "reading", "waiting", "fenced", "released", "dead"] = "idle"
    slot: int = -1
    acked: int = 0
    reached: int = 0
    delivered: int = 0
    request: tuple[int, Record] | None = None


class ApproximateState(NamedTuple):
    log: tuple[Record, ...]
    net: frozenset[tuple[int, Record]]
    attempts: tuple[Attempt, ...]
    crashes: int
    delivered: tuple[int, ...]
    """How often each record was delivered."""
    acknowledged: frozenset[int]


class Resume(NamedTuple):
    """What the log adds up to for who reads it back to its newest full record."""

    acked: int
    reached: int
    dropped: int
    exact: bool
    released: bool = False


def resume_of(log: tuple[Record, ...]) -> Resume:
    """Walk back to the newest full record, then forward."""
    first = max((n for n, r in enumerate(log) if r.kind in ("OPEN", "FULL")), default=0)
    found = Resume(0, 0, 0, exact=True)
    for n, record in enumerate(log[first:], first):
        if n == first:
            found = Resume(record.acked, record.reached, record.dropped, record.exact)
        elif record.kind == "RESERVE":
            found = found._replace(reached=max(found.reached, record.reached))
        elif record.kind == "VIEW_RELEASED":
            found = found._replace(reached=record.reached, released=True)
        else:
            reached = max(found.reached, record.acked)
            found = found._replace(acked=record.acked, reached=reached)
    return found


@dataclass(frozen=True, slots=True)
class ApproximateModel:
    setup: ApproximateSetup

    def initial(self) -> ApproximateState:
        o = self.setup
        return ApproximateState(
            (), frozenset(), (Attempt(),) * o.attempts, o.crashes, (0,) * o.records, frozenset()
        )

    def damage(self, state: ApproximateState) -> Iterator[str]:
        if any(times > 1 for times in state.delivered):
            yield DELIVERED_TWICE
        opens = [r for r in state.log if r.kind == "OPEN"]
        if not opens:
            return
        newest = opens[-1]
        lost = sum(1 for n in range(newest.acked) if n not in state.acknowledged)
        if lost > newest.dropped:
            yield DROPPED_UNCOUNTED
        handed = sum(
            1 for n in range(newest.acked) if state.delivered[n] and n not in state.acknowledged
        )
        if newest.exact and handed < newest.dropped:
            yield RELEASE_INEXACT

    def steps(self, state: ApproximateState) -> Iterator[Step[ApproximateState]]:
        for who in range(len(state.attempts)):
            yield from self._attempt(state, who)
        awaited = {a.request for a in state.attempts if a.phase == "waiting"}
        for create in state.net - awaited:
            after, won = self._land(state, create)
            done = "wins" if won else "is refused"
            yield f"late: {create[1].kind} of {create[1].author} {done}", after, NO_DAMAGE

    def _attempt(self, state: ApproximateState, who: int) -> Iterator[Step[ApproximateState]]:
        me, o = state.attempts[who], self.setup
        if me.phase == "idle":
            if who == 0 or state.attempts[who - 1].phase != "idle":
                yield self._open(state, who)
            return
        if me.phase == "fenced" and not o.released_by_owner and who == 0:
            said = Record("VIEW_RELEASED", who, me.acked, me.delivered)
            after, _ = self._land(state, (len(state.log), said))
            yield "a fenced view releases", _set(after, who, me._replace(phase="released")), ()
        if me.phase in ("fenced", "released", "dead"):
            return
        if state.crashes:
            dead = _set(state, who, me._replace(phase="dead", request=None))
            yield f"{who} crashes", dead._replace(crashes=state.crashes - 1), NO_DAMAGE
        if me.phase == "waiting" and me.request is not None:
            yield self._answer(state, who, me.request)
            return
        free = me.delivered < (me.reached if o.reserves_first else o.records)
        if free:
            counts = with_item(state.delivered, me.delivered, state.delivered[me.delivered] + 1)
            after = state._replace(delivered=counts)
            moved = me._replace(delivered=me.delivered + 1)
            yield f"{who} delivers {me.delivered}", _set(after, who, moved), NO_DAMAGE
        if me.delivered == me.reached < o.records or me.delivered > me.reached:
            ahead = range(1, o.chunk + 1) if o.reserves_first else range(1)
            for more in ahead:
                upto = min(o.records, me.delivered + more)
                yield self._send(state, who, Record("RESERVE", who, me.acked, upto))
        for upto in range(me.acked + 1, me.delivered + 1):
            yield self._send(state, who, Record("ACK", who, upto, upto))
            found = resume_of(state.log)
            reached = max(me.reached, upto) if o.full_keeps_reserved else upto
            full = Record("FULL", who, upto, reached, found.dropped, found.exact)
            yield self._send(state, who, full)
        yield self._send(state, who, Record("VIEW_RELEASED", who, me.acked, me.delivered))

    def _open(self, state: ApproximateState, who: int) -> Step[ApproximateState]:
        found = resume_of(state.log)
        start = found.reached if self.setup.starts_at_reserved else found.acked
        lost = start - found.acked
        exact = found.exact and (found.released or not lost)
        record = Record("OPEN", who, start, start, found.dropped + lost, exact)
        return self._send(state, who, record, slot=len(state.log))

    def _send(
        self, state: ApproximateState, who: int, record: Record, slot: int | None = None
    ) -> Step[ApproximateState]:
        me = state.attempts[who]
        create = (me.slot + 1 if slot is None else slot, record)
        waiting = me._replace(phase="waiting", request=create)
        sent = state._replace(net=state.net | {create})
        return f"{who} sends {record.kind} to {create[0]}", _set(sent, who, waiting), NO_DAMAGE

    def _land(
        self, state: ApproximateState, create: tuple[int, Record]
    ) -> tuple[ApproximateState, bool]:
        slot, record = create
        log, won = put_if_absent(state.log, slot, record)
        acknowledged = state.acknowledged
        if won and record.kind in ("ACK", "FULL"):
            start = next(r.acked for r in reversed(state.log) if r.kind in ("OPEN", "ACK", "FULL"))
            acknowledged |= frozenset(range(start, record.acked))
        after = state._replace(log=log, net=state.net - {create}, acknowledged=acknowledged)
        return after, won

    def _answer(
        self, state: ApproximateState, who: int, create: tuple[int, Record]
    ) -> Step[ApproximateState]:
        after, won = self._land(state, create)
        slot, record = create
        me = state.attempts[who]._replace(request=None)
        if not won and record.kind == "OPEN":
            idle = Attempt()
            return self._open(_set(after, who, idle), who)
        if not won:
            return f"{who} is fenced", _set(after, who, me._replace(phase="fenced")), NO_DAMAGE
        if record.kind == "OPEN":
            me = Attempt("reading", slot, record.acked, record.reached, record.acked)
        elif record.kind == "VIEW_RELEASED":
            me = me._replace(phase="released", slot=slot)
        else:
            acked = record.acked if record.kind != "RESERVE" else me.acked
            reached = max(me.reached, record.reached)
            me = me._replace(phase="reading", slot=slot, acked=acked, reached=reached)
        return f"{who}: {record.kind} wins slot {slot}", _set(after, who, me), NO_DAMAGE


def _set(state: ApproximateState, who: int, attempt: Attempt) -> ApproximateState:
    return state._replace(attempts=with_item(state.attempts, who, attempt))
