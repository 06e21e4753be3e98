"""From a wanted stage to a sealed one: look into the job log, decide, describe, run, seal.

The steps are the same whatever a stage is made from (a user's DataFrame, a piece of a query's plan,
any kind of session). Every step that changes truth wins a slot first. Stages of one job may be
ensured by several threads at once: the job log is written by one at a time.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from durable_shuffle.jobs.engine import Planned
from durable_shuffle.jobs.report import StageReport
from durable_shuffle.jobs.running_code import running_code
from durable_shuffle.jobs.stage_identity import StageIdentity
from durable_shuffle.jobs.tasks import MapResult, map_function
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
from durable_shuffle.shuffle.records import Describe, Seal, StageUse
from durable_shuffle.shuffle.settings import Settings
from durable_shuffle.shuffle.stage import (
    StageHandle,
    describe_stage,
    open_stage,
    read_state,
    seal_stage,
)
from durable_shuffle.shuffle.storage import Storage

Run = Callable[[Planned, Any, Sequence[int], str], list[MapResult]]
"""(plan, map function, producers, label) -> what the map tasks of those producers report."""


class Plan(Protocol):
    """Plans a map side under settings of now, or those that a first run recorded."""

    def __call__(self, conf: Mapping[str, str], *, large_rows: bool = False) -> Planned:
        """Return the plan; with `large_rows`, batches are limited by their bytes."""


class Writer(Protocol):
    """Makes the function that writes one producer's output in a Spark task."""

    def __call__(
        self,
        stage: StageHandle,
        *,
        producers: int,
        settings: Settings,
        max_batch_bytes: int | None,
    ) -> Any:
        """Return it; a larger batch of Spark's ends its task with LargeRowsError."""


@dataclass(frozen=True, slots=True)
class WantedStage:
    """A stage that shall be sealed, and how to make it."""

    name: str
    identity: StageIdentity
    partitioner: str
    partitions: int | None
    """R; None for as many as producers, each its own."""
    keys: tuple[int, ...]
    columns: tuple[str, ...]
    schema: Callable[[], pa.Schema]
    """Arrow schema of the rows that arrive in Python; asked only for a fresh stage."""
    planning: Callable[[], dict[str, str]]
    """The settings of now that decide how the work is split."""
    plan: Plan
    run: Run
    codec: str = "arrow"
    writer: Writer | None = None
    """None writes rows as Spark hands them over, with partition ids by `partitioner`."""


@dataclass(frozen=True, slots=True)
class StoredStage:
    """A sealed stage."""

    handle: StageHandle
    """On the storage as tasks use it."""
    seal: Seal
    report: StageReport

    @property
    def fingerprint(self) -> str:
        """Name and fingerprint: what a stage above names it by."""
        return f"{self.handle.path.name}-{self.handle.path.fingerprint}"


