"""Decides which missing exchanges of a query start now, and which wait for a smaller one.

If one side of a shuffled join turns out small, Spark broadcasts it, and the other side needs no
exchange. So an exchange waits while a join partner that may turn out small is not sealed yet.
Estimates decide only this order.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from durable_shuffle.jobs.query.cuts import Cut, PlanPiece, operators, row_leaves

SHUFFLED_JOINS = frozenset({"SortMergeJoinExec", "ShuffledHashJoinExec"})
_MUCH_SMALLER = 4
"""A partner is waited for if its estimate is smaller by this factor."""
_MAY_SHRINK = 64
"""A partner is waited for if its estimate is at most this many times what Spark broadcasts:
estimates ignore how many rows a filter drops."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What Spark broadcasts."""

    broadcast_bytes: int
    """Spark's threshold for sides whose size is known; 0 or less if it never broadcasts."""

    def may_change(self, sizes: Iterable[tuple[int, int]]) -> bool:
        """Return whether stages of these (bytes, rows) may make Spark plan other joins."""
        return any(
            rows == 0 or data_bytes <= self.broadcast_bytes * _MUCH_SMALLER
            for data_bytes, rows in sizes
        )


def shuffled_joins(pieces: Iterable[PlanPiece]) -> list[list[Cut]]:
    """Return the cuts that each shuffled join of these pieces reads on its sides."""
    return [
        [piece.sites[leaf.id] for leaf in row_leaves(node, piece) if leaf.id in piece.sites]
        for piece in pieces
        for node in operators(piece)
        if node.name in SHUFFLED_JOINS
    ]


def starts_now(
    ready: Collection[Cut],
    unfinished: Collection[Cut],
    joins: Iterable[Collection[Cut]],
    estimate: Callable[[Cut], int],
    limits: Limits,
) -> list[Cut]:
    """Return the cuts of `ready` that need not wait, small ones first.

    Args:
        unfinished: the cuts that run, and those that are ready.
        joins: the cuts that each shuffled join reads.
        estimate: Spark's estimate of a cut's bytes.
        limits: what Spark broadcasts.
    """
    partners: dict[int, set[int]] = {}
    by_number = {cut.number: cut for cut in unfinished}
    for cuts in joins:
        numbers = {cut.number for cut in cuts if cut.number in by_number}
        for number in numbers:
            partners.setdefault(number, set()).update(numbers - {number})
    if limits.broadcast_bytes <= 0 or not partners:
        return sorted(ready, key=lambda cut: cut.number)
    size = {number: estimate(cut) for number, cut in by_number.items()}
    most = limits.broadcast_bytes * _MAY_SHRINK

    def waits(cut: Cut) -> bool:
        return any(
            size[other] <= most and size[other] * _MUCH_SMALLER <= size[cut.number]
            for other in partners.get(cut.number, ())
        )

    now = [cut for cut in ready if not waits(cut)]
    return sorted(now, key=lambda cut: (size[cut.number], cut.number))
