"""Runs the missing producers of a stage, and seals it once all have committed.

Producers of two executions of what lies below count together only if both are proven to give the
same rows: Spark may run lost map tasks of its own exchanges again in between.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from durable_shuffle.jobs.deploy.running_code import running_code
from durable_shuffle.jobs.engine.engine import Engine, Planned
from durable_shuffle.jobs.engine.tasks import MapJob, MapResult, MapTasks
from durable_shuffle.jobs.engine.transfer import LARGE_BATCH_BYTES, LargeRowsError
from durable_shuffle.jobs.identity.jvm.calls import JVM_ERRORS
from durable_shuffle.jobs.stages.healing import Healing
from durable_shuffle.jobs.stages.identity import StageIdentity
from durable_shuffle.jobs.stages.work import TwoExecutionsError, Writing
from durable_shuffle.jobs.text import assigned
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.base.side_by_side import side_by_side
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.note_unrecognised import note_unrecognised
from durable_shuffle.shuffle.log.producer_log import CommittedAttempt, read_producer
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle, StageState, live_state
from durable_shuffle.shuffle.seal.seal import Listed, WrittenIndex, list_written, sealed_state
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.local import is_far
from durable_shuffle.shuffle.write.awaited import Awaited

_TWO_EXECUTIONS = "Spark computed rows below the stage twice, and they may differ"
_SPARK_SAW_TWO = (
    "with indeterminate output was failed and retried",
    "with indeterminate results from old attempt succeeded",
)
"""Spark says one of these when it ends a job for that reason, the second since 4.2; SPARK-23207."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What running the missing producers came to."""

    state: StageState
    """With the seal."""
    results: list[MapResult]
    earlier: int
    """How many committed without a result, because their job was planned again."""
    listed: Listed
    """What is written."""
    index: WrittenIndex = ("", b"")


