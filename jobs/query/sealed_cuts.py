"""Which cuts of a query are stored: asks the storage once per stage, for all at once."""

from collections.abc import Iterable, Mapping

from durable_shuffle.jobs.query.at_risk import AtRisk
from durable_shuffle.jobs.query.cuts import Cut, PlanPiece
from durable_shuffle.jobs.query.native_stage import NativeStage
from durable_shuffle.jobs.query.planned_query import PlannedQuery
from durable_shuffle.jobs.stages.built_on import reads_missing
from durable_shuffle.jobs.stages.runner import StageRunner
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle, StageState

Known = tuple[StageHandle, StageState]
"""A stage that was looked up just now, and its state."""


def whole_seal(state: StageState) -> Seal | None:
    """Return the seal of a stage; None if none of it can be used, or not all of it."""
    return None if state.damaged or state.unrecognised else state.seal


class SealedCuts:
    """Which cuts of a query are sealed; asks the storage once per stage.

    Args:
        runs: whether the query will run, so that damaged stages may be mended.
        known: fingerprint -> what is known of a stored stage.
    """

    def __init__(
        self,
        query: PlannedQuery,
        stages: StageRunner,
        at_risk: AtRisk,
        *,
        runs: bool,
        known: Mapping[str, Known],
    ) -> None:
        self._query, self._store, self._at_risk = query, stages.store, at_risk
        self._runs = runs
        self._least = stages.settings.result_least_bytes
        self._known = dict(known)
        self._seals: dict[str, Seal | None] = {}
        self._stages: dict[str, StageHandle] = {}

    def seal(self, cut: Cut) -> Seal | None:
        """Return the seal of a cut's stage if nothing of it has to run."""
        self._look_up([cut])
        return self._seals[self._query.fingerprint(cut)]

    def _look_up(self, cuts: Iterable[Cut]) -> None:
        """Find out the seals of cuts, all at once."""
        query = self._query
        asked = {query.fingerprint(cut): query.identity(cut) for cut in cuts}
        asked = {key: one for key, one in asked.items() if key not in self._seals}
        if self._store.policy != "never":
            new = [one for one in asked.values() if one.fingerprint not in self._known]
            self._known |= self._store.stored_with_state(query.name, new, runs=self._runs)
        for key, identity in asked.items():
            self._seals[key] = self._seal_of(key, self._known.get(identity.fingerprint))

    def _seal_of(self, key: str, known: Known | None) -> Seal | None:
        if known is None or self._store.superseded(known[0]):
            return None
        stage, state = known
        self._stages[key] = stage
        return None if self._store.healing.hopeless(stage) else whole_seal(state)

    def needed(self) -> dict[int, bool]:
        """Return cut number -> whether its stage is sealed, for all cuts that are needed.

        A stage that was built on one that has to be computed again is not used, either.
        """
        while True:
            needed = self._needed()
            missing = {self._query.fingerprint(cut) for cut in needed if self.seal(cut) is None}
            sealed = {self._query.fingerprint(cut) for cut in needed} - missing
            stale = [one for one in sealed if reads_missing(self._stages[one], missing)]
            if not stale:
                return {cut.number: self.seal(cut) is not None for cut in needed}
            self._seals |= dict.fromkeys(stale)

    def _needed(self) -> list[Cut]:
        """Return the cuts that are needed.

        In a plan that was made again, one that started earlier may read one that the plan has no
        more: it is in a subquery.
        """
        needed: dict[int, Cut] = {}

        def look(piece: PlanPiece) -> None:
            self._look_up(piece.cuts)
            for cut in piece.cuts:
                if cut.number not in needed:
                    needed[cut.number] = cut
                    if self.seal(cut) is None:
                        look(cut.piece)

        result = self._query.result_cut
        if result is not None:
            needed[result.number] = result
        if result is None or self.seal(result) is None:
            look(self._query.last)
        return list(needed.values())

    def ready(self) -> list[Cut]:
        """Return the missing exchanges that read sealed stages only."""
        needed = self.needed()
        return [
            cut
            for cut in self._query.cuts
            if needed.get(cut.number) is False
            and cut is not self._query.result_cut
            and all(needed.get(below.number) for below in cut.piece.cuts)
        ]

    def taken_into_account(self) -> bool:
        """Let the sealed stages stand for what they store; return whether the plan changed."""
        query = self._query
        for cut in list(query.cuts):
            seal = self.seal(cut) if self.needed().get(cut.number) else None
            if seal is not None:
                query.starts(cut)
                query.sized(cut, seal)
        return query.replan()

    def result_stays_native(self) -> bool:
        """Return True if it is already certain that the query's rows will not be stored."""
        assert self._query.result_cut is not None
        seals = [self.seal(cut) for cut in self._query.result_cut.piece.cuts]
        known = [seal for seal in seals if seal is not None]
        return len(known) == len(seals) and not self.stores_result(known)

    def stores_result(self, below: Iterable[Seal | NativeStage]) -> bool:
        """Return whether to store the query's rows, given the stages that the last piece reads."""
        size = sum(sizes.data_bytes for sizes in below)
        if self._at_risk.budget:
            pays = not self._at_risk.allows(self._at_risk.expected(size))
        else:
            pays = size >= self._least
        return pays and self._store.policy != "require"
