"""Compaction on Spark: one task per compacted segment.

A task that runs twice writes the same bytes under the same name. The COMPACT record will state what
the tasks return. If compaction fails, the stage stays readable as before.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from durable_shuffle.jobs.deploy.running_code import running_code
from durable_shuffle.jobs.deploy.worker_start import quicken_worker
from durable_shuffle.jobs.engine.engine import Engine
from durable_shuffle.jobs.engine.tasks import ArrowFunction, check_code
from durable_shuffle.serialization.errors import DurableShuffleError
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.records import Seal, SegmentInfo
from durable_shuffle.shuffle.log.stage import StageHandle, require_seal
from durable_shuffle.shuffle.repair.compaction import (
    Tile,
    WriteTiles,
    bytes_to_compact_at_seal,
    compact_stage,
    write_tile,
)

RESULT_SCHEMA = "number long, length long, sha256 binary"

_SHIPPED_BYTES = 8 << 20
"""Limit on the index entries that one Spark job carries, since each of its tasks gets them all."""


def compacted(
    engine: Engine,
    stage: StageHandle,
    of_tasks: StageHandle,
    seal: Seal,
    generation: int,
    settings: Settings,
    ids: IdSource,
) -> Seal:
    """Compact a stage that was just sealed, if that is asked for or pays.

    Args:
        of_tasks: the stage, opened on the storage that tasks use.
        generation: the driver's.

    Returns:
        The seal that readers must use.
    """
    small_bytes = bytes_to_compact_at_seal(stage, seal, settings)
    if not small_bytes:
        return seal
    write_tiles = _tile_writer(engine, of_tasks, settings)
    try:
        compact_stage(
            stage,
            ids=ids,
            generation=generation,
            settings=settings,
            small_bytes=small_bytes,
            write_tiles=write_tiles,
        )
    except DurableShuffleError:
        if settings.compact_small_bytes is not None:
            raise  # it was asked for
    return require_seal(stage)


def _tile_writer(engine: Engine, stage: StageHandle, settings: Settings) -> WriteTiles:
    """Return the function that writes tiles in Spark tasks; a single tile in this process."""

    def write(tiles: Sequence[Tile]) -> Iterator[SegmentInfo]:
        if len(tiles) == 1:
            yield write_tile(stage, tiles[0], settings)
            return
        for some in _jobs(tiles):
            label = f"durable_shuffle: compact {stage.path.name}, {len(some)} segments"
            function = _function(stage, some, settings, running_code())
            rows = engine.run_numbered(function, len(some), RESULT_SCHEMA, label)
            for row in sorted(rows, key=lambda row: int(row["number"])):
                yield SegmentInfo(row["number"], row["length"], bytes(row["sha256"]))

    return write


def _jobs(tiles: Sequence[Tile]) -> Iterator[Sequence[Tile]]:
    start = size = 0
    for n, tile in enumerate(tiles):
        if n > start and size + tile.entries.nbytes > _SHIPPED_BYTES:
            yield tiles[start:n]
            start, size = n, 0
        size += tile.entries.nbytes
    yield tiles[start:]


def _function(
    stage: StageHandle, tiles: Sequence[Tile], settings: Settings, code: str
) -> ArrowFunction:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                quicken_worker()
                check_code(code)
                info = write_tile(stage, tiles[number], settings)
                yield pa.record_batch(
                    [[info.number], [info.length], pa.array([info.sha256], pa.binary())],
                    names=["number", "length", "sha256"],
                )

    return write
