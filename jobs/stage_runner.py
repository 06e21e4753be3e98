"""One wrapped stage, from what the user asks for to the stored one.

The order of steps is the same for every kind of work and session: fingerprint it, look into the job
log, decide (recovery/resume.py), describe or reuse, run what is missing, seal, hand the read side
back. Every step that changes truth wins a slot first.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession

from durable_shuffle.jobs.engine import Engine, Planned
from durable_shuffle.jobs.engines import engine_for
from durable_shuffle.jobs.report import StageReport
from durable_shuffle.jobs.stage_identity import StageIdentity
from durable_shuffle.jobs.stage_request import StageRequest, check_request
from durable_shuffle.jobs.stage_work import FrameWork, StageWork
from durable_shuffle.jobs.tasks import MapResult
from durable_shuffle.jobs.transfer import LARGE_BATCH_BYTES, LargeRowsError
from durable_shuffle.recovery.resume import (
    Decision,
    Found,
    Fresh,
    Resume,
    ReusePolicy,
    Wanted,
    decide,
    explain_miss,
)
from durable_shuffle.serialization.arrow_codec import schema_to_bytes, storable_schema
from durable_shuffle.shuffle.cleanup import delete_orphans
from durable_shuffle.shuffle.clock import Clock, IdSource
from durable_shuffle.shuffle.counting_storage import CountingStorage
from durable_shuffle.shuffle.evidence import count_reruns
from durable_shuffle.shuffle.job_log import JobLog
from durable_shuffle.shuffle.layout import StagePath
from durable_shuffle.shuffle.producer_log import Committed, counting_commit, read_log
from durable_shuffle.shuffle.records import Describe, StageUse
from durable_shuffle.shuffle.settings import Settings
from durable_shuffle.shuffle.stage import (
    StageHandle,
    describe_stage,
    open_stage,
    read_state,
    seal_stage,
)
from durable_shuffle.shuffle.storage import Storage

R = TypeVar("R")


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
    """Runs stages of one claimed job. Not thread-safe."""

    def __init__(
        self,
        *,
        spark: SparkSession,
        storage: CountingStorage,
        task_storage: Storage,
        log: JobLog,
        version: str | None,
        policy: ReusePolicy,
        settings: Settings,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._engine: Engine = engine_for(spark)
        self._storage, self._task_storage, self._log = storage, task_storage, log
        self._version, self._policy = version, policy
        self._settings, self._clock, self._ids = settings, clock, ids

    @property
    def engine(self) -> Engine:
        """The engine of the session's kind."""
        return self._engine

    def explain(self, request: StageRequest) -> Explanation:
        """Say what `run` would do."""
        work = FrameWork(check_request(request, self._engine), self._engine)
        identity = work.identify(self._version, self._ids)
        stage = self._stored(work, identity)
        decision, _ = self._decide(work, identity, stage, "auto")
        return Explanation(
            work.name, identity.fingerprint, not isinstance(decision, Fresh), decision.why
        )

    def run(self, request: StageRequest) -> tuple[DataFrame, StageReport]:
        """Make sure the stage is stored and sealed, and return it read back."""
        return self.run_work(FrameWork(check_request(request, self._engine), self._engine))

    def run_work(self, work: StageWork[R]) -> tuple[R, StageReport]:
        """Make sure the work is stored and sealed, and return what it reads back as."""
        start, requests = self._clock.monotonic(), self._storage.total
        before = self._storage.retry_counts
        identity = work.identify(self._version, self._ids)
        stage = self._stored(work, identity)
        decision, planned = self._decide(work, identity, stage, self._policy)
        if isinstance(decision, Fresh) or stage is None:
            planned = planned or work.plan(work.planning_settings())
            stage = self._describe(work, identity, planned)
        self._log.append(
            StageUse(
                self._ids.new_id(),
                self._log.generation,
                stage.path.name,
                stage.path.fingerprint,
                stage.path.incarnation,
            )
        )
        results: list[MapResult] = []
        earlier = 0  # producers that committed before the rest was planned again
        seal = read_state(stage).seal
        native = planned.native_exchanges if planned else 0
        if seal is None:
            assert planned is not None  # only a sealed stage is used without a plan
            commits = self._committed(stage, planned.producers)
            stored = len(commits)
            results = self._write(work, stage, planned, commits)
            earlier = len(commits) - stored
            for result in results:
                commits[result.committed.commit.producer] = result.committed
            self._log.check_owner()
            seal = seal_stage(
                stage,
                commits,
                producers=planned.producers,
                generation=self._log.generation,
                record_id=self._ids.new_id(),
            )
        ran = earlier + sum(r.wrote for r in results)
        retries = sum(r.tries_before for r in results)
        reruns = count_reruns(stage, seal)
        if isinstance(decision, Resume) or retries:
            delete_orphans(stage, self._ids, cause="the stage is sealed without this attempt")
        back = work.read(self._in_tasks(stage), seal, settings=self._settings)
        after = self._storage.retry_counts
        report = StageReport(
            name=stage.path.name,
            fingerprint=stage.path.fingerprint,
            incarnation=stage.path.incarnation,
            decision=type(decision).__name__.lower(),
            why=decision.why,
            producers=seal.producers,
            producers_run=ran,
            producers_reused=seal.producers - ran,
            producers_rerun=reruns.attempts,
            native_exchanges=native,
            rows=seal.rows,
            data_bytes=seal.data_bytes,
            objects=reruns.segments + seal.producers + 1,
            requests=self._storage.total - requests + sum(r.requests for r in results),
            storage_retries=after.retries
            - before.retries
            + sum(r.storage_retries for r in results),
            storage_wait_seconds=after.waited_seconds
            - before.waited_seconds
            + sum(r.storage_wait_seconds for r in results),
            retries=retries,
            seconds=self._clock.monotonic() - start,
        )
        return back, report

    def _write(
        self,
        work: StageWork[Any],
        stage: StageHandle,
        planned: Planned,
        commits: dict[int, Committed],
    ) -> list[MapResult]:
        """Run the producers that are not in `commits`; a second time, if their rows are large.

        Those that committed in the first run are added to `commits`.
        """
        try:
            return self._run_missing(work, stage, planned, commits, LARGE_BATCH_BYTES)
        except LargeRowsError:
            careful = work.plan(planned.conf, large_rows=True)
            commits.update(self._committed(stage, planned.producers))
            return self._run_missing(work, stage, careful, commits, None)

    def _run_missing(
        self,
        work: StageWork[Any],
        stage: StageHandle,
        planned: Planned,
        commits: Mapping[int, Committed],
        max_batch_bytes: int | None,
    ) -> list[MapResult]:
        missing = [p for p in range(planned.producers) if p not in commits]
        if not missing:
            return []
        function = work.writer(
            self._in_tasks(stage),
            producers=planned.producers,
            settings=self._settings,
            max_batch_bytes=max_batch_bytes,
        )
        label = f"durable_shuffle: write {stage.path.name}, {len(missing)} producers"
        return work.run(planned, function, missing, label)

    def _in_tasks(self, stage: StageHandle) -> StageHandle:
        return StageHandle(self._task_storage, stage.path, stage.describe)

    def _stored(self, work: StageWork[Any], identity: StageIdentity) -> StageHandle | None:
        path = self._log.state.stages.get((work.name, identity.fingerprint))
        return open_stage(self._storage, path) if path else None

    def _decide(
        self,
        work: StageWork[Any],
        identity: StageIdentity,
        stage: StageHandle | None,
        policy: ReusePolicy,
    ) -> tuple[Decision, Planned | None]:
        if stage is None:
            wanted = Wanted(None, "", identity.unstable)
            return decide(wanted, None, policy, self._why_miss(work, identity)), None
        sealed = read_state(stage).seal is not None
        if sealed or policy == "never":
            found = Found(sealed, None, "", frozenset())
            return decide(Wanted(None, "", identity.unstable), found, policy), None
        planned = work.plan(stage.describe.planning)
        commits = self._committed(stage, stage.describe.producers)
        decision = decide(
            Wanted(planned.producers, planned.splits, identity.unstable),
            Found(
                sealed=False,
                producers=stage.describe.producers,
                splits=stage.describe.splits,
                committed=frozenset(commits),
            ),
            policy,
        )
        return decision, None if isinstance(decision, Fresh) else planned

    def _why_miss(self, work: StageWork[Any], identity: StageIdentity) -> str:
        if identity.unresolved:
            return (
                f"cannot be recognised in another run: {'; '.join(identity.unresolved)}; give "
                "version= to vouch for it"
            )
        others = [p for p in self._log.state.order if p.name == work.name]
        if not others:
            return f"the job has no stage named {work.name!r}"
        stored = open_stage(self._storage, others[-1]).describe.components
        return explain_miss(identity.components, stored)

    def _describe(
        self, work: StageWork[Any], identity: StageIdentity, planned: Planned
    ) -> StageHandle:
        shape = work.shape()
        partitioner, partitions = shape.partitioner, shape.partitions
        if partitions is None:
            partitions = planned.producers
            if partitions == 0:  # an empty plan still reads back as one empty partition
                partitioner, partitions = "round_robin", 1
        path = StagePath(self._log.state.job, shape.name, identity.fingerprint, self._ids.new_id())
        describe = Describe(
            record_id=self._ids.new_id(),
            generation=self._log.generation,
            name=path.name,
            fingerprint=path.fingerprint,
            incarnation=path.incarnation,
            schema=schema_to_bytes(storable_schema(shape.schema)),
            codec=shape.codec,
            compression=self._settings.compression,
            columns=shape.columns,
            producers=planned.producers,
            partitions=partitions,
            writing="batch",
            partitioner=partitioner,
            keys=shape.keys,
            components=identity.components,
            splits=planned.splits,
            planning=planned.conf,
            created_wall_seconds=self._clock.wall(),
        )
        return describe_stage(self._storage, path, describe)

    def _committed(self, stage: StageHandle, producers: int) -> dict[int, Committed]:
        def read(producer: int) -> Committed | None:
            return counting_commit(read_log(stage.producer_log(producer)))

        with ThreadPoolExecutor(self._settings.control_threads) as pool:
            found = list(pool.map(read, range(producers)))
        return {p: c for p, c in enumerate(found) if c is not None}
