"""COMPACT and REPLACE in the log of a sealed stage: who rewrites its index, a cleaner, a release.

A compactor copies extents, a repairer replaces the data of one producer; both read the log, write
objects under an id of their own and send one record that names an index of all producers. A cleaner
believes anybody dead whose objects it sees. A create that is sent may land at any later time, also
after its sender died; objects may be written until their writer stops.

A record counts if its author was not aborted before it, and if its base, the slot of the SEAL or
REPLACE that its index was made from, is still the newest of these; of COMPACTs the first of a base.
Readers read by the last that counts. What an index names that ever counted stays until release:
somebody may have begun to read by it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from protocol.explorer import NO_DAMAGE, Step
from protocol.slots import put_if_absent, with_item

READS_MISSING: Final = "the index that counts names objects that are gone"
READER_STARVED: Final = "an index that counted before names objects that are gone"
UNDOES_REPAIR: Final = "the index that counts names data that was replaced"
FALSE_SUCCESS: Final = "an author was told that it won, and its record does not count"

OBJECTS: Final = frozenset({0, 1})
CLEANER: Final = -1
SEALED: Final = -1
"""Stands where the slot of SEAL does; the log of the model begins behind it."""

Kind = Literal["COMPACT", "REPLACE", "ABORT", "RELEASE"]
Phase = Literal["idle", "writing", "sent", "won", "unsure", "over"]
Repaired = frozenset[int]
"""The repairers whose data an index names instead of what they found damaged."""


class Record(NamedTuple):
    kind: Kind
    of: int
    """The author that it is about; CLEANER for RELEASE."""
    base: int = SEALED
    repaired: Repaired = frozenset()


class Author(NamedTuple):
    phase: Phase
    written: frozenset[int]
    slot: int
    """That it aims at."""
    record: Record | None


class CompactState(NamedTuple):
    log: tuple[Record, ...]
    net: frozenset[tuple[int, Record]]
    """Creates that may still land."""
    authors: tuple[Author, ...]
    objects: tuple[frozenset[int], ...]
    """What is stored, by author."""
    cleanings: int
    crashes: int


class Reading(NamedTuple):
    """What a log says, to whoever reads it."""

    base: int
    repaired: Repaired
    """By all REPLACEs that count."""
    named: Repaired
    """By the index that counts."""
    author: int | None
    """Of that index; None while it is SEAL's."""
    compacted: bool
    counted: frozenset[int]
    """Authors of every record that counts or did."""


