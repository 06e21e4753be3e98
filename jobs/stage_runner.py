"""One wrapped stage, from the user's DataFrame to the stored one.

The order of steps is the same on every kind of session: check the request, fingerprint the plan,
look into the job log, decide (recovery/resume.py), describe or reuse, run what is missing, seal,
hand the read side back. Every step that changes truth wins a slot first.
"""

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession

import durable_shuffle
from durable_shuffle.jobs.column_types import check_columns, check_key
from durable_shuffle.jobs.engine import Engine, Planned, ReadBack
from durable_shuffle.jobs.engines import engine_for
from durable_shuffle.jobs.identity.plan_identity import PlanIdentity
from durable_shuffle.jobs.report import StageReport
from durable_shuffle.jobs.tasks import map_function, read_function
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
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.cleanup import delete_orphans
from durable_shuffle.shuffle.clock import Clock, IdSource
from durable_shuffle.shuffle.counting_storage import CountingStorage
from durable_shuffle.shuffle.evidence import count_reruns
from durable_shuffle.shuffle.job_log import JobLog
from durable_shuffle.shuffle.layout import StagePath, check_name
from durable_shuffle.shuffle.partitioner import check_partition_count
from durable_shuffle.shuffle.producer_log import Committed, counting_commit, read_log
from durable_shuffle.shuffle.records import Describe, Seal, StageUse
from durable_shuffle.shuffle.settings import Settings
from durable_shuffle.shuffle.stage import (
    PASSTHROUGH,
    StageHandle,
    describe_stage,
    open_stage,
    read_state,
    seal_stage,
)
from durable_shuffle.shuffle.storage import Storage


@dataclass(frozen=True, slots=True)
class StageRequest:
    """What the user asked for. `n` None: keep the partitions (`durable`)."""

    df: DataFrame
    name: str
    n: int | None
    cols: tuple[str | Column, ...]


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


