"""Visit every state of a finite model, breadth first, and keep a shortest trace to each damage.

Strategy: states are hashable values, remembered with the state they were first reached from; labels
are not stored, a trace is rebuilt by taking the steps again. No symmetry or partial-order
reduction: what is reported as exhausted was visited. It must never report an exploration that hit
its limit as complete.
"""

from array import array
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

S = TypeVar("S", bound=Hashable)

Step: TypeAlias = tuple[str, S, Iterable[str]]
"""What happened (for people), the state after it, and the damage that the step itself did."""

Trace: TypeAlias = tuple[str, ...]

NO_DAMAGE: Final[tuple[str, ...]] = ()
STUCK: Final = "a state was reached from which nothing can finish any more"


class Model(Protocol[S]):
    """A finite transition system."""

    def initial(self) -> S:
        """Return the one state that everything starts from."""

    def steps(self, state: S) -> Iterator[Step[S]]:
        """Yield all steps that some actor, the store or a fault can take now."""

    def damage(self, state: S) -> Iterable[str]:
        """Name the invariants that do not hold in `state`; empty if all do."""


@dataclass(frozen=True, slots=True)
class Exploration:
    """What a run of `explore` saw."""

    states: int
    """Distinct states visited, the initial one included."""
    transitions: int
    depth: int
    """Steps from the initial state to the farthest level that was fully expanded."""
    complete: bool
    """All reachable states were visited: neither stopped by damage nor by the limit."""
    traces: dict[str, Trace]
    """For each damage found, a shortest list of steps that leads to it."""
    wanted: int
    """Visited states in which the `wanted` predicate held; 0 if there was none."""
    excused: int
    """States that cannot finish, but are excused from it."""

    @property
    def holds(self) -> bool:
        """Every reachable state was visited and none is damaged."""
        return self.complete and not self.traces

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "violated" if self.traces else "gave up at the limit"
        lines = [f"{verdict}: {self.states} states, {self.transitions} steps, depth {self.depth}"]
        for damage, trace in self.traces.items():
            lines += [f"  {damage}", *(f"    {n}. {label}" for n, label in enumerate(trace, 1))]
        return "\n".join(lines)


def explore(
    model: Model[S],
    *,
    max_states: int,
    only: Collection[str] | None = None,
    wanted: Callable[[S], bool] | None = None,
    can_always_finish: Callable[[S], bool] | None = None,
    excuse: Callable[[S], bool] | None = None,
) -> Exploration:
    """Visit the states of `model` and stop at the first damage.

    Args:
        max_states: give up, incomplete, after the level in which more than this were visited.
        only: look for these kinds of damage alone; None means all.
        wanted: count the states in which it holds, to show that an exploration is not vacuous.
        can_always_finish: after a complete, undamaged visit also demand that from every state one
            in which this holds can be reached; else STUCK is found. Keeps all steps in memory.
        excuse: states in which this holds need not be able to finish.
    """
    walk = _Walk(model, only, keep_edges=can_always_finish is not None)
    complete = walk.run(max_states)
    excused = 0
    if complete and not walk.traces and can_always_finish is not None:
        excused = walk.look_for_stuck(can_always_finish, excuse)
    return Exploration(
        states=len(walk.origin),
        transitions=walk.transitions,
        depth=walk.depth,
        complete=complete,
        traces=walk.traces,
        wanted=0 if wanted is None else sum(1 for state in walk.origin if wanted(state)),
        excused=excused,
    )


@dataclass(slots=True)
class _Walk(Generic[S]):
    """One breadth-first visit; `origin` is in the order of discovery."""

    model: Model[S]
    only: Collection[str] | None
    keep_edges: bool
    origin: dict[S, S | None] = field(default_factory=dict)
    traces: dict[str, Trace] = field(default_factory=dict)
    transitions: int = 0
    depth: int = 0
    number: dict[S, int] = field(default_factory=dict)
    edge_from: "array[int]" = field(default_factory=lambda: array("i"))
    edge_to: "array[int]" = field(default_factory=lambda: array("i"))

    def run(self, max_states: int) -> bool:
        """Return whether all states were visited; stop at the first damage or at the limit."""
        first = self.model.initial()
        self.origin[first] = None
        if self.keep_edges:
            self.number[first] = 0
        for damage in self._relevant(self.model.damage(first)):
            self.traces[damage] = ()
        level = [first]
        while level and not self.traces:
            if len(self.origin) > max_states:
                return False
            level = self._expand(level)
            self.depth += bool(level)
        return not self.traces

    def _expand(self, level: list[S]) -> list[S]:
        """Take every step from `level`; return the states seen for the first time."""
        model, origin = self.model, self.origin
        fresh: list[S] = []
        for state in level:
            for label, after, damage in model.steps(state):
                self.transitions += 1
                found = self._relevant(damage)
                if after not in origin:
                    origin[after] = state
                    fresh.append(after)
                    found += self._relevant(model.damage(after))
                    if self.keep_edges:
                        self.number[after] = len(self.number)
                if self.keep_edges:
                    self.edge_from.append(self.number[state])
                    self.edge_to.append(self.number[after])
                if found:
                    trace = (*self._trace(state), label)
                    self.traces.update(dict.fromkeys(found, trace))
                    return []
        return fresh

    def _relevant(self, damage: Iterable[str]) -> list[str]:
        return [kind for kind in damage if self.only is None or kind in self.only]

    def _trace(self, state: S) -> Trace:
        labels: list[str] = []
        before = self.origin[state]
        while before is not None:
            labels.append(next(label for label, s, _ in self.model.steps(before) if s == state))
            state, before = before, self.origin[before]
        return tuple(reversed(labels))

    def look_for_stuck(
        self, finished: Callable[[S], bool], excuse: Callable[[S], bool] | None
    ) -> int:
        """Record a trace to a state that cannot finish; return how many of those are excused."""
        can_finish = bytearray(map(finished, self.origin))
        changed = True
        while changed:
            changed = False
            for source, target in zip(
                reversed(self.edge_from), reversed(self.edge_to), strict=True
            ):
                if can_finish[target] and not can_finish[source]:
                    can_finish[source] = changed = True
        excused = 0
        for state, ok in zip(self.origin, can_finish, strict=True):
            if ok:
                continue
            if excuse is None or not excuse(state):
                self.traces[STUCK] = self._trace(state)
                break
            excused += 1
        return excused
