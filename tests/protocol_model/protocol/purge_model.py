"""Purging a whole log while an old ACK is still in flight, then running the same job again.

The smallest model: one request of the old run may land at any moment. Rule 8 puts a random
incarnation into the path, so that the request can land only in the log it was meant for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from protocol.explorer import NO_DAMAGE, Step

OLD_RECORD_IN_NEW_LOG: Final = "a record of the purged run won a slot of the next run's log"

OLD_OPEN, OLD_ACK = "old OPEN", "old ACK"
NEW_OPEN, NEW_ACK = "new OPEN", "new ACK"


class PurgeState(NamedTuple):
    log: tuple[str | None, str | None]
    """Slots 0 and 1 of the path that is in use."""
    phase: Literal["old run", "purged", "new run", "finished"]
    landed: bool
    """The old run's request has landed somewhere."""


@dataclass(frozen=True, slots=True)
class PurgeModel:
    incarnation_in_path: bool = True
    """Rule 8. Off: the next run uses the purged path again."""

    def initial(self) -> PurgeState:
        return PurgeState((OLD_OPEN, None), "old run", landed=False)

    def damage(self, state: PurgeState) -> tuple[str, ...]:
        return (OLD_RECORD_IN_NEW_LOG,) if OLD_ACK in state.log and state.phase != "old run" else ()

    def steps(self, state: PurgeState) -> Iterator[Step[PurgeState]]:
        slot0, slot1 = state.log
        if not state.landed:
            if self.incarnation_in_path:
                yield "old ACK lands in its own path", state._replace(landed=True), NO_DAMAGE
            elif slot1 is None:
                yield (
                    "old ACK lands in slot 1",
                    state._replace(log=(slot0, OLD_ACK), landed=True),
                    NO_DAMAGE,
                )
        if state.phase == "old run":
            yield "job ends, log is purged", state._replace(log=(None, None), phase="purged"), ()
        elif state.phase == "purged":
            yield (
                "job runs again, OPEN wins slot 0",
                state._replace(log=(NEW_OPEN, slot1), phase="new run"),
                NO_DAMAGE,
            )
        elif state.phase == "new run":
            yield (
                "the new run sends its ACK to slot 1",
                state._replace(log=(slot0, slot1 or NEW_ACK), phase="finished"),
                NO_DAMAGE,
            )
