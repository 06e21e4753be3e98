"""One wrapped stage, from the user's DataFrame to the stored one.

The steps are the same on every kind of session: check the request, fingerprint the plan, store the
stage (`store.py`), return its read side.
"""

from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from pyspark.sql import DataFrame

from durable_shuffle.jobs.engine.engine import Engine
from durable_shuffle.jobs.stages.identity import SeenInputs, StageIdentity
from durable_shuffle.jobs.stages.progress import show_progress
from durable_shuffle.jobs.stages.report import StageReport
from durable_shuffle.jobs.stages.request import StageRequest, check_request
from durable_shuffle.jobs.stages.store import StageStore
from durable_shuffle.jobs.stages.work import FrameWork, StageWork
from durable_shuffle.recovery.resume import Fresh
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.base.settings import Settings

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a stage would do."""

    name: str
    fingerprint: str
    hit: bool
    """True if a stored stage would be used; producers that it lacks would still run."""
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
        seen: SeenInputs,
    ) -> None:
        self._engine, self._store, self._seen = engine, store, seen
        self._version, self._settings, self._ids = version, settings, ids

    @property
    def engine(self) -> Engine:
        """The engine of the session's kind."""
        return self._engine

    def explain(self, request: StageRequest, version: str | None = None) -> Explanation:
        """Say what `run` would do."""
        work = FrameWork(check_request(request, self._engine), self._engine)
        identity = self._identified(work, version, remember=False)
        decision = self._store.look(work, identity)
        hit = not isinstance(decision, Fresh)
        return Explanation(work.name, identity.fingerprint, hit, decision.why)

    def run(
        self, request: StageRequest, version: str | None = None, *, progress: bool = False
    ) -> tuple[DataFrame, StageReport]:
        """Make sure the stage is stored and sealed; return its rows and the report."""
        work = FrameWork(check_request(request, self._engine), self._engine)
        return self.run_work(work, version, progress=progress)

    def run_work(
        self, work: StageWork[R], version: str | None = None, *, progress: bool = False
    ) -> tuple[R, StageReport]:
        """Make sure the work is stored and sealed; return `work.read()` and the report.

        Args:
            version: vouches for inputs that cannot be resolved; default the job's version.
            progress: show a bar, or lines, on standard error.
        """
        identity = self._identified(work, version, remember=True)
        with show_progress(wanted=progress) as view:
            view.started(0, work.name, partial(self._store.progress, work.name, identity))
            stored = self._store.ensure(work, identity)
            view.finished(0, work.name, stored.report)
        return work.read(stored.handle, stored.seal, settings=self._settings), stored.report

    def _identified(
        self, work: StageWork[R], version: str | None, *, remember: bool
    ) -> StageIdentity:
        """Return the identity of the work; refuse a `version` that vouches for two inputs."""
        identity = work.identify(self._version if version is None else version, self._ids)
        self._seen.check(work.name, identity, remember=remember)
        return identity
