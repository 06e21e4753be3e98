"""A batch producer attempt: batches in, one COMMIT out.

Strategy: segments are written as the input comes (`segment_writer`); at the end one record in the
producer's log makes all of it count, or nothing. Deletes only what can never count: its own
segments before its COMMIT was ever sent, or after it lost to another's.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.errors import (
    AbortedError,
    DurableShuffleError,
    FencedError,
    InvalidInputError,
)
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import is_id
from durable_shuffle.shuffle.log.producer_log import (
    Committed,
    abort_attempt,
    commit_attempt,
    read_producer,
)
from durable_shuffle.shuffle.log.records import Commit
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.write.segment_writer import (
    IdBatch,
    SegmentWriter,
    checked_batches,
    give_back,
)
from durable_shuffle.shuffle.write.segments import complete_extents


@dataclass(frozen=True, slots=True)
class ProducerResult:
    """What one call of `run_producer` came to."""

    committed: Committed
    wrote: bool
    """False if a COMMIT stood before any input was read."""
    won: bool
    """True if the COMMIT that counts is this attempt's."""


W = TypeVar("W", bound=SegmentWriter)


def run_producer(
    stage: StageHandle,
    producer: int,
    batches: Iterable[IdBatch],
    *,
    attempt: str,
    producers: int,
    settings: Settings,
    check: Callable[[int], None] | None = None,
) -> ProducerResult:
    """Write one producer's output and commit it, unless it is committed already.

    Args:
        producer: from 0, below `producers`.
        batches: rows in the stage's schema with their partition ids; read only if no COMMIT counts.
        attempt: random id of this try, never used before.
        producers: M, how many producers this run of the stage has.
        check: told how many rows were written, before the COMMIT; may raise.

    Raises:
        whatever `check` raises; then nothing was committed.
        FencedError, AbortedError: the stage was released, or a cleaner gave this attempt up.
        OutcomeUnknownError: the storage did not say whether the commit took effect; the segments
            stay.
        UnavailableError: the storage refused, a full disk for example. Segments stay only if it
            was the commit that was refused; a cleaner finds them.
    """

    def begin(ordinals: npt.NDArray[np.uint64]) -> SegmentWriter:
        return SegmentWriter(stage, producer, attempt, settings, next_ordinals=ordinals)

    def fill(writer: SegmentWriter) -> None:
        for batch, ids in checked_batches(stage, batches):
            writer.add(batch, ids)

    return run_writer(
        stage, producer, begin, fill, attempt=attempt, producers=producers, check=check
    )


def run_writer(
    stage: StageHandle,
    producer: int,
    begin: Callable[[npt.NDArray[np.uint64]], W],
    fill: Callable[[W], None],
    *,
    attempt: str,
    producers: int,
    check: Callable[[int], None] | None = None,
) -> ProducerResult:
    """Write one producer's output and commit it, unless it is committed already.

    Args:
        begin: makes the writer, given where it advances ordinals; called only if no COMMIT counts.
        fill: gives the writer all there is; `finish` is called after it.
        check: told how many rows were written, before the COMMIT; may raise.

    Raises:
        as `run_producer`, and whatever `fill` or `check` raises; then nothing was committed.
    """
    if not 0 <= producer < producers or not is_id(attempt):
        raise InvalidInputError(
            f"a producer must be below M={producers} and its attempt a random id of 32 "
            f"hexadecimal digits: producer={producer} attempt={attempt!r}"
        )
    log, after = stage.producer_log(producer), stage.damaged.get(producer, -1)
    before = read_producer(log).counting(after=after)
    if before is not None:
        return ProducerResult(before, wrote=False, won=False)
    ordinals = np.zeros(stage.describe.partitions, dtype=np.uint64)
    writer = begin(ordinals)
    try:
        fill(writer)
        writer.finish()
        commit = Commit(
            record_id=attempt,
            producer=producer,
            producers=producers,
            rows=int(ordinals.sum()),
            memory_bytes=writer.memory_bytes,
            segments=tuple(writer.segments),
            extents=complete_extents(writer.extents, stage.subpartitions_of(producer)).tobytes(),
        )
        if check is not None:
            check(commit.rows)
    except BaseException:
        # no COMMIT was sent and none will be: these segments can never count
        give_back(stage.storage, writer.written_keys)
        raise
    try:
        committed = commit_attempt(log, commit, after=after)
    except (AbortedError, FencedError):
        give_back(stage.storage, writer.written_keys)
        raise
    won = committed.commit.record_id == attempt
    if not won:
        _record_loss(log, committed, attempt)
        give_back(stage.storage, writer.written_keys)
    return ProducerResult(committed, wrote=True, won=won)


def _record_loss(log: SlotLog, committed: Committed, attempt: str) -> None:
    """Leave evidence that this attempt wrote although another's COMMIT stood: reports count it."""
    # evidence is best effort: the winner's result stands whether or not this is written
    with suppress(DurableShuffleError):
        abort_attempt(log, attempt, attempt, f"lost to {committed.commit.record_id}")
