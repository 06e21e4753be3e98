"""One wrapped stage, from the user's DataFrame to the stored one.

The order of steps is the same on every kind of session: check the request, fingerprint the plan,
have the stage stored (stage_store.py), hand the read side back.
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame

import durable_shuffle
from durable_shuffle.jobs.engine import Engine, ReadBack
from durable_shuffle.jobs.report import StageReport
from durable_shuffle.jobs.stage_identity import identify_stage
from durable_shuffle.jobs.stage_request import StageRequest, check_request
from durable_shuffle.jobs.stage_store import StageStore, StoredStage, WantedStage
from durable_shuffle.jobs.tasks import read_function
from durable_shuffle.recovery.resume import Fresh
from durable_shuffle.shuffle.clock import IdSource
from durable_shuffle.shuffle.settings import Settings


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a stage would do."""

    name: str
    fingerprint: str
    hit: bool
    """True if nothing or only the missing producers would run."""
    why: str

    def __str__(self) -> str:
        return f"{self.name}-{self.fingerprint}: {'hit' if self.hit else 'miss'}, {self.why}"


class StageRunner:
    """Runs wrapped stages of one claimed job. Not thread-safe."""

    def __init__(
        self,
        *,
        engine: Engine,
        store: StageStore,
        version: str | None,
        settings: Settings,
        ids: IdSource,
    ) -> None:
        self._engine, self._store = engine, store
        self._version, self._settings, self._ids = version, settings, ids

    def explain(self, request: StageRequest) -> Explanation:
        """Say what `run` would do."""
        wanted = self._wanted(request)
        decision = self._store.look(wanted)
        hit = not isinstance(decision, Fresh)
        return Explanation(wanted.name, wanted.identity.fingerprint, hit, decision.why)

    def run(self, request: StageRequest) -> tuple[DataFrame, StageReport]:
        """Make sure the stage is stored and sealed, and return it read back."""
        stored = self._store.ensure(self._wanted(request))
        return self._read(request.df, stored), stored.report

    def _wanted(self, request: StageRequest) -> WantedStage:
        engine = self._engine
        checked = check_request(request, engine)
        return WantedStage(
            name=checked.name,
            identity=identify_stage(checked, engine, self._version, self._ids),
            partitioner=checked.partitioner,
            partitions=checked.n,
            keys=checked.key_positions,
            columns=tuple(checked.df.columns),
            schema=lambda: engine.arrow_schema(checked.df),
            planning=engine.planning_settings,
            plan=lambda conf: engine.plan(checked.df, checked.cols, checked.n, conf),
            run=engine.run,
        )

    def _read(self, df: DataFrame, stored: StoredStage) -> DataFrame:
        describe = stored.handle.describe
        function = read_function(
            stored.handle,
            stored.seal,
            settings=self._settings,
            version=durable_shuffle.__version__,
        )
        back = ReadBack(
            function=function,
            partitions=describe.partitions,
            hashed_by=describe.keys,
            rows=stored.seal.rows,
            memory_bytes=stored.seal.memory_bytes,
            fingerprint=stored.fingerprint,
        )
        return self._engine.read(df, back)
