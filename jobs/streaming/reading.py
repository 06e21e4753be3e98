"""Code that both readers share: find the stage, assign pieces to tasks, read them."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from durable_shuffle.jobs.deploy.worker_start import quicken_worker
from durable_shuffle.jobs.streaming.options import ReadOptions
from durable_shuffle.jobs.streaming.schemas import as_spark
from durable_shuffle.recovery.grouping import GroupingRule, group_alike
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.named_stage import stage_named
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage
from durable_shuffle.shuffle.read.sealed_reader import join_small
from durable_shuffle.shuffle.stream.piece_reader import read_pieces
from durable_shuffle.shuffle.stream.scan import Piece

_MIB = 1 << 20


@dataclass
class Pieces(InputPartition):
    """What one task reads. It contains no credentials; the reader has them."""

    path: StagePath
    pieces: tuple[Piece, ...]


def stage_of(options: ReadOptions) -> StageHandle:
    """Return the named stage."""
    place = options.place
    return stage_named(place.storage(), place.job, place.stage)


def tasks_of(stage: StageHandle, pieces: Sequence[Piece]) -> list[Pieces]:
    """Return the pieces per task; one task reads several small neighbouring partitions."""
    sizes = [0] * stage.describe.partitions
    for piece in pieces:
        sizes[piece.extent.subpartition] += piece.extent.length
    rule = GroupingRule(target_bytes=64 * _MIB, tasks=os.cpu_count() or 8, least_bytes=4 * _MIB)
    groups = group_alike([sizes], rule)
    found = [
        tuple(piece for piece in pieces if first <= piece.extent.subpartition < end)
        for first, end in groups
    ]
    return [Pieces(stage.path, mine) for mine in found if mine]


def read_task(options: ReadOptions, task: Pieces, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task in the columns and types of `schema`."""
    quicken_worker()
    stage = open_stage(options.place.storage(), task.path)
    settings = Settings()
    rows = as_spark(stage, read_pieces(stage, task.pieces, settings), schema)
    yield from join_small(rows, settings.read_batch_rows)
