"""The explorer against graphs whose answers are known by hand."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from protocol.explorer import STUCK, explore


@dataclass(frozen=True)
class Graph:
    """A model given by its edges; it starts at node 0."""

    edges: Mapping[int, tuple[int, ...]]
    damaged: Mapping[int, str] = field(default_factory=dict)
    damaging: Mapping[tuple[int, int], str] = field(default_factory=dict)

    def initial(self) -> int:
        return 0

    def steps(self, state: int) -> Iterator[tuple[str, int, tuple[str, ...]]]:
        for after in self.edges.get(state, ()):
            damage = self.damaging.get((state, after))
            yield f"{state}>{after}", after, () if damage is None else (damage,)

    def damage(self, state: int) -> tuple[str, ...]:
        return (self.damaged[state],) if state in self.damaged else ()


DIAMOND = {0: (1, 2), 1: (3,), 2: (3,), 3: (4,), 4: (0,)}


def test_explore_counts_states_steps_and_depth() -> None:
    """A diamond with a way back has five states, six steps, and is three levels deep."""
    result = explore(Graph(DIAMOND), max_states=100, wanted=lambda node: node >= 3)
    assert result.holds
    assert (result.states, result.transitions, result.depth) == (5, 6, 3)
    assert result.wanted == 2


def test_explore_finds_a_shortest_trace() -> None:
    """Of a long and a short way to the same damage the short one is reported."""
    graph = Graph({0: (1, 5), 1: (2,), 2: (3,), 3: (9,), 5: (9,)}, damaged={9: "broken"})
    result = explore(graph, max_states=100)
    assert result.traces == {"broken": ("0>5", "5>9")}
    assert not result.complete
    assert not result.holds


def test_explore_reports_damage_done_by_a_step_into_a_known_state() -> None:
    """A step is judged even when the state that it leads to was visited before."""
    result = explore(Graph(DIAMOND, damaging={(4, 0): "went back"}), max_states=100)
    assert len(result.traces["went back"]) == 4
    assert result.traces["went back"][-1] == "4>0"


def test_explore_looks_at_the_initial_state() -> None:
    """Damage before the first step has an empty trace."""
    assert explore(Graph({}, damaged={0: "born bad"}), max_states=9).traces == {"born bad": ()}


def test_explore_ignores_damage_it_is_not_asked_for() -> None:
    """With `only`, other damage neither stops the visit nor is reported."""
    graph = Graph(DIAMOND, damaged={1: "minor", 4: "major"})
    result = explore(graph, max_states=100, only={"major"})
    assert list(result.traces) == ["major"]
    assert explore(graph, max_states=100, only={"other"}).holds


def test_explore_at_its_limit_does_not_hold() -> None:
    """A visit that gave up is incomplete, even though it met no damage."""
    endless = Graph({node: (node + 1,) for node in range(50)})
    result = explore(endless, max_states=10)
    assert not result.traces
    assert not result.complete
    assert not result.holds
    assert "gave up" in str(result)


def test_explore_finds_a_state_that_cannot_finish() -> None:
    """A trap is found with the shortest trace into it, though it has steps of its own."""
    graph = Graph({0: (1, 2), 1: (9,), 2: (3,), 3: (2,)})
    result = explore(graph, max_states=100, can_always_finish=lambda node: node == 9)
    assert result.traces == {STUCK: ("0>2",)}
    assert not result.holds


def test_explore_excuses_what_it_is_told_to() -> None:
    """An excused trap is counted instead of reported."""
    graph = Graph({0: (1, 2), 1: (9,), 2: (3,), 3: (2,)})
    result = explore(
        graph,
        max_states=100,
        can_always_finish=lambda node: node == 9,
        excuse=lambda node: node in (2, 3),
    )
    assert result.holds
    assert result.excused == 2


@pytest.mark.parametrize("finish", [4, 0])
def test_explore_lets_a_cycle_finish(finish: int) -> None:
    """Where all states lie on a cycle, each can reach any other."""
    result = explore(Graph(DIAMOND), max_states=9, can_always_finish=lambda node: node == finish)
    assert result.holds
    assert result.excused == 0
