"""What the logs of log producers hold, as plain values: one walk per log, no data."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.appender_log import (
    Append,
    AppenderOpen,
    AppenderRecord,
    End,
    JobAbort,
    appender_log,
)
from durable_shuffle.shuffle.log.records import Closed
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.log.stage_fold import StageState
from durable_shuffle.shuffle.read.extent_feed import EndMode

Rows = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class LogAttempt:
    """What one OPEN began, or what one write job appended."""

    attempt: str
    """Id of the OPEN, or of the write job."""
    slot: int
    """Of the OPEN; the one before its record of a write job."""
    epoch: int
    generation: int
    appends: int = 0
    rows: int = 0
    """Appended, released ones included."""
    data_bytes: int = 0
    """Of the segments that its APPENDs name, released ones included."""
    end: EndMode | None = None
    """None: it wrote no END."""
    job: bool = False
    """It is a write job, which needs no OPEN."""


@dataclass(slots=True)
class ProducerLog:
    """What one log says from its first slot to its end."""

    producer: int
    attempts: list[LogAttempt]
    stored: Rows
    """Rows that were appended and not released, per partition of the stage."""
    appended: Rows
    """Rows that were ever appended, per partition of the stage."""
    data_bytes: int = 0
    """Of the segments with the rows that were not released."""
    segments: set[tuple[str, int]] = field(default_factory=set)
    """Those that APPENDs name, as (attempt, number)."""
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
        records = appender_log(stage.producer_log(producer)).records()
        return _fold(stage, producer, records, upto[producer])

    with ThreadPoolExecutor(Settings().control_threads) as pool:
        return list(pool.map(read, range(stage.describe.producers)))


def log_status(ended: int, producers: int) -> str:
    """Return the status of a stage of log producers for people."""
    return f"log, {ended} of {producers} producers ended"


def _fold(
    stage: StageHandle,
    producer: int,
    records: Iterable[tuple[int, AppenderRecord]],
    upto: int,
) -> ProducerLog:
    writes = stage.subpartitions_of(producer)
    rows = np.zeros((2, stage.describe.partitions), dtype=np.uint64)
    found = ProducerLog(producer, [], *rows)
    for slot, record in records:
        name = stage.producer_log(producer).key(slot)
        if isinstance(record, Closed):
            found.closed = True
            continue
        after = record.after
        if isinstance(record, AppenderOpen):
            opened = LogAttempt(record.record_id, slot, after.epoch, after.generation)
            found.attempts.append(opened)
        elif isinstance(record, Append) and record.record_id != after.owner:
            job = LogAttempt(record.record_id, slot - 1, after.epoch, after.generation, job=True)
            found.attempts.append(job)
        elif not isinstance(record, JobAbort) and found.owner != record.record_id:
            raise CorruptDataError(f"{name}: a record of an attempt that is not open")
        found.appended[writes] = after.ordinals(len(writes), name)
        if isinstance(record, Append):
            _append(found, record, name, stored=slot >= upto)
        elif isinstance(record, End):
            found.attempts[-1] = replace(found.attempts[-1], end=record.mode)
        found.owner = after.owner
    return found


def _append(found: ProducerLog, record: Append, name: str, *, stored: bool) -> None:
    length = sum(segment.length for segment in record.segments)
    newest = reversed(range(len(found.attempts)))
    at = next(n for n in newest if found.attempts[n].attempt == record.record_id)
    last = found.attempts[at]
    found.attempts[at] = replace(
        last,
        appends=last.appends + 1,
        rows=last.rows + record.rows,
        data_bytes=last.data_bytes + length,
    )
    found.segments.update((record.record_id, one.number) for one in record.segments)
    if stored:
        extents = record.extent_array(name, len(found.stored))
        np.add.at(found.stored, extents["subpartition"], extents["rows"])
        found.data_bytes += length
