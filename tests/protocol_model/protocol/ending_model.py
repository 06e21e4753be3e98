"""The end of a consumer: PREPARED, effect, COMMITTED, FINISHED; crashes and late requests.

One consumer task whose input is at its end. Attempts win OPEN one after the other, each carrying
what the log says of the ending; attempt n may be launched while older ones still run. A create that
is sent may land at any later time, also after its sender died. The commit id is what a successor
counts from the log: the effect of two tries at the same end must carry one token. It is made
of the state behind the last row, which an attempt has in memory, or a successor finds in a record.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from protocol.explorer import NO_DAMAGE, Step
from protocol.slots import put_if_absent, with_item

PREPARED_TWICE: Final = "an end was prepared again behind PREPARED: its output is published twice"
COMMITTED_TOO_EARLY: Final = "COMMITTED stands, and the effect never happened"
EFFECT_WITHOUT_RECORD: Final = "an effect happened that no PREPARED names"
STALE_STATE: Final = "an effect was made of a state from before the last rows"
FINISHED_TOO_EARLY: Final = "FINISHED stands without COMMITTED"

Kind = Literal["OPEN", "PREPARED", "COMMITTED", "FINISHED"]
Ending = Literal["", "PREPARED", "COMMITTED"]
Phase = Literal["idle", "open", "sent", "dead", "done", "fenced"]


class Record(NamedTuple):
    kind: Kind
    author: int
    token: int
    """Of the effect: the commit id. 0 in OPEN without an ending."""
    ending: Ending
    """As the log stands behind this record."""
    whole: bool = True
    """Whether the state in it is the one behind the last row."""


class Attempt(NamedTuple):
    phase: Phase
    slot: int
    """Of its last record, -1 before OPEN."""
    ending: Ending
    token: int
    effect_done: bool
    """In this attempt."""
    request: tuple[int, Record] | None
    whole: bool = True
    """Whether its state is the one behind the last row."""


IDLE = Attempt("idle", -1, "", 0, effect_done=False, request=None)


class EndingState(NamedTuple):
    log: tuple[Record, ...]
    net: frozenset[tuple[int, Record]]
    """Creates that may still land."""
    attempts: tuple[Attempt, ...]
    effects: frozenset[int]
    """Tokens whose effect happened; the receiver ignores repeats."""
    crashes: int
    stale: bool = False
    """Whether an effect was made of a stale state."""


@dataclass(frozen=True, slots=True)
class EndingModel:
    attempts: int = 3
    crashes: int = 2
    open_copies_ending: bool = True
    """Off: a successor takes the end of a consumer for something that it has to do again."""
    effect_before_committed: bool = True
    """Off: COMMITTED is written first."""
    snapshot_before_prepared: bool = True
    """Off: PREPARED holds the state of the last commit before the end."""

    def initial(self) -> EndingState:
        return EndingState((), frozenset(), (IDLE,) * self.attempts, frozenset(), self.crashes)

    def damage(self, state: EndingState) -> tuple[str, ...]:
        found = []
        kinds = [record.kind for record in state.log]
        if kinds.count("PREPARED") > 1:
            found.append(PREPARED_TWICE)
        named = {record.token for record in state.log if record.kind == "PREPARED"}
        if "COMMITTED" in kinds and not named <= state.effects:
            found.append(COMMITTED_TOO_EARLY)
        if state.stale:
            found.append(STALE_STATE)
        if state.effects - named:
            found.append(EFFECT_WITHOUT_RECORD)
        if "FINISHED" in kinds and "COMMITTED" not in kinds[: kinds.index("FINISHED")]:
            found.append(FINISHED_TOO_EARLY)
        return tuple(found)

    def steps(self, state: EndingState) -> Iterator[Step[EndingState]]:
        for who, me in enumerate(state.attempts):
            if me.phase == "idle":
                if who == 0 or state.attempts[who - 1].phase != "idle":
                    yield self._open(state, who)
            elif me.phase in ("open", "sent"):
                if state.crashes:
                    dead = me._replace(phase="dead", request=None)
                    after = _become(state, who, dead)._replace(crashes=state.crashes - 1)
                    yield f"attempt {who} crashes", after, NO_DAMAGE
                yield self._answer(state, who) if me.request else self._go_on(state, who)
        awaited = {a.request for a in state.attempts}
        for slot, record in state.net - awaited:
            log, _ = put_if_absent(state.log, slot, record)
            after = state._replace(log=log, net=state.net - {(slot, record)})
            yield f"late: {record.kind} of attempt {record.author}", after, NO_DAMAGE

    def _open(self, state: EndingState, who: int) -> Step[EndingState]:
        last = state.log[-1] if state.log else Record("OPEN", -1, 0, "")
        if last.kind == "FINISHED":
            done = state.attempts[who]._replace(phase="done")
            return f"attempt {who} finds FINISHED", _become(state, who, done), NO_DAMAGE
        ending: Ending = last.ending if self.open_copies_ending else ""
        token = last.token if ending else 0
        record = Record("OPEN", who, token, ending, last.whole if ending else True)
        return self._send(state, who, record, len(state.log))

    def _go_on(self, state: EndingState, who: int) -> Step[EndingState]:
        me = state.attempts[who]
        if me.ending == "":
            prepared = sum(record.kind == "PREPARED" for record in state.log[: me.slot + 1])
            whole = self.snapshot_before_prepared
            record = Record("PREPARED", who, prepared + 1, "PREPARED", whole)
            return self._send(state, who, record, me.slot + 1)
        stored = state.log[me.slot].whole  # COMMITTED and FINISHED change no state
        committed = Record("COMMITTED", who, me.token, "COMMITTED", stored)
        if me.ending == "PREPARED":
            if self.effect_before_committed and not me.effect_done:
                return self._perform(state, who)
            return self._send(state, who, committed, me.slot + 1)
        if not self.effect_before_committed and not me.effect_done:
            return self._perform(state, who)
        record = Record("FINISHED", who, me.token, "COMMITTED", stored)
        return self._send(state, who, record, me.slot + 1)

    def _perform(self, state: EndingState, who: int) -> Step[EndingState]:
        me = state.attempts[who]._replace(effect_done=True)
        after = _become(state, who, me)._replace(
            effects=state.effects | {me.token}, stale=state.stale or not me.whole
        )
        return f"attempt {who} performs effect {me.token}", after, NO_DAMAGE

    def _send(self, state: EndingState, who: int, record: Record, slot: int) -> Step[EndingState]:
        me = state.attempts[who]._replace(phase="sent", request=(slot, record))
        after = _become(state, who, me)._replace(net=state.net | {(slot, record)})
        return f"attempt {who} sends {record.kind} to slot {slot}", after, NO_DAMAGE

    def _answer(self, state: EndingState, who: int) -> Step[EndingState]:
        me = state.attempts[who]
        assert me.request is not None
        slot, record = me.request
        log, _ = put_if_absent(state.log, slot, record)
        after = state._replace(log=log, net=state.net - {me.request})
        if log[slot] != record:
            # an OPEN that lost reads the record that won and tries again; others are fenced
            phase: Phase = "idle" if record.kind == "OPEN" else "fenced"
            lost = IDLE if phase == "idle" else me._replace(phase=phase, request=None)
            label = f"attempt {who} loses slot {slot} with {record.kind}"
            return label, _become(after, who, lost), NO_DAMAGE
        won = me._replace(
            phase="done" if record.kind == "FINISHED" else "open",
            slot=slot,
            ending=record.ending,
            token=record.token,
            request=None,
            whole=record.whole if record.kind == "OPEN" else me.whole,
        )
        return f"attempt {who} wins slot {slot} with {record.kind}", _become(after, who, won), ()


def _become(state: EndingState, who: int, attempt: Attempt) -> EndingState:
    return state._replace(attempts=with_item(state.attempts, who, attempt))


def ended(state: EndingState) -> bool:
    """Return whether the consumer's end stands."""
    return bool(state.log) and state.log[-1].kind == "FINISHED"


def none_left(state: EndingState) -> bool:
    """Return whether there is nobody left to launch."""
    return all(attempt.phase != "idle" for attempt in state.attempts)
