"""Walks the piece of a physical plan that feeds a durable exchange, for its fingerprint.

Strategy: like the walk over analyzed plans (`CatalystWalk`), with four differences.
- Operators are visited after their children. So the leaves decide the numbers of columns, and the
  optimizer's order of predicates does not matter.
- For the same reason the operands of AND and OR, and lists of filters, are visited as sets.
- Names that contain counters of the JVM are dropped, and so are wrappers of code generation.
- A cut contributes the fingerprint of its stage and its output columns.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from durable_shuffle.jobs.identity.jvm.calls import JVM_ERRORS, Jvm, items, simple_name
from durable_shuffle.jobs.identity.jvm.document import PHYSICAL
from durable_shuffle.jobs.identity.plan.catalyst_walk import CatalystWalk
from durable_shuffle.jobs.identity.plan.files import Place, is_known_index, printed_listings, usable
from durable_shuffle.jobs.identity.plan.functions import PlanFunctions
from durable_shuffle.jobs.identity.plan.leaves import KnownRdds, PlanLeaves, SessionSettings
from durable_shuffle.jobs.identity.tables import iceberg
from durable_shuffle.jobs.query.tree import WRAPPERS, Node, read_tree

_BELOW = ("child", "left", "right", "children")
"""Names of the constructor arguments that are the operators below."""
_SETS = frozenset({"And", "Or"})
_BY_NAME = re.compile("Python|Pandas|Arrow")
_NAMED_BY_COUNTER = frozenset({"SubqueryExec", "SubqueryBroadcastExec", "CollectMetricsExec"})


class PieceWalk(CatalystWalk):
    """One walk over one piece.

    Args:
        root: of the plan that holds the piece.
        known: the RDDs of stored stages and of queries.
        stage_at: plan node id -> fingerprint of the stage that is read there.
        scans: the listed scans of the plan.
    """

    def __init__(
        self,
        jvm: Jvm,
        root: Node,
        known: KnownRdds,
        stage_at: Mapping[int, str],
        scans: "Scans",
    ) -> None:
        super().__init__(jvm)
        self._nodes = {node.id: node for node in root.every()}
        self._stage_at = stage_at
        self._plans: dict[int, int] = {}
        self.leaves = _PhysicalLeaves(self, known, scans)
        self.functions = PlanFunctions(self)

    def _named(self, obj: Any, name: str) -> None:
        """Append the tokens of an object; of AND and OR, their operands as a set."""
        simple = simple_name(name)
        if self.jvm.is_a(obj, PHYSICAL):
            self.operator(self._nodes.get(int(obj.id())) or read_tree(self.jvm, obj))
        elif simple in _SETS and name.startswith("org.apache.spark."):
            self.classes.add(simple)
            self.unordered(name, self._operands(obj, name))
        else:
            super()._named(obj, name)

    def _operands(self, obj: Any, name: str) -> list[Any]:
        """Return the operands of a chain of the same operator, such as a AND b AND c."""
        operands, waiting = list[Any](), [obj]
        while waiting:
            one = waiting.pop()
            if self.jvm.class_name(one) == name:
                waiting += reversed(items(one.children()))
            else:
                operands.append(one)
        return operands

    def operator(self, node: Node) -> None:
        """Append the tokens of an operator; at its second appearance only its number."""
        while node.name in WRAPPERS:
            (node,) = node.children
        if node.id in self._plans:
            self.tokens.append(f"operator {self._plans[node.id]}")
            return
        self._plans[node.id] = len(self._plans)
        if node.id in self._stage_at:
            self.leaves.stage(node.plan, self._stage_at[node.id])
            return
        if node.name in self.handlers:
            self.classes.add(node.name)
            self.handle(node.name, node.plan, node.full_name)
            return
        below = node.children if node.target is None else [node.target]
        for one in below:
            self.operator(one)
        met, by_name = self.functions.met, _BY_NAME.search(node.name)
        if by_name:  # its function may use column names
            self._names_below(node)
        self._product(node.plan, node.full_name, node.name, is_tree=True)
        if self.functions.met != met and not by_name:  # so may that of any other operator
            self._names_below(node)
        for one in below:
            self.operator(one)

    def _names_below(self, node: Node) -> None:
        outputs = [items(child.plan.output()) for child in node.children]
        self.tokens.append(repr([[one.name() for one in of] for of in outputs]))

    def skips(self, obj: Any, place: int, field: str) -> bool:
        """Return whether an argument is what `operator` visits: the operators below."""
        if field not in _BELOW or not self.jvm.is_a(obj, PHYSICAL):
            return False
        return field == "children" or self.jvm.is_a(obj.productElement(place), PHYSICAL)

    def _product(self, obj: Any, name: str, simple: str, *, is_tree: bool) -> None:
        if simple in _NAMED_BY_COUNTER:
            self.classes.add(simple)
            self.tokens.append(name)
            for i in range(1, obj.productArity()):
                self.visit(obj.productElement(i))
            return
        super()._product(obj, name, simple, is_tree=is_tree)


class Scans:
    """The scans of files of several pieces, listed in one call."""

    def __init__(self, jvm: Jvm, nodes: Iterable[Node]) -> None:
        self._filters: dict[int, list[Any]] = {}
        places = list[Place]()
        for node in nodes:
            if node.name != "FileSourceScanExec":
                continue
            index = node.plan.relation().location()
            if node.id not in self._filters and is_known_index(jvm, index):
                self._filters[node.id] = _usable(jvm, node.plan)
                places.append((index, self._filters[node.id]))
        texts = printed_listings(jvm, places)
        self.printed = {id(of[1]): text for of, text in zip(places, texts, strict=True)}
        """Identity of a list of filters -> the listing with them."""
        self.settings: SessionSettings = {}

    def filters(self, jvm: Jvm, scan: Any) -> list[Any]:
        """Return the filters by which a scan leaves files out."""
        found = self._filters.get(int(scan.id()))
        return _usable(jvm, scan) if found is None else found


def _usable(jvm: Jvm, scan: Any) -> list[Any]:
    return usable(jvm, scan, [*items(scan.partitionFilters()), *items(scan.dataFilters())])


class _PhysicalLeaves(PlanLeaves):
    """Handlers for the leaves of a physical plan."""

    def __init__(self, walk: PieceWalk, known: KnownRdds, scans: Scans) -> None:
        super().__init__(walk, known)
        self._scans, self.printed, self._settings = scans, scans.printed, scans.settings
        self.hidden = False
        """True if the piece scans a V2 source, which may hide the filters pushed into it."""
        walk.handlers |= {
            "FileSourceScanExec": self._file_scan,
            "BatchScanExec": self._batch_scan,
            "RowDataSourceScanExec": self._row_scan,
            "HiveTableScanExec": self._hive_scan,
            "LocalTableScanExec": self._result,
            "CommandResultExec": self._result,
            "RDDScanExec": self._rdd_scan,
            "ExternalRDDScanExec": self._rdd_scan,
            "InMemoryTableScanExec": self._cached_scan,
        }

    def stage(self, node: Any, fingerprint: str) -> None:
        """Visit a cut: the stage that is read, and its columns."""
        self._head(node, f"stage, list {len(self.stages_below)}")
        self.stages_below.append(fingerprint)

    def _file_scan(self, node: Any, name: str) -> None:
        self._head(node, name)
        self._walk.tokens.append(node.requiredSchema().json())
        self._walk.unordered("partition filters", items(self._element(node, "partitionFilters")))
        self._walk.unordered("data filters", items(self._element(node, "dataFilters")))
        for number in (node.optionalBucketSet(), node.optionalNumCoalescedBuckets()):
            self._walk.tokens.append(str(number.toString()) if number.isDefined() else "None")
        self._walk.tokens.append(str(node.disableBucketedScan()))
        self._file_relation(node.relation(), [self._scans.filters(self._jvm, node)])

    def _rdd_scan(self, node: Any, name: str) -> None:
        self._head(node, name)
        self._scanned(node, node.productElement(1))

    def _cached_scan(self, node: Any, name: str) -> None:
        relation = node.relation()
        self._head(relation, name)
        self._walk.visit(node.attributes())
        self._of_cache(relation, node)

    def _row_scan(self, node: Any, name: str) -> None:
        """Visit a V1 source and the filters and operators pushed into it."""
        self._head(node, name)
        self._walk.tokens.append(node.requiredSchema().json())
        for field in ("filters", "handledFilters", "pushedDownOperators", "tableIdentifier"):
            self._walk.visit(self._element(node, field))
        self._sources.relation(node.relation())

    def _batch_scan(self, node: Any, name: str) -> None:
        """Visit a V2 source; filters pushed into it are known only if its scan reports them."""
        self._head(node, name)
        self._walk.visit(self._element(node, "runtimeFilters"))
        table = self._element(node, "table")
        if self._jvm.class_name(node.scan()) == iceberg.SCAN:
            self._iceberg_scan(table, node)
            return
        self.hidden = True
        self._sources.scan(node.scan())
        if self._jvm.is_a(table, "org.apache.spark.sql.execution.datasources.v2.FileTable"):
            self._files(table.fileIndex())
            self._walk.give_up(f"the data source of a {simple_name(name)}")
        else:
            self._sources.table(table)

    def _iceberg_scan(self, table: Any, node: Any) -> None:
        scan = node.scan()
        self._walk.origin(scan)
        try:
            self._walk.tokens += [
                str(scan.readSchema().json()),
                iceberg.filters_of(self._jvm, scan),
            ]
            self._iceberg_scans(table, node.output(), [scan])
        except JVM_ERRORS:
            self._walk.give_up_on(f"the Iceberg table {table.name()}, in an unknown form,", table)

    def _hive_scan(self, node: Any, name: str) -> None:
        self._head(node, name)
        self._walk.visit(self._element(node, "partitionPruningPred"))
        self._sources.hive_table(node.relation().tableMeta())

    def _element(self, node: Any, field: str) -> Any:
        """Return a constructor argument by name; None if this Spark version does not have it."""
        names = self._jvm.fields(node, self._jvm.class_name(node))
        return node.productElement(names.index(field)) if field in names else None
