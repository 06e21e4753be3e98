"""A REPLACE that the log of a sealed stage lost, and the ABORT that settles it.

Repairers, compactors and cleaners do as in `compact_model.py`. Once, the storage loses the last
record of the log, a REPLACE: what it replaced counts again, and its index says that there was more.
`verify --repair` finds an index of other data that no record names, reads the log to its end and
sends ABORT to the slot behind it; if that slot is taken, it reads again. What counts by then it
leaves alone. The model of `shuffle/verify/ends.py` and `abort_rewrite`.

It is lost before anybody has sent anything to a slot behind it, or is at work on top of it: else
the log has a hole, which `verify` finds and nobody fills.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from protocol.compact_model import (
    FALSE_SUCCESS,
    CompactModel,
    CompactState,
    Reading,
    Record,
)
from protocol.explorer import NO_DAMAGE, Step
from protocol.slots import put_if_absent

ENDED: Final = "a REPLACE or COMPACT that counted counts no more"
COMES_BACK: Final = "what was settled as lost counts again"


class Settler(NamedTuple):
    """`verify --repair`, and the author that it settles."""

    phase: Literal["idle", "found", "sent", "done"]
    of: int = -1
    slot: int = 0


class LostReplaceState(NamedTuple):
    stage: CompactState
    settler: Settler
    lost: frozenset[int]
    """Authors whose REPLACE was lost, whether or not it stands again."""
    settled: frozenset[int]
    losses: int


@dataclass(frozen=True, slots=True)
class Stage(CompactModel):
    """The log, with one more rule."""

    counted_stays: bool = True
    """Off: an ABORT ends what counted before it, too."""

    def read(self, log: tuple[Record, ...]) -> Reading:
        if not self.counted_stays:
            aborted = {r.of for r in log if r.kind == "ABORT"}
            log = tuple(
                r
                if r.kind in ("ABORT", "RELEASE") or r.of not in aborted
                else Record("ABORT", r.of)
                for r in log
            )
        return CompactModel.read(self, log)


@dataclass(frozen=True, slots=True)
class LostReplaceModel:
    stage: Stage = Stage(compactors=0, repairers=2, cleanings=1)
    losses: int = 1
    sends_abort: bool = True
    """Off: an index that no record names is believed lost, and that is all."""
    reads_again: bool = True
    """Off: if its slot is taken, it sends ABORT to the next one, whatever stands there."""

    def initial(self) -> LostReplaceState:
        none: frozenset[int] = frozenset()
        return LostReplaceState(self.stage.initial(), Settler("idle"), none, none, self.losses)

    def damage(self, state: LostReplaceState) -> tuple[str, ...]:
        found = [d for d in self.stage.damage(state.stage) if d != FALSE_SUCCESS]
        counted = self.stage.read(state.stage.log).counted
        for who, me in enumerate(state.stage.authors):
            if me.phase == "won" and who not in counted | state.lost:
                found.append(FALSE_SUCCESS)
        if state.settled & counted:
            found.append(COMES_BACK)
        return tuple(found)

    def steps(self, state: LostReplaceState) -> Iterator[Step[LostReplaceState]]:
        before = self.stage.read(state.stage.log).counted
        for label, after, damage in self.stage.steps(state.stage):
            ended = before - self.stage.read(after.log).counted
            yield label, state._replace(stage=after), (*damage, *([ENDED] if ended else []))
        yield from self._lose(state)
        yield from self._settle(state)

    def _lose(self, state: LostReplaceState) -> Iterator[Step[LostReplaceState]]:
        stage, slot = state.stage, len(state.stage.log) - 1
        if not (state.losses and stage.log and stage.log[slot].kind == "REPLACE"):
            return
        at_work = [me for me in stage.authors if me.phase in ("writing", "sent")]
        records = [me.record for me in at_work if me.record]
        aims = [at for at, _ in stage.net] + [me.slot for me in at_work]
        if state.settler.phase == "sent":
            aims.append(state.settler.slot)
        if max(aims, default=0) <= slot and all(r.base != slot for r in records):
            who = stage.log[slot].of
            after = state._replace(
                stage=stage._replace(log=stage.log[:slot]),
                lost=state.lost | {who},
                losses=state.losses - 1,
            )
            yield f"the log loses REPLACE({who})", after, NO_DAMAGE

    def _settle(self, state: LostReplaceState) -> Iterator[Step[LostReplaceState]]:
        me, stage = state.settler, state.stage
        if me.phase == "idle":
            for who in self.unsettled(stage):
                found = state._replace(settler=Settler("found", who))
                yield f"verify finds an index of {who} that nothing names", found, NO_DAMAGE
        elif me.phase == "found":
            if not self.sends_abort:
                yield self._done(state, settled=True)
            elif me.of in self.stage.read(stage.log).counted:
                yield self._done(state, settled=False)
            elif any(r.kind == "RELEASE" or r == Record("ABORT", me.of) for r in stage.log):
                yield self._done(state, settled=True)
            else:
                sent = state._replace(settler=Settler("sent", me.of, len(stage.log)))
                yield f"verify sends ABORT({me.of})", sent, NO_DAMAGE
        elif me.phase == "sent":
            before = self.stage.read(stage.log).counted
            log, won = put_if_absent(stage.log, me.slot, Record("ABORT", me.of))
            state = state._replace(stage=stage._replace(log=log))
            damage = (ENDED,) if before - self.stage.read(log).counted else NO_DAMAGE
            if won:
                label, after, _ = self._done(state, settled=True)
                yield label, after, damage
                return
            again = Settler("found", me.of)
            if not self.reads_again:
                again = Settler("sent", me.of, me.slot + 1)
            yield "verify lost its slot and goes on", state._replace(settler=again), NO_DAMAGE

    def _done(self, state: LostReplaceState, *, settled: bool) -> Step[LostReplaceState]:
        who = state.settler.of
        after = state._replace(settler=Settler("done"))
        if settled:
            after = after._replace(settled=state.settled | {who})
        return f"verify {'settled' if settled else 'leaves'} {who}", after, NO_DAMAGE

    def unsettled(self, stage: CompactState) -> list[int]:
        """Return the repairers whose index is whole and may be of a REPLACE that was lost."""
        named = {r.of for r in stage.log}
        return [
            who
            for who, me in enumerate(stage.authors)
            if who >= self.stage.compactors
            and len(stage.objects[who]) == 2
            and who not in named
            and not any(r.kind == "RELEASE" for r in stage.log)
        ]
