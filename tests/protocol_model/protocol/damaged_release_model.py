"""Releasing a stage whose own log is damaged, by several at once, with a late request under way.

The stage stands in a job log that the user's RELEASED may enter at any time. Whoever finds it there
carries the release out: reads the stage's log, puts RELEASE behind its end, then into each slot
that was damaged or lost, deletes the data and puts CLOSED behind. A damaged slot is emptied first,
and whoever read the log before may empty it again. Anybody may die; the next one goes on, until the
log says that the release is done. An author that died sent a record that may land in any slot that
it took for the end. Behind the stage there is another one to release. The model of
`shuffle/release/stages.py`.

Not in it: producers' logs, which get CLOSED as the stage's gets RELEASE.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from protocol.explorer import NO_DAMAGE, Step
from protocol.slots import with_item

NEEDED_GONE: Final = "the data of a stage is deleted, and nobody decided that"
NOT_TOLD: Final = "a release is done, and who reads the stage's log is not told of it"
BEFORE_RELEASE: Final = "data is deleted before RELEASE stands in the stage's log"
FOREIGN_GONE: Final = "a record of another version is deleted"

Slot = Literal["DESCRIBE", "SEAL", "RELEASE", "CLOSED", "BAD", "FOREIGN", "lost"]
Phase = Literal["idle", "delete", "put", "behind", "data", "close", "next", "over"]


class Carrier(NamedTuple):
    """A `release`, a `gc`, or a driver that finishes what another left."""

    phase: Phase
    bad: tuple[int, ...] = ()
    """Slots that it found damaged or lost and has not filled."""
    released: bool = False
    """It has seen RELEASE."""
    closed: bool = False
    slot: int = 0
    """The next that it aims at, at the end of the log."""


class DamagedState(NamedTuple):
    decided: bool
    """RELEASED stands in the job log."""
    log: tuple[Slot, ...]
    data: bool
    net: frozenset[int]
    """Slots in which a late SEAL may land."""
    carriers: tuple[Carrier, ...]
    other_data: bool
    """Of the stage behind it."""
    crashes: int


@dataclass(frozen=True, slots=True)
class DamagedReleaseModel:
    log: tuple[Slot, ...] = ("DESCRIBE", "BAD")
    late: frozenset[int] = frozenset({1, 2})
    carriers: int = 2
    crashes: int = 1

    decided_first: bool = True
    """Off: damage is reason enough to delete."""
    fills: bool = True
    """Off: damaged slots stay; RELEASE goes to the end of the log."""
    release_first: bool = True
    """Off: RELEASE in a slot that was damaged is enough."""
    done_is_whole: bool = True
    """Off: a log that ends in CLOSED is done, whatever it lost before."""
    refuses_foreign: bool = True
    """Off: what cannot be understood is damage."""
    goes_on: bool = True
    """Off: whoever meets a stage that it cannot release stops there."""

    def initial(self) -> DamagedState:
        return DamagedState(
            decided=False,
            log=self.log,
            data=True,
            net=self.late,
            carriers=(Carrier("idle"),) * self.carriers,
            other_data=True,
            crashes=self.crashes,
        )

    def done(self, log: tuple[Slot, ...]) -> bool:
        """Return whether a stage's log says that its release was carried out."""
        whole = not {"BAD", "FOREIGN"} & set(log) and ("lost" not in log or not self.done_is_whole)
        return "CLOSED" in log and whole

    def all_done(self, state: DamagedState) -> bool:
        """Return whether the other stage is released, and this one if it can be."""
        this = not state.data and self.done(state.log)
        return not state.other_data and (this or "FOREIGN" in state.log)

    def nobody_left(self, state: DamagedState) -> bool:
        """Return whether all came before RELEASED was won."""
        return not state.decided or (
            state.data and all(me.phase in ("next", "over") for me in state.carriers)
        )

    def damage(self, state: DamagedState) -> tuple[str, ...]:
        found = []
        if not state.data and not state.decided:
            found.append(NEEDED_GONE)
        if self.done(state.log) and not told(state.log):
            busy = any(c.phase not in ("idle", "next", "over") for c in state.carriers)
            if not busy:
                found.append(NOT_TOLD)
        if "FOREIGN" in self.log and "FOREIGN" not in state.log:
            found.append(FOREIGN_GONE)
        return tuple(found)

    def steps(self, state: DamagedState) -> Iterator[Step[DamagedState]]:
        if not state.decided:
            yield "RELEASED is won", state._replace(decided=True), NO_DAMAGE
        for slot in state.net:
            gone = state._replace(net=state.net - {slot})
            log = state.log
            if slot < len(log) and log[slot] == "lost":
                yield (
                    f"late SEAL lands in slot {slot}",
                    gone._replace(log=_with(log, slot, "SEAL")),
                    (),
                )
            elif slot == len(log):
                yield f"late SEAL lands in slot {slot}", gone._replace(log=(*log, "SEAL")), ()
            else:
                yield f"late SEAL for slot {slot} is refused", gone, NO_DAMAGE
        for who, me in enumerate(state.carriers):
            if me.phase not in ("idle", "over") and state.crashes:
                dead = self._become(state, who, Carrier("idle"))
                yield f"{who} dies", dead._replace(crashes=state.crashes - 1), NO_DAMAGE
            if me.phase != "over":
                yield from self._carry(state, who, me)

    def _carry(self, state: DamagedState, who: int, me: Carrier) -> Iterator[Step[DamagedState]]:
        log = state.log
        if me.phase == "idle":
            yield from self._begin(state, who)
        elif me.phase == "delete":
            after = state._replace(log=_with(log, me.bad[0], "lost"))
            yield (
                f"{who} empties slot {me.bad[0]}",
                self._become(after, who, me._replace(phase="put")),
                (),
            )
        elif me.phase == "put":
            yield self._put(state, who, me)
        elif me.phase == "behind":
            yield self._behind(state, who, me, "RELEASE", _then(me))
        elif me.phase == "data":
            damage = NO_DAMAGE if "RELEASE" in log or not state.data else (BEFORE_RELEASE,)
            gone = state._replace(data=False)
            after = self._become(gone, who, me._replace(phase="next" if me.closed else "close"))
            yield f"{who} deletes the data", after, damage
        elif me.phase == "close":
            yield self._behind(state, who, me, "CLOSED", "next")
        else:
            over = self._become(state._replace(other_data=False), who, Carrier("over"))
            yield f"{who} releases the other stage", over, NO_DAMAGE

    def _begin(self, state: DamagedState, who: int) -> Iterator[Step[DamagedState]]:
        """Read the stage's log: every slot up to the last that a listing shows."""
        log = state.log
        if self.done(log) or (not state.decided and self.decided_first):
            yield f"{who} finds nothing to do", self._become(state, who, Carrier("next")), ()
            return
        if "FOREIGN" in log and self.refuses_foreign:
            after = self._become(state, who, Carrier("next" if self.goes_on else "over"))
            yield f"{who} cannot release the stage", after, NO_DAMAGE
            return
        bad = tuple(n for n, slot in enumerate(log) if slot in ("BAD", "FOREIGN", "lost"))
        if not self.fills:
            bad = ()
        released, closed = "RELEASE" in log, "CLOSED" in log
        me = Carrier("behind", bad, released, closed, len(log))
        if released or (bad and not self.release_first):
            me = me._replace(phase=_then(me))
        yield f"{who} reads the stage's log", self._become(state, who, me), NO_DAMAGE

    def _put(self, state: DamagedState, who: int, me: Carrier) -> Step[DamagedState]:
        slot, log = me.bad[0], state.log
        won = log[slot] == "lost"
        if won:
            log = _with(log, slot, "RELEASE")
        me = me._replace(bad=me.bad[1:])
        after = self._become(state._replace(log=log), who, me._replace(phase=_then(me)))
        return f"{who} {'puts RELEASE into' if won else 'lost'} slot {slot}", after, NO_DAMAGE

    def _behind(
        self, state: DamagedState, who: int, me: Carrier, kind: Slot, then: Phase
    ) -> Step[DamagedState]:
        """Put a record into the first empty slot from `me.slot`, unless one of its kind comes."""
        slot, log = me.slot, state.log
        if slot == len(log):
            state = state._replace(log=(*log, kind))
        elif log[slot] == "lost":
            state = state._replace(log=_with(log, slot, kind))
        elif log[slot] != kind:
            on = self._become(state, who, me._replace(slot=slot + 1))
            return f"{who} passes slot {slot}", on, NO_DAMAGE
        after = self._become(state, who, me._replace(phase=then, slot=slot + 1))
        return f"{who} has {kind} in slot {slot}", after, NO_DAMAGE

    def _become(self, state: DamagedState, who: int, me: Carrier) -> DamagedState:
        return state._replace(carriers=with_item(state.carriers, who, me))


def told(log: tuple[Slot, ...]) -> bool:
    """Return whether RELEASE stands before the first slot that is empty or cannot be read."""
    for slot in log:
        if slot in ("RELEASE", "BAD", "FOREIGN"):
            return slot == "RELEASE"
        if slot == "lost":
            return False
    return False


def _then(me: Carrier) -> Phase:
    return "delete" if me.bad else "data"


def _with(log: tuple[Slot, ...], slot: int, what: Slot) -> tuple[Slot, ...]:
    return (*log[:slot], what, *log[slot + 1 :])
