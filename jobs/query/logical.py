"""The optimized logical plan of a query, planned again as the sizes of its stages become known.

As in Spark's adaptive execution: a stage that has started takes the place of the logical operator
whose rows it holds, with its true size once it is sealed. Then Spark's planner plans the query
again. So it may broadcast a join side that turned out small, and a stage is never computed under
two plans. A started stage stays as it is: nothing below it is planned again.

Source: `AdaptiveSparkPlanExec.replaceWithQueryStagesInLogicalPlan` of Apache Spark.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

from pyspark.sql import DataFrame, SparkSession

from durable_shuffle.jobs.engine import rdd_frames
from durable_shuffle.jobs.identity.jvm.calls import Jvm, conf_values, items, module, to_seq
from durable_shuffle.jobs.identity.jvm.document import OPERATORS, TREE_ALONE
from durable_shuffle.jobs.in_one_call import Held, in_one_call, standing_for, text_of
from durable_shuffle.jobs.query.cuts import Cut, scans_of
from durable_shuffle.jobs.query.tree import WRAPPERS, Node, path_to, stored_scan

Placing = Literal["placed", "elsewhere", "unknown"]
_ADAPTIVE = "spark.sql.adaptive.enabled"
_ADAPTIVE_THRESHOLD = "spark.sql.adaptive.autoBroadcastJoinThreshold"
_EXCLUDED = "spark.sql.adaptive.optimizer.excludedRules"
_OPTIMIZER = "org.apache.spark.sql.catalyst.optimizer."


@dataclass(frozen=True, slots=True)
class _Operator:
    """An operator of the logical plan, and those below it."""

    object: Any
    number: int
    """Its identity hash."""
    children: "list[_Operator]"


class LogicalPlan:
    """The plan of one query. Its session must be the active session of the calling thread."""

    def __init__(
        self, jvm: Jvm, session: SparkSession, df: DataFrame, plan: Any | None = None
    ) -> None:
        """Take the optimized plan, None for the frame's own, which is not fetched."""
        self._jvm, self._session, self._plan = jvm, session, plan
        self._frame = cast("Any", df)._jdf  # noqa: SLF001
        self._copies: dict[int, list[tuple[Any, Any]]] = {}
        """Identity hash -> (an operator, the copy with other children, or leaf, in its place)."""
        self._leaves: dict[int, Any] = {}
        """Cut number -> the leaf that stands for it."""
        self._sizes: dict[int, tuple[int, int]] = {}
        """Cut number -> the bytes and rows with which it was placed."""
        self._whole: set[int] = set()
        """Numbers of the cuts that hold all rows of the operator that they replaced."""
        self.cut_of_rdd: dict[int, Cut] = {}

    @cached_property
    def _root(self) -> _Operator:
        """Most queries are planned once, and never need it."""
        if self._plan is None:
            return self._read(self._jvm.seen_of(_optimized, self._frame, asked=TREE_ALONE))
        return self._read(self._plan)

    def physical(self) -> Any:
        """Return the physical plan, ready to run."""

        def planned(jvm: Any, frame: Any, *changed: Any) -> Any:
            execution = frame.queryExecution()
            root = changed[0] if changed else execution.optimizedPlan()
            logical = getattr(jvm, "org.apache.spark.sql.catalyst.plans.logical")
            physical = execution.planner().plan(logical.ReturnAnswer(root)).next()
            executions = module(jvm, "org.apache.spark.sql.execution.QueryExecution")
            return executions.prepareForExecution(execution.preparations(), physical)

        given = [] if self._plan is None else [self._plan]
        return self._jvm.seen_of(planned, self._frame, *given, asked=OPERATORS)

    def place(self, cut: Cut, root: Node, size: tuple[int, int] | None) -> Placing:
        """Let a cut stand for what it computes.

        Args:
            root: the newest physical plan.
            size: bytes and rows of the cut, as for `sized`; None for Spark's estimate.

        Returns:
            "elsewhere" if the exchange is in a subquery, which Spark plans apart; "unknown" if
            Spark does not say which operator the exchange belongs to. The plan is unchanged then.
        """
        path = path_to(root, cut.node)
        if path is None:
            return "elsewhere"
        link = _link_below(cut.node)
        if link is None:
            return "unknown"
        number = self._hash(link)
        top = next((i for i, node in enumerate(path) if self._links_to(node, number, link)), -1)
        chain = path[top:]
        if any(len(node.children) != 1 for node in chain[:-1]):
            return "unknown"
        replaced = self._newest(link)
        above, partitioning = chain[0].plan, cut.node.partitioning
        whole = len(chain) == 1

        def made(jvm: Any, context: Any, session: Any) -> tuple[Any, ...]:
            old, rdd = standing_for(jvm, replaced), context.emptyRDD().rdd()
            output = standing_for(jvm, above).output()
            stats = _measured(jvm, *size) if size and size[1] else old.stats()
            leaf = rdd_frames.logical_rdd(jvm, session, output, rdd, partitioning, stats)
            if not whole:
                scan = stored_scan(jvm, cut.node, rdd, partitioning)
                leaf = _query_stage(jvm, leaf, _above(jvm, chain[:-1], scan))
            same = standing_for(jvm, above).outputSet().equals(old.outputSet())
            return leaf, rdd.id(), _hash_of(jvm, leaf), same

        leaf, its_number, has_columns = self._stand_in(cut, made)
        if not has_columns or not self._replace(replaced, leaf, its_number):
            return "unknown"
        self._leaves[cut.number] = leaf
        if size and size[1]:
            self._sizes[cut.number] = size
        if whole:
            self._whole.add(cut.number)
        return "placed"

    def sized(self, cut: Cut, *, data_bytes: int, rows: int) -> None:
        """Give a placed cut its true size. Without rows, drop what needs rows of it."""
        leaf = self._leaves.get(cut.number)
        if leaf is None or self._sizes.get(cut.number) == (data_bytes, rows):
            return
        if not rows and cut.number in self._whole and self._drops_empty():

            def emptied(jvm: Any, leaf: Any) -> tuple[Any, Any]:
                empty = module(jvm, "org.apache.spark.sql.catalyst.plans.logical.LocalRelation")
                relation = empty.apply(leaf.output())
                return relation, _hash_of(jvm, relation)

            if self._replace(leaf, *in_one_call(self._jvm.root, emptied, leaf)):
                self._becomes(
                    self._read(
                        self._jvm.seen_of(_without_empty, self._root.object, asked=TREE_ALONE)
                    )
                )
                del self._leaves[cut.number]
            return

        def made(jvm: Any, context: Any, session: Any) -> tuple[Any, ...]:
            old, rdd = standing_for(jvm, leaf), context.emptyRDD().rdd()
            stage = old if cut.number in self._whole else old.logicalPlan()
            size = _measured(jvm, data_bytes, rows)
            given = stage.output(), rdd, stage.outputPartitioning(), size
            sized = rdd_frames.logical_rdd(jvm, session, *given)
            if cut.number not in self._whole:
                sized = _query_stage(jvm, sized, old.physicalPlan())
            return sized, rdd.id(), _hash_of(jvm, sized), None

        sized, its_number, _ = self._stand_in(cut, made)
        if self._replace(leaf, sized, its_number):
            self._leaves[cut.number] = sized

    def _drops_empty(self) -> bool:
        java_session = cast("Any", self._session)._jsparkSession  # noqa: SLF001
        excluded = conf_values(self._jvm.root, java_session, [], [_EXCLUDED])[_EXCLUDED]
        return "AQEPropagateEmptyRelation" not in (excluded or "")

    def _stand_in(self, cut: Cut, made: Callable[..., tuple[Any, ...]]) -> tuple[Any, int, Any]:
        """Return a new leaf, its hash, and what else `made` says.

        It is over a new RDD, by which the cut is recognised in the next physical plan. Two leaves
        over the same RDD would be equal for Spark, whatever their sizes.

        Args:
            made: returns the leaf, the RDD's id, the leaf's hash, and more.
        """
        session = cast("Any", self._session)
        java = session.sparkContext._jsc, session._jsparkSession  # noqa: SLF001
        leaf, number, its_hash, more = in_one_call(self._jvm.root, made, *java, fetch=False)
        self.cut_of_rdd[number] = cut
        return leaf, its_hash, more

    def _links_to(self, node: Node, number: int, link: Any) -> bool:
        own = _link(node)
        return own is not None and self._hash(own) == number and self._is_same(own, link)

    def _newest(self, operator: Any) -> Any:
        """Return the copy that stands for an operator of an earlier plan."""
        while True:
            copies = self._copies.get(self._hash(operator), [])
            copy = next((new for old, new in copies if self._is_same(old, operator)), None)
            if copy is None:
                return operator
            operator = copy

    def _replace(self, old: Any, new: Any, its_number: int) -> bool:
        """Replace an operator by a leaf wherever it occurs; return whether it did.

        Args:
            its_number: the leaf's hash.
        """
        number = self._hash(old)
        found = {id(one): one for one in _every(self._root) if one.number == number}
        leaf, above = _Operator(new, its_number, []), list[_Operator]()

        def copied(jvm: Any) -> tuple[Any, ...]:
            copies = list[Any]()

            def over(operator: _Operator) -> Any | None:
                if id(operator) in found:
                    return standing_for(jvm, new)
                below = [over(child) for child in operator.children]
                if all(one is None for one in below):
                    return None
                pairs = zip(operator.children, below, strict=True)
                whole = [standing_for(jvm, c.object) if one is None else one for c, one in pairs]
                above.append(operator)
                copy = standing_for(jvm, operator.object).withNewChildren(to_seq(jvm, whole))
                copies.append(copy)
                return copy

            above.clear()
            over(self._root)
            wanted = standing_for(jvm, old)
            same = (wanted.fastEquals(standing_for(jvm, one.object)) for one in found.values())
            return *same, *copies, *(_hash_of(jvm, copy) for copy in copies)

        made: Sequence[Any] = ()
        is_same: Sequence[bool] = [False]
        while found and not all(is_same):  # equal hashes are rarely those of different operators
            answers = in_one_call(self._jvm.root, copied, fetch=False)
            is_same, made = answers[: len(found)], answers[len(found) :]
            found = {key: found[key] for key, is_it in zip(found, is_same, strict=True) if is_it}
        if not found:
            return False
        copies = dict(zip(map(id, above), made, strict=False))
        numbers = dict(zip(map(id, above), made[len(above) :], strict=True))

        def changed(operator: _Operator) -> _Operator:
            if id(operator) in found:
                return leaf
            if id(operator) not in copies:
                return operator
            copy, its_number = copies[id(operator)], numbers[id(operator)]
            assert its_number != operator.number, "Spark took the new child for the old"
            self._copies.setdefault(operator.number, []).append((operator.object, copy))
            return _Operator(copy, its_number, [changed(child) for child in operator.children])

        self._becomes(changed(self._root))
        self._copies.setdefault(number, []).append((old, new))
        return True

    def _becomes(self, root: _Operator) -> None:
        self._root, self._plan = root, root.object

    def _read(self, plan: Any) -> _Operator:
        def read(one: Any) -> _Operator:
            return _Operator(one, self._hash(one), [read(child) for child in items(one.children())])

        return read(self._jvm.seen(plan, TREE_ALONE))

    def _is_same(self, one: Any, other: Any) -> bool:
        same = in_one_call(self._jvm.root, lambda _, a, b: a.fastEquals(b), one, other)
        return bool(same)

    def _hash(self, operator: Any) -> int:
        """Return a number that is the same for the same object; rarely also for another one."""
        if not isinstance(operator, Held):
            return int(self._jvm.identity_hash(operator))
        return int(in_one_call(self._jvm.root, _hash_of, operator))


