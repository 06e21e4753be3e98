"""What a new stage's DESCRIBE says. No I/O."""

from collections.abc import Mapping

from durable_shuffle.jobs.engine.engine import Planned
from durable_shuffle.jobs.stages.identity import StageIdentity
from durable_shuffle.jobs.stages.work import Writing
from durable_shuffle.serialization.arrow_schemas import schema_to_bytes, storable_schema
from durable_shuffle.shuffle.base.clock import Clock, IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.records import Describe


def described(
    path: StagePath,
    work: Writing,
    identity: StageIdentity,
    planned: Planned,
    *,
    generation: int,
    below: Mapping[str, str],
    settings: Settings,
    clock: Clock,
    ids: IdSource,
) -> Describe:
    """Return the description of a stage that nobody knows yet.

    Args:
        below: what `built_on` says of the stages that it reads.
        settings: `compression` is used.
    """
    shape = work.shape()
    partitioner, partitions = shape.partitioner, planned.partitions or shape.partitions
    if partitions is None:
        partitions = planned.producers
        if partitions == 0:  # an empty plan still reads back as one empty partition
            partitioner, partitions = "round_robin", 1
    return Describe(
        record_id=ids.new_id(),
        generation=generation,
        name=path.name,
        fingerprint=path.fingerprint,
        incarnation=path.incarnation,
        schema=schema_to_bytes(storable_schema(shape.schema)),
        codec=shape.codec,
        compression=settings.compression,
        columns=shape.columns,
        producers=planned.producers,
        partitions=partitions,
        writing="batch",
        partitioner=partitioner,
        keys=shape.keys,
        components=identity.components,
        splits=planned.splits,
        planning={**planned.conf, **below},
        created_wall_seconds=clock.wall(),
    )
