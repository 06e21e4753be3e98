"""Cuts a plan at its exchanges: which are durable, which must be read in the same groups.

A piece is a part of the plan without a durable exchange inside: a tree whose leaves are sources
and cuts. One piece feeds each cut; the last piece yields the query's rows.
"""

import json
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from pyspark.sql.types import StructType

from durable_shuffle.jobs.identity.jvm.calls import JVM_ERRORS, class_name, simple_name
from durable_shuffle.jobs.query.tree import BROADCAST, REUSED, SHUFFLE, SUBQUERIES, Node
from durable_shuffle.jobs.stages.explanation import stage_title
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.rows.partitioner import check_partition_count

Kind = Literal["hash", "single", "round_robin", "range", "passthrough"]
""""passthrough" is no exchange: it is the query's result rows, as its last tasks yield them."""
_NATIVE = {
    BROADCAST: "broadcast: every task reads it whole; made again by a driver that needs it",
    "TakeOrderedAndProjectExec": "ORDER BY with LIMIT: each task's first rows go to one task",
    "CollectLimitExec": "LIMIT: each task's first rows go to one task",
    "CollectTailExec": "tail(): each task's last rows go to one task",
}
"""Operators with an exchange that Spark runs itself -> the reason."""
_SUBQUERY = "subquery: its rows go to the driver; asked again by a driver that needs them"
_PRUNING = "dynamic partition pruning: found again by a driver that needs it"
_CHILDREN_APART = frozenset(
    {"BroadcastHashJoinExec", "BroadcastNestedLoopJoinExec", "CartesianProductExec"}
)
_KINDS: dict[str, Kind] = {
    "HashPartitioning": "hash",
    "SinglePartition": "single",
    "RoundRobinPartitioning": "round_robin",
    "RangePartitioning": "range",
}
_FIRST_ROWS = frozenset({"TakeOrderedAndProjectExec", "CollectLimitExec"})
"""These stay above the stored rows: each of their tasks returns only a few rows."""
_AGGREGATES = frozenset({"HashAggregateExec", "ObjectHashAggregateExec", "SortAggregateExec"})
_ROWS_PASS = frozenset(
    {"WholeStageCodegenExec", "InputAdapter", "ProjectExec", "FilterExec", "SortExec"}
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """What is known about a shuffle exchange before anything runs."""

    kind: Kind
    partitions: int
    """0 if there are as many as tasks that write them."""
    fixed: bool
    """True if the user asked for this number of partitions."""
    rebalances: bool = False
    """True if the user asked for partitions of about equal size, wherever their rows are."""


@dataclass(slots=True, eq=False)
class Cut:
    """A durable exchange, or the query's result rows."""

    number: int
    """From 0. A cut has a higher number than the cuts that it reads."""
    node: Node
    exchange: Exchange
    piece: "PlanPiece"


@dataclass(slots=True, eq=False)
class PlanPiece:
    """A part of the plan: from `root` down to sources and cuts."""

    root: Node
    sites: dict[int, Cut] = field(default_factory=dict)
    """Id of an exchange's node, or of a node that reuses the exchange -> the cut read there."""
    native: list[str] = field(default_factory=list)
    """Exchanges that Spark runs itself inside the piece, each with the reason."""
    native_shuffles: int = 0
    """How many of these are shuffles."""

    @property
    def cuts(self) -> list[Cut]:
        """The cuts that the piece reads directly, each once."""
        return list({cut.number: cut for cut in self.sites.values()}.values())


Classify = Callable[[Node], Exchange | str]
"""Returns the description of a shuffle exchange, or why Spark must run it itself."""


def cut_plan(root: Node, classify: Classify, first: int = 0) -> tuple[PlanPiece, list[Cut]]:
    """Return the last piece and all new cuts, lower ones first.

    Args:
        first: number of the first new cut.
    """
    cutter = _Cutter(classify, first)
    return cutter.piece(root), cutter.cuts


class _Cutter:
    def __init__(self, classify: Classify, first: int) -> None:
        self._classify, self._first = classify, first
        self._by_id: dict[int, Cut | None] = {}
        self.cuts: list[Cut] = []

    def piece(self, root: Node) -> PlanPiece:
        piece = PlanPiece(root)
        self._collect(root, piece, set())
        return piece

    def _collect(self, node: Node, piece: PlanPiece, seen: set[int]) -> None:
        if node.id in seen:
            return
        seen.add(node.id)
        if node.cut is not None:
            piece.sites[node.id] = node.cut
            return
        exchange = node.target if node.name == REUSED and node.target is not None else node
        if exchange.name == SHUFFLE:
            cut = self._cut(exchange, piece)
            if cut is not None:
                piece.sites[node.id] = cut
                return
        if node.name in _NATIVE:
            piece.native.append(_NATIVE[node.name])
        if node.name in SUBQUERIES:
            piece.native.append(_PRUNING if node.prunes else _SUBQUERY)
        for below in node.below():
            self._collect(below, piece, seen)

    def _cut(self, node: Node, piece: PlanPiece) -> Cut | None:
        if node.id not in self._by_id:
            exchange = self._classify(node)
            if isinstance(exchange, str):
                self._by_id[node.id] = None
                piece.native.append(exchange)
                piece.native_shuffles += 1
            else:
                below = self.piece(node.children[0])
                cut = Cut(self._first + len(self.cuts), node, exchange, below)
                self.cuts.append(cut)
                self._by_id[node.id] = cut
        return self._by_id[node.id]


def read_alike(piece: PlanPiece, union_is_zipped: Callable[[Node], bool]) -> list[list[int]]:
    """Return lists of node ids; the sites of one list must be read in the same groups.

    A site in no list is read partition by partition: for example if the user fixed the number, or
    if another input of the same operator is not a stored stage and has as many partitions. Spark's
    adaptive coalescing follows the same rule.
    """
    return list(_alike(piece.root, piece, union_is_zipped, set()))


def operators(piece: PlanPiece) -> Iterator[Node]:
    """Yield the operators of a piece, each once; not those below the cuts that it reads."""
    seen: set[int] = set()
    stack = [piece.root]
    while stack:
        node = stack.pop()
        if node.id not in seen and node.id not in piece.sites:
            seen.add(node.id)
            yield node
            stack += node.below()


def only_stored(piece: PlanPiece) -> bool:
    """Return True if all rows of a piece come from cuts and broadcasts."""
    leaves = list(row_leaves(piece.root, piece))
    return all(leaf.id in piece.sites or leaf.name == BROADCAST for leaf in leaves)


def ready_broadcasts(piece: PlanPiece) -> list[Node]:
    """Return the broadcasts of a piece that read no cut; of nested ones only the outermost."""
    broadcasts: list[Node] = []

    def reads_cut(node: Node) -> bool:
        return node.id in piece.sites or any(reads_cut(below) for below in node.below())

    def look(node: Node) -> None:
        if node.id in piece.sites:
            return
        if node.name == BROADCAST and not reads_cut(node):
            broadcasts.append(node)
            return
        for child in node.children:
            look(child)

    look(piece.root)
    return broadcasts


def _alike(
    node: Node, piece: PlanPiece, zipped: Callable[[Node], bool], seen: set[int]
) -> Iterator[list[int]]:
    if node.id in seen:
        return
    seen.add(node.id)
    for subquery in node.subqueries:
        yield from _alike(subquery, piece, zipped, seen)
    if node.id in piece.sites:
        yield from _groupable([node.id], piece)
        return
    if node.target is not None:
        yield from _alike(node.target, piece, zipped, seen)
        return
    apart = (
        len(node.children) < 2
        or node.name in _CHILDREN_APART
        or (node.name == "UnionExec" and not zipped(node))
    )
    if apart:
        for child in node.children:
            yield from _alike(child, piece, zipped, seen)
        return
    leaves = list(row_leaves(node, piece))
    for leaf in leaves:
        if leaf.id not in piece.sites:  # the tops of broadcasts, and sources
            yield from _alike(leaf, piece, zipped, seen)
    if all(leaf.id in piece.sites or leaf.name == BROADCAST for leaf in leaves):
        yield from _groupable([leaf.id for leaf in leaves if leaf.id in piece.sites], piece)


def row_leaves(node: Node, piece: PlanPiece) -> Iterator[Node]:
    """Yield the sites, broadcasts and sources below `node`, without subqueries."""
    is_leaf = node.id in piece.sites or node.name == BROADCAST or not node.children
    if node.name == REUSED and node.id not in piece.sites and node.target is not None:
        yield node.target
    elif is_leaf:
        yield node
    else:
        for child in node.children:
            yield from row_leaves(child, piece)


def _groupable(ids: list[int], piece: PlanPiece) -> Iterator[list[int]]:
    exchanges = [piece.sites[i].exchange for i in ids]
    numbers = {e.partitions for e in exchanges}
    if len(numbers) == 1 and numbers != {1} and not any(e.fixed for e in exchanges):
        yield list(dict.fromkeys(ids))


def classify(check_columns: Callable[[StructType], None], node: Node) -> Exchange | str:
    """Return the description of a shuffle exchange, or why Spark must run it itself.

    Args:
        check_columns: raises InvalidInputError for columns that cannot be stored.
    """
    name = simple_name(class_name(node.partitioning))
    kind = _KINDS.get(name)
    if kind is None:
        return f"{name}: this partitioning is not known"
    if node.subqueries:  # whose value only Spark's own operator has when its tasks start
        return f"{name}: a subquery is part of the partitioning"
    partitions = int(node.partitioning.numPartitions())
    try:
        check_columns(schema_of(node.plan))
        check_partition_count(partitions)
    except InvalidInputError as error:
        return f"{name}: {error}"
    origin = str(node.plan.shuffleOrigin())
    return Exchange(kind, partitions, "REPARTITION_BY_NUM" in origin, "REBALANCE" in origin)


def storable(node: Node, check_columns: Callable[[StructType], None]) -> bool:
    """Return True if all column types of an operator's rows can be stored."""
    try:
        check_columns(schema_of(node.plan))
    except InvalidInputError:
        return False
    return True


def schema_of(plan: Any) -> StructType:
    """Return the schema of a physical plan's rows; names may repeat.

    Raises:
        InvalidInputError: a type has no JSON form, as an indeterminate collation's.
    """
    try:
        return StructType.fromJson(json.loads(str(plan.schema().json())))
    except JVM_ERRORS as error:
        raise InvalidInputError(
            f"Spark has no stored form for a type of {plan.schema().catalogString()}"
        ) from error


def union_is_zipped(node: Node) -> bool:
    """Return True for a union that joins its children's partitions one to one."""
    if node.name != "UnionExec":
        return False
    return simple_name(class_name(node.partitioning)) != "UnknownPartitioning"


def result_top(last: PlanPiece) -> Node | None:
    """Return the operator of a query's last piece whose rows should be stored, or None.

    They are stored if the piece joins and then aggregates. There a killed driver would lose the
    most work, and storing costs little, because an aggregation leaves few rows. A piece that only
    sorts, filters or aggregates one exchange costs little more than reading that exchange. A join
    without an aggregation may yield more rows than it reads.
    """
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


def exchange_title(cut: Cut) -> str:
    """Return kind, partitions and columns of a cut, for people."""
    names = [field.name for field in schema_of(cut.node.plan)]
    return stage_title(cut.exchange.kind, cut.exchange.partitions, names)


def sites_of(cut: Cut, native: Container[int]) -> dict[bool, list[int]]:
    """Return the sites of a cut's piece that read what Spark runs itself (True), and others."""
    sites: dict[bool, list[int]] = {False: [], True: []}
    for site, one in cut.piece.sites.items():
        sites[one.number in native].append(site)
    return sites


def scans_of(cut: Cut) -> list[Node]:
    """Return the scans of a map side."""
    return [n for n in operators(cut.piece) if not n.children and n.target is None]
