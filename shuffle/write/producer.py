"""A batch producer attempt: record batches, or pairs of Python objects, in, one COMMIT out.

Strategy: segments are written as the input comes (`segments.py`). At the end one record in the
producer's log makes all of it count, or nothing. What user functions opened outside of their
arguments is told before that (`outside`, UNRECOGNISED). An attempt deletes only what can never
count: its own segments before its COMMIT was sent, or after its COMMIT lost to another's.

Pairs are taken in chunks, put in order by partition in numpy, and packed slice by slice, so that
the cost in Python is per chunk and partition, not per pair. The size of a chunk follows the size of
its pairs.
"""

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.errors import (
    AbortedError,
    DurableShuffleError,
    FencedError,
    InvalidInputError,
)
from durable_shuffle.serialization.frames import FrameKind
from durable_shuffle.serialization.markers import Marker
from durable_shuffle.serialization.msgpack_codec import Pair, pack_pairs, pairs_body
from durable_shuffle.shuffle.base.outside import Watch, watching
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.extent_table import pack_block
from durable_shuffle.shuffle.log.layout import is_id
from durable_shuffle.shuffle.log.note_unrecognised import note_unrecognised
from durable_shuffle.shuffle.log.producer_log import (
    CommittedAttempt,
    abort_attempt,
    commit_attempt,
    read_producer,
)
from durable_shuffle.shuffle.log.records import Commit
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.rows.partitioner import counting_sort
from durable_shuffle.shuffle.write.segments import (
    IdBatch,
    Segment,
    SegmentBuilder,
    SegmentWriter,
    checked_batches,
    complete_extents,
    give_back,
)


@dataclass(frozen=True, slots=True)
class ProducerResult:
    """The outcome of one call of `run_producer`."""

    committed: CommittedAttempt
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
    watch: bool = False,
) -> ProducerResult:
    """Write one producer's output and commit it, unless it is committed already.

    Args:
        producer: from 0, below `producers`.
        batches: rows in the stage's schema with their partition ids; read only if no COMMIT counts.
        attempt: random id of this try, never used before.
        producers: M, how many producers this run of the stage has.
        check: called with the number of rows before the COMMIT; may raise.
        watch: user functions make the batches; what they open outside makes the stage unrecognised.

    Raises:
        Exception: any that `check` raises; then nothing was committed.
        FencedError, AbortedError: the stage was released, or a cleaner gave this attempt up.
        OutcomeUnknownError: the storage did not say whether the commit took effect; the segments
            stay.
        UnavailableError: the storage refused, a full disk for example. Segments stay only if it
            was the commit that was refused; a cleaner finds them.
    """

    def fill(writer: SegmentWriter) -> None:
        for batch, ids in checked_batches(stage, batches):
            writer.add(batch, ids)

    writer = SegmentWriter(stage, producer, attempt, settings)
    return _run_writer(stage, producer, writer, fill, attempt, producers, check, watch=watch)


def run_segment_producer(
    stage: StageHandle,
    producer: int,
    segments: Iterable[tuple[Segment, int]],
    *,
    attempt: str,
    producers: int,
    settings: Settings,
) -> ProducerResult:
    """Write segments that others have encoded, and commit them, as `run_producer` does.

    Args:
        segments: in order, numbered from 0, each with the uncompressed Arrow bytes of its rows;
            read only if no COMMIT counts. If iterating raises, nothing is committed.
    """

    def fill(writer: SegmentWriter) -> None:
        for segment, memory_bytes in segments:
            writer.add_segment(segment, memory_bytes)

    writer = SegmentWriter(stage, producer, attempt, settings)
    return _run_writer(stage, producer, writer, fill, attempt, producers)


def _run_writer(
    stage: StageHandle,
    producer: int,
    writer: W,
    fill: Callable[[W], None],
    attempt: str,
    producers: int,
    check: Callable[[int], None] | None = None,
    *,
    watch: bool = False,
) -> ProducerResult:
    """Commit all that `fill` gives to the writer, unless a COMMIT counts: then nothing is read."""
    if not 0 <= producer < producers or not is_id(attempt):
        raise InvalidInputError(
            f"a producer must be below M={producers} and its attempt a random id of 32 "
            f"hexadecimal digits: producer={producer} attempt={attempt!r}"
        )
    log, after = stage.producer_log(producer), stage.damaged.get(producer, -1)
    before = None if stage.untried else read_producer(log).counting(after=after)
    if before is not None:
        return ProducerResult(before, wrote=False, won=False)
    try:
        with watching() if watch else nullcontext(Watch()) as outside:
            fill(writer)
        writer.finish()
        commit = Commit(
            record_id=attempt,
            producer=producer,
            producers=producers,
            rows=int(writer.next_ordinals.sum()),
            memory_bytes=writer.memory_bytes,
            segments=tuple(writer.segments),
            extents=pack_block(
                complete_extents(writer.extents, stage.subpartitions_of(producer)), "subpartition"
            ),
        )
        if check is not None:
            check(commit.rows)
        if outside.found:  # before the COMMIT, or a later call could count these rows
            note_unrecognised(
                stage,
                [f"{what}, opened by a Python function" for what in outside.found],
                generation=stage.describe.generation,
                record_id=attempt,
            )
    except BaseException:
        # no COMMIT was sent and none will be: these segments can never count
        give_back(stage.storage, writer.written_keys())
        raise
    try:
        committed = commit_attempt(log, commit, after=after)
    except (AbortedError, FencedError):
        give_back(stage.storage, writer.written_keys())
        raise
    won = committed.commit.record_id == attempt
    if not won:
        _record_loss(log, committed, attempt)
        give_back(stage.storage, writer.written_keys())
    return ProducerResult(committed, wrote=True, won=won)


