"""A consumer that registers with a stage while others decide to release it.

REGISTER stands in the stage's log, RELEASED in the job's. The consumer wins REGISTER and then a use
in the job log, behind which it is told that the stage is kept. A releaser of unused stages reads
the uses, then the consumers, and wins RELEASED only if no use came since. A user who releases a
stage asks nobody. The model of `register_consumers` and of `shuffle/release/unused.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from protocol.explorer import NO_DAMAGE, Step

TOLD_TOO_LATE: Final = "a consumer is told that a stage is kept whose release is decided"
RELEASED_BEHIND: Final = (
    "a stage is released as unused although a consumer was told that it is kept"
)


class RegisterState(NamedTuple):
    consumer: Literal["idle", "registered", "used", "kept", "refused"] = "idle"
    registered: bool = False
    uses: int = 0
    released: bool = False
    releaser: Literal["idle", "knows uses", "free", "over"] = "idle"
    seen: int = 0
    """How many uses the releaser knows."""


@dataclass(frozen=True, slots=True)
class RegisterModel:
    asks_job_log: bool = True
    """Off: REGISTER is enough for the consumer."""
    use_comes_last: bool = True
    """Off: the use is won before REGISTER."""
    vetoed_by_use: bool = True
    """Off: a use that came meanwhile does not stop the releaser."""

    def initial(self) -> RegisterState:
        return RegisterState()

    def damage(self, state: RegisterState) -> tuple[str, ...]:
        """All damage is done by a step."""
        return NO_DAMAGE

    def steps(self, state: RegisterState) -> Iterator[Step[RegisterState]]:
        yield from self._consumer(state)
        yield from self._releaser(state)
        if not state.released:
            yield "the user releases the stage", state._replace(released=True), NO_DAMAGE

    def _consumer(self, state: RegisterState) -> Iterator[Step[RegisterState]]:
        first: Literal["registered", "used"] = "registered" if self.use_comes_last else "used"
        if state.consumer == "idle":
            yield self._does(state, first)
        elif state.consumer == "registered":
            yield self._told(state) if not self.asks_job_log else self._does(state, "used")
        elif state.consumer == "used":
            yield self._told(state) if state.registered else self._does(state, "registered")

    def _does(
        self, state: RegisterState, what: Literal["registered", "used"]
    ) -> Step[RegisterState]:
        if what == "registered":
            phase: Literal["registered", "used"] = "used" if state.uses else "registered"
            won = state._replace(consumer=phase, registered=True)
            return "the consumer wins REGISTER", won, NO_DAMAGE
        if state.released:
            refused = state._replace(consumer="refused")
            return "the consumer finds RELEASED", refused, NO_DAMAGE
        used = state._replace(consumer="used", uses=state.uses + 1)
        return "the consumer wins a use", used, NO_DAMAGE

    def _told(self, state: RegisterState) -> Step[RegisterState]:
        late = state.released and not self.asks_job_log
        damage = (TOLD_TOO_LATE,) if late else NO_DAMAGE
        return "the consumer is told that it is kept", state._replace(consumer="kept"), damage

    def _releaser(self, state: RegisterState) -> Iterator[Step[RegisterState]]:
        match state.releaser:
            case "idle":
                knows = state._replace(releaser="knows uses", seen=state.uses)
                yield "the releaser reads the uses", knows, NO_DAMAGE
            case "knows uses":
                found = state._replace(releaser="over" if state.registered else "free")
                yield "the releaser reads the consumers", found, NO_DAMAGE
            case "free":
                vetoed = state.released or (self.vetoed_by_use and state.uses > state.seen)
                after = state._replace(releaser="over", released=state.released or not vetoed)
                kept = state.consumer == "kept" and not vetoed
                label = "the releaser wins RELEASED" if not vetoed else "the releaser stops"
                yield label, after, (RELEASED_BEHIND,) if kept else NO_DAMAGE
            case _:
                return


def kept(state: RegisterState) -> bool:
    """Whether the consumer was told that the stage is kept, and the releaser is done."""
    return state.consumer == "kept" and state.releaser == "over"
