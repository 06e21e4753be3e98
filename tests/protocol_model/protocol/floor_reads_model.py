"""A reader asks for both floors and the mark side by side, while owners raise the floors.

`floor_model.py` takes the look at the floors for one step. Here it is three reads in any order, and
raising a floor is a DELETE and a create. Owners come one after the other; each may die at any step.
The reader has read slots before. It must see a floor above all slots that were gone by then, learn
that nothing was gone, or look again; an alarm says that both floors are lost.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from protocol.explorer import NO_DAMAGE, Step
from protocol.slots import with_item

MISSED: Final = "a reader takes slots for the log's end that were gone before it looked"
ALARM: Final = "a reader says that both floors are lost"

UNREAD: Final = -1
_MARK: Final = 2


class FloorReads(NamedTuple):
    floors: tuple[int, ...] = (0, 0)
    """Slots; 0 where none stands."""
    mark: bool = False
    gone: int = 0
    """Slots below it are gone."""
    raising: int = 0
    """Slot to which the owner raises the floors; 0 if it does not."""
    raised: int = 0
    todo: tuple[tuple[str, int], ...] = ()
    """What the owner still does: verb and floor."""
    seen: tuple[int, ...] = (UNREAD, UNREAD, UNREAD)
    """What the reader got: both floors, and the mark as 0 or 1."""
    needed: int = 0
    """The slots that were gone when it began."""
    looks: int = 0
    answer: int = UNREAD


@dataclass(frozen=True, slots=True)
class FloorReadsModel:
    raises: int = 3
    most_looks: int = 6

    looks_again: bool = True
    """Off: a reader that sees no floor believes that there is none."""
    mark_first: bool = True
    """Off: slots go, and floors are replaced, before the mark is put."""
    missing_first: bool = True
    """Off: floors are raised by number, also if the other one is missing."""

    def initial(self) -> FloorReads:
        return FloorReads()

    def damage(self, state: FloorReads) -> tuple[str, ...]:
        if state.answer == UNREAD:
            return NO_DAMAGE
        if state.looks > self.most_looks:
            return (ALARM,)
        return (MISSED,) if state.answer < state.needed else NO_DAMAGE

    def steps(self, state: FloorReads) -> Iterator[Step[FloorReads]]:
        yield from self._owner(state)
        if state.answer == UNREAD:
            yield from self._reader(state)

    def _owner(self, state: FloorReads) -> Iterator[Step[FloorReads]]:
        if not state.todo:
            if state.raised < self.raises:
                slot = state.raised + 1
                begun = state._replace(raising=slot, raised=slot, todo=self._plan(state))
                yield f"the owner raises floors to {slot}", begun, NO_DAMAGE
            return
        yield "the owner dies", state._replace(todo=()), NO_DAMAGE
        (verb, name), *rest = state.todo
        after = state._replace(todo=tuple(rest))
        if verb == "mark":
            after = after._replace(mark=True)
        elif verb == "go":
            after = after._replace(gone=max(state.gone, min(state.floors)))
        else:
            slot = 0 if verb == "delete" else state.raising
            after = after._replace(floors=with_item(state.floors, name, slot))
        yield f"{verb} {name}", after, NO_DAMAGE

    def _plan(self, state: FloorReads) -> tuple[tuple[str, int], ...]:
        names = [0, 1]
        if self.missing_first:
            names.sort(key=lambda name: state.floors[name] > 0)
        plan: list[tuple[str, int]] = []
        for name in names:
            if state.floors[name]:
                plan += [("mark", name)] if self.mark_first else []
                plan += [("delete", name)]
            plan += [("put", name)]
        last = [("mark", 0), ("go", 0)]
        return (*plan, *(last if self.mark_first else reversed(last)))

    def _reader(self, state: FloorReads) -> Iterator[Step[FloorReads]]:
        if UNREAD not in state.seen:
            first, second, mark = state.seen
            none = not first and not second
            if none and mark and self.looks_again:
                looks = state.looks + 1
                again = state._replace(seen=(UNREAD, UNREAD, mark), looks=looks)
                if looks > self.most_looks:
                    again = again._replace(answer=0)
                yield "the reader looks again", again, NO_DAMAGE
                return
            answer = state._replace(answer=max(first, second))
            yield f"the reader believes {answer.answer}", answer, NO_DAMAGE
            return
        begun = state.looks or state.seen != (UNREAD, UNREAD, UNREAD)
        needed = state.needed if begun else state.gone
        for name, seen in enumerate(state.seen):
            if seen == UNREAD:
                value = int(state.mark) if name == _MARK else state.floors[name]
                now = with_item(state.seen, name, value)
                yield f"read {name}", state._replace(seen=now, needed=needed), NO_DAMAGE
