"""Read the logs of log producers: what they say, and the rows that they name."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.serialization.arrow_schemas import fit_batch
from durable_shuffle.serialization.errors import CorruptDataError, InvalidInputError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.appender_log import (
    Append,
    AppenderOpen,
    AppenderRecord,
    End,
    JobAbort,
)
from durable_shuffle.shuffle.log.appender_reads import gone_below, kept_records, refuse_holes
from durable_shuffle.shuffle.log.records import Closed
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import (
    StageHandle,
    StageState,
    live_state,
    read_state,
)
from durable_shuffle.shuffle.read.feed import EndMode
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.stream.scan import read_row_ranges, standing_rows

RowCounts = npt.NDArray[np.uint64]


@dataclass(slots=True)
class LogAttempt:
    """What one OPEN began, or what one write job appended."""

    attempt: str
    """Id of the OPEN, or of the write job."""
    slot: int
    """Slot of the OPEN; of a write job, the slot before its record."""
    epoch: int
    generation: int
    appends: int = 0
    """This and the next two: released ones included, but for those whose records are gone."""
    rows: int = 0
    data_bytes: int = 0
    """Of the segments that its APPENDs name."""
    end: EndMode | None = None
    """None: it wrote no END."""
    job: bool = False
    """It is a write job, which needs no OPEN."""


@dataclass(slots=True)
class ProducerLog:
    """What one log says from its first slot to its end."""

    producer: int
    attempts: list[LogAttempt]
    stored: RowCounts
    """Rows that were appended and not released, per partition of the stage."""
    appended: RowCounts
    """Rows that were ever appended, per partition of the stage."""
    data_bytes: int = 0
    """Of the segments with the rows that were not released."""
    segments: set[tuple[str, int]] = field(default_factory=set)
    """Those that APPENDs name, as (attempt, number)."""
    appends: dict[str, list[int]] = field(default_factory=dict)
    """The slots of each attempt's APPENDs."""
    closed: bool = False
    """The stage was released."""
    owner: str = ""
    """Id of the newest OPEN."""

    @property
    def end(self) -> EndMode | None:
        """How the newest attempt ended; None: it is open, or there never was one."""
        return self.attempts[-1].end if self.attempts else None

    @property
    def ended(self) -> bool:
        """Whether no record will ever follow; after SUSPEND a successor may append."""
        return self.end in ("FINITE", "DRAIN")


def read_producer_logs(stage: StageHandle, state: StageState) -> list[ProducerLog]:
    """Read every slot of every producer's log once.

    Args:
        stage: of log producers.
        state: tells which slots were released.

    Raises:
        CorruptDataError, IncompatibleError: a record is damaged or not of this version.
    """
    upto = state.released_below(stage.describe.producers)

    def read(producer: int) -> ProducerLog:
        records = kept_records(stage, producer, state)
        return _fold(stage, producer, records, upto[producer])

    with ThreadPoolExecutor(Settings().control_threads) as pool:
        return list(pool.map(read, range(stage.describe.producers)))


def _fold(
    stage: StageHandle, producer: int, records: Iterable[tuple[int, AppenderRecord]], upto: int
) -> ProducerLog:
    writes = stage.subpartitions_of(producer)
    rows = np.zeros((2, stage.describe.partitions), dtype=np.uint64)
    log = ProducerLog(producer, [], *rows)
    for slot, record in records:
        name = stage.producer_log(producer).key(slot)
        if isinstance(record, Closed):
            log.closed = True
            continue
        after = record.after
        if isinstance(record, AppenderOpen):
            opened = LogAttempt(record.record_id, slot, after.epoch, after.generation)
            log.attempts.append(opened)
        elif isinstance(record, Append) and record.record_id != after.owner:
            job = LogAttempt(record.record_id, slot - 1, after.epoch, after.generation, job=True)
            log.attempts.append(job)
        elif not isinstance(record, JobAbort) and log.owner != record.record_id:
            raise _not_open(name)
        log.appended[writes] = after.ordinals(len(writes), name)
        if isinstance(record, Append):
            _append(log, slot, record, name, stored=slot >= upto)
        elif isinstance(record, End):
            _attempt(log, record, name).end = record.mode
        log.owner = after.owner
    return log


def _not_open(name: str) -> CorruptDataError:
    return CorruptDataError(f"{name}: a record of an attempt that is not open")


def _attempt(log: ProducerLog, record: Append | End, name: str) -> LogAttempt:
    for attempt in reversed(log.attempts):
        if attempt.attempt == record.record_id:
            return attempt
    raise _not_open(name)


def _append(log: ProducerLog, slot: int, record: Append, name: str, *, stored: bool) -> None:
    length = sum(segment.length for segment in record.segments)
    attempt = _attempt(log, record, name)
    attempt.appends += 1
    log.appends.setdefault(record.record_id, []).append(slot)
    attempt.rows += record.rows
    attempt.data_bytes += length
    log.segments.update((record.record_id, segment.number) for segment in record.segments)
    if stored:
        extents = record.extent_array(name, len(log.stored))
        np.add.at(log.stored, extents["subpartition"], extents["rows"])
        log.data_bytes += length


_SETTINGS = Settings(writer_memory_bytes=8 << 20)
"""Little is fetched ahead: mostly the first rows are asked for."""


class LogRows:
    """What the logs of a stage of log producers hold at the moment that this is made.

    The logs are copied into memory, each slot read once, so that every partition shows the same
    moment and nothing is waited for.

    Raises:
        NotFoundError: the stage was released.
        CorruptDataError, IncompatibleError: a record is damaged, lost, or not of this version.
    """

    def __init__(self, stage: StageHandle) -> None:
        refuse_holes(stage)
        memory = MemoryStorage()

        def copy(log: SlotLog, first: int = 0) -> None:
            copied = SlotLog(memory, log.prefix)
            for slot in sorted(log.listed()) if first else ():
                if slot < first and (data := log.read(slot)) is not None:
                    copied.append(slot, data)
            for slot, data in log.read_from(first):
                copied.append(slot, data)

        producers = [stage.producer_log(p) for p in range(stage.describe.producers)]
        with ThreadPoolExecutor(_SETTINGS.control_threads) as pool:
            list(pool.map(copy, producers, gone_below(stage)))
        copy(stage.log())  # last: before a producer's log is closed, a RELEASE stands in this one
        copied = StageHandle(memory, stage.path, stage.describe)
        live_state(copied)
        logs = read_producer_logs(copied, read_state(copied))
        self._stage, self._ranges = stage, standing_rows(copied)
        self.producers = len(logs)
        self.ended = sum(log.ended for log in logs)
        """Producers that will never append again."""
        self.rows = sum(int(log.stored.sum()) for log in logs)
        """Rows that were appended and not released."""
        self.released = sum(int(log.appended.sum()) for log in logs) - self.rows
        """Rows that were released."""

    def batches(self, k: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of partition k, producer by producer, each producer's in order.

        Columns that were added to the stage later are left out.

        Raises:
            InvalidInputError: no such partition.
            CorruptDataError: a frame fails its check or rows do not add up; names the segment.
            NotFoundError: a segment is gone; says so if the stage was released meanwhile.
        """
        stage, count = self._stage, self._stage.describe.partitions
        if not 0 <= k < count:
            raise InvalidInputError(
                f"no such partition: {k} of {count}, counted from 0: {stage.path.prefix!r}"
            )
        ranges = [span for span in self._ranges if span.extent.subpartition == k]
        for batch in read_row_ranges(stage, ranges, _SETTINGS):
            yield fit_batch(batch, stage.schema)
