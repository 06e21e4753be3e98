"""Finds the stages that a piece reads whose large partitions several tasks may share.

The rule is Spark's. The rows of a join's side may be divided if each of its rows is joined by
itself, and nothing above the join in the same piece needs rows of one key in one task. The rows of
a REBALANCE may be divided if nothing in the piece needs them in certain tasks. The rows of other
exchanges that are only mapped stay whole: who asked for `repartition("k")` may count on whole keys.

Source: `OptimizeSkewedJoin` and `OptimizeSkewInRebalancePartitions` of Apache Spark.
"""

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any

from durable_shuffle.jobs.identity.jvm.calls import items, simple_name
from durable_shuffle.jobs.query.cuts import PlanPiece, operators, row_leaves
from durable_shuffle.jobs.query.order import SHUFFLED_JOINS
from durable_shuffle.jobs.query.tree import WRAPPERS, Node, path_to

_LEFT = frozenset({"Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti"})
_RIGHT = frozenset({"Inner", "Cross", "RightOuter"})
_ROW_BY_ROW = WRAPPERS | {"SortExec", "ProjectExec", "FilterExec"}
_ANY = "UnspecifiedDistribution"


def divisible_sides(piece: PlanPiece, alike: Collection[int]) -> dict[int, bool] | None:
    """Return node id of each site of a join -> whether its rows may be divided, left side first.

    None if the sites are not the two sides of one join, or if the join's rows must stay together.

    Args:
        alike: ids of sites that are read in the same groups.
    """
    joins = [node for node in operators(piece) if _joins(node, piece, alike)]
    if len(alike) != 2 or len(joins) != 1 or _readers(piece, alike) != 2:
        return None
    (join,) = joins
    path = path_to(piece.root, join)
    if path is None or not all(_takes_any(*step) for step in pairwise(path)):
        return None
    kind = str(join.plan.joinType().toString())
    left, right = (next(row_leaves(child, piece)).id for child in join.children)
    return {left: kind in _LEFT, right: kind in _RIGHT}


def is_only_mapped(piece: PlanPiece, site: int) -> bool:
    """Return whether nothing in a piece needs the rows of a site in certain partitions."""
    if piece.root.id == site:
        return True
    readers = [
        (node, child) for node in operators(piece) for child in node.below() if child.id == site
    ]
    if len(readers) != 1:
        return False
    reader, node = readers[0]
    path = path_to(piece.root, reader)
    if path is None or node not in reader.children:
        return False
    return all(_takes_any(*step) for step in pairwise([*path, node]))


def _joins(node: Node, piece: PlanPiece, alike: Collection[int]) -> bool:
    if node.name not in SHUFFLED_JOINS or len(node.children) != 2:
        return False
    sites = [_site_below(child, piece) for child in node.children]
    return None not in sites and set(sites) == set(alike)


def _site_below(node: Node, piece: PlanPiece) -> int | None:
    while node.id not in piece.sites:
        if node.name not in _ROW_BY_ROW:
            return None
        (node,) = node.children
    return node.id


def _readers(piece: PlanPiece, sites: Collection[int]) -> int:
    """Return how many operators read the sites."""
    return sum(below.id in sites for node in operators(piece) for below in node.below())


def _takes_any(parent: Node, child: Node) -> bool:
    """Return whether an operator may get the rows of a child in any partitions."""
    needs = dict(zip(map(id, parent.children), _distributions(parent), strict=True))
    alone = len(parent.children) == 1 or parent.name == "BroadcastHashJoinExec"
    return alone and needs[id(child)] == _ANY


def _distributions(node: Node) -> Iterator[str]:
    required: Any = node.plan.requiredChildDistribution()
    return (simple_name(str(one.getClass().getName())).rstrip("$") for one in items(required))
