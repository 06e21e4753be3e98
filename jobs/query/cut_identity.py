"""Which stage each cut of a query is. Of equal cuts one is walked, and each only once."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from durable_shuffle.jobs.engine import catalyst
from durable_shuffle.jobs.engine.classic import ClassicEngine
from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.jvm.calls import Jvm
from durable_shuffle.jobs.identity.jvm.deep import deep_plans
from durable_shuffle.jobs.identity.plan.identity import PlanIdentity, walked, with_cached
from durable_shuffle.jobs.identity.plan.leaves import QueryRows
from durable_shuffle.jobs.identity.plan.mixing import why_not_mixed
from durable_shuffle.jobs.identity.plan.settings import Settings
from durable_shuffle.jobs.in_one_call import in_one_call, standing_for
from durable_shuffle.jobs.query.cuts import Cut, operators
from durable_shuffle.jobs.query.piece_walk import PieceWalk, Scans
from durable_shuffle.jobs.query.tree import Node
from durable_shuffle.jobs.stages.identity import StageIdentity
from durable_shuffle.jobs.stages.runner import StageRunner


class CutIdentities:
    """The identities of one query's cuts, by number.

    Args:
        name: of the query's stages.
        settings: of the user's session.
        planned: the query on the planning session.
        analyzed: the analyzed plan of that.
        version: of the inputs, as the user gave it.
    """

    def __init__(
        self,
        name: str,
        jvm: Jvm,
        engine: ClassicEngine,
        stages: StageRunner,
        settings: Settings,
        planned: DataFrame,
        analyzed: Any,
        version: str | None,
    ) -> None:
        self._name = name
        self._jvm, self._engine, self._stages = jvm, engine, stages
        self._planned, self._analyzed, self._version = planned, analyzed, version
        self._settings = settings
        self._known: dict[int, StageIdentity] = {}
        self._whole_digest: str | None = None

    def of(self, cut: Cut) -> StageIdentity:
        """Return the identity of a cut that was added."""
        return self._known[cut.number]

    def fingerprint(self, cut: Cut) -> str:
        """Return name and fingerprint of the stage of a cut."""
        return f"{self._name}-{self.of(cut).fingerprint}"

    def next_number(self) -> int:
        """Return a number above that of every cut."""
        return 1 + max(self._known, default=-1)

    @deep_plans()
    def add(self, cuts: Sequence[Cut], before: Sequence[Cut], root: Node) -> None:
        """Identify the cuts of a plan, those below others first.

        Args:
            before: the cuts of the plan before this one.
            root: the plan.
        """
        unknown = [cut for cut in cuts if cut.number not in self._known]
        equals = _equals(self._jvm, unknown, before)
        pieces = [c.piece for c, equal in zip(unknown, equals, strict=True) if equal is None]
        scans = Scans(self._jvm, (node for piece in pieces for node in operators(piece)))
        for cut, equal in zip(unknown, equals, strict=True):
            known = None if equal is None else self._known[equal.number]
            self._known[cut.number] = known or self._identify(cut, root, scans)

    def is_stable(self, cut: Cut, stored: Collection[int], native: Collection[int]) -> bool:
        """Return whether the rows below a cut are the same in each run if Spark runs the exchange.

        Args:
            stored: sites of the cut's piece that read stored stages.
            native: sites that read what Spark runs itself.
        """
        identity = self._known[cut.number]
        if identity.unresolved or identity.vouched:
            return False
        return not self.why_not_mixed(cut, stored, native, below=True)

    def why_not_mixed(
        self,
        cut: Cut,
        stored: Collection[int],
        native: Collection[int],
        *,
        below: bool = False,
        vouched: bool = False,
    ) -> tuple[str, ...]:
        """Return why producers of two runs must not be mixed; see `why_not_mixed` of mixing.py."""
        stages = self._engine.known.stages
        return why_not_mixed(
            *(self._jvm, cut.piece.root.plan),
            stored=stored,
            native=native,
            stages=stages,
            below=below,
            vouched=vouched,
        )

    def _identify(self, cut: Cut, root: Node, scans: Scans) -> StageIdentity:
        stage_at = {site: self.fingerprint(below) for site, below in cut.piece.sites.items()}
        walk = PieceWalk(self._jvm, root, self._engine.known, stage_at, scans)
        walk.operator(cut.piece.root)
        walk.visit(cut.node.partitioning)
        settings = self._settings.of(functions=bool(walk.functions.digests))
        components = {**walk.leaves.components(), "settings": settings}
        if walk.leaves.hidden:
            components["query"] = self._whole()
        identity = walked(walk, walk.functions, components)
        identity = with_cached(self._jvm, walk.leaves.cached, self._settings, identity)
        identity = replace(
            identity, reads=tuple(walk.leaves.stages_below), inputs=tuple(walk.leaves.inputs)
        )
        return self._stages.fingerprinted(identity, self._version)

    def _whole(self) -> str:
        """Return a digest of the whole query as the user wrote it.

        It is needed if a source hides which filters and columns were pushed into it.
        """
        if self._whole_digest is None:
            self._whole_digest = _digest_of(self._engine.identify(self._planned))
        return self._whole_digest

    def rows(self, cuts: Iterable[Cut]) -> Callable[[], QueryRows | None]:
        """Return what identifies the query's rows, made of the stages of these cuts.

        It may be kept for long: it holds the analyzed plan alone, since a physical plan holds the
        rows of its broadcasts.
        """
        session, reads = self._planned.sparkSession, frozenset(map(self.fingerprint, cuts))
        return partial(_rows, self._engine, session, self._analyzed, reads, self._version)


def _rows(
    engine: ClassicEngine,
    session: SparkSession,
    plan: Any,
    reads: Collection[str],
    version: str | None,
) -> QueryRows | None:
    """Return the identity of the rows of a query that was planned by a session.

    None if the plan cannot be recognised in another run, or has Python functions: what these open
    is told of under the identity of the stage that they run for.
    """
    whole = engine.identify(catalyst.of_rows(session, plan))
    if whole.unresolved or whole.code or version is not None:
        return None
    return QueryRows(_digest_of(whole), tuple(sorted({*whole.reads, *reads})), whole.inputs)


def _digest_of(whole: PlanIdentity) -> str:
    return hex_digest(part for pair in sorted(whole.components.items()) for part in pair)


def _equals(jvm: Jvm, cuts: Sequence[Cut], before: Sequence[Cut]) -> list[Cut | None]:
    """Return for each cut an equal one of the plan before this one."""
    pairs = [
        (cut, old)
        for cut in cuts
        for old in before
        if (old.node.name, old.exchange) == (cut.node.name, cut.exchange)
    ]

    def asked(root: Any) -> tuple[Any, ...]:
        plans = ((standing_for(root, one.node.plan) for one in pair) for pair in pairs)
        return tuple(new.equals(old) for new, old in plans)

    same = in_one_call(jvm.root, asked) if pairs else ()
    equal = [pair for pair, is_same in zip(pairs, same, strict=True) if is_same]
    return [next((old for new, old in equal if new is cut), None) for cut in cuts]