@dataclass(frozen=True, slots=True)
class _Identity:
    fingerprint: str
    components: dict[str, str]
    unresolved: tuple[str, ...]
    unstable: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Checked:
    """A request whose arguments are right."""

    df: DataFrame
    name: str
    n: int | None
    cols: tuple[str | Column, ...]
    partitioner: str
    key_positions: tuple[int, ...]


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

    def explain(self, request: StageRequest) -> Explanation:
        """Say what `run` would do."""
        checked = self._check(request)
        identity = self._identify(checked)
        stage = self._stored(checked, identity)
        decision, _ = self._decide(checked, identity, stage, "auto")
        return Explanation(
            checked.name, identity.fingerprint, not isinstance(decision, Fresh), decision.why
        )

    def run(self, request: StageRequest) -> tuple[DataFrame, StageReport]:
        """Make sure the stage is stored and sealed, and return it read back."""
        start, requests = self._clock.monotonic(), self._storage.total
        checked = self._check(request)
        identity = self._identify(checked)
        stage = self._stored(checked, identity)
        decision, planned = self._decide(checked, identity, stage, self._policy)
        if isinstance(decision, Fresh) or stage is None:
            planned = planned or self._plan(checked, self._engine.planning_settings())
            stage = self._describe(checked, identity, planned)
        self._log.append(
            StageUse(
                self._ids.new_id(),
                self._log.generation,
                stage.path.name,
                stage.path.fingerprint,
                stage.path.incarnation,
            )
        )
        ran, task_requests, retries = 0, 0, 0
        seal = read_state(stage).seal
        native = planned.native_exchanges if planned else 0
        if seal is None:
            assert planned is not None  # only a sealed stage is used without a plan
            commits = self._committed(stage, planned.producers)
            missing = [p for p in range(planned.producers) if p not in commits]
            function = map_function(
                StageHandle(self._task_storage, stage.path, stage.describe),
                producers=planned.producers,
                settings=self._settings,
                tries=self._engine.task_tries,
                version=durable_shuffle.__version__,
            )
            label = f"durable_shuffle: write {stage.path.name}, {len(missing)} producers"
            results = self._engine.run(planned, function, missing, label) if missing else []
            for result in results:
                commits[result.committed.commit.producer] = result.committed
            ran = sum(r.wrote for r in results)
            task_requests = sum(r.requests for r in results)
            retries = sum(r.tries_before for r in results)
            self._log.check_owner()
            seal = seal_stage(
                stage,
                commits,
                producers=planned.producers,
                generation=self._log.generation,
                record_id=self._ids.new_id(),
            )
        reruns = count_reruns(stage, seal)
        if isinstance(decision, Resume) or retries:
            delete_orphans(stage, self._ids, cause="the stage is sealed without this attempt")
        frame = self._read(checked, stage, seal)
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
            requests=self._storage.total - requests + task_requests,
            retries=retries,
            seconds=self._clock.monotonic() - start,
        )
        return frame, report

    def _check(self, request: StageRequest) -> _Checked:
        check_name("name", request.name)
        df = request.df
        if not hasattr(df, "mapInArrow"):
            raise InvalidInputError(f"a DataFrame is needed, found={type(df).__name__}")
        if df.isStreaming:
            raise InvalidInputError(
                "a streaming DataFrame cannot be stored as one stage: wrap the batch inside "
                "foreachBatch"
            )
        if request.n is not None:
            check_partition_count(request.n)
        check_columns(df.schema)
        if not request.cols:
            kind = PASSTHROUGH if request.n is None else "round_robin"
            return _Checked(df, request.name, request.n, (), kind, ())
        try:
            keys = df.select(*request.cols).schema
        except AnalysisException as e:
            shown = ", ".join(str(c) for c in request.cols)
            raise InvalidInputError(
                f"key column not usable: asked for {shown}; columns are "
                f"{', '.join(df.columns)} ({e.getCondition() or 'analysis failed'})"
            ) from e
        for field in keys:
            check_key(field.name, field.dataType)
        positions = self._engine.key_positions(df, request.cols)
        return _Checked(df, request.name, request.n, request.cols, "hash", positions)

    def _identify(self, checked: _Checked) -> _Identity:
        plan: PlanIdentity = self._engine.identify(checked.df)
        components = dict(plan.components)
        keys: object = checked.key_positions
        if checked.cols and not checked.key_positions:  # computed keys
            with_keys = self._engine.identify(checked.df.select("*", *_aliased(checked.cols)))
            keys = with_keys.components.get("plan", "")
        components["partitioning"] = _digest([checked.partitioner, checked.n, keys])
        if self._version is not None:
            components["version"] = _digest(self._version)
        elif plan.unresolved:
            components["unresolved"] = self._ids.new_id()
        if self._version is not None and plan.unresolved:
            unresolved: tuple[str, ...] = ()
        else:
            unresolved = plan.unresolved
        fingerprint = _digest(sorted(components.items()))
        return _Identity(fingerprint, components, unresolved, plan.unstable_below_exchange)

    def _stored(self, checked: _Checked, identity: _Identity) -> StageHandle | None:
        path = self._log.state.stages.get((checked.name, identity.fingerprint))
        return open_stage(self._storage, path) if path else None

    def _decide(
        self,
        checked: _Checked,
        identity: _Identity,
        stage: StageHandle | None,
        policy: ReusePolicy,
    ) -> tuple[Decision, Planned | None]:
        if stage is None:
            wanted = Wanted(None, "", identity.unstable)
            return decide(wanted, None, policy, self._why_miss(checked, identity)), None
        sealed = read_state(stage).seal is not None
        if sealed or policy == "never":
            found = Found(sealed, None, "", frozenset())
            return decide(Wanted(None, "", identity.unstable), found, policy), None
        planned = self._plan(checked, stage.describe.planning)
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

    def _why_miss(self, checked: _Checked, identity: _Identity) -> str:
        if identity.unresolved:
            return (
                f"cannot be recognised in another run: {'; '.join(identity.unresolved)}; give "
                "version= to vouch for it"
            )
        others = [p for p in self._log.state.order if p.name == checked.name]
        if not others:
            return f"the job has no stage named {checked.name!r}"
        stored = open_stage(self._storage, others[-1]).describe.components
        return explain_miss(identity.components, stored)

    def _plan(self, checked: _Checked, conf: Mapping[str, str]) -> Planned:
        return self._engine.plan(checked.df, checked.cols, checked.n, conf)

    def _describe(self, checked: _Checked, identity: _Identity, planned: Planned) -> StageHandle:
        partitioner, partitions = checked.partitioner, checked.n
        if partitions is None:
            partitions = planned.producers
            if partitions == 0:  # an empty plan still reads back as one empty partition
                partitioner, partitions = "round_robin", 1
        path = StagePath(
            self._log.state.job, checked.name, identity.fingerprint, self._ids.new_id()
        )
        describe = Describe(
            record_id=self._ids.new_id(),
            generation=self._log.generation,
            name=path.name,
            fingerprint=path.fingerprint,
            incarnation=path.incarnation,
            schema=schema_to_bytes(storable_schema(self._engine.arrow_schema(checked.df))),
            codec="arrow",
            compression=self._settings.compression,
            columns=tuple(checked.df.columns),
            producers=planned.producers,
            partitions=partitions,
            partitioner=partitioner,
            keys=checked.key_positions,
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

    def _read(self, checked: _Checked, stage: StageHandle, seal: Seal) -> DataFrame:
        back = ReadBack(
            function=read_function(
                StageHandle(self._task_storage, stage.path, stage.describe),
                seal,
                settings=self._settings,
                version=durable_shuffle.__version__,
            ),
            partitions=stage.describe.partitions,
            hashed_by=stage.describe.keys,
            rows=seal.rows,
            memory_bytes=seal.memory_bytes,
            fingerprint=f"{stage.path.name}-{stage.path.fingerprint}",
        )
        return self._engine.read(checked.df, back)


def _aliased(cols: tuple[str | Column, ...]) -> list[Column]:
    from pyspark.sql import functions as F

    return [(F.col(c) if isinstance(c, str) else c).alias(f"key{i}") for i, c in enumerate(cols)]


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