@dataclass(frozen=True, slots=True)
class CompactModel:
    compactors: int = 2
    repairers: int = 0
    cleanings: int = 2
    crashes: int = 1
    abort_before_delete: bool = True
    """Off: a cleaner deletes what no record names."""
    abort_is_fate: bool = True
    """Off: a record counts although its author was aborted before."""
    walks_from_base: bool = True
    """Off: an author aims at the end of the log without reading what stands before."""
    unsure_keeps: bool = True
    """Off: an author that got no answer deletes what it wrote."""
    base_counts: bool = True
    """Off: a record counts whatever its base."""
    stops_at_replace: bool = True
    """Off: an author goes on past a REPLACE."""
    other_compact_is_no_fate: bool = True
    """Off: a cleaner deletes what no record names, since another COMPACT counts."""
    superseded_stays: bool = True
    """Off: a cleaner deletes what only an index names that counts no more."""

    def initial(self) -> CompactState:
        fresh = Author("idle", frozenset(), 0, None)
        none: frozenset[int] = frozenset()
        n = self.compactors + self.repairers
        return CompactState(
            (), frozenset(), (fresh,) * n, (none,) * n, self.cleanings, self.crashes
        )

    def read(self, log: tuple[Record, ...]) -> Reading:
        """Return what counts; a record counts or not by what stands before it alone."""
        base, compacted = SEALED, False
        author: int | None = None
        none: frozenset[int] = frozenset()
        repaired = named = counted = aborted = none
        for slot, record in enumerate(log):
            if record.kind == "ABORT" and self.abort_is_fate:
                aborted |= {record.of}
            stale = self.base_counts and record.base != base
            if record.of in aborted or stale:
                continue
            if record.kind == "REPLACE":
                base, compacted = slot, False
                repaired |= {record.of}
            elif record.kind != "COMPACT" or compacted:
                continue
            else:
                compacted = True
            author, named = record.of, record.repaired
            counted |= {record.of}
        return Reading(base, repaired, named, author, compacted, counted)

    def damage(self, state: CompactState) -> tuple[str, ...]:
        found, reading = [], self.read(state.log)
        if not any(record.kind == "RELEASE" for record in state.log):
            for who in reading.counted:
                if state.objects[who] != OBJECTS:
                    found.append(READS_MISSING if who == reading.author else READER_STARVED)
        if reading.repaired - reading.named:
            found.append(UNDOES_REPAIR)
        for who, me in enumerate(state.authors):
            if me.phase == "won" and who not in reading.counted:
                found.append(FALSE_SUCCESS)
        return tuple(found)

    def steps(self, state: CompactState) -> Iterator[Step[CompactState]]:
        for who, me in enumerate(state.authors):
            yield from self._author(state, who, me)
            if state.cleanings and state.objects[who]:
                yield from self._clean(state, who)
        for slot, record in state.net:
            log, _ = put_if_absent(state.log, slot, record)
            after = state._replace(log=log, net=state.net - {(slot, record)})
            yield f"lands late: {record.kind}({record.of}) in slot {slot}", after, NO_DAMAGE
        if not any(record.kind == "RELEASE" for record in state.log):
            log = (*state.log, Record("RELEASE", CLEANER))
            yield "the stage is released", state._replace(log=log), NO_DAMAGE

    def _author(self, state: CompactState, who: int, me: Author) -> Iterator[Step[CompactState]]:
        if me.phase in ("writing", "sent") and state.crashes:
            dead = self._become(state, who, me._replace(phase="over"))
            yield f"{who} dies", dead._replace(crashes=state.crashes - 1), NO_DAMAGE
        if me.phase == "idle":
            yield from self._begin(state, who)
        elif me.phase == "writing":
            left = OBJECTS - me.written
            if left:
                one = min(left)
                after = self._become(state, who, me._replace(written=me.written | {one}))
                objects = with_item(state.objects, who, state.objects[who] | {one})
                yield f"{who} writes object {one}", after._replace(objects=objects), NO_DAMAGE
            else:
                yield from self._send(state, who, me)
        elif me.phase == "sent":
            yield from self._answer(state, who, me)
        elif me.phase == "unsure" and not self.unsure_keeps:
            gone = self._delete(self._become(state, who, me._replace(phase="over")), who)
            yield f"{who} got no answer and deletes its objects", gone, NO_DAMAGE

    def _begin(self, state: CompactState, who: int) -> Iterator[Step[CompactState]]:
        """Read the log and decide what the new index names."""
        reading = self.read(state.log)
        repairs = who >= self.compactors
        if any(r.kind == "RELEASE" for r in state.log) or (reading.compacted and not repairs):
            return
        names = reading.repaired | {who} if repairs else reading.repaired
        record = Record("REPLACE" if repairs else "COMPACT", who, reading.base, names)
        begun = Author("writing", frozenset(), 0, record)
        yield f"{who} reads the log", self._become(state, who, begun), NO_DAMAGE

    def _send(self, state: CompactState, who: int, me: Author) -> Iterator[Step[CompactState]]:
        assert me.record is not None
        slot = me.record.base + 1 if self.walks_from_base else len(state.log)
        sent = self._become(state, who, me._replace(phase="sent", slot=slot))
        after = sent._replace(net=state.net | {(slot, me.record)})
        yield f"{who} sends {me.record.kind}", after, NO_DAMAGE

    def _answer(self, state: CompactState, who: int, me: Author) -> Iterator[Step[CompactState]]:
        assert me.record is not None
        unsure = self._become(state, who, me._replace(phase="unsure"))
        yield f"{who} gets no answer", unsure, NO_DAMAGE
        request = (me.slot, me.record)
        log, _ = put_if_absent(state.log, me.slot, me.record)
        if me.slot >= len(log):
            return
        state = state._replace(log=log, net=state.net - {request})
        found = log[me.slot]
        counts = (
            found.of in self.read(log[: me.slot + 1]).counted - self.read(log[: me.slot]).counted
        )
        if found == me.record:
            yield f"{who} wins", self._become(state, who, me._replace(phase="won")), NO_DAMAGE
            return
        lost = found.kind == "RELEASE" or found == Record("ABORT", who)
        if counts and found.kind == "REPLACE":
            lost = self.stops_at_replace
        elif counts and found.kind == "COMPACT":
            lost = me.record.kind == "COMPACT"
        if lost:
            gone = self._delete(self._become(state, who, me._replace(phase="over")), who)
            yield f"{who} lost and deletes its objects", gone, NO_DAMAGE
        else:
            again = (me.slot + 1, me.record)
            after = self._become(state, who, me._replace(slot=me.slot + 1))
            yield f"{who} aims higher", after._replace(net=state.net | {again}), NO_DAMAGE

    def _clean(self, state: CompactState, who: int) -> Iterator[Step[CompactState]]:
        """Settle the fate of an author and delete what it wrote, in one step of the cleaner: other
        steps of the cleaner's change nothing that anybody sees."""
        state = state._replace(cleanings=state.cleanings - 1)
        reading = self.read(state.log)
        if who in reading.counted and (self.superseded_stays or who == reading.author):
            return
        decided = any(r.kind == "RELEASE" or r.of == who for r in state.log)
        if not self.other_compact_is_no_fate:
            decided = decided or reading.compacted
        if self.abort_before_delete and not decided:
            state = state._replace(log=(*state.log, Record("ABORT", who)))
        yield f"a cleaner deletes the objects of {who}", self._delete(state, who), NO_DAMAGE

    def _become(self, state: CompactState, who: int, me: Author) -> CompactState:
        return state._replace(authors=with_item(state.authors, who, me))

    def _delete(self, state: CompactState, who: int) -> CompactState:
        none: frozenset[int] = frozenset()
        return state._replace(objects=with_item(state.objects, who, none))


def compacted(state: CompactState) -> bool:
    """Return whether an author won."""
    return any(me.phase == "won" for me in state.authors)
