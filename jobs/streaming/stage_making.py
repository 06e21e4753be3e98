"""Finds the stage that a writer of the data source writes, by its name, or makes it.

New stages are written by log producers, one per writer at a time, so that streams can read them
while they grow. If several writers make a stage at the same time, all use the one that was entered
into the job's log first.
"""

import hashlib
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import StructType

from durable_shuffle.jobs.engine.checks import check_key
from durable_shuffle.jobs.streaming.options import DEFAULT_PARTITIONS, WriteOptions
from durable_shuffle.serialization.arrow_codec import schema_from_bytes, schema_to_bytes
from durable_shuffle.serialization.errors import DurableShuffleError, InvalidInputError
from durable_shuffle.shuffle.base.clock import Clock, IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import (
    Entered,
    begin_stage,
    enter_stage,
    newest_named,
    read_job,
)
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.records import Describe
from durable_shuffle.shuffle.log.stage import StageHandle, describe_stage, open_stage
from durable_shuffle.shuffle.release.cleanup import release_stage
from durable_shuffle.shuffle.release.registry import register_consumers
from durable_shuffle.shuffle.release.retention import Overwritten
from durable_shuffle.shuffle.rows.partitioner import check_partition_count
from durable_shuffle.shuffle.storage.contract import Storage


def stage_to_write(
    storage: Storage,
    options: WriteOptions,
    schema: pa.Schema,
    *,
    spark_schema: StructType,
    fresh: bool,
    ids: IdSource,
    clock: Clock,
) -> StageHandle:
    """Return the stage that the options name; make it if there is none.

    Args:
        fresh: always describe a new stage. The job's log records that it was begun, but readers see
            it only after `replace_stage`.

    Raises:
        InvalidInputError: the existing stage is sealed, or its keys or counts differ from the
            options; or a key is not a column, or its type has no hash.
    """
    place = options.place
    standing = newest_named(read_job(storage, place.job), place.stage)
    if standing is not None and not fresh:
        stage = open_stage(storage, standing)
        _check_fits(stage, options)
    else:
        stage = _describe(storage, options, schema, spark_schema, ids, clock, fresh=fresh)
        if not fresh:
            path = enter(stage, ids).path
            stage = open_stage(storage, path)
            _check_fits(stage, options)
    if options.consumers:
        register_consumers(
            stage, options.consumers, ids=ids, generation=stage.describe.generation, closed=True
        )
    return stage


def enter(stage: StageHandle, ids: IdSource) -> Entered:
    """Enter a described stage into the job's log unless its name is taken; return the entry."""
    return enter_stage(
        stage.storage, stage.path, record_id=ids.new_id(), claim_id=ids.new_id(), replaces=False
    )


def replace_stage(stage: StageHandle, ids: IdSource, *, keeps: bool) -> None:
    """Enter a described stage in place of the stage that has its name. Safe to repeat.

    The replaced stage is released if a writer of the data source made it.

    Args:
        keeps: do not release the replaced stage; `release` can delete it later.
    """
    storage = stage.storage

    def releases(path: StagePath) -> bool:
        return not keeps and open_stage(storage, path).describe.writing == "log"

    entered = enter_stage(
        storage,
        stage.path,
        record_id=ids.new_id(),
        claim_id=ids.new_id(),
        replaces=True,
        releases=releases,
    )
    if entered.replaced is not None:
        with suppress(DurableShuffleError):  # it is released; gc finishes that
            before = open_stage(storage, entered.replaced)
            release_stage(
                before,
                ids,
                generation=before.describe.generation,
                producers=before.describe.producers,
                cause=str(Overwritten(stage.path.folder)),
            )


def _check_fits(stage: StageHandle, options: WriteOptions) -> None:
    describe = stage.describe
    if describe.writing != "log":
        raise InvalidInputError(
            f"stage {describe.name!r} is sealed, nothing can be appended: {stage.path.prefix!r}; "
            "give another stage, or mode('overwrite')"
        )
    keys = tuple(describe.columns[k] for k in describe.keys)
    for what, asked, found in (
        ("partitions", options.partitions, describe.partitions),
        ("producers", options.producers, describe.producers),
        ("keys", options.keys or None, keys),
    ):
        if asked is not None and asked != found:
            raise InvalidInputError(
                f"stage {describe.name!r} was made with {what}={found}, found {asked}: leave the "
                "option out, or give another stage"
            )
    if options.producer >= describe.producers:
        raise InvalidInputError(
            f"option 'producer' counts from 0 and must be below the stage's {describe.producers} "
            f"producers, found {options.producer}: {stage.path.prefix!r}"
        )


def _describe(
    storage: Storage,
    options: WriteOptions,
    schema: pa.Schema,
    spark_schema: StructType,
    ids: IdSource,
    clock: Clock,
    *,
    fresh: bool,
) -> StageHandle:
    partitions, producers = options.partitions or DEFAULT_PARTITIONS, options.producers or 1
    check_partition_count(partitions)
    Settings(compression=options.compression)
    if options.producer >= producers:
        raise InvalidInputError(
            f"option 'producer' counts from 0 and must be below producers={producers}, found "
            f"{options.producer}"
        )
    for key in options.keys:
        if key not in schema.names:
            raise InvalidInputError(
                f"option 'keys': no column {key!r}; there are {', '.join(schema.names)}"
            )
        check_key(key, spark_schema[key].dataType)
    shape = repr((schema.to_string(), options.keys, producers, partitions))
    path = StagePath(
        options.place.job,
        options.place.stage,
        hashlib.sha256(shape.encode()).hexdigest()[:32],
        ids.new_id(),
    )
    describe = Describe(
        record_id=ids.new_id(),
        generation=1,
        name=path.name,
        fingerprint=path.fingerprint,
        incarnation=path.incarnation,
        schema=schema_to_bytes(schema),
        codec="arrow",
        compression=options.compression,
        columns=tuple(schema.names),
        producers=producers,
        partitions=partitions,
        writing="log",
        partitioner="hash" if options.keys else "round_robin",
        keys=tuple(schema.names.index(key) for key in options.keys),
        components={},
        splits="",
        planning={},
        created_wall_seconds=clock.wall(),
    )
    if fresh:
        begin_stage(storage, path, record_id=ids.new_id(), claim_id=ids.new_id())
    return describe_stage(storage, path, describe)


def in_schema(stage: StageHandle, schema: bytes) -> StageHandle:
    """Return the stage with another schema message for its rows."""
    found, names = schema_from_bytes(schema), stage.describe.columns
    columns = (*names, *found.names[len(names) :])
    describe = replace(stage.describe, schema=schema, columns=columns)
    return StageHandle(stage.storage, stage.path, describe)
