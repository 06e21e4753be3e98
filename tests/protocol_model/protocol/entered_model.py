"""An overwrite whose STAGE the job log loses, and ENTERED in the stage's own log.

A writer fills a stage that the job log only calls begun. Then it wins STAGE, which puts the new
stage in the place of the old one, notes ENTERED in the new stage's log, and only then tells the
user that it is done and deletes the old data. Once, the storage loses the last record of the job
log, the STAGE: the new stage is merely begun again. `gc` gives up what is merely begun, and
`verify --repair` enters it, if ENTERED says that it counted.

The record is lost neither between the writer's STAGE and its ENTERED nor between a cleaner's look
and its RELEASED; both take one request. The model of `shuffle/log/stage_notes.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from protocol.explorer import NO_DAMAGE, Step

ROWS_GONE: Final = "an overwrite was reported done, and its rows are gone"
NOTHING_LEFT: Final = "neither the old stage nor the new one has its rows"
OLD_ROWS: Final = "a reader by name gets the old rows after the overwrite was reported done"

Phase = Literal["writes", "wrote", "won", "noted", "done", "over"]


class EnteredState(NamedTuple):
    writer: Phase = "writes"
    job: tuple[Literal["STAGE", "RELEASED"], ...] = ()
    """What the job log says of the new stage, behind its BEGUN."""
    noted: bool = False
    """Whether the new stage's log holds ENTERED."""
    cleaner: Literal["idle", "looked", "releases"] = "idle"
    old: bool = True
    """Whether the old stage has its rows."""
    new: bool = False
    acknowledged: bool = False
    losses: int = 1
    repaired: bool = False

    @property
    def counts(self) -> bool:
        return bool(self.job) and self.job[0] == "STAGE"

    @property
    def given_up(self) -> bool:
        return bool(self.job) and self.job[0] == "RELEASED"


@dataclass(frozen=True, slots=True)
class EnteredModel:
    notes: bool = True
    """Off: the writer leaves no proof in the stage's log."""
    notes_first: bool = True
    """Off: ENTERED comes after the old data went and the user was told."""
    cleaner_looks: bool = True
    """Off: `gc` gives up whatever is merely begun."""
    reader_looks: bool = True
    """Off: a reader by name believes the job log."""

    def initial(self) -> EnteredState:
        return EnteredState()

    def damage(self, state: EnteredState) -> tuple[str, ...]:
        found = []
        if state.acknowledged and not state.new:
            found.append(ROWS_GONE)
        if not state.old and not state.new:
            found.append(NOTHING_LEFT)
        return tuple(found)

    def steps(self, state: EnteredState) -> Iterator[Step[EnteredState]]:
        yield from self._writer(state)
        yield from self._cleaner(state)
        between = state.cleaner != "idle" or (self.notes and state.writer == "won")
        if state.counts and state.losses and not between:
            lost = state._replace(job=state.job[1:], losses=0)
            yield "the job log loses STAGE", lost, NO_DAMAGE
        if state.noted and not state.counts and not state.given_up:
            again = state._replace(job=("STAGE",), repaired=True)
            yield "repair enters the stage again", again, NO_DAMAGE
        refuses = self.reader_looks and state.noted
        if state.acknowledged and not state.counts and not refuses:
            yield "a reader asks for the name", state, (OLD_ROWS,)

    def _writer(self, state: EnteredState) -> Iterator[Step[EnteredState]]:
        match state.writer:
            case "writes":
                wrote = state._replace(writer="wrote", new=not state.given_up)
                yield "the writer commits its rows", wrote, NO_DAMAGE
            case "wrote" if state.given_up:
                refused = state._replace(writer="over")
                yield "the writer finds its stage given up", refused, NO_DAMAGE
            case "wrote":
                won = state._replace(writer="won", job=("STAGE",))
                yield "the writer wins STAGE", won, NO_DAMAGE
            case "won" if self.notes and self.notes_first:
                yield "the writer notes ENTERED", self._note(state, "noted"), NO_DAMAGE
            case "won" | "noted":
                done = state._replace(writer="done", acknowledged=True, old=False)
                yield "the old rows go, and the user is told", done, NO_DAMAGE
            case "done" if self.notes and not state.noted:
                yield "the writer notes ENTERED", self._note(state, "done"), NO_DAMAGE
            case _:
                return
        if state.writer not in ("done", "over"):
            yield "the writer dies", state._replace(writer="over"), NO_DAMAGE

    def _note(self, state: EnteredState, phase: Phase) -> EnteredState:
        return state._replace(writer=phase, noted=True)

    def _cleaner(self, state: EnteredState) -> Iterator[Step[EnteredState]]:
        spares = self.cleaner_looks and state.noted
        if state.cleaner == "idle" and not state.job and not spares:
            yield "gc finds a stage merely begun", state._replace(cleaner="looked"), NO_DAMAGE
        if state.cleaner == "looked":
            if state.counts:
                yield "gc finds that it counts", state._replace(cleaner="idle"), NO_DAMAGE
            else:
                released = state._replace(cleaner="releases", job=("RELEASED",))
                yield "gc wins RELEASED", released, NO_DAMAGE
        if state.cleaner == "releases":
            yield "gc deletes the rows", state._replace(cleaner="idle", new=False), NO_DAMAGE


def lost_and_repaired(state: EnteredState) -> bool:
    """Whether STAGE was lost and stands again."""
    return state.repaired and state.counts
