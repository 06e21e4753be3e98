"""What readers of the data source share, and the batch reader.

If a filter says that the keys equal one of a few values, the batch reader reads only the partitions
that can hold such rows. Spark still applies the filter to the rows that are read.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    In,
    InputPartition,
)
from pyspark.sql.types import StructType

from durable_shuffle.jobs.deploy.worker_start import quicken_worker
from durable_shuffle.jobs.streaming.options import ReadOptions
from durable_shuffle.jobs.streaming.schemas import as_spark, check_readable, stored_schema
from durable_shuffle.recovery.grouping import GroupingRule, group_alike
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.named_stage import stage_named
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage
from durable_shuffle.shuffle.read.sealed_reader import join_small
from durable_shuffle.shuffle.rows.partitioner import hash_partition_ids
from durable_shuffle.shuffle.seal.suspect import noting
from durable_shuffle.shuffle.stream.scan import (
    RowRange,
    newest_message,
    read_row_ranges,
    standing_rows,
)

_MIB = 1 << 20
_MOST_COMBINATIONS = 1000
"""If a filter allows more combinations of key values, all partitions are read."""


@dataclass
class TaskPieces(InputPartition):
    """What one task reads. It contains no credentials; the reader has them."""

    path: StagePath
    pieces: tuple[RowRange, ...]


def stage_of(options: ReadOptions) -> StageHandle:
    """Return the named stage."""
    place = options.place
    return stage_named(place.storage(), place.job, place.stage)


def check_schema(stage: StageHandle, schema: StructType) -> None:
    """Refuse a user's schema in which the rows of a stage cannot be read; see `check_readable`."""
    check_readable(stored_schema(stage, newest_message(stage)), schema, stage.describe.name)


def tasks_of(stage: StageHandle, pieces: Sequence[RowRange]) -> list[TaskPieces]:
    """Return the pieces per task; one task reads several small neighbouring partitions."""
    sizes = [0] * stage.describe.partitions
    for piece in pieces:
        sizes[piece.extent.subpartition] += piece.extent.length
    rule = GroupingRule(target_bytes=64 * _MIB, tasks=os.cpu_count() or 8, least_bytes=4 * _MIB)
    tasks = [
        TaskPieces(stage.path, tuple(p for p in pieces if first <= p.extent.subpartition < end))
        for first, end in group_alike([sizes], rule)
    ]
    return [task for task in tasks if task.pieces]


def read_task(
    options: ReadOptions, task: TaskPieces, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task in the columns and types of `schema`."""
    quicken_worker()
    stage = open_stage(options.place.storage(), task.path)
    settings = Settings()
    stored = noting(stage, read_row_ranges(stage, task.pieces, settings), RandomIds())
    rows = as_spark(stage, stored, schema)
    yield from join_small(rows, settings.read_batch_rows)


class BatchReader(DataSourceReader):
    """Reads all rows that are committed when the query is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._wanted: dict[str, tuple[Any, ...]] = {}
        # PySpark refuses a reader class that defines `pushFilters` while
        # spark.sql.python.filterPushdown.enabled is off; this reader works either way
        self.pushFilters = _Pushed(self._wanted)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        stage = stage_of(self._options)
        check_schema(stage, self._schema)
        pieces = standing_rows(stage)
        kept = _partitions_for(stage, self._wanted, self._schema)
        if kept is not None:
            pieces = [piece for piece in pieces if piece.extent.subpartition in kept]
        # with an empty list, Spark would call `read` with a partition that is not ours
        return list(tasks_of(stage, pieces)) or [TaskPieces(stage.path, ())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskPieces)
        return read_task(self._options, partition, self._schema)


class _Pushed:
    """`pushFilters` of a reader: records the wanted key values, leaves all filtering to Spark."""

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, wanted: dict[str, tuple[Any, ...]]) -> None:
        self._wanted = wanted

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        for item in filters:
            if isinstance(item, (EqualTo, EqualNullSafe)) and len(item.attribute) == 1:
                self._wanted[item.attribute[0]] = (item.value,)
            elif isinstance(item, In) and len(item.attribute) == 1:
                self._wanted[item.attribute[0]] = tuple(item.value)
        return filters


def _partitions_for(
    stage: StageHandle, wanted: Mapping[str, tuple[Any, ...]], schema: StructType
) -> frozenset[int] | None:
    """Return the partitions that can hold rows with the wanted values; None for all.

    Args:
        wanted: column -> the values that it may have.
        schema: what Spark asks for; the values have its types.
    """
    describe = stage.describe
    names = list(describe.key_names)
    if describe.partitioner != "hash" or not names:
        return None
    if any(name not in wanted or name not in schema.names for name in names):
        return None
    choices = [wanted[name] for name in names]
    if not 0 < math.prod(map(len, choices)) <= _MOST_COMBINATIONS:
        return None
    stored = stored_schema(stage, describe.schema)
    columns = zip(names, zip(*product(*choices), strict=True), strict=True)
    try:
        arrays = [pa.array(values, stored.field(name).type) for name, values in columns]
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None  # the key's type cannot hold these values: read all, Spark compares
    return frozenset(hash_partition_ids(arrays, describe.partitions).tolist())
