"""One log producer: attempts win OPEN, write segments, APPEND them, END; a follower reads along.

An APPEND is one record: segment, ordinals and source position, aimed at the slot after the
attempt's own last one. A create whose sender waits lands together with its answer; one whose sender
gave up or died may land at any later time, or never. Attempt n carries launch generation n.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from protocol.consumer_values import OnUnknown
from protocol.explorer import NO_DAMAGE, Step
from protocol.log_invariants import landing_damage, log_damage
from protocol.log_values import (
    FOLLOWER_MISLED,
    IDLE,
    Attempt,
    Create,
    LogSetup,
    LogState,
    Record,
    Segment,
)
from protocol.slots import put_if_absent, record_in, with_item


def _become(state: LogState, who: int, attempt: Attempt) -> LogState:
    return state._replace(attempts=with_item(state.attempts, who, attempt))


def _land(state: LogState, create: Create) -> tuple[LogState, bool, list[str]]:
    """Return the state after the create landed, whether it won, and the damage that it did."""
    log, won = put_if_absent(state.log, create.slot, create.record)
    damage = landing_damage(state.log, create, won=won)
    return state._replace(log=log, net=state.net - {create}), won, damage


@dataclass(frozen=True, slots=True)
class LogModel:
    setup: LogSetup

    def initial(self) -> LogState:
        o = self.setup
        return LogState(
            log=(),
            objects=frozenset(),
            net=frozenset(),
            attempts=(IDLE,) * o.attempts,
            crashes=o.crashes,
            timeouts=o.timeouts,
            condemned=None,
            collections=o.collections,
            delivered=(),
        )

    def damage(self, state: LogState) -> list[str]:
        return log_damage(state)

    def steps(self, state: LogState) -> Iterator[Step[LogState]]:
        for who in range(len(state.attempts)):
            yield from self._attempt_steps(state, who)
        awaited = {a.request for a in state.attempts if a.phase == "waiting"}
        for create in state.net - awaited:
            after, won, damage = _land(state, create)
            done = "wins" if won else "is refused"
            yield f"late: {create.record} {done} at slot {create.slot}", after, damage
        yield from self._cleaner_steps(state)
        if self.setup.follower:
            yield from self._follower_steps(state)

    # -- one attempt ---------------------------------------------------------------------------

    def _attempt_steps(self, state: LogState, who: int) -> Iterator[Step[LogState]]:
        me = state.attempts[who]
        if me.phase == "idle":
            if who == 0 or state.attempts[who - 1].phase != "idle":
                launched = _become(state, who, me._replace(phase="looking"))
                yield f"attempt {who} is launched", launched, NO_DAMAGE
            return
        if me.phase in ("dead", "done", "fenced"):
            return
        if state.crashes:
            dead = _become(state, who, me._replace(phase="dead", request=None))
            yield f"attempt {who} crashes", dead._replace(crashes=state.crashes - 1), NO_DAMAGE
        if me.phase == "looking":
            yield self._open(state, who)
        elif me.phase == "open":
            yield from self._build(state, who)
        elif me.phase == "written" and me.request is not None:
            yield self._send(state, who, me, me.request)
        elif me.phase == "waiting" and me.request is not None:
            yield from self._answers(state, who, me.request)
        elif me.phase == "unknown" and me.request is not None:
            yield self._after_timeout(state, who, me.request)
        elif me.phase == "losing" and me.request is not None:
            after = _become(state, who, me._replace(phase="fenced"))
            gone = state.objects - {me.request.record.segment}
            yield f"attempt {who} deletes its segment", after._replace(objects=gone), NO_DAMAGE

    def _open(self, state: LogState, who: int) -> Step[LogState]:
        o, log, me = self.setup, state.log, state.attempts[who]
        newer = any(r.kind == "OPEN" and r.author is not None and r.author > who for r in log)
        ended = bool(log) and log[-1].kind == "END"
        if (o.yields_to_generation and newer) or (o.end_is_final and ended):
            stopped = me._replace(phase="fenced", slot=len(log), request=None)
            why = "END" if ended else "a higher generation"
            return f"attempt {who} meets {why}", _become(state, who, stopped), NO_DAMAGE
        slot = len(log)
        epoch, position = (log[-1].epoch + 1, log[-1].position) if log else (1, 0)
        if not o.open_copies_state and me.request is not None:
            slot, position = me.slot + 1, me.position  # its OPEN lost a slot before
        if not o.wins_open:
            ready = Attempt("open", slot - 1, epoch, position, None)
            return f"attempt {who} starts at {position}", _become(state, who, ready), NO_DAMAGE
        record = Record("OPEN", who if o.open_has_id else None, epoch, position, None)
        sender = Attempt("waiting", slot - 1, epoch, position, None)
        return self._send(state, who, sender, Create(slot, record))

    def _build(self, state: LogState, who: int) -> Iterator[Step[LogState]]:
        """Write the next segment, one record or more; at the end of the source, END."""
        o, me = self.setup, state.attempts[who]
        slot = (me.slot if o.own_slot else len(state.log) - 1) + 1
        if me.position >= o.records:
            create = Create(slot, Record("END", who, me.epoch, me.position, None))
            yield self._send(state, who, me, create)
            return
        for end in range(me.position + 1, min(o.records, me.position + o.max_batch) + 1):
            segment = Segment(who, me.position, end)
            create = Create(slot, Record("APPEND", who, me.epoch, end, segment))
            after = _become(state, who, me._replace(phase="written", request=create))
            written = after._replace(objects=state.objects | {segment})
            yield f"attempt {who} writes records [{me.position}, {end})", written, NO_DAMAGE

    def _send(self, state: LogState, who: int, sender: Attempt, create: Create) -> Step[LogState]:
        sent = state._replace(net=state.net | {create})
        waiting = sender._replace(phase="waiting", request=create)
        label = f"attempt {who} sends {create.record} to slot {create.slot}"
        return label, _become(sent, who, waiting), NO_DAMAGE

    def _answers(self, state: LogState, who: int, create: Create) -> Iterator[Step[LogState]]:
        me = state.attempts[who]
        if create in state.net:
            landed, won, damage = _land(state, create)
            blindly = self.setup.on_unknown is OnUnknown.REPEAT_BLINDLY
            mine = won or (not blindly and record_in(landed.log, create.slot) == create.record)
            verdict = self._won(me, create) if mine else self._lost(me, create)
            done = "won" if mine else "lost"
            yield f"attempt {who} {done} slot {create.slot}", _become(landed, who, verdict), damage
        if state.timeouts:
            unknown = _become(state, who, me._replace(phase="unknown"))
            gave_up = unknown._replace(timeouts=state.timeouts - 1)
            yield f"attempt {who} gets no answer", gave_up, NO_DAMAGE

    def _won(self, me: Attempt, create: Create) -> Attempt:
        kind, _, epoch, position, _ = create.record
        won = me._replace(slot=create.slot, epoch=epoch, position=position, request=None)
        return won._replace(phase="done" if kind == "END" else "open")

    def _lost(self, me: Attempt, create: Create) -> Attempt:
        if create.record.kind == "OPEN":
            return me._replace(phase="looking", slot=create.slot)
        return me._replace(phase="losing" if create.record.segment else "fenced")

    def _after_timeout(self, state: LogState, who: int, create: Create) -> Step[LogState]:
        me, on_unknown = state.attempts[who], self.setup.on_unknown
        standing = record_in(state.log, create.slot)
        if on_unknown is OnUnknown.ASSUME_WON:
            return (
                f"attempt {who} takes silence for won",
                _become(state, who, self._won(me, create)),
                NO_DAMAGE,
            )
        if standing is None and create.record.kind == "APPEND":
            if on_unknown is OnUnknown.REBUILD:
                rebuilt = _become(state, who, me._replace(phase="open", request=None))
                return f"attempt {who} finds the slot free, builds again", rebuilt, NO_DAMAGE
            if on_unknown is OnUnknown.DELETE_OUTPUT:
                gives_up = _become(state, who, me._replace(phase="losing"))
                return f"attempt {who} finds the slot free, gives up", gives_up, NO_DAMAGE
        return self._send(state, who, me, create)

    # -- others --------------------------------------------------------------------------------

    def _cleaner_steps(self, state: LogState) -> Iterator[Step[LogState]]:
        if state.condemned is not None:
            for segment in state.condemned:
                after = state._replace(
                    objects=state.objects - {segment},
                    condemned=(state.condemned - {segment}) or None,
                )
                yield f"cleaner deletes {segment}", after, NO_DAMAGE
        elif state.collections:
            named = {r.segment for r in state.log}
            last = max((n for n, r in enumerate(state.log) if r.kind == "OPEN"), default=0)
            superseded = {r.author for r in state.log[:last] if r.kind == "OPEN"}
            doomed = frozenset(
                segment
                for segment in state.objects - named
                if self.setup.collects_unnamed or segment.author in superseded
            )
            if doomed:
                after = state._replace(condemned=doomed, collections=state.collections - 1)
                yield f"cleaner decides to delete {sorted(doomed)}", after, NO_DAMAGE

    def _follower_steps(self, state: LogState) -> Iterator[Step[LogState]]:
        """Hand on the next segment: the next that the log names, or one that is there."""
        position = state.delivered[-1].end if state.delivered else 0
        named = {r.segment for r in state.log if r.segment is not None}
        for segment in sorted(named if self.setup.follows_log else state.objects):
            if segment.start == position:
                after = state._replace(delivered=(*state.delivered, segment))
                damage = () if segment in named else (FOLLOWER_MISLED,)
                yield f"follower delivers {segment}", after, damage


def ended(state: LogState) -> bool:
    """Whether all records are appended and END stands."""
    return bool(state.log) and state.log[-1].kind == "END"


def out_of_attempts(state: LogState) -> bool:
    """Whether nobody is left who could go on: all have stopped or will, by a newer launch."""
    newest = max((r.author for r in state.log if r.author is not None), default=0)
    return all(
        a.phase in ("dead", "fenced", "losing", "done") or who < newest
        for who, a in enumerate(state.attempts)
    )