def _measured(jvm: Any, data_bytes: int, rows: int) -> Any:
    return rdd_frames.statistics(jvm, data_bytes=data_bytes, rows=rows, measured=True)


def _every(operator: _Operator) -> Iterator[_Operator]:
    yield operator
    for child in operator.children:
        yield from _every(child)


def _optimized(_: Any, frame: Any) -> Any:
    return frame.queryExecution().optimizedPlan()


def _hash_of(jvm: Any, operator: Any) -> Any:
    return getattr(jvm, "java.lang.System").identityHashCode(operator)


def _without_empty(jvm: Any, plan: Any) -> Any:
    """Return a logical plan without what needs rows of an empty relation."""
    propagate = module(jvm, _OPTIMIZER + "PropagateEmptyRelation")
    nullable = module(jvm, "org.apache.spark.sql.catalyst.analysis.UpdateAttributeNullability")
    return nullable.apply(propagate.apply(plan))


def _query_stage(jvm: Any, logical: Any, physical: Any) -> Any:
    adaptive = getattr(jvm, "org.apache.spark.sql.execution.adaptive")
    return adaptive.LogicalQueryStage(logical, physical)


def _above(jvm: Any, chain: list[Node], scan: Any) -> Any:
    """Return the operators of a chain over `scan`, without wrappers of code generation."""
    plan = scan
    for node in reversed(chain):
        if node.name not in WRAPPERS:
            plan = standing_for(jvm, node.plan).withNewChildren(to_seq(jvm, [plan]))
    return plan


