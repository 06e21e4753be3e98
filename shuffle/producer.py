"""A batch producer attempt: batches in, one COMMIT out.

Strategy: gather up to `writer_memory_bytes`, then write one segment; at the end one record in the
producer's log makes all of it count, or nothing. Segment names hold the attempt's random id, so
attempts never touch each other's objects. Deletes only what can never count: its own segments
before its COMMIT was ever sent, or after it lost to another's.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.serialization.arrow_codec import storable_batch
from durable_shuffle.serialization.errors import (
    AbortedError,
    DurableShuffleError,
    FencedError,
    InvalidInputError,
)
from durable_shuffle.shuffle.producer_log import (
    Committed,
    abort_attempt,
    commit_attempt,
    counting_commit,
    read_log,
)
from durable_shuffle.shuffle.records import Commit, SegmentInfo
from durable_shuffle.shuffle.segments import build_segment, complete_extents
from durable_shuffle.shuffle.settings import Settings
from durable_shuffle.shuffle.slot_log import SlotLog
from durable_shuffle.shuffle.stage import StageHandle

_ATTEMPT = re.compile(r"[0-9a-f]{32}")

IdBatch = tuple[pa.RecordBatch, npt.NDArray[np.unsignedinteger]]
"""A record batch and the partition id of each of its rows."""


@dataclass(frozen=True, slots=True)
class ProducerResult:
    """What one call of `run_producer` came to."""

    committed: Committed
    wrote: bool
    """False if a COMMIT stood before any input was read."""
    won: bool
    """True if the COMMIT that counts is this attempt's."""


class _Attempt:
    """Segments of one attempt. Not thread-safe."""

    def __init__(
        self, stage: StageHandle, producer: int, attempt: str, producers: int, settings: Settings
    ) -> None:
        self._stage, self._producer, self._attempt = stage, producer, attempt
        self._producers, self._settings = producers, settings
        self._held: list[IdBatch] = []
        self._held_bytes = 0
        self._memory_bytes = 0
        self._next_ordinals = np.zeros(stage.describe.partitions, dtype=np.uint64)
        self._segments: list[SegmentInfo] = []
        self._extents: list[npt.NDArray[np.void]] = []
        self._written: list[str] = []

    @property
    def written_keys(self) -> list[str]:
        return self._written

    def add(self, batch: pa.RecordBatch, ids: npt.NDArray[np.unsignedinteger]) -> None:
        if batch.num_rows == 0:
            return
        self._held.append((batch, ids))
        size = batch.nbytes
        self._held_bytes += size
        self._memory_bytes += size
        if self._held_bytes >= self._settings.writer_memory_bytes:
            self._flush()

    def _flush(self) -> None:
        batch = pa.concat_batches([b for b, _ in self._held])
        ids = np.concatenate([i for _, i in self._held])
        self._held, self._held_bytes = [], 0
        number = len(self._segments)
        segment = build_segment(
            batch,
            ids,
            partitions=self._stage.describe.partitions,
            number=number,
            stage_id=self._stage.path.incarnation,
            producer=self._producer,
            next_ordinals=self._next_ordinals,
            compression=self._stage.describe.compression,
            frame_bytes=self._settings.frame_bytes,
        )
        key = self._stage.path.segment_key(self._producer, self._attempt, number)
        self._written.append(key)
        self._stage.storage.put(key, segment.parts)
        self._segments.append(segment.info)
        self._extents.append(segment.extents)

    def finish(self) -> Commit:
        if self._held:
            self._flush()
        expected = self._stage.subpartitions_of(self._producer)
        return Commit(
            record_id=self._attempt,
            producer=self._producer,
            producers=self._producers,
            rows=int(self._next_ordinals.sum()),
            memory_bytes=self._memory_bytes,
            segments=tuple(self._segments),
            extents=complete_extents(self._extents, expected).tobytes(),
        )


def run_producer(
    stage: StageHandle,
    producer: int,
    batches: Iterable[IdBatch],
    *,
    attempt: str,
    producers: int,
    settings: Settings,
) -> ProducerResult:
    """Write one producer's output and commit it, unless it is committed already.

    Args:
        producer: from 0, below `producers`.
        batches: rows in the stage's schema with their partition ids; read only if no COMMIT counts.
        attempt: random id of this try, never used before.
        producers: M, how many producers this run of the stage has.

    Raises:
        FencedError, AbortedError: the stage was released, or a cleaner gave this attempt up.
        OutcomeUnknownError: the storage did not say whether the commit took effect; the segments
            stay.
        UnavailableError: the storage refused, a full disk for example. Segments stay only if it
            was the commit that was refused; a cleaner finds them.
    """
    if not 0 <= producer < producers or not _ATTEMPT.fullmatch(attempt):
        raise InvalidInputError(
            f"a producer must be below M={producers} and its attempt a random id of 32 "
            f"hexadecimal digits: producer={producer} attempt={attempt!r}"
        )
    log = stage.producer_log(producer)
    before = counting_commit(read_log(log))
    if before is not None:
        return ProducerResult(before, wrote=False, won=False)
    writer = _Attempt(stage, producer, attempt, producers, settings)
    try:
        for batch, ids in _checked(stage, batches):
            writer.add(batch, ids)
        commit = writer.finish()
    except BaseException:
        # no COMMIT was sent and none will be: these segments can never count
        _give_back(stage, writer.written_keys)
        raise
    try:
        committed = commit_attempt(log, commit)
    except (AbortedError, FencedError):
        _give_back(stage, writer.written_keys)
        raise
    won = committed.commit.record_id == attempt
    if not won:
        _record_loss(log, committed, attempt)
        _give_back(stage, writer.written_keys)
    return ProducerResult(committed, wrote=True, won=won)


def _checked(stage: StageHandle, batches: Iterable[IdBatch]) -> Iterator[IdBatch]:
    for batch, ids in batches:
        if len(ids) != batch.num_rows:
            raise InvalidInputError(
                f"one partition id per row is needed: rows={batch.num_rows} ids={len(ids)} "
                f"stage={stage.path.name!r}"
            )
        if len(ids) and int(ids.max()) >= stage.describe.partitions:
            raise InvalidInputError(
                f"partition id out of range: found={int(ids.max())} "
                f"partitions={stage.describe.partitions} stage={stage.path.name!r}"
            )
        yield storable_batch(batch, stage.schema), ids


def _record_loss(log: SlotLog, committed: Committed, attempt: str) -> None:
    """Leave evidence that this attempt wrote although another's COMMIT stood: reports count it."""
    # evidence is best effort: the winner's result stands whether or not this is written
    with suppress(DurableShuffleError):
        abort_attempt(log, attempt, attempt, f"lost to {committed.commit.record_id}")


def _give_back(stage: StageHandle, keys: list[str]) -> None:
    # orphans cost space, not correctness, and must not hide why we stop; a cleaner finds them
    with suppress(DurableShuffleError):
        stage.storage.delete(keys)
