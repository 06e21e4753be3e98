"""UNRECOGNISED in a stage's log: rows that depend on what the fingerprint does not name.

A producer's attempt finds out while it computes its rows. It reads the stage's log, puts
UNRECOGNISED into the next slot unless one stands, and only then sends COMMIT. Its driver may be
dead by then; the attempt goes on. A second driver claims the job at any time, reads the stage's
log, and goes on with what is committed unless UNRECOGNISED stands. Whoever sees a COMMIT of the one
producer seals. Later calls use a sealed stage unless UNRECOGNISED stands. The model of
`shuffle/log/note_unrecognised.py`; a driver that finds out itself does as an attempt, before SEAL.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from protocol.explorer import NO_DAMAGE, Step
from protocol.slots import put_if_absent, with_item

USED_AGAIN: Final = "a later call uses rows that depend on what the fingerprint does not name"
GOES_ON: Final = "a driver goes on with rows that an earlier run read from elsewhere"

Record = Literal["UNRECOGNISED", "SEAL", "REGISTER"]
Rows = Literal["none", "clean", "outside"]


class Attempt(NamedTuple):
    phase: Literal["idle", "look", "put", "commit", "late look", "late put", "over"]
    rows: Rows = "none"
    slot: int = 0


class Driver(NamedTuple):
    phase: Literal["idle", "runs", "seals", "over"]
    slot: int = 0


class UnrecognisedState(NamedTuple):
    log: tuple[Record, ...]
    committed: Rows
    """What the COMMIT that counts holds."""
    attempts: tuple[Attempt, ...]
    drivers: tuple[Driver, ...]
    """Each has the attempt of its number."""
    at_claim: Rows
    """What was committed when the second driver claimed the job."""
    claimed: bool


@dataclass(frozen=True, slots=True)
class UnrecognisedModel:
    claims: bool = True
    """Whether there is a second driver."""
    notes_first: bool = True
    """Off: an attempt sends COMMIT first."""
    reads_again: bool = True
    """Off: who loses the slot of UNRECOGNISED leaves it at that."""
    looks: bool = True
    """Off: a driver goes on with what is committed, whatever the stage's log says."""

    def initial(self) -> UnrecognisedState:
        attempts, drivers = (Attempt("idle"),) * 2, (Driver("runs"), Driver("idle"))
        return UnrecognisedState((), "none", attempts, drivers, "none", claimed=False)

    def damage(self, state: UnrecognisedState) -> tuple[str, ...]:
        found = []
        known = "UNRECOGNISED" in state.log
        if "SEAL" in state.log and state.committed == "outside" and not known:
            found.append(USED_AGAIN)
        if state.at_claim == "outside" and state.drivers[1].phase in ("runs", "seals"):
            found.append(GOES_ON)
        return tuple(found)

    def steps(self, state: UnrecognisedState) -> Iterator[Step[UnrecognisedState]]:
        if self.claims and not state.claimed:
            yield (
                "the second driver claims",
                state._replace(claimed=True, at_claim=state.committed),
                NO_DAMAGE,
            )
        if "REGISTER" not in state.log:
            registered = state._replace(log=(*state.log, "REGISTER"))
            yield "somebody registers a consumer", registered, NO_DAMAGE
        for who in range(2):
            yield from self._drive(state, who)
            yield from self._attempt(state, who)

    def _drive(self, state: UnrecognisedState, who: int) -> Iterator[Step[UnrecognisedState]]:
        me = state.drivers[who]

        def become(driver: Driver, before: UnrecognisedState = state) -> UnrecognisedState:
            return before._replace(drivers=with_item(before.drivers, who, driver))

        if me.phase == "idle" and state.claimed:
            stop = "SEAL" in state.log or (self.looks and "UNRECOGNISED" in state.log)
            phase: Literal["over", "runs"] = "over" if stop else "runs"
            yield f"driver {who} looks: {phase}", become(Driver(phase)), NO_DAMAGE
        if me.phase in ("runs", "seals") and who == 0:
            yield "the first driver dies", become(Driver("over")), NO_DAMAGE
        if me.phase == "runs" and state.committed != "none":
            yield f"driver {who} reads the log", become(self._read(state, "SEAL")), NO_DAMAGE
        if me.phase == "seals":
            log, won = put_if_absent(state.log, me.slot, "SEAL")
            after = Driver("over") if won else self._read(state, "SEAL")
            yield f"driver {who} sends SEAL", become(after, state._replace(log=log)), NO_DAMAGE

    def _read(self, state: UnrecognisedState, wanted: Record) -> Driver:
        return Driver("over") if wanted in state.log else Driver("seals", len(state.log))

    def _attempt(self, state: UnrecognisedState, who: int) -> Iterator[Step[UnrecognisedState]]:
        me = state.attempts[who]

        def become(attempt: Attempt, before: UnrecognisedState = state) -> UnrecognisedState:
            return before._replace(attempts=with_item(before.attempts, who, attempt))

        if me.phase == "idle" and state.drivers[who].phase == "runs":
            yield f"attempt {who} computes", become(Attempt("commit", "clean")), NO_DAMAGE
            first: Literal["look", "commit"] = "look" if self.notes_first else "commit"
            yield f"attempt {who} reads elsewhere", become(Attempt(first, "outside")), NO_DAMAGE
        late = me.phase.startswith("late")
        behind: Literal["over", "commit"] = "over" if late else "commit"
        if me.phase in ("look", "late look"):
            put: Literal["late put", "put"] = "late put" if late else "put"
            known = "UNRECOGNISED" in state.log
            after = Attempt(behind if known else put, "outside", 0 if known else len(state.log))
            yield f"attempt {who} reads the log", become(after), NO_DAMAGE
        if me.phase in ("put", "late put"):
            log, won = put_if_absent(state.log, me.slot, "UNRECOGNISED")
            again: Literal["late look", "look"] = "late look" if late else "look"
            phase = behind if won or not self.reads_again else again
            after = Attempt(phase, "outside")
            yield f"attempt {who} notes it", become(after, state._replace(log=log)), NO_DAMAGE
        if me.phase == "commit":
            counts = state._replace(committed=me.rows) if state.committed == "none" else state
            unsaid = me.rows == "outside" and not self.notes_first
            after = Attempt("late look" if unsaid else "over", me.rows)
            yield f"attempt {who} commits", become(after, counts), NO_DAMAGE
