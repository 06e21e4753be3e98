"""Decides which missing exchanges of a query start now, and whether a new plan is taken.

If one side of a shuffled join turns out small, Spark broadcasts it, and the other side needs no
exchange. So an exchange waits while a side of its join that may turn out small is not sealed yet.
Estimates decide only this order.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from durable_shuffle.jobs.query.cuts import Cut, PlanPiece, exchange_title, operators, row_leaves
from durable_shuffle.jobs.query.tree import SHUFFLE, WRAPPERS, Node
from durable_shuffle.jobs.text import size

SHUFFLED_JOINS = frozenset({"SortMergeJoinExec", "ShuffledHashJoinExec"})
BY_ARRIVAL = frozenset(
    {"WindowExec", "WindowGroupLimitExec", "WindowInPandasExec", "ArrowWindowPythonExec"}
)
"""Operators whose rows may depend on the order in which rows arrive, because rows may tie."""
_SHRINKING = SHUFFLED_JOINS | {
    *("BroadcastHashJoinExec", "HashAggregateExec", "ObjectHashAggregateExec", "SortAggregateExec"),
}
"""Operators that may return far fewer rows than they read. So may a filter with a condition."""
_IS_NOT_NULL = re.compile(r"isnotnull\([^()]*\)")
_MAY_SHRINK_BYTES = 64
"""A side is waited for if it reads at most this many times the bytes that Spark broadcasts."""
_STARTS_BYTES = 4
"""A side that may shrink does not wait if it reads at most this many times the bytes that Spark
broadcasts, and another one if it reads at most these: its tasks take no longer than another round
of planning."""
_CHANGES_BYTES = 4
"""A sealed stage may change the plan if it has at most this many times the bytes that Spark
broadcasts: a projection above it may drop columns."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a cut's map side may yield."""

    data_bytes: int
    """Of the largest input of its piece."""
    may_shrink: bool
    """Whether it may yield far less."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What Spark broadcasts."""

    broadcast_bytes: int
    """Spark's threshold for sides whose size is known; 0 or less if it never broadcasts."""

    def may_change(self, sizes: Iterable[tuple[int, int]]) -> bool:
        """Return whether stages of these (bytes, rows) may make Spark plan other joins."""
        most = self.broadcast_bytes * _CHANGES_BYTES
        return any(rows == 0 or data_bytes <= most for data_bytes, rows in sizes)


def is_better(new: Node, old: Node, cut_at: Mapping[int, Cut]) -> bool:
    """Return whether a new plan of a query replaces the older one.

    It does if it has fewer exchanges, or as many and other operators. A join that broadcasts its
    other side may need one more exchange above it.

    Args:
        cut_at: id of an exchange in the older plan -> the cut that it became, whose stage the new
            plan reads.

    Source: `SimpleCostEvaluator` of Apache Spark.
    """
    exchanges, before = (len(_exchanges(root, cut_at)) for root in (new, old))
    return exchanges <= before and not _same_operators(new, old, cut_at)


def _exchanges(root: Node, cut_at: Mapping[int, Cut]) -> set[int]:
    """Return the ids of the exchanges of a plan that have not started."""
    if root.id in cut_at:
        return set()
    below = (_exchanges(node, cut_at) for node in root.below())
    return set().union(*below, {root.id} if root.name == SHUFFLE else ())


def _same_operators(new: Node, old: Node, cut_at: Mapping[int, Cut]) -> bool:
    new, old = _unwrapped(new), _unwrapped(old)
    if new.cut is not None:
        return new.cut is (old.cut or cut_at.get((old.target or old).id))
    if (new.name, new.build_side) != (old.name, old.build_side):
        return False
    pairs = list(zip_longest(new.below(), old.below()))
    return all(a and b and _same_operators(a, b, cut_at) for a, b in pairs)


def _unwrapped(node: Node) -> Node:
    while node.name in WRAPPERS:
        (node,) = node.children
    return node


def shuffled_joins(pieces: Iterable[PlanPiece]) -> list[list[Cut]]:
    """Return the cuts that each shuffled join of these pieces reads on its sides."""
    return [
        [piece.sites[leaf.id] for leaf in row_leaves(node, piece) if leaf.id in piece.sites]
        for piece in pieces
        for node in operators(piece)
        if node.name in SHUFFLED_JOINS
    ]


def has_joins(pieces: Iterable[PlanPiece]) -> bool:
    """Return whether an operator of these pieces reads several others, as each join does."""
    return any(len(node.children) > 1 for piece in pieces for node in operators(piece))


def may_shrink(piece: PlanPiece) -> bool:
    """Return whether a piece may yield far less than it reads."""
    return any(
        node.name in _SHRINKING
        or (node.name == "FilterExec" and _is_real(str(node.plan.condition())))
        for node in operators(piece)
    )


def _is_real(condition: str) -> bool:
    """Return whether a filter does more than drop nulls."""
    rest = _IS_NOT_NULL.sub("", condition)
    return bool(re.sub(r"AND|[\s()]", "", rest))


def starts_now(
    ready: Collection[Cut],
    unfinished: Collection[Cut],
    joins: Iterable[Collection[Cut]],
    estimate: Callable[[Cut], Estimate],
    limits: Limits,
) -> list[Cut]:
    """Return the cuts of `ready` that need not wait.

    Args:
        unfinished: the cuts that run, and those that are ready.
        joins: the cuts that each shuffled join reads.
        estimate: called once per cut that is a side of a join.
        limits: what Spark broadcasts.
    """
    numbers = {cut.number for cut in unfinished}
    partners: dict[int, set[int]] = {}
    for cuts in joins:
        sides = {cut.number for cut in cuts} & numbers
        for number in sides:
            partners.setdefault(number, set()).update(sides - {number})
    if limits.broadcast_bytes <= 0:
        return list(ready)
    known = {cut.number: estimate(cut) for cut in unfinished if partners.get(cut.number)}
    most = limits.broadcast_bytes * _MAY_SHRINK_BYTES

    def comes_before(first: int, second: int) -> bool:
        one, other = known[first], known[second]
        at_once = limits.broadcast_bytes * (_STARTS_BYTES if other.may_shrink else 1)
        if not one.may_shrink or one.data_bytes > most or other.data_bytes <= at_once:
            return False
        smaller = (one.data_bytes, first) < (other.data_bytes, second)
        return smaller or not other.may_shrink

    return [
        cut
        for cut in ready
        if not any(comes_before(other, cut.number) for other in partners.get(cut.number, ()))
    ]


def planned_again(sizes: Mapping[int, tuple[int, int]], dropped: Sequence[Cut], joins: int) -> str:
    """Return what a new plan changed, given the (bytes, rows) that it is based on."""
    known = ", ".join(
        f"exchange {number} has {rows:,} rows in {size(data_bytes)}"
        for number, (data_bytes, rows) in sizes.items()
    )
    changes = [f"{joins} fewer shuffled join{'s' * (joins > 1)}"] if joins > 0 else []
    changes += [f"exchange {cut.number} is not needed ({exchange_title(cut)})" for cut in dropped]
    return f"planned again, because {known}: {'; '.join(changes)}"
