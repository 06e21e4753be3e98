"""The rules of a log producer: on, everything holds; off, something breaks.

As in test_protocol_rules.py, every case is one switch, the damage that follows when it is off, and
the length of a shortest trace to it. The turns that must occur are told from the log alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from protocol import log_values as values
from protocol.consumer_values import OnUnknown
from protocol.explorer import Exploration, Step, explore
from protocol.log_model import LogModel
from protocol.log_values import LogSetup, LogState

Visit = Callable[..., Exploration]

PLAIN = LogSetup()
CLEANED = LogSetup(collections=1)
FOLLOWED = LogSetup(follower=True)


@dataclass(frozen=True)
class Case:
    """A setup with one rule switched off, and what goes wrong in it."""

    off: LogSetup
    damage: str
    trace_length: int


RULES = {
    "rule 1: OPEN is known by its epoch": Case(
        replace(PLAIN, open_has_id=False), values.TWO_WRITERS, 8
    ),
    "rule 2: a repeated APPEND is not read back": Case(
        replace(PLAIN, on_unknown=OnUnknown.REPEAT_BLINDLY), values.FALSE_LOSER, 9
    ),
    "rule 2: no answer is taken for won": Case(
        replace(PLAIN, on_unknown=OnUnknown.ASSUME_WON), values.GAP_IN_LOG, 7
    ),
    "rule 2: another APPEND is built for the slot": Case(
        replace(PLAIN, on_unknown=OnUnknown.REBUILD), values.FALSE_LOSER, 11
    ),
    "rule 2: the segment of an unanswered APPEND is deleted": Case(
        replace(PLAIN, on_unknown=OnUnknown.DELETE_OUTPUT), values.FALSE_LOSER, 8
    ),
    "rule 3: segments go because no slot names them": Case(
        replace(CLEANED, collects_unnamed=True), values.NAMED_OBJECT_GONE, 8
    ),
    "rule 4: an OPEN keeps the position that it read before it lost": Case(
        replace(PLAIN, open_copies_state=False), values.NOT_CONTIGUOUS, 11
    ),
    "rule 5: an older launch opens over a newer one": Case(
        replace(PLAIN, yields_to_generation=False), values.NEWEST_FENCED, 6
    ),
    "rule 5: nobody wins OPEN": Case(replace(PLAIN, wins_open=False), values.TWO_WRITERS, 4),
    "rule 5: an APPEND aims at the end of the log": Case(
        replace(PLAIN, own_slot=False), values.FENCED_APPENDED, 9
    ),
    "an attempt opens behind END": Case(replace(PLAIN, end_is_final=False), values.AFTER_END, 14),
    "a follower takes the segments that it finds": Case(
        replace(FOLLOWED, follows_log=False), values.FOLLOWER_MISLED, 5
    ),
}


@pytest.mark.requirement("R-F135-7")
@pytest.mark.requirement("R-F135-28")
@pytest.mark.parametrize(
    ("setup", "states"), [(PLAIN, 8_728), (CLEANED, 15_044), (FOLLOWED, 23_883)]
)
def test_log_producer_holds_and_can_always_finish(
    visit: Visit, setup: LogSetup, states: int
) -> None:
    """In every state nothing is damaged, and END can be reached while attempts are left."""
    result = visit(LogModel(setup))
    print(result)
    assert result.holds
    assert result.states == states
    assert result.wanted > 0


@pytest.mark.parametrize("name", RULES)
def test_log_producer_rule_off_gives_a_trace(visit: Visit, name: str) -> None:
    """Without the rule the damage is reached."""
    case = RULES[name]
    result = visit(LogModel(case.off))
    print(name, result)
    assert case.damage in result.traces
    assert len(result.traces[case.damage]) == case.trace_length


@dataclass(frozen=True)
class Watched:
    """The model with the one question of a test in place of its own invariants."""

    model: LogModel
    question: Callable[[LogState], bool]

    def initial(self) -> LogState:
        return self.model.initial()

    def steps(self, state: LogState) -> "list[Step[LogState]]":
        return [(label, after, ()) for label, after, _ in self.model.steps(state)]

    def damage(self, state: LogState) -> tuple[str, ...]:
        return ("reached",) if self.question(state) else ()


def appended_by(state: LogState, who: int) -> bool:
    return any(r.kind == "APPEND" and r.author == who for r in state.log)


@pytest.mark.parametrize(
    "question",
    [
        lambda s: (
            s.log[-1:] and s.log[-1].kind == "END" and appended_by(s, 0) and appended_by(s, 1)
        ),
        lambda s: s.attempts[0].phase == "fenced" and appended_by(s, 0) and appended_by(s, 1),
        lambda s: (
            s.attempts[0].phase == "dead" and appended_by(s, 0) and s.log[-1].kind == "APPEND"
        ),
    ],
    ids=["two attempts finish together", "an attempt is fenced in mid-way", "one dies in mid-way"],
)
def test_log_producer_model_is_not_vacuous(question: Callable[[LogState], bool]) -> None:
    """The turns that the rules are about do occur."""
    result = explore(Watched(LogModel(PLAIN), question), max_states=100_000)
    assert "reached" in result.traces
