"""A query planned for cutting: its pieces, the identity of each cut, how to write and read it.

The query is planned again when the sizes of its stages may change the plan (`replan`). One lock
guards the plan and the rebuilding of pieces, because threads run independent map sides and their
pieces share operators.
"""

import threading
from collections.abc import Collection, Container, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession

from durable_shuffle.jobs.engine import catalyst, rdd_frames
from durable_shuffle.jobs.engine.arrow_schema import narrow_schema
from durable_shuffle.jobs.engine.classic import ClassicEngine, storing
from durable_shuffle.jobs.engine.engine import Planned
from durable_shuffle.jobs.engine.tasks import stored_rows
from durable_shuffle.jobs.engine.transfer import transfer_settings
from durable_shuffle.jobs.identity.jvm.calls import Jvm, query_execution
from durable_shuffle.jobs.identity.plan.settings import asked_settings, digest_of, plan_splits
from durable_shuffle.jobs.in_one_call import in_one_call, object_of
from durable_shuffle.jobs.query.cut_identity import CutIdentities
from durable_shuffle.jobs.query.cuts import (
    Cut,
    Exchange,
    PlanPiece,
    classify,
    cut_plan,
    only_stored,
    operators,
    result_top,
    scans_of,
    schema_of,
    sites_of,
    storable,
    union_is_zipped,
)
from durable_shuffle.jobs.query.distinct_groups import PlannedAlike, numbers_groups
from durable_shuffle.jobs.query.groups import (
    Reads,
    asked_grouping,
    divided,
    grouping_settings,
    is_divided,
    site_reads,
    target_bytes,
)
from durable_shuffle.jobs.query.logical import (
    LogicalPlan,
    adaptive_settings,
    adapts,
    estimated_bytes,
    input_bytes,
)
from durable_shuffle.jobs.query.native_stage import (
    NativeStage,
    Source,
    rdd_of,
    run_natively,
    sizes_of,
)
from durable_shuffle.jobs.query.order import (
    BY_ARRIVAL,
    Estimate,
    Limits,
    has_joins,
    is_better,
    may_shrink,
    planned_again,
    shuffled_joins,
    starts_now,
)
from durable_shuffle.jobs.query.ranges import MAX_RANGES, RangeKeys, count_of
from durable_shuffle.jobs.query.tree import (
    Node,
    Rebuilder,
    partitioning_over,
    prepare,
    read_tree,
    rows_of,
    stored_scan,
    with_ids,
)
from durable_shuffle.jobs.spark_versions import ClassicFrame
from durable_shuffle.jobs.stages.identity import StageIdentity
from durable_shuffle.jobs.stages.runner import StageRunner
from durable_shuffle.shuffle.base.clock import Clock
from durable_shuffle.shuffle.log.records import Seal

_BOUNDS = "spark.durableShuffle.range.bounds"
"""Key under which DESCRIBE keeps the bounds of a range exchange."""

_HASHES_MAPS = {"spark.sql.legacy.allowHashOnMapType": "true"}
"""Spark's planner sorts the maps of a key, and hashes them; its analyzer refuses to hash maps."""