def estimated_bytes(jvm: Jvm, nodes: Sequence[Node]) -> list[int]:
    """Return Spark's estimates of the bytes of operators' rows; 0 where it has none.

    An operator that Spark's planner added counts as what is below it.
    """
    links = [_link_below(node) for node in nodes]
    known = [link for link in links if link is not None]

    def asked(_: Any, *links: Any) -> tuple[Any, ...]:
        return tuple(text_of(link.stats().sizeInBytes()) for link in links)

    found = iter(in_one_call(jvm.root, asked, *known) if known else ())
    return [0 if link is None else int(next(found)) for link in links]


def input_bytes(jvm: Jvm, cut: Cut, known: Mapping[int, int]) -> list[int]:
    """Return the bytes of each table and stage that the map side of a cut reads.

    Args:
        known: cut number -> bytes of its stage; for the others Spark's estimates count.
    """
    scans, below = scans_of(cut), cut.piece.cuts
    nodes = [one.node for one in below if one.number not in known]
    found = iter(estimated_bytes(jvm, [*scans, *nodes]))
    return [next(found) for _ in scans] + [
        known[one.number] if one.number in known else next(found) for one in below
    ]


def _link(node: Node) -> Any | None:
    """Return the logical operator that an operator was planned for."""
    link = node.plan.logicalLink()
    return link.get() if link.isDefined() else None


