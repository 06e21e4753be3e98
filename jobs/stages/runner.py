"""One wrapped stage, from the user's call to the stored rows: identify it, store it, read it.

The steps are the same on every kind of session and for every kind of stage (`work.py`).
"""

from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from durable_shuffle.jobs.engine.engine import Engine
from durable_shuffle.jobs.identity.plan.identity import PlanIdentity
from durable_shuffle.jobs.stages.explanation import Explanation, StageExplanation
from durable_shuffle.jobs.stages.identity import SeenInputs, StageIdentity, fingerprinted
from durable_shuffle.jobs.stages.progress import show_progress
from durable_shuffle.jobs.stages.report import StageReport
from durable_shuffle.jobs.stages.store import StageStore
from durable_shuffle.jobs.stages.work import StageWork
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.base.settings import Settings

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StageRunner:
    """Runs wrapped stages of one claimed job. Not thread-safe."""

    engine: Engine
    store: StageStore
    version: str | None
    """The job's default version."""
    settings: Settings
    ids: IdSource
    seen: SeenInputs

    def explain(self, work: StageWork[R], version: str | None = None) -> Explanation:
        """Say what `run` would do."""
        identity = self._identified(work, version, remember=False)
        decision = self.store.look(work, identity)
        shape = work.shape()
        stage = StageExplanation(
            number=0,
            kind=shape.partitioner,
            partitions=shape.partitions or 0,
            columns=shape.columns,
            fingerprint=identity.fingerprint,
            reads=(),
            status=decision.status,
            action=decision.action,
            why=decision.why,
            why_python=work.why_python(),
        )
        return Explanation(work.name, (stage,))

    def run(
        self, work: StageWork[R], version: str | None = None, *, progress: bool = False
    ) -> tuple[R, StageReport]:
        """Make sure the work is stored and sealed; return `work.read()` and the report.

        Args:
            version: vouches for inputs that cannot be resolved; default the job's version.
            progress: show a bar, or lines, on standard error.
        """
        identity = self._identified(work, version, remember=True)
        with show_progress(wanted=progress) as view:
            view.started(0, work.name, partial(self.store.progress, work.name, identity))
            stored = self.store.ensure(work, identity)
            view.finished(0, work.name, stored.report)
        return work.read(stored.handle, stored.seal, settings=self.settings), stored.report

    def version_or_default(self, version: str | None) -> str | None:
        """Return the version of a call, or else the job's."""
        return self.version if version is None else version

    def fingerprinted(self, plan: PlanIdentity, version: str | None) -> StageIdentity:
        """Return the identity of a stage under the version of a call, or else the job's."""
        return fingerprinted(plan, self.version_or_default(version), self.ids)

    def _identified(
        self, work: StageWork[R], version: str | None, *, remember: bool
    ) -> StageIdentity:
        """Return the identity of the work; refuse a `version` that vouches for two inputs."""
        identity = self.fingerprinted(work.identify(), version)
        self.seen.check(work.name, identity, remember=remember)
        return identity