class PlannedQuery:
    """One query, planned under one set of split settings."""

    def __init__(
        self,
        df: DataFrame,
        name: str,
        engine: ClassicEngine,
        stages: StageRunner,
        version: str | None,
        conf: Mapping[str, str],
        current: Mapping[str, str],
    ) -> None:
        """Plan under the split settings `conf`; the session has `current`."""
        self.spark: SparkSession = df.sparkSession
        self.name = name
        self.engine, self._stages = engine, stages
        self.conf, self.current = dict(conf), current
        self._lock = threading.RLock()
        self._jvm = Jvm(self.spark.sparkContext)
        settings = asked_settings(self._jvm)

        def asked(jvm: Any, users: Any, planning: Any) -> Sequence[Sequence[Any]]:
            of_users = asked_grouping(jvm, users), settings(jvm, users)
            return adaptive_settings(users, planning), *of_users

        planned, analyzed, (adaptive, groups, told) = catalyst.planned_apart(
            cast("ClassicFrame", df), conf, asked
        )
        self._grouping = grouping_settings(groups, is_far=stages.store.is_far)
        self._session = planned.sparkSession
        self._sessions: dict[tuple[tuple[str, str], ...], SparkSession] = {}
        self._planned = planned
        self._rebuilder = Rebuilder(self._session)
        self._identities = CutIdentities(
            *(name, self._jvm, engine, stages, digest_of(self._jvm, told)),
            *(planned, analyzed, version),
        )
        self.cuts: list[Cut] = []
        self._started: dict[int, Cut] = {}
        """Cut number -> a cut that started. It is neither planned nor identified again."""
        self._placed: set[int] = set()
        """Numbers of those that the logical plan reads instead of computing them."""
        self._sizes: dict[int, tuple[int, int]] = {}
        """Cut number -> (bytes, rows) of a sealed stage that the plan does not know yet."""
        self.adapted: list[str] = []
        """What was planned again, and why."""
        self._was_replanned = False
        self._bytes: dict[int, int] = {}
        """Cut number -> bytes of a sealed stage."""
        self._adapts, most_bytes = adapts(self._jvm, *adaptive)
        self._limits = Limits(most_bytes)
        with self._planning():
            self._logical, root = self._first_plan()
        self._cut(root)

    def _first_plan(self) -> tuple[LogicalPlan, Node]:
        logical = LogicalPlan(self._jvm, self._session, self._planned)
        root = read_tree(self._jvm, logical.physical())
        if numbers_groups(root):
            with catalyst.active(self._session):
                plan = PlannedAlike(self._jvm, query_execution(self._planned)).optimized()
            logical = LogicalPlan(self._jvm, self._session, self._planned, plan)
            root = read_tree(self._jvm, logical.physical())
        return logical, root

    def _planning(self) -> AbstractContextManager[None]:
        """Make the planning session active in what `in_one_call` calls."""
        return catalyst.active(self._session, calls_only=True)

    def _writing_session(self, transfer: Mapping[str, str]) -> SparkSession:
        """Return the session of map sides; most have no settings of their own, and share it."""
        key = tuple(sorted(transfer.items()))
        with self._lock:
            if key not in self._sessions:
                conf = {**transfer, **self.conf, **_HASHES_MAPS}
                self._sessions[key] = catalyst.planning_session(self.spark, conf)
            return self._sessions[key]

    def _cut(self, root: Node) -> None:
        """Cut a plan; keep the cuts that have started."""
        self._root = root
        before = self.cuts
        first = self._identities.next_number()
        self.last, cuts = cut_plan(root, partial(classify, self.engine.check_columns), first)
        self.cuts = [*self._started.values(), *cuts]
        self.result_cut, self._above = self._cut_result(first + len(cuts))
        self._zips_unions = any(map(union_is_zipped, root.every()))
        self._identities.add(self.cuts, before, root)

    def _cut_result(self, number: int) -> tuple[Cut | None, PlanPiece]:
        """Return a cut for the query's result rows, if they may be stored, and the piece above."""
        top = result_top(self.last)
        if top is None or not storable(top, self.engine.check_columns):
            return None, self.last
        piece = PlanPiece(top, self.last.sites, self.last.native, self.last.native_shuffles)
        cut = Cut(number, top, Exchange("passthrough", 0, fixed=False), piece)
        self.cuts.append(cut)
        return cut, PlanPiece(self.last.root, {top.id: cut})

    def starts(self, cut: Cut) -> None:
        """Say that a cut starts: from now on it is neither planned nor identified again."""
        with self._lock:
            if self._adapts and cut is not self.result_cut:
                self._started.setdefault(cut.number, cut)

    def _place(self) -> None:
        """Let the logical plan read the cuts that started. Most queries are never planned again,
        so this waits until one is."""
        for number, cut in list(self._started.items()):
            placed = number in self._placed
            size = self._sizes.get(number)
            placing = "placed" if placed else self._logical.place(cut, self._root, size)
            if placing == "placed":
                self._placed.add(number)
            elif placing == "elsewhere":
                del self._started[number]
                self._sizes.pop(number, None)
            else:
                self._adapts = False
                break

    def sized(self, cut: Cut, sizes: Seal | NativeStage) -> None:
        """Say that the map side of a cut has ended."""
        if cut.number in self._started and cut.number not in self._bytes:
            self._bytes[cut.number] = sizes.memory_bytes
            self._sizes[cut.number] = sizes.memory_bytes, sizes.rows

    def replan(self) -> bool:
        """Plan the query again if sizes that are known by now may change it; return whether."""
        if not self._is_due():
            return False
        with self._planning(), self._lock:
            self._place()
            if not self._is_due():
                return False
            sizes, self._sizes = self._sizes, {}
            before, joins = self._not_started(), len(self.joins())
            for number, (data_bytes, rows) in sizes.items():
                self._logical.sized(self._started[number], data_bytes=data_bytes, rows=rows)
            root = read_tree(self._jvm, self._logical.physical(), self._logical.cut_of_rdd)
            started = {cut.node.id: cut for cut in self._started.values()}
            if not is_better(root, self._root, started):
                return False
            self._was_replanned = True
            self._cut(root)
        kept = {self.fingerprint(cut) for cut in self.cuts}
        dropped = [cut for cut in before if self.fingerprint(cut) not in kept]
        if dropped or len(self.joins()) < joins:
            self.adapted.append(planned_again(sizes, dropped, joins - len(self.joins())))
        return True

    def _is_due(self) -> bool:
        return self.may_adapt() and self._limits.may_change(self._sizes.values())

    def _not_started(self) -> list[Cut]:
        exchanges = [cut for cut in self.cuts if cut is not self.result_cut]
        return [cut for cut in exchanges if cut.number not in self._started]

    def may_adapt(self) -> bool:
        """Return whether sizes of stages may change what has not started.

        After a new plan also broadcast joins may change: estimates have decided some of them.
        """
        joins = has_joins(self._waiting()) if self._was_replanned else bool(self.joins())
        return self._adapts and joins

    def joins(self) -> list[list[Cut]]:
        """Return the cuts that each shuffled join reads, in pieces that have not started."""
        return shuffled_joins(self._waiting())

    def _waiting(self) -> list[PlanPiece]:
        return [self.last, *(cut.piece for cut in self.cuts if cut.number not in self._started)]

    def starting(self, ready: Collection[Cut], running: Collection[Cut]) -> list[Cut]:
        """Return the cuts that start now; the others wait for a smaller side of their join."""
        if not self._adapts:
            return list(ready)
        unfinished = [*ready, *running]
        return starts_now(ready, unfinished, self.joins(), self._estimate, self._limits)

    def _estimate(self, cut: Cut) -> Estimate:
        inputs = input_bytes(self._jvm, cut, self._bytes)
        return Estimate(max(inputs, default=0), may_shrink(cut.piece))

    def input_bytes(self, cut: Cut) -> int:
        """Return the bytes that the map side of a cut reads, partly by Spark's estimates."""
        return sum(input_bytes(self._jvm, cut, self._bytes))

    def largest_scan(self) -> int:
        """Return the most bytes that a map side reads from one table, by Spark's estimates."""
        scans = [leaf for cut in self.cuts for leaf in scans_of(cut)]
        return max(estimated_bytes(self._jvm, scans), default=0)

    def may_be_left(self, cut: Cut, native: Container[int]) -> bool:
        """Return whether Spark may run an exchange itself.

        It may if each partition has the same rows whenever they are computed: stages that read it
        may be computed in different runs. Spark's bounds of ranges are samples, so they may differ.

        Args:
            native: numbers of the cuts that are left to Spark.
        """
        if cut.exchange.kind not in ("hash", "single"):
            return False
        sites = sites_of(cut, native)
        if sites[True] and any(n.name in BY_ARRIVAL for n in operators(cut.piece)):
            return False
        return self._identities.is_stable(cut, sites[False], sites[True])

    def run_natively(self, cut: Cut, below: Mapping[int, Source], clock: Clock) -> NativeStage:
        """Let Spark run the map side of an exchange; see `run_natively` of native_stage."""
        with catalyst.active(self._session):
            with self._lock:
                plan, _, _ = self._rebuilt(cut.piece, below, self.planning_settings())
                exchange = cut.node.plan.withNewChildren(self._jvm.to_seq([object_of(plan)]))
            return run_natively(self._jvm, exchange, clock)

    @property
    def native(self) -> tuple[str, ...]:
        """Exchanges that Spark runs itself in any piece, each reason once."""
        pieces = [self.last, *(cut.piece for cut in self.cuts)]
        return tuple(dict.fromkeys(text for piece in pieces for text in piece.native))

    def fingerprint(self, cut: Cut) -> str:
        """Name and fingerprint of the stage of a cut."""
        return self._identities.fingerprint(cut)

    def identity(self, cut: Cut) -> StageIdentity:
        """The identity of the stage of a cut."""
        return self._identities.of(cut)

    def planning_settings(self) -> dict[str, str]:
        """The settings that split files and group partitions, as they were when this began."""
        return {**self.conf, **self._grouping}

    def start_broadcasts(self, broadcasts: Sequence[Node]) -> None:
        """Start broadcasts of `ready_broadcasts`, so that they run beside map sides."""
        described = storing(self.spark, "durable_shuffle: broadcasts", calls_only=True)
        with described, self._planning(), self._lock:
            in_one_call(self._jvm.root, prepare, *(node.plan for node in broadcasts))

    def above(self, stored: Container[int]) -> PlanPiece:
        """Return the piece that yields the query's rows, given the cuts that are stored."""
        cut = self.result_cut
        return self._above if cut is not None and cut.number in stored else self.last

    def result(self, below: Mapping[int, Source]) -> DataFrame:
        """Return the query's rows over its stored stages, on the user's session."""
        with self._planning(), self._lock:
            piece = self.above(below)
            plan, orders, _ = self._rebuilt(piece, below, self._grouping)
            frame, _, rdd, *_ = rows_of(self.spark, plan, orders)
        cuts = tuple({cut.number: cut for cut in piece.sites.values()}.values())
        if not any(isinstance(below[cut.number], NativeStage) for cut in cuts):
            self.engine.known.add_query(rdd, self._identities.rows(cuts))
        return frame

    def plan(
        self,
        cut: Cut,
        below: Mapping[int, Source],
        conf: Mapping[str, str],
        *,
        large_rows: bool,
    ) -> Planned:
        """Plan the map side of a cut under current or recorded settings; see `Writing.plan`."""
        with self._planning(), self._lock:
            plan, orders, groups = self._rebuilt(cut.piece, below, conf)
            wanted = {key: value for key, value in conf.items() if key in self.conf}
            with self.engine.cutting_files_by(wanted, self.current):
                splits = plan_splits(self._jvm, plan, groups)
        schema = schema_of(cut.node.plan)
        kinds = self.engine.kinds_in_jvm(schema)
        transfer = transfer_settings(schema, large_rows=large_rows) if kinds is None else {}
        session = self._writing_session(transfer)
        is_range = cut.exchange.kind == "range"
        hashed = cut.node.partitioning if cut.exchange.kind == "hash" else None
        with catalyst.active(session, calls_only=True):
            rows, rdd, _, producers, expression = rows_of(session, plan, orders, hashed)
        shaped, recorded, partitions = rows, dict(conf), cut.exchange.partitions or None
        with catalyst.active(session) if kinds is None or is_range else nullcontext():
            if is_range:
                keys = RangeKeys(rows, cut.node.partitioning)
                if _BOUNDS not in recorded:
                    recorded[_BOUNDS] = keys.bounds(self._ranges(cut, below, conf))
                expression = keys.partition_id(recorded[_BOUNDS])
                partitions = count_of(recorded[_BOUNDS])
            if kinds is None:
                shaped = with_ids(rows, expression)
                shaped = catalyst.narrow_decimals(catalyst.with_unique_fields(shaped))
                shaped = rdd_frames.counted_to_the_end(shaped)
        left = [one for one in cut.piece.cuts if isinstance(below[one.number], NativeStage)]
        native = cut.piece.native_shuffles + len(left)
        left_to_spark = sites_of(cut, {one.number for one in left})

        def unproven(vouched: bool) -> tuple[str, ...]:  # noqa: FBT001
            with catalyst.active(self._session), self._lock:
                return self._identities.why_not_mixed(
                    cut, left_to_spark[False], left_to_spark[True], vouched=vouched
                )

        return Planned(
            *(shaped, producers, splits, native, recorded, partitions),
            place=None if kinds is None else expression,
            kinds=kinds,
            rows=None if kinds is None else rdd,
            unproven=unproven,
        )

    def _ranges(self, cut: Cut, below: Mapping[int, Source], conf: Mapping[str, str]) -> int:
        """Return the number of ranges of an exchange.

        The user's number counts. Without one, it follows from the bytes of the stages below, if
        the piece reads only these.
        """
        asked = cut.exchange.partitions
        if cut.exchange.fixed or self._zips_unions:
            return asked
        if not only_stored(cut.piece):
            return min(asked, MAX_RANGES)
        size = sum(sizes_of(below[one.number]).data_bytes for one in cut.piece.cuts)
        return max(1, min(asked, MAX_RANGES, -(-size // target_bytes(conf))))

    def _rebuilt(
        self, piece: PlanPiece, below: Mapping[int, Source], conf: Mapping[str, str]
    ) -> tuple[Any, int, list[str]]:
        """Return the plan of a piece over stored stages, how many sort orders its rows have, and
        what each site reads as texts."""
        reads = site_reads(piece, below, conf)
        texts = [f"{reads[site]}" for site in piece.sites]
        rdds: dict[tuple[int, Reads], Any] = {}

        def scan(jvm: Any, site: Node) -> Any:
            cut, tasks = piece.sites[site.id], reads[site.id]
            if (cut.number, tasks) not in rdds:
                rdds[cut.number, tasks] = self._rdd(jvm, cut, below[cut.number], tasks)
            kind = None if is_divided(tasks) else site.partitioning
            over = partitioning_over(jvm, kind, len(tasks))
            return stored_scan(jvm, site, rdds[cut.number, tasks], over)

        return *self._rebuilder.piece(piece.root, scan, piece.sites), texts

    def _rdd(self, jvm: Any, cut: Cut, source: Source, reads: Reads) -> Any:
        if isinstance(source, NativeStage):
            return rdd_of(self._jvm, source, reads)
        if is_divided(reads) and (text := divided(cut.number, reads)) not in self.adapted:
            self.adapted.append(text)
        settings = self._stages.settings
        rows = stored_rows(source.handle, source.seal, settings=settings, groups=reads)
        schema = narrow_schema(schema_of(cut.node.plan))
        return self.engine.stored_rdd(jvm, self._session, rows, schema)
