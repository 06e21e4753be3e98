"""A task's part of a batch: segments of the run, in an ordinal count of the task's own."""

from collections.abc import Iterable

import numpy as np

from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.records import EXTENT
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.write.run_log import Begun, Part
from durable_shuffle.shuffle.write.segment_writer import (
    IdBatch,
    SegmentWriter,
    checked_batches,
    give_back,
)

SEGMENT_NUMBERS = 1 << 31
"""Tasks of a run draw the numbers of their segments below this; one that is taken is refused by the
storage, and the task is tried again."""

FIRST_ORDINALS = 1 << 60
"""And the first ordinal of their count below this, so that frames of two tasks have other seeds."""


def write_part(
    stage: StageHandle,
    producer: int,
    begun: Begun,
    number: int,
    batches: Iterable[IdBatch],
    *,
    first_segment: int,
    first_ordinal: int,
    settings: Settings,
) -> Part:
    """Write rows that count once `append_batch` names them.

    Args:
        number: of the task within the batch: rows of lower ones come first.
        first_segment, first_ordinal: drawn by the task, see above.

    Raises:
        InvalidInputError: rows that do not fit the stage.
        ConflictError: a segment's number is taken: draw another.
    """
    ordinals = np.full(stage.describe.partitions, first_ordinal, dtype=np.uint64)
    writer = SegmentWriter(
        stage, producer, begun.attempt, settings, next_ordinals=ordinals, first_number=first_segment
    )
    try:
        for batch, ids in checked_batches(stage, batches):
            writer.add(batch, ids)
        writer.finish()
    except BaseException:
        give_back(stage.storage, writer.written_keys[:-1])
        raise
    extents = np.concatenate([*writer.extents, np.zeros(0, dtype=EXTENT)])
    return Part(
        begun,
        number,
        int(extents["rows"].sum()),
        writer.memory_bytes,
        tuple(writer.segments),
        extents.tobytes(),
    )
