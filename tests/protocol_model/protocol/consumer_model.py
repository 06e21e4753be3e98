"""One consumer task: attempts win OPEN, acknowledge, crash, time out, and wake up as zombies.

An ACK is one record: cursor, output and effect token, aimed at the slot after the view's own last.
A create whose sender waits lands together with its answer; one whose sender gave up or died may
land at any later time, or never. Attempt n carries launch generation n.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from protocol.consumer_invariants import consumer_damage
from protocol.consumer_values import (
    CURSOR_WENT_BACK,
    EFFECT_TWICE,
    EFFECT_WITHOUT_SLOT,
    GAP_IN_LOG,
    IDLE,
    ZOMBIE_COMMITTED,
    Attempt,
    ConsumerSetup,
    ConsumerState,
    Create,
    OnUnknown,
    Output,
    Receiver,
    Record,
    Release,
)
from protocol.explorer import NO_DAMAGE, Step
from protocol.slots import put_if_absent, record_in, with_item

LOOKING = IDLE._replace(phase="looking")


def _become(state: ConsumerState, who: int, attempt: Attempt) -> ConsumerState:
    return state._replace(attempts=with_item(state.attempts, who, attempt))


def _cursor(log: tuple[Record, ...]) -> int:
    return log[-1].cursor if log else 0


def _land(
    state: ConsumerState, create: Create, *, in_flight: bool = True
) -> tuple[ConsumerState, bool, list[str]]:
    """Return the state after the create landed, whether it won, and the damage that it did."""
    slot, record = create
    log, won = put_if_absent(state.log, slot, record)
    damage: list[str] = []
    if slot > len(state.log):
        damage.append(GAP_IN_LOG)
    if won and record.kind != "OPEN":
        newer = any(r.kind == "OPEN" and r.epoch > record.epoch for r in state.log)
        damage += [ZOMBIE_COMMITTED] if newer else []
    if won and record.cursor < _cursor(state.log):
        damage.append(CURSOR_WENT_BACK)
    net = state.net - {create} if in_flight else state.net
    return state._replace(log=log, net=net), won, damage


@dataclass(frozen=True, slots=True)
class ConsumerModel:
    setup: ConsumerSetup

    def initial(self) -> ConsumerState:
        o = self.setup
        return ConsumerState(
            log=(),
            objects=frozenset(),
            net=frozenset(),
            attempts=(IDLE,) * o.attempts,
            crashes=o.crashes,
            timeouts=o.timeouts,
            hint=-1,
            condemned=None,
            collections=o.collections,
            performed=frozenset(),
            last_token=None,
            published=(),
        )

    def damage(self, state: ConsumerState) -> list[str]:
        return consumer_damage(self.setup, state)

    def steps(self, state: ConsumerState) -> Iterator[Step[ConsumerState]]:
        for who in range(len(state.attempts)):
            yield from self._attempt_steps(state, who)
        awaited = {a.request for a in state.attempts if a.phase == "waiting"}
        for create in state.net - awaited:
            after, won, damage = _land(state, create)
            done = "wins" if won else "is refused"
            yield f"late: {create.record} {done} at slot {create.slot}", after, damage
        yield from self._cleaner_steps(state)

    # -- one attempt ---------------------------------------------------------------------------

    def _attempt_steps(self, state: ConsumerState, who: int) -> Iterator[Step[ConsumerState]]:
        me = state.attempts[who]
        name = f"attempt {who}"
        if me.phase == "idle":
            yield from self._launch(state, who)
            return
        if me.phase in ("dead", "done", "fenced", "released"):
            if self.setup.release is Release.BY_NAME and me.phase == "fenced" and who == 0:
                newest = state.log[-1].epoch
                record = Record("RELEASE", who, newest, me.cursor, (), None)
                create = Create(len(state.log), record)
                after, _, damage = _land(state, create, in_flight=False)
                released = me._replace(phase="released")
                yield f"{name} releases by name", _become(after, who, released), damage
            return
        if state.crashes:
            dead = _become(state, who, me._replace(phase="dead", request=None, token=None))
            yield f"{name} crashes", dead._replace(crashes=state.crashes - 1), NO_DAMAGE
        if me.phase == "looking":
            yield from self._open(state, who)
        elif me.phase == "hinted":
            record = Record("OPEN", who, me.epoch, me.cursor, (), None)
            yield self._send(state, who, me._replace(slot=me.slot - 1), Create(me.slot, record))
        elif me.phase == "reading":
            yield from self._read_and_acknowledge(state, who)
        elif me.phase == "published" and me.request is not None:
            yield self._send(state, who, me, me.request)
        elif me.phase == "effect" and me.token is not None:
            yield self._perform(state, who, me.token)
        elif me.phase == "waiting" and me.request is not None:
            yield from self._answers(state, who, me.request)
        elif me.phase == "unknown" and me.request is not None:
            yield from self._after_timeout(state, who, me.request)

    def _launch(self, state: ConsumerState, who: int) -> Iterator[Step[ConsumerState]]:
        """Attempts are launched in order; with a shared OPEN the second just joins the first."""
        if who > 0 and state.attempts[who - 1].phase == "idle":
            return
        if not (self.setup.shares_open and who == 1):
            yield f"attempt {who} is launched", _become(state, who, LOOKING), NO_DAMAGE
            return
        first = state.attempts[0]
        opened = bool(state.log) and state.log[0].kind == "OPEN"
        busy = first.phase in ("reading", "dead", "done", "fenced") or (
            first.phase in ("waiting", "unknown")
            and first.request is not None
            and first.request.record.kind == "ACK"
        )
        if opened and busy:
            joined = Attempt("reading", 0, state.log[0].epoch, state.log[0].cursor, None, None)
            yield f"attempt {who} reads by attempt 0's OPEN", _become(state, who, joined), NO_DAMAGE

    def _open(self, state: ConsumerState, who: int) -> Iterator[Step[ConsumerState]]:
        log, o = state.log, self.setup
        if o.yields_to_generation and any(
            r.kind == "OPEN" and r.author is not None and r.author > who for r in log
        ):
            fenced = state.attempts[who]._replace(phase="fenced", slot=len(log))
            yield f"attempt {who} meets a higher generation", _become(state, who, fenced), ()
            return
        end = state.hint + 1 if o.trusts_hint else len(log)
        last = log[end - 1] if end else None
        epoch, cursor = (last.epoch, last.cursor) if last else (0, 0)
        if not o.wins_open:
            view = self._view(Attempt("reading", end - 1, epoch, cursor, None, None), log)
            yield f"attempt {who} starts at {cursor}", _become(state, who, view), NO_DAMAGE
            return
        pending = log[-1].pending if log and o.open_copies_pending else None
        record = Record("OPEN", who if o.open_has_id else None, epoch + 1, cursor, (), pending)
        sender = Attempt("waiting", end - 1, epoch + 1, cursor, None, None)
        yield self._send(state, who, sender, Create(end, record))

    def _send(
        self, state: ConsumerState, who: int, sender: Attempt, create: Create
    ) -> Step[ConsumerState]:
        sent = state._replace(net=state.net | {create})
        waiting = sender._replace(phase="waiting", request=create)
        label = f"attempt {who} sends {create.record} to slot {create.slot}"
        return label, _become(sent, who, waiting), NO_DAMAGE

    def _view(self, opened: Attempt, log: tuple[Record, ...]) -> Attempt:
        """Return the attempt that reads on from its last slot; a pending effect comes first."""
        if self.setup.effects and opened.slot >= 0:
            last = log[opened.slot]
            if last.pending is not None and (self.setup.open_copies_pending or last.kind == "ACK"):
                return opened._replace(phase="effect", request=None, token=last.pending)
        return self._onwards(opened)

    def _onwards(self, view: Attempt) -> Attempt:
        """Return the view as it reads on, or done if its cursor is at the end."""
        if view.cursor >= self.setup.records:
            return view._replace(phase="done", request=None, token=None)
        return view._replace(phase="reading", request=None, token=None)

    def _read_and_acknowledge(
        self, state: ConsumerState, who: int
    ) -> Iterator[Step[ConsumerState]]:
        me, o = state.attempts[who], self.setup
        slot = me.slot + 1
        for end in range(me.cursor + 1, min(o.records, me.cursor + o.max_batch) + 1):
            output = Output(who, me.cursor, end)
            token = slot if o.effects else None
            outputs = (output,) if o.one_record else ()
            create = Create(slot, Record("ACK", who, me.epoch, end, outputs, token))
            if o.one_record:
                written = state._replace(objects=state.objects | {output})
                yield self._send(written, who, me, create)
            else:
                shown = state._replace(published=(*state.published, (me.cursor, end)))
                published = me._replace(phase="published", request=create)
                yield f"attempt {who} publishes to {end}", _become(shown, who, published), ()
        if o.release is Release.BY_VIEW and who == 0 and me.cursor > 0:
            record = Record("RELEASE", who, me.epoch, me.cursor, (), None)
            yield self._send(state, who, me, Create(slot, record))

    def _perform(self, state: ConsumerState, who: int, token: int) -> Step[ConsumerState]:
        me = state.attempts[who]
        damage: list[str] = []
        if not any(r.kind == "ACK" and r.pending == token for r in state.log):
            damage.append(EFFECT_WITHOUT_SLOT)
        after = state._replace(performed=state.performed | {token})
        if self.setup.receiver is Receiver.LAST_TOKEN:
            if token != state.last_token and token in state.performed:
                damage.append(EFFECT_TWICE)
            after = after._replace(last_token=token)
        return (
            f"attempt {who} performs effect {token}",
            _become(after, who, self._onwards(me)),
            damage,
        )

    # -- answers and their absence -------------------------------------------------------------

    def _answers(
        self, state: ConsumerState, who: int, create: Create
    ) -> Iterator[Step[ConsumerState]]:
        if create in state.net:
            after, won, damage = _land(state, create)
            winner = record_in(after.log, create.slot)
            blind = self.setup.on_unknown is OnUnknown.REPEAT_BLINDLY
            mine = won or (not blind and winner == create.record)
            verdict = "wins" if won else "had won" if mine else f"loses to {winner} in"
            label = f"attempt {who}: {create.record.kind} {verdict} slot {create.slot}"
            answered = _become(after, who, self._judge(after, who, create, mine=mine))
            yield label, answered, damage
            if self.setup.trusts_hint and won:
                yield f"{label}, hint moves", answered._replace(hint=create.slot), damage
        if state.timeouts:
            unknown = _become(state, who, state.attempts[who]._replace(phase="unknown"))
            after = unknown._replace(timeouts=state.timeouts - 1)
            yield f"attempt {who}: no answer for slot {create.slot}", after, NO_DAMAGE

    def _judge(self, state: ConsumerState, who: int, create: Create, *, mine: bool) -> Attempt:
        """Return what the attempt is after it knows who holds the slot."""
        slot, record = create
        me = state.attempts[who]._replace(request=None)
        won = Attempt("reading", slot, record.epoch, record.cursor, None, None)
        if record.kind == "OPEN":
            if mine:
                return self._view(won, state.log)
            if self.setup.trusts_hint:
                return Attempt("hinted", slot + 1, record.epoch, record.cursor, None, None)
            return LOOKING
        if record.kind == "RELEASE":
            return me._replace(phase="released", slot=slot if mine else me.slot)
        if mine and self.setup.one_record:
            return self._view(won, state.log)
        if mine:
            return self._onwards(won)
        if self.setup.loser_follows_epoch and state.log[-1].epoch == me.epoch:
            return me._replace(phase="reading", slot=len(state.log) - 1)
        return me._replace(phase="fenced", slot=slot)

    def _after_timeout(
        self, state: ConsumerState, who: int, create: Create
    ) -> Iterator[Step[ConsumerState]]:
        me, policy = state.attempts[who], self.setup.on_unknown
        slot, record = create
        free = slot >= len(state.log)
        is_ack = record.kind == "ACK"
        if policy is OnUnknown.DELETE_OUTPUT and is_ack and record.outputs:
            if free:
                gone = state._replace(objects=state.objects - set(record.outputs))
                dead = me._replace(phase="dead", request=None)
                yield f"attempt {who} gives up, deletes its output", _become(gone, who, dead), ()
        elif policy is OnUnknown.REBUILD and is_ack and free:
            for end in range(record.cursor + 1, self.setup.records + 1):
                output = Output(who, me.cursor, end)
                rebuilt = Record("ACK", who, me.epoch, end, (output,), record.pending)
                written = state._replace(objects=state.objects | {output})
                yield self._send(written, who, me, Create(slot, rebuilt))
        elif policy is OnUnknown.ASSUME_WON:
            view = Attempt("reading", slot, record.epoch, record.cursor, None, None)
            after = _become(state, who, self._view(view, state.log))
            yield f"attempt {who} takes slot {slot} for won", after, NO_DAMAGE
        else:
            yield self._send(state, who, me, create)

    # -- the cleaner ---------------------------------------------------------------------------

    def _cleaner_steps(self, state: ConsumerState) -> Iterator[Step[ConsumerState]]:
        if state.condemned is not None:
            for output in state.condemned:
                after = state._replace(
                    objects=state.objects - {output},
                    condemned=(state.condemned - {output}) or None,
                )
                yield f"cleaner deletes {output}", after, NO_DAMAGE
        elif state.collections:
            named = {output for record in state.log for output in record.outputs}
            doomed = state.objects - named
            if not self.setup.collects_unnamed:
                epochs = {r.author: r.epoch for r in state.log if r.kind == "OPEN"}
                top = max(epochs.values(), default=0)
                doomed = frozenset(x for x in doomed if epochs.get(x.author, top) < top)
            if doomed:
                after = state._replace(condemned=doomed, collections=state.collections - 1)
                yield f"cleaner decides to delete {sorted(doomed)}", after, NO_DAMAGE