class StageStore:
    """Stages of one claimed job. `ensure` may be called from several threads."""

    def __init__(
        self,
        *,
        storage: CountingStorage,
        task_storage: Storage,
        task_tries: int,
        log: JobLog,
        policy: ReusePolicy,
        settings: Settings,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._storage, self._task_storage, self._log = storage, task_storage, log
        self._task_tries, self._policy, self._settings = task_tries, policy, settings
        self._clock, self._ids = clock, ids
        self._lock = threading.Lock()

    def look(self, wanted: WantedStage) -> Decision:
        """Say what `ensure` would do under policy "auto"; plans, runs nothing."""
        return self._decide(wanted, self.stored(wanted), "auto")[0]

    def stored(self, wanted: WantedStage, storage: Storage | None = None) -> StageHandle | None:
        """Return the newest incarnation with this name and fingerprint, sealed or not."""
        path = self._log.state.stages.get((wanted.name, wanted.identity.fingerprint))
        return open_stage(storage or self._storage, path) if path else None

    def ensure(self, wanted: WantedStage) -> StoredStage:
        """Make sure that the stage is stored and sealed.

        Raises:
            FencedError: a newer driver claimed the job.
        """
        start = self._clock.monotonic()
        storage = CountingStorage(self._storage)  # other threads have their own
        before = self._storage.retry_counts
        stage = self.stored(wanted, storage)
        decision, planned = self._decide(wanted, stage, self._policy)
        if isinstance(decision, Fresh) or stage is None:
            planned = planned or wanted.plan(wanted.planning())
            stage = self._describe(wanted, planned, storage)
        self._use(stage)
        results: list[MapResult] = []
        earlier = 0
        seal = read_state(stage).seal
        native = planned.native_exchanges if planned else 0
        if seal is None:
            assert planned is not None  # only a sealed stage is used without a plan
            seal, results, earlier = self._run(wanted, stage, planned)
        reruns = count_reruns(stage, seal)
        retries = sum(r.tries_before for r in results)
        if isinstance(decision, Resume) or retries:
            delete_orphans(stage, self._ids, cause="the stage is sealed without this attempt")
        ran = earlier + sum(r.wrote for r in results)
        after = self._storage.retry_counts
        report = StageReport(
            name=stage.path.name,
            fingerprint=stage.path.fingerprint,
            incarnation=stage.path.incarnation,
            decision=type(decision).__name__.lower(),
            why=decision.why,
            partitioner=stage.describe.partitioner,
            producers=seal.producers,
            producers_run=ran,
            producers_reused=seal.producers - ran,
            producers_rerun=reruns.attempts,
            native_exchanges=native,
            rows=seal.rows,
            data_bytes=seal.data_bytes,
            objects=reruns.segments + seal.producers + 1,
            requests=storage.total + sum(r.requests for r in results),
            storage_retries=after.retries
            - before.retries
            + sum(r.storage_retries for r in results),
            storage_wait_seconds=after.waited_seconds
            - before.waited_seconds
            + sum(r.storage_wait_seconds for r in results),
            retries=retries,
            seconds=self._clock.monotonic() - start,
        )
        return StoredStage(self._for_tasks(stage), seal, report)

    def _for_tasks(self, stage: StageHandle) -> StageHandle:
        return StageHandle(self._task_storage, stage.path, stage.describe)

    def _run(
        self, wanted: WantedStage, stage: StageHandle, planned: Planned
    ) -> tuple[Seal, list[MapResult], int]:
        """Return the seal, what tasks reported, and how many others committed before the rest was
        planned again."""
        commits = self._committed(stage, planned.producers)
        stored = len(commits)
        try:
            results = self._write(wanted, stage, planned, commits, LARGE_BATCH_BYTES)
        except LargeRowsError:
            planned = wanted.plan(planned.conf, large_rows=True)
            commits.update(self._committed(stage, planned.producers))
            results = self._write(wanted, stage, planned, commits, None)
        earlier = len(commits) - stored
        for result in results:
            commits[result.committed.commit.producer] = result.committed
        with self._lock:
            self._log.check_owner()
        seal = seal_stage(
            stage,
            commits,
            producers=planned.producers,
            generation=self._log.generation,
            record_id=self._ids.new_id(),
        )
        return seal, results, earlier

    def _write(
        self,
        wanted: WantedStage,
        stage: StageHandle,
        planned: Planned,
        commits: Mapping[int, Committed],
        max_batch_bytes: int | None,
    ) -> list[MapResult]:
        missing = [p for p in range(planned.producers) if p not in commits]
        if not missing:
            return []
        function = (wanted.writer or self._row_writer)(
            self._for_tasks(stage),
            producers=planned.producers,
            settings=self._settings,
            max_batch_bytes=max_batch_bytes,
        )
        label = f"durable_shuffle: write {stage.path.name}, {len(missing)} producers"
        return wanted.run(planned, function, missing, label)

    def _row_writer(
        self,
        stage: StageHandle,
        *,
        producers: int,
        settings: Settings,
        max_batch_bytes: int | None,
    ) -> Any:
        return map_function(
            stage,
            producers=producers,
            settings=settings,
            tries=self._task_tries,
            code=running_code(),
            max_batch_bytes=max_batch_bytes,
        )

    def _use(self, stage: StageHandle) -> None:
        with self._lock:
            self._log.append(
                StageUse(
                    self._ids.new_id(),
                    self._log.generation,
                    stage.path.name,
                    stage.path.fingerprint,
                    stage.path.incarnation,
                )
            )

    def _decide(
        self, wanted: WantedStage, stage: StageHandle | None, policy: ReusePolicy
    ) -> tuple[Decision, Planned | None]:
        unstable = wanted.identity.unstable
        if stage is None:
            return decide(Wanted(None, "", unstable), None, policy, self.why_miss(wanted)), None
        sealed = read_state(stage).seal is not None
        if sealed or policy == "never":
            found = Found(sealed, None, "", frozenset())
            return decide(Wanted(None, "", unstable), found, policy), None
        planned = wanted.plan(stage.describe.planning)
        commits = self._committed(stage, stage.describe.producers)
        decision = decide(
            Wanted(planned.producers, planned.splits, unstable),
            Found(
                sealed=False,
                producers=stage.describe.producers,
                splits=stage.describe.splits,
                committed=frozenset(commits),
            ),
            policy,
        )
        return decision, None if isinstance(decision, Fresh) else planned

    def progress(self, wanted: WantedStage) -> tuple[int, int]:
        """Return how many producers have committed, of how many; (0, 0) before there is a stage."""
        stage = self.stored(wanted)
        if stage is None:
            return 0, 0
        producers = stage.describe.producers
        return len(self._committed(stage, producers)), producers

    def why_miss(self, wanted: WantedStage) -> str:
        """Say why there is no such stage, for people."""
        if wanted.identity.unresolved:
            return (
                "cannot be recognised in another run: "
                f"{'; '.join(wanted.identity.unresolved)}; give version= to vouch for it"
            )
        others = [p for p in self._log.state.order if p.name == wanted.name]
        if not others:
            return f"the job has no stage named {wanted.name!r}"
        stored = open_stage(self._storage, others[-1]).describe.components
        return explain_miss(wanted.identity.components, stored)

    def _describe(self, wanted: WantedStage, planned: Planned, storage: Storage) -> StageHandle:
        partitioner, partitions = wanted.partitioner, planned.partitions or wanted.partitions
        if partitions is None:
            partitions = planned.producers
            if partitions == 0:  # an empty plan still reads back as one empty partition
                partitioner, partitions = "round_robin", 1
        identity = wanted.identity
        path = StagePath(self._log.state.job, wanted.name, identity.fingerprint, self._ids.new_id())
        describe = Describe(
            record_id=self._ids.new_id(),
            generation=self._log.generation,
            name=path.name,
            fingerprint=path.fingerprint,
            incarnation=path.incarnation,
            schema=schema_to_bytes(storable_schema(wanted.schema())),
            codec=wanted.codec,
            compression=self._settings.compression,
            columns=wanted.columns,
            producers=planned.producers,
            partitions=partitions,
            writing="batch",
            partitioner=partitioner,
            keys=wanted.keys,
            components=identity.components,
            splits=planned.splits,
            planning=planned.conf,
            created_wall_seconds=self._clock.wall(),
        )
        return describe_stage(storage, path, describe)

    def _committed(self, stage: StageHandle, producers: int) -> dict[int, Committed]:
        def read(producer: int) -> Committed | None:
            return counting_commit(read_log(stage.producer_log(producer)))

        with ThreadPoolExecutor(self._settings.control_threads) as pool:
            found = list(pool.map(read, range(producers)))
        return {p: c for p, c in enumerate(found) if c is not None}
