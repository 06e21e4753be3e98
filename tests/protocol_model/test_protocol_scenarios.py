"""What the models reach and what they never reach, judged by checks of this file alone.

A model that holds because nothing happens in it proves nothing: here are the turns that must occur
in it, and the outcomes of a zombie's last commit, told from the log without the models' invariants.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from protocol.batch_model import BatchModel
from protocol.batch_values import BatchSetup, BatchState
from protocol.consumer_model import ConsumerModel
from protocol.consumer_values import (
    ConsumerSetup,
    ConsumerState,
    Record,
)
from protocol.explorer import Exploration, Step, explore
from protocol.producer_model import ProducerModel
from protocol.producer_values import (
    ProducerSetup,
    ProducerState,
    Repair,
)
from protocol.release_model import (
    ReleaseModel,
    ReleaseSetup,
    ReleaseState,
)

REACHED = "reached"
QUIET = BatchSetup(attempt_crashes=0, driver_crashes=0, consumer_crashes=0, aborts=0)
QUIET_EQUAL = BatchSetup(
    attempt_crashes=0, driver_crashes=0, consumer_crashes=0, aborts=0, contents=(0, 0)
)
ABORTING = BatchSetup(
    attempt_crashes=0, driver_crashes=0, consumer_crashes=0, consumer=False, corruptions=0
)
REPAIRED = ProducerSetup(
    attempts=1, drivers=1, crashes=0, timeouts=0, corruptions=1, repair=Repair.SEAL_AGAIN
)


@dataclass(frozen=True)
class Watched:
    """A model with the one question of a test in place of its own invariants."""

    model: Any
    question: Callable[[Any], bool]

    def initial(self) -> Any:
        return self.model.initial()

    def steps(self, state: Any) -> Iterator[Step[Any]]:
        for label, after, _ in self.model.steps(state):
            yield label, after, ()

    def damage(self, state: Any) -> tuple[str, ...]:
        return (REACHED,) if self.question(state) else ()


def watch(model: Any, question: Callable[[Any], bool]) -> Exploration:
    result = explore(Watched(model, question), max_states=500_000)
    print(result)
    return result


def owners(log: tuple[Record, ...]) -> Iterator[tuple[Record, int | None]]:
    """Yield each record with the author of the newest OPEN up to it."""
    owner = None
    for record in log:
        if record.kind == "OPEN":
            owner = record.author
        yield record, owner


@pytest.mark.requirement("R-F135-27")
@pytest.mark.parametrize("setup", [ConsumerSetup(), ConsumerSetup(records=2, attempts=3)])
def test_zombie_acknowledges_nothing_above_a_successors_open(setup: ConsumerSetup) -> None:
    """No reachable log holds an ACK whose author is not that of the newest OPEN below it."""

    def zombie_committed(state: ConsumerState) -> bool:
        return any(r.kind == "ACK" and r.author != owner for r, owner in owners(state.log))

    result = watch(ConsumerModel(setup), zombie_committed)
    assert result.holds
    assert result.states > 0


def zombie_came_first(state: ConsumerState) -> bool:
    """Attempt 0, still alive, won the slot right below attempt 1's OPEN."""
    kinds = [(r.kind, r.author) for r in state.log]
    return kinds == [("OPEN", 0), ("ACK", 0), ("OPEN", 1)] and state.attempts[0].phase != "dead"


def zombie_came_late(state: ConsumerState) -> bool:
    """Attempt 0 aimed an ACK at the slot that attempt 1's OPEN won, and knows it."""
    kinds = [(r.kind, r.author) for r in state.log]
    return kinds == [("OPEN", 0), ("OPEN", 1)] and state.attempts[0].phase == "fenced"


@pytest.mark.requirement("R-F135-28")
@pytest.mark.parametrize("outcome", [zombie_came_first, zombie_came_late])
def test_zombie_commit_has_two_outcomes(outcome: Callable[[ConsumerState], bool]) -> None:
    """Both outcomes of a zombie's commit against its successor's OPEN are reachable."""
    assert REACHED in watch(ConsumerModel(ConsumerSetup()), outcome).traces


@pytest.mark.requirement("R-F135-28")
def test_successor_starts_from_the_record_below_its_open() -> None:
    """Every OPEN's cursor is that of the record right below it, a zombie's ACK included."""

    def starts_elsewhere(state: ConsumerState) -> bool:
        below = [0, *(record.cursor for record in state.log)]
        return any(
            record.kind == "OPEN" and record.cursor != cursor
            for record, cursor in zip(state.log, below, strict=False)
        )

    assert watch(ConsumerModel(ConsumerSetup()), starts_elsewhere).holds


@pytest.mark.requirement("R-F135-28")
def test_some_attempt_always_finishes_without_crashes() -> None:
    """Attempts fence one another, but never all of them."""

    def all_gave_up(state: ConsumerState) -> bool:
        return all(attempt.phase == "fenced" for attempt in state.attempts)

    assert watch(ConsumerModel(ConsumerSetup(crashes=0, timeouts=2)), all_gave_up).holds


def output_of_both(state: ConsumerState) -> bool:
    authors = {record.author for record in state.log if record.kind == "ACK"}
    return authors == {0, 1} and any(attempt.phase == "done" for attempt in state.attempts)


def read_after_cleaning(state: ProducerState) -> bool:
    return state.collections == 0 and all(reader.phase == "done" for reader in state.readers)


def read_after_repair(state: ProducerState) -> bool:
    return len(state.log) == 2 and all(reader.phase == "done" for reader in state.readers)


def accepted_after_replace(state: BatchState) -> bool:
    return state.outcome == "accepted" and len(state.stage_log) == 2


def refused_after_replace(state: BatchState) -> bool:
    return state.outcome == "refused" and len(state.stage_log) == 2


def cursor_goes_on_by_equal_tag(state: BatchState) -> bool:
    me = state.consumer
    return me.cursor == 1 and me.view is not None and me.view.commit_slot != me.commit_slot


def sealed_above_an_abort(state: BatchState) -> bool:
    return bool(state.stage_log) and state.producer_log[0].kind == "ABORT"


def released_and_read_by_all(state: ReleaseState) -> bool:
    return not state.objects and all(consumer.read == 3 for consumer in state.consumers)


def late_consumer_behind_a_release(state: ReleaseState) -> bool:
    return late_consumer_served(state) and state.consumers[2].read > state.released > 0


def late_consumer_served(state: ReleaseState) -> bool:
    return len(state.consumers) == 3 and state.consumers[2].acked == 3


@pytest.mark.parametrize(
    ("model", "turn"),
    [
        (ConsumerModel(ConsumerSetup()), output_of_both),
        (ProducerModel(ProducerSetup(drivers=1, readers=1)), read_after_cleaning),
        (ProducerModel(REPAIRED), read_after_repair),
        (BatchModel(QUIET), accepted_after_replace),
        (BatchModel(QUIET), refused_after_replace),
        (BatchModel(QUIET_EQUAL), cursor_goes_on_by_equal_tag),
        (BatchModel(ABORTING), sealed_above_an_abort),
        (ReleaseModel(ReleaseSetup()), released_and_read_by_all),
        (ReleaseModel(ReleaseSetup(late_consumer=True)), late_consumer_served),
        (
            ReleaseModel(ReleaseSetup(late_consumer=True, late_begins="behind")),
            late_consumer_behind_a_release,
        ),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_models_are_not_vacuous(model: Any, turn: Callable[[Any], bool]) -> None:
    """Each turn that a model is there to judge happens in it."""
    assert REACHED in watch(model, turn).traces
