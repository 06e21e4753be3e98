"""Decides whether the rows of the last piece are stored too: yes, if it joins and then aggregates.

There a killed driver would lose the most work, and storing costs little, because an aggregation
leaves few rows. A piece that only sorts, filters or aggregates one exchange costs little more than
reading that exchange. A join without an aggregation may yield more rows than it reads.
"""

from durable_shuffle.jobs.plan_cut.cuts import Piece, row_leaves
from durable_shuffle.jobs.plan_cut.tree import Node

_FIRST_ROWS = frozenset({"TakeOrderedAndProjectExec", "CollectLimitExec"})
"""These stay above the stored rows: each of their tasks returns only a few rows."""
_AGGREGATES = frozenset({"HashAggregateExec", "ObjectHashAggregateExec", "SortAggregateExec"})
_ROWS_PASS = frozenset(
    {"WholeStageCodegenExec", "InputAdapter", "ProjectExec", "FilterExec", "SortExec"}
)


def result_top(last: Piece) -> Node | None:
    """Return the operator of a query's last piece whose rows should be stored, or None."""
    top = last.root
    if top.name in _FIRST_ROWS:
        if top.subqueries:
            return None
        top = top.children[0]
    aggregates = False
    node = top
    while not aggregates and node.id not in last.sites:
        if node.name in _AGGREGATES:
            aggregates = True
        elif node.name not in _ROWS_PASS:
            return None
        else:
            node = node.children[0]
    joined = sum(leaf.id in last.sites for leaf in row_leaves(node, last))
    return top if aggregates and joined > 1 else None