@dataclass(slots=True)
class ProducerRuns:
    """Runs producers of the stages of one claimed job. Several threads may call its methods."""

    engine: Engine
    task_storage: Storage
    """The storage that tasks use."""
    log: JobLog
    settings: Settings
    ids: IdSource
    healing: Healing
    recognised: dict[str, bool] = field(default_factory=dict, init=False)
    """Name and fingerprint of stages that were ensured -> whether later calls may use them."""

    def run(
        self,
        work: Writing,
        stage: StageHandle,
        planned: Planned,
        identity: StageIdentity,
        changed: str,
        *,
        new: bool,
        large_rows: bool,
        confirms: bool,
        may_start: Callable[[], None],
        awaited: tuple[Awaited, ...],
        foreseen: Callable[[Seal, bytes], None],
    ) -> Ran:
        """Run the missing producers and seal the stage.

        Args:
            confirms: see `StageStore.ensure`.
            may_start: see `MapJob`; nothing is sealed before, either.
            awaited: see `MapTasks`.
            foreseen: see `sealed_state`; of a new stage that is recognised.
            changed: the inputs that changed when it was tried before; "" if nothing was tried.
            new: nobody else knows the incarnation.
            large_rows: it is planned for large rows.
        """
        commits = {} if new else self.committed(stage, planned.producers)
        stored = len(commits)
        at_once = not stored
        write = partial(self._write, work, stage, identity, may_start, awaited, new=new)
        most = None if large_rows else LARGE_BATCH_BYTES
        try:
            results = write(planned, commits, max_batch_bytes=most)
        except LargeRowsError as e:
            at_once = False
            planned = work.plan(planned.conf, large_rows=True)
            commits.update(self.committed(stage, planned.producers))
            if commits:
                _check_one_execution(identity, planned, e)
            results = write(planned, commits, max_batch_bytes=None)
        except InvalidInputError:
            if not changed:  # more files make more producers than were planned
                work.check_inputs(identity, at_once=False)
            raise
        may_start()  # without map tasks, nobody has waited yet
        at_once = at_once and not stage.damaged
        if self.engine.attempted_again({result.spark_stage for result in results}):
            _check_one_execution(identity, planned)
        changed = changed or work.check_inputs(identity, at_once=at_once)
        earlier = len(commits) - stored
        commits |= {result.committed.commit.producer: result.committed for result in results}
        opened = self.engine.seen(identity.code) if identity.watched else []
        seen = [f"{what}, opened by a Python function" for what in opened]
        noted = self._note(stage, [*([changed] if changed else []), *seen], identity)
        if stage.damaged:
            self.log.check_owner()
            self.healing.replace(stage, commits)
            return Ran(live_state(stage), results, earlier, list_written(stage))
        (state, index), listed = side_by_side(
            lambda: sealed_state(
                stage,
                commits,
                producers=planned.producers,
                generation=self.log.generation,
                record_id=self.ids.new_id(),
                settings=self.settings,
                known=StageState() if new and not noted else None,
                foreseen=foreseen if new and not noted else lambda *_: None,
                may_seal=self.log.look,
                may_go_on=partial(self.log.confirm, end=True) if confirms else lambda: None,
            ),
            lambda: list_written(stage),
            far=is_far(stage.storage),
        )
        return Ran(state, results, earlier, listed, index)

    def _note(self, stage: StageHandle, reasons: list[str], identity: StageIdentity) -> bool:
        """Record on what the rows depend that the fingerprint does not name, if on anything.

        Returns:
            Whether a record stands.
        """
        reasons += [
            f"the stage {text}, which cannot be recognized"
            for text in identity.reads
            if not self.recognised.get(text, True)
        ]
        if reasons:
            self.log.check_owner()
            note_unrecognised(
                stage,
                reasons,
                generation=self.log.generation,
                record_id=self.ids.new_id(),
            )
        return bool(reasons)

    def _write(
        self,
        work: Writing,
        stage: StageHandle,
        identity: StageIdentity,
        may_start: Callable[[], None],
        awaited: tuple[Awaited, ...],
        planned: Planned,
        commits: Mapping[int, CommittedAttempt],
        *,
        new: bool,
        max_batch_bytes: int | None,
    ) -> list[MapResult]:
        missing = [p for p in range(planned.producers) if p not in commits]
        if not missing:
            return []
        tasks = MapTasks(
            replace(stage, storage=self.task_storage),
            planned.producers,
            self.settings,
            tries=self.engine.task_tries,
            code=running_code(),
            ends=self.engine.ends_partitions,
            watch=identity.watched,
            new=new,
            max_batch_bytes=max_batch_bytes,
            awaited=awaited,
        )
        described = stage.describe
        placing = assigned(described.partitioner, described.key_names, described.columns)
        label = f"durable_shuffle: write {stage.path.name}, {placing}, {len(missing)} map tasks"
        try:
            job = MapJob(missing, label, may_start, looks=bool(awaited))
            return work.write(planned, tasks, job)
        except JVM_ERRORS as e:
            if spark_saw_two(str(e)):
                raise TwoExecutionsError(_TWO_EXECUTIONS) from e
            raise

    def committed(self, stage: StageHandle, producers: int) -> dict[int, CommittedAttempt]:
        """Return producer -> COMMIT for the producers that need not run.

        A COMMIT of a damaged producer is returned only if it is newer than the damaged one.
        """

        def read(producer: int) -> CommittedAttempt | None:
            after = stage.damaged.get(producer, -1)
            found = read_producer(stage.producer_log(producer)).counting(after=after)
            return None if found is None else found.light(producers)

        with ThreadPoolExecutor(self.settings.control_threads) as pool:
            commits = list(pool.map(read, range(producers)))
        return {p: c for p, c in enumerate(commits) if c is not None}


def spark_saw_two(error: str) -> bool:
    """Return whether Spark ended a job because rows below it were computed twice and may differ."""
    return any(words in error for words in _SPARK_SAW_TWO)


def _check_one_execution(
    identity: StageIdentity, planned: Planned, cause: LargeRowsError | None = None
) -> None:
    """Refuse to seal producers of two executions of what lies below, unless both give the same.

    Raises:
        TwoExecutionsError: they may differ.
    """
    why = unproven(identity, planned)
    if why:
        raise TwoExecutionsError(f"{_TWO_EXECUTIONS}: {', '.join(why)}") from cause


def unproven(identity: StageIdentity, planned: Planned) -> tuple[str, ...]:
    """Return why commits of two runs must not be mixed; empty if that is proven to be harmless.

    A version vouches for an input as a whole, not that its rows come in the same parts again. What
    a function does with the rows of one task concerns no other task.
    """
    inputs = tuple(f"only version= vouches for this: {why}" for why in identity.vouched_inputs)
    return inputs or planned.unproven(bool(identity.vouched))
