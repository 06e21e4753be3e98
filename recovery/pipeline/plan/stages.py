"""The stages of a pipeline on its storage: made once, found again by every later run."""

import hashlib
from collections.abc import Mapping

from durable_shuffle.recovery.pipeline.plan.plan import PipelinePlan, StagePlan
from durable_shuffle.serialization.arrow_codec import schema_to_bytes
from durable_shuffle.serialization.errors import IncompatibleError, InvalidInputError
from durable_shuffle.shuffle.base.clock import Clock, IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.named_stage import named_stage
from durable_shuffle.shuffle.log.records import Describe, StageUse
from durable_shuffle.shuffle.log.stage import StageHandle, describe_stage, open_stage
from durable_shuffle.shuffle.storage.contract import Storage


def own_stage(
    storage: Storage,
    log: JobLog,
    plan: StagePlan,
    *,
    settings: Settings,
    ids: IdSource,
    clock: Clock,
) -> StagePath:
    """Return where the stage stands; makes it if this pipeline never had it.

    Raises:
        IncompatibleError: it was made with other columns, keys or counts: what it holds does not
            fit the pipeline as it is now.
        InvalidInputError: a key that is no column.
    """
    assert plan.schema is not None
    missing = [key for key in plan.keys if key not in plan.schema.names]
    if missing:
        raise InvalidInputError(f"stage {plan.name!r} has no column {missing[0]!r} for its key")
    shape = repr((plan.schema.to_string(), plan.keys, plan.producers, plan.partitions))
    fingerprint = hashlib.sha256(shape.encode()).hexdigest()[:32]
    for path in log.state.order:
        if path.name == plan.name:
            if path.fingerprint != fingerprint:
                raise IncompatibleError(
                    f"stage {plan.name!r} of pipeline {path.job!r} was made with other columns, "
                    "keys, producers or partitions: give the pipeline another name, or put them "
                    f"back: {path.prefix!r}"
                )
            return path
    path = StagePath(log.state.job, plan.name, fingerprint, ids.new_id())
    describe = Describe(
        record_id=ids.new_id(),
        generation=log.generation,
        name=path.name,
        fingerprint=path.fingerprint,
        incarnation=path.incarnation,
        schema=schema_to_bytes(plan.schema),
        codec="arrow",
        compression=settings.compression,
        columns=tuple(plan.schema.names),
        producers=plan.producers,
        partitions=plan.partitions,
        writing="log",
        partitioner="hash" if plan.keys else "round_robin",
        keys=tuple(plan.schema.names.index(key) for key in plan.keys),
        components={},
        splits="",
        planning={},
        created_wall_seconds=clock.wall(),
    )
    describe_stage(storage, path, describe)
    log.append(StageUse(ids.new_id(), log.generation, path.name, fingerprint, path.incarnation))
    return path


def plan_stage(
    plan: PipelinePlan, paths: Mapping[str, StagePath], storage: Storage, name: str
) -> StageHandle:
    """Return a stage of a plan, the pipeline's own or one from elsewhere.

    Args:
        paths: of the pipeline's own stages, by name.
    """
    elsewhere = plan.stages[name].elsewhere
    if elsewhere is None:
        return open_stage(storage, paths[name])
    url = elsewhere.url or plan.url
    return named_stage(url, elsewhere.job, elsewhere.stage, storage_options=plan.storage_options)
