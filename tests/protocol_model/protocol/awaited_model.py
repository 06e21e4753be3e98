"""Tasks that start beside the records behind which they may store, and look for these themselves.

A driver puts DESCRIBE, then STAGE, of a new stage, while the SEAL of the stage below is on its way,
too. It may die at any time; a request that it had sent lands later, or never. Its tasks may be at
work from the first moment on. The model of `shuffle/write/awaited.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from protocol.explorer import NO_DAMAGE, Step

UNNAMED: Final = "a byte of a stage is stored that the job log does not name"
UNDESCRIBED: Final = "a byte of a stage is stored that has no DESCRIBE"
UNSEALED: Final = "a byte of a stage is stored whose input is not sealed"

Record = Literal["DESCRIBE", "STAGE", "SEAL"]


class AwaitedState(NamedTuple):
    standing: frozenset[Record] = frozenset()
    flying: frozenset[Record] = frozenset()
    """Sent and not answered."""
    alive: bool = True
    seen: frozenset[Record] = frozenset()
    """What the task has found."""
    stored: bool = False


@dataclass(frozen=True, slots=True)
class AwaitedModel:
    looks_for: frozenset[Record] = frozenset({"STAGE", "SEAL"})
    """What the task looks for before it stores anything."""
    describes_first: bool = True
    """Off: STAGE is sent beside DESCRIBE."""

    def initial(self) -> AwaitedState:
        return AwaitedState()

    def damage(self, state: AwaitedState) -> tuple[str, ...]:
        if not state.stored:
            return ()
        missing: dict[Record, str] = {
            "STAGE": UNNAMED,
            "DESCRIBE": UNDESCRIBED,
            "SEAL": UNSEALED,
        }
        return tuple(what for record, what in missing.items() if record not in state.standing)

    def steps(self, state: AwaitedState) -> Iterator[Step[AwaitedState]]:
        sent = state.flying | state.standing
        if state.alive:
            after: Record | None = "DESCRIBE" if self.describes_first else None
            order: dict[Record, Record | None] = {"DESCRIBE": None, "STAGE": after, "SEAL": None}
            for record, behind in order.items():
                if record not in sent and (behind is None or behind in state.standing):
                    flying = state.flying | {record}
                    yield f"{record} is sent", state._replace(flying=flying), NO_DAMAGE
            yield "the driver dies", state._replace(alive=False), NO_DAMAGE
        for record in sorted(state.flying):
            landed = state._replace(
                flying=state.flying - {record}, standing=state.standing | {record}
            )
            yield f"{record} lands", landed, NO_DAMAGE
            if not state.alive:
                yield f"{record} is lost", landed._replace(standing=state.standing), NO_DAMAGE
        for record in sorted(self.looks_for - state.seen):
            if record in state.standing:
                seen = state.seen | {record}
                yield f"the task finds {record}", state._replace(seen=seen), NO_DAMAGE
        if not state.stored and self.looks_for <= state.seen:
            yield "the task stores", state._replace(stored=True), NO_DAMAGE


def stored(state: AwaitedState) -> bool:
    return state.stored


def may_end(state: AwaitedState) -> bool:
    """Whether the task has stored, or its driver is dead: then the task ends by its patience."""
    return state.stored or not state.alive
