"""SUSPECT in the log of a sealed stage: readers ask for a check, drivers check and mend.

The stage has one producer. Its data may be lost once; and once the storage may say for a while
that an object is missing although it is there. A reader reads by the index that counts when it
begins. If it meets damage, or is told so wrongly, it notes that and fails. The second reader does
so in the JVM: it looks for the end of the log and folds nothing. Two drivers claim the job one
after the other; the first may stand still at any step and go on later. A driver reads the log. If
a SUSPECT counts, it looks at the data, and looks again if it is missing. Then it appends DAMAGED,
for the producer or for none. Behind a DAMAGED for the producer, a driver runs it again and sends
REPLACE. The model of `shuffle/seal/suspect.py`, `jobs/jvm_rows/decode/note.java`,
`shuffle/repair/heal.py` and `jobs/stages/healing.py`.

Assumed: nothing is lost between a check that finds nothing and the record that says so. Otherwise
the run after the next one heals it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from protocol.explorer import NO_DAMAGE, Step
from protocol.slots import put_if_absent, with_item

NEEDLESS: Final = "a producer runs again although its data is there"
UNHEALED: Final = "a run begins after a reader met lost data, ends, and the data is still lost"
IN_VAIN: Final = "a run checks what was checked or replaced before"

IN_JVM = 1
"""The number of the reader that does not read the log."""

Kind = Literal["SEAL", "REGISTER", "SUSPECT", "LOST", "NOTHING", "REPLACE"]


class Record(NamedTuple):
    kind: Kind
    by: int
    """By which a SUSPECT was read; of a REPLACE, the one that counts from here on."""


class Reader(NamedTuple):
    phase: Literal["idle", "reads", "looks", "notes", "over"] = "idle"
    by: int = 0
    slot: int = 0
    lost: bool = False
    """Whether it met lost data."""


class Driver(NamedTuple):
    phase: Literal["idle", "reads", "checks", "verdict", "runs", "sends", "over"] = "idle"
    sees: Literal["nothing", "lost"] = "nothing"
    slot: int = 0
    met: bool = False
    """Whether a reader had met lost data, and had failed, when it began."""


class SuspectState(NamedTuple):
    log: tuple[Record, ...]
    lost: bool
    """Whether the data that the index names is lost."""
    lags: Literal["not yet", "now", "over"]
    """Whether the storage says that data is missing although it is there."""
    readers: tuple[Reader, ...]
    drivers: tuple[Driver, ...]
    ran: Literal["", "needed", "needless"]
    checked: int
    """How many SUSPECTs a check that found nothing has settled, or was to settle."""
    in_vain: bool
    """Whether a driver checks what needs no check."""


class Seen(NamedTuple):
    """What a log says."""

    by: int
    suspect: bool
    damaged: bool


def fold(log: tuple[Record, ...], *, by_index: bool = True) -> Seen:
    """Return what counts behind these records."""
    seen = Seen(0, suspect=False, damaged=False)
    for record in log:
        if record.kind == "REPLACE":
            seen = Seen(record.by, suspect=False, damaged=False)
        elif record.kind == "SUSPECT":
            counts = record.by == seen.by or not by_index
            seen = seen._replace(suspect=seen.suspect or counts)
        elif record.kind in ("LOST", "NOTHING"):
            seen = seen._replace(suspect=False, damaged=seen.damaged or record.kind == "LOST")
    return seen


def suspects(log: tuple[Record, ...]) -> int:
    """Return how many SUSPECTs there are."""
    return sum(record.kind == "SUSPECT" for record in log)


@dataclass(frozen=True, slots=True)
class SuspectModel:
    loses: bool = True
    """Whether data is lost."""
    lags: bool = True
    """Whether the storage denies once what is there."""
    registers: bool = False
    """Whether somebody else writes into the log."""
    checks: bool = True
    """Off: a driver takes the reader's word."""
    looks_again: bool = True
    """Off: a driver believes the first answer."""
    notes_again: bool = True
    """Off: a reader that loses the slot leaves it at that."""
    settles: bool = True
    """Off: a driver that finds nothing writes nothing."""
    by_index: bool = True
    """Off: a SUSPECT of an index that was replaced counts."""

    def initial(self) -> SuspectState:
        two = (Reader(), Reader())
        log = (Record("SEAL", 0),)
        return SuspectState(log, False, "not yet", two, (Driver(), Driver()), "", 0, False)

    def damage(self, state: SuspectState) -> tuple[str, ...]:
        found = [NEEDLESS] * (state.ran == "needless")
        later = state.drivers[1]
        found += [UNHEALED] * (later.phase == "over" and later.met and state.lost)
        found += [IN_VAIN] * state.in_vain
        return tuple(found)

    def steps(self, state: SuspectState) -> Iterator[Step[SuspectState]]:
        began = state.drivers[1].phase != "idle"
        found_it = any(d.phase == "verdict" and d.sees == "nothing" for d in state.drivers)
        if self.loses and not (state.lost or state.ran or began or found_it):
            yield "the data is lost", state._replace(lost=True), NO_DAMAGE
        if self.lags and state.lags == "not yet" and not state.lost:
            yield "the storage denies", state._replace(lags="now"), NO_DAMAGE
        if state.lags == "now":
            yield "the storage answers rightly", state._replace(lags="over"), NO_DAMAGE
        if self.registers and Record("REGISTER", 0) not in state.log:
            registered = state._replace(log=(*state.log, Record("REGISTER", 0)))
            yield "somebody registers a consumer", registered, NO_DAMAGE
        for who in range(2):
            yield from self._read(state, who)
            yield from self._drive(state, who)

    def _fold(self, log: tuple[Record, ...]) -> Seen:
        return fold(log, by_index=self.by_index)

    def _read(self, state: SuspectState, who: int) -> Iterator[Step[SuspectState]]:
        me, seen = state.readers[who], self._fold(state.log)

        def become(reader: Reader, before: SuspectState = state) -> SuspectState:
            return before._replace(readers=with_item(before.readers, who, reader))

        if me.phase == "idle":
            yield f"reader {who} begins", become(Reader("reads", seen.by)), NO_DAMAGE
        if me.phase == "reads":
            # what a REPLACE replaced stays as it is, lost or not
            lost = state.lost and me.by == seen.by
            bad = lost or state.lags == "now"
            after = me._replace(phase="looks" if bad else "over", lost=lost)
            yield f"reader {who} reads", become(after), NO_DAMAGE
        if me.phase == "looks":
            known = seen.suspect or seen.damaged or me.by != seen.by
            if who == IN_JVM:
                known = False
            after = me._replace(phase="over" if known else "notes", slot=len(state.log))
            yield f"reader {who} reads the log", become(after), NO_DAMAGE
        if me.phase == "notes":
            log, won = put_if_absent(state.log, me.slot, Record("SUSPECT", me.by))
            again: Literal["over", "looks"] = "over" if won or not self.notes_again else "looks"
            landed = state._replace(log=log)
            yield f"reader {who} notes it", become(me._replace(phase=again), landed), NO_DAMAGE

    def _drive(self, state: SuspectState, who: int) -> Iterator[Step[SuspectState]]:
        me, seen = state.drivers[who], self._fold(state.log)

        def become(driver: Driver, before: SuspectState = state) -> SuspectState:
            return before._replace(drivers=with_item(before.drivers, who, driver))

        if me.phase == "idle" and (who == 0 or state.drivers[0].phase != "idle"):
            met = any(reader.phase == "over" and reader.lost for reader in state.readers)
            yield f"driver {who} claims", become(Driver("reads", met=met)), NO_DAMAGE
        if me.phase == "reads":
            after = me._replace(phase="over", slot=len(state.log))
            if seen.damaged:
                after = after._replace(phase="runs")
            elif seen.suspect:
                after = after._replace(phase="checks")
            known = suspects(state.log) == state.checked or not fold(state.log).suspect
            read = become(after)._replace(in_vain=after.phase == "checks" and known)
            yield f"driver {who} reads the log", read, NO_DAMAGE
        if me.phase == "checks":
            yield from self._check(state, who)
        if me.phase == "verdict":
            yield from self._judge(state, who)
        if me.phase == "runs":
            ran: Literal["needed", "needless"] = "needed" if state.lost else "needless"
            stands = state._replace(ran=state.ran if seen.by else ran)
            yield f"driver {who} runs it again", become(me._replace(phase="sends"), stands), ()
        if me.phase == "sends":
            if not seen.damaged:  # another repair came first
                yield f"driver {who} reads REPLACE", become(me._replace(phase="over")), NO_DAMAGE
                return
            log, won = put_if_absent(state.log, me.slot, Record("REPLACE", seen.by + 1))
            done = state._replace(log=log, lost=state.lost and not won)
            after = me._replace(phase="over" if won else "sends", slot=len(state.log))
            yield f"driver {who} sends REPLACE", become(after, done), NO_DAMAGE

    def _check(self, state: SuspectState, who: int) -> Iterator[Step[SuspectState]]:
        me = state.drivers[who]
        if not self.checks:
            believed = me._replace(phase="verdict", sees="lost")
        elif state.lags == "now" and self.looks_again:
            return  # it looks until the storage has settled
        else:
            bad = state.lost or state.lags == "now"
            believed = me._replace(phase="verdict", sees="lost" if bad else "nothing")
        drivers = with_item(state.drivers, who, believed)
        checked = state._replace(drivers=drivers)
        yield f"driver {who} checks: {believed.sees}", checked, NO_DAMAGE

    def _judge(self, state: SuspectState, who: int) -> Iterator[Step[SuspectState]]:
        me, seen = state.drivers[who], self._fold(state.log)
        reads = with_item(state.drivers, who, me._replace(phase="reads"))
        if me.sees == "nothing" and not self.settles:
            ends = with_item(state.drivers, who, me._replace(phase="over"))
            goes_on = state._replace(drivers=ends, checked=suspects(state.log))
            yield f"driver {who} goes on", goes_on, NO_DAMAGE
            return
        if not seen.suspect:  # another check came first
            yield f"driver {who} reads again", state._replace(drivers=reads), NO_DAMAGE
            return
        kind: Kind = "LOST" if me.sees == "lost" else "NOTHING"
        log, won = put_if_absent(state.log, me.slot, Record(kind, 0))
        again = me._replace(phase="reads" if won else "verdict", slot=len(state.log))
        drivers = with_item(state.drivers, who, again)
        settled = suspects(log) if won and kind == "NOTHING" else state.checked
        said = state._replace(log=log, drivers=drivers, checked=settled)
        yield f"driver {who} says {kind}", said, NO_DAMAGE