def _link_below(top: Node) -> Any | None:
    """Return the logical operator whose rows, or whose partial rows, an operator passes on."""
    for node in _downwards(top):
        link = _link(node)
        if link is not None:
            return link
    return None


def _downwards(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _downwards(child)


def adaptive_settings(users: Any, planning: Any) -> tuple[Any, Any, Any]:
    """Ask for what `adapts` takes; for a function of `in_one_call`.

    Args:
        users: the user's session.
        planning: the one that plans the query.
    """
    threshold = planning.sessionState().conf().autoBroadcastJoinThreshold()
    return users.conf().get(_ADAPTIVE), planning.conf().get(_ADAPTIVE_THRESHOLD, None), threshold


def adapts(jvm: Jvm, adaptive: str, measured: str | None, threshold: int) -> tuple[bool, int]:
    """Return whether the user's session plans again by sizes, and the most bytes that the planning
    session broadcasts if it knows them.

    Args:
        adaptive, measured, threshold: from `adaptive_settings`.
    """
    if measured is not None:
        utilities = getattr(jvm.root, "org.apache.spark.network.util.JavaUtils")
        threshold = utilities.byteStringAsBytes(measured)
    return adaptive == "true", int(threshold)


def split_bytes(session: SparkSession) -> int:
    """Return the most bytes of files that one task reads."""
    conf = cast("Any", session)._jsparkSession.sessionState().conf()  # noqa: SLF001
    return int(conf.filesMaxPartitionBytes())