def _record_loss(log: SlotLog, committed: CommittedAttempt, attempt: str) -> None:
    """Record that this attempt wrote although another's COMMIT stood; reports count it."""
    # best effort: the winner's result stands whether or not this is written
    with suppress(DurableShuffleError):
        abort_attempt(log, attempt, attempt, f"lost to {committed.commit.record_id}")


OBJECT_FRAME_BYTES = 1 << 20
"""A frame of objects is cut near this many bytes: a reader holds a frame's objects all at once."""

_FIRST_CHUNK = 256
_MOST_PAIRS = 65_536
_CHUNK_BYTES = 4 << 20

KeyPartitions = Callable[[list[Any]], npt.NDArray[np.unsignedinteger]]
"""Partition ids, uint16 or uint32, of a list of keys."""


class PairWriter(SegmentWriter):
    """Packed pairs of one attempt, by subpartition."""

    def __init__(self, stage: StageHandle, producer: int, attempt: str, settings: Settings) -> None:
        super().__init__(stage, producer, attempt, settings)
        self._packed: dict[int, list[tuple[bytes, int]]] = {}

    def add_pairs(self, pairs: list[Pair], ids: npt.NDArray[np.unsignedinteger]) -> int:
        """Take pairs with their partition ids; return how many bytes they took."""
        order, counts = counting_sort(ids, self._stage.describe.partitions)
        ordered = np.fromiter(pairs, dtype=object, count=len(pairs))[order].tolist()
        start, size = 0, 0
        for k in np.flatnonzero(counts).tolist():
            end = start + int(counts[k])
            packed = list(_packed(ordered[start:end]))
            self._packed.setdefault(k, []).extend(packed)
            size += sum(len(data) for data, _ in packed)
            start = end
        self.memory_bytes += size
        self._held_bytes += size
        if self._held_bytes >= self._settings.writer_memory_bytes:
            self._write(())
        return size

    def finish(self, markers: Sequence[Marker] = ()) -> None:
        """Write what is held. All is stored."""
        if self._packed:
            self._write(markers)
        self._wait()

    def _write(self, markers: Sequence[Marker]) -> None:
        assert not markers  # only producers that are followed write them
        builder = SegmentBuilder(
            self._stage.path.incarnation,
            self._producer,
            self._number,
            self.next_ordinals,
            self._settings.max_frame_bytes,
        )
        for k in sorted(self._packed):
            builder.add_records(k, FrameKind.MSGPACK, _bodies(self._packed[k]))
        self._packed, self._held_bytes = {}, 0
        self._store(builder.finish())


def _packed(pairs: list[Pair]) -> Iterator[tuple[bytes, int]]:
    """Pack pairs, in halves as long as they are too many for one frame."""
    data = pack_pairs(pairs)
    if len(data) <= 4 * _CHUNK_BYTES or len(pairs) == 1:
        yield data, len(pairs)
        return
    del data
    middle = len(pairs) // 2
    yield from _packed(pairs[:middle])
    yield from _packed(pairs[middle:])


def _bodies(parts: list[tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
    """Join packed slices to bodies of about OBJECT_FRAME_BYTES, each with its pairs."""
    held: list[bytes] = []
    size = pairs = 0
    for packed, count in parts:
        held.append(packed)
        size, pairs = size + len(packed), pairs + count
        if size >= OBJECT_FRAME_BYTES:
            yield pairs_body(held, pairs), pairs
            held, size, pairs = [], 0, 0
    if held:
        yield pairs_body(held, pairs), pairs


def run_pair_producer(
    stage: StageHandle,
    producer: int,
    pairs: Iterable[Pair],
    key_partitions: KeyPartitions,
    *,
    attempt: str,
    producers: int,
    settings: Settings,
    watch: bool = False,
) -> ProducerResult:
    """Write one producer's pairs and commit them, unless it is committed already.

    Args:
        pairs: read only if no COMMIT counts.
        watch: as for `run_producer`.

    Raises:
        InvalidInputError: an item is no pair, or holds a value that cannot be stored.
        DurableShuffleError: see `producer.run_producer`.
    """

    def fill(writer: PairWriter) -> None:
        left, size = iter(pairs), _FIRST_CHUNK
        while chunk := list(itertools.islice(left, size)):
            _check_pairs(chunk)
            ids = key_partitions(list(map(operator.itemgetter(0), chunk)))
            taken = writer.add_pairs(chunk, ids)
            wanted = int(_CHUNK_BYTES * len(chunk) / max(1, taken))
            size = max(1, min(_MOST_PAIRS, 4 * size, wanted))

    writer = PairWriter(stage, producer, attempt, settings)
    return _run_writer(stage, producer, writer, fill, attempt, producers, watch=watch)


def _check_pairs(chunk: list[Any]) -> None:
    kinds = set(map(type, chunk))
    if kinds == {tuple} and set(map(len, chunk)) == {2}:
        return
    for item in chunk:
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise InvalidInputError(
                f"items must be (key, value) pairs, found {type(item).__name__}: make them pairs "
                "with a map() first"
            )
