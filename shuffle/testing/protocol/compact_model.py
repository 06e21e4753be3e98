"""COMPACT in the log of a sealed stage: compactors that race, a cleaner, a release; late requests.

A compactor writes two objects under its own id, then sends COMPACT. A cleaner believes anybody dead
whose objects it sees. A create that is sent may land at any later time, also after its sender died;
objects may be written until their writer stops. The first COMPACT whose author was not aborted
before it counts: readers read what it names. The originals stay, so nothing else can be damaged.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from durable_shuffle.shuffle.testing.protocol.explorer import NO_DAMAGE, Step
from durable_shuffle.shuffle.testing.protocol.slots import put_if_absent, with_item

READS_MISSING: Final = "the COMPACT that counts names objects that are gone"

OBJECTS: Final = frozenset({0, 1})
CLEANER: Final = -1

Kind = Literal["COMPACT", "ABORT", "RELEASE"]
Phase = Literal["writing", "sent", "won", "unsure", "over"]


class Record(NamedTuple):
    kind: Kind
    of: int
    """The compactor that it is about; CLEANER for RELEASE."""


class Compactor(NamedTuple):
    phase: Phase
    written: frozenset[int]
    slot: int
    """That it aims at."""


class CompactState(NamedTuple):
    log: tuple[Record, ...]
    net: frozenset[tuple[int, Record]]
    """Creates that may still land."""
    compactors: tuple[Compactor, ...]
    objects: tuple[frozenset[int], ...]
    """What is stored, by author."""
    cleanings: int
    crashes: int


@dataclass(frozen=True, slots=True)
class CompactModel:
    compactors: int = 2
    cleanings: int = 2
    crashes: int = 1
    abort_before_delete: bool = True
    """Off: a cleaner deletes what no COMPACT names."""
    abort_is_fate: bool = True
    """Off: a COMPACT counts although its author was aborted before."""
    walks_from_seal: bool = True
    """Off: a compactor aims at the end of the log without reading what stands before."""
    unsure_keeps: bool = True
    """Off: a compactor that got no answer deletes what it wrote."""

    def initial(self) -> CompactState:
        fresh = Compactor("writing", frozenset(), 0)
        none: frozenset[int] = frozenset()
        n = self.compactors
        return CompactState(
            (), frozenset(), (fresh,) * n, (none,) * n, self.cleanings, self.crashes
        )

    def counting(self, state: CompactState) -> int | None:
        """Return whose COMPACT counts."""
        aborted = set()
        for record in state.log:
            if record.kind == "ABORT" and self.abort_is_fate:
                aborted.add(record.of)
            elif record.kind == "COMPACT" and record.of not in aborted:
                return record.of
        return None

    def damage(self, state: CompactState) -> tuple[str, ...]:
        found, who = [], self.counting(state)
        released = any(record.kind == "RELEASE" for record in state.log)
        if who is not None and not released and state.objects[who] != OBJECTS:
            found.append(READS_MISSING)
        return tuple(found)

    def steps(self, state: CompactState) -> Iterator[Step[CompactState]]:
        for who, me in enumerate(state.compactors):
            yield from self._compactor(state, who, me)
            if state.cleanings and state.objects[who]:
                yield from self._clean(state, who)
        for slot, record in state.net:
            log, _ = put_if_absent(state.log, slot, record)
            after = state._replace(log=log, net=state.net - {(slot, record)})
            yield f"lands late: {record.kind}({record.of}) in slot {slot}", after, NO_DAMAGE
        if not any(record.kind == "RELEASE" for record in state.log):
            log = (*state.log, Record("RELEASE", CLEANER))
            yield "the stage is released", state._replace(log=log), NO_DAMAGE

    def _compactor(
        self, state: CompactState, who: int, me: Compactor
    ) -> Iterator[Step[CompactState]]:
        if me.phase in ("writing", "sent") and state.crashes:
            dead = self._become(state, who, me._replace(phase="over"))
            yield f"{who} dies", dead._replace(crashes=state.crashes - 1), NO_DAMAGE
        if me.phase == "writing":
            left = OBJECTS - me.written
            if left:
                one = min(left)
                after = self._become(state, who, me._replace(written=me.written | {one}))
                objects = with_item(state.objects, who, state.objects[who] | {one})
                yield f"{who} writes object {one}", after._replace(objects=objects), NO_DAMAGE
            else:
                slot = 0 if self.walks_from_seal else len(state.log)
                request = (slot, Record("COMPACT", who))
                sent = self._become(state, who, me._replace(phase="sent", slot=slot))
                yield f"{who} sends COMPACT", sent._replace(net=state.net | {request}), NO_DAMAGE
        elif me.phase == "sent":
            yield from self._answer(state, who, me)
        elif me.phase == "unsure" and not self.unsure_keeps:
            gone = self._delete(self._become(state, who, me._replace(phase="over")), who)
            yield f"{who} got no answer and deletes its objects", gone, NO_DAMAGE

    def _answer(self, state: CompactState, who: int, me: Compactor) -> Iterator[Step[CompactState]]:
        unsure = self._become(state, who, me._replace(phase="unsure"))
        yield f"{who} gets no answer", unsure, NO_DAMAGE
        request = (me.slot, Record("COMPACT", who))
        log, _ = put_if_absent(state.log, me.slot, request[1])
        if me.slot >= len(log):
            return
        state = state._replace(log=log, net=state.net - {request})
        found = log[me.slot]
        if found == request[1]:
            yield f"{who} wins", self._become(state, who, me._replace(phase="won")), NO_DAMAGE
        elif found.kind == "ABORT" and found.of != who:
            again = (me.slot + 1, request[1])
            after = self._become(state, who, me._replace(slot=me.slot + 1))
            yield f"{who} aims higher", after._replace(net=state.net | {again}), NO_DAMAGE
        elif found.kind == "COMPACT" and self.counting(state) != found.of:
            again = (me.slot + 1, request[1])
            after = self._become(state, who, me._replace(slot=me.slot + 1))
            yield f"{who} passes a void one", after._replace(net=state.net | {again}), NO_DAMAGE
        else:
            lost = self._delete(self._become(state, who, me._replace(phase="over")), who)
            yield f"{who} lost and deletes its objects", lost, NO_DAMAGE

    def _clean(self, state: CompactState, who: int) -> Iterator[Step[CompactState]]:
        """Settle the fate of compactor `who` and delete what it wrote, in one step of the cleaner:
        other steps of the cleaner's change nothing that anybody sees."""
        state = state._replace(cleanings=state.cleanings - 1)
        counting = self.counting(state)
        if counting == who:
            return
        aborted = Record("ABORT", who) in state.log
        decided = counting is not None or aborted or any(r.kind == "RELEASE" for r in state.log)
        if self.abort_before_delete and not decided:
            state = state._replace(log=(*state.log, Record("ABORT", who)))
        yield f"a cleaner deletes the objects of {who}", self._delete(state, who), NO_DAMAGE

    def _become(self, state: CompactState, who: int, me: Compactor) -> CompactState:
        return state._replace(compactors=with_item(state.compactors, who, me))

    def _delete(self, state: CompactState, who: int) -> CompactState:
        none: frozenset[int] = frozenset()
        return state._replace(objects=with_item(state.objects, who, none))


def compacted(state: CompactState) -> bool:
    """Return whether a compactor won."""
    return any(me.phase == "won" for me in state.compactors)
