"""The stream reader: offsets, admission control, available-now; tasks read pieces.

The driver's calls run in one process that lives as long as the query. If the reader has a consumer
name, it acknowledges an offset with one record. What all consumers have acknowledged can be deleted
(`shuffle/stream/consumer.py`).
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from durable_shuffle.jobs.streaming.options import ReadOptions
from durable_shuffle.jobs.streaming.reading import (
    TaskPieces,
    check_schema,
    read_task,
    stage_of,
    tasks_of,
)
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import Clock, RandomIds
from durable_shuffle.shuffle.base.retry import backoff_seconds
from durable_shuffle.shuffle.stream.consumer import StreamConsumer
from durable_shuffle.shuffle.stream.offset import (
    Limits,
    StreamOffset,
    advance,
    capped,
    offset_from_json,
)
from durable_shuffle.shuffle.stream.scan import StageScan


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stage as a stream. It sends no request to storage before its first call."""

    def __init__(self, options: ReadOptions, schema: StructType, clock: Clock) -> None:
        self._options, self._schema, self._clock = options, schema, clock
        self._target: StreamOffset | None = None
        self._consumer: StreamConsumer | None = None
        self._checked = False
        self._seen: StreamOffset | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Give tasks a new reader; they need only the options and the schema."""
        return StreamReader, (self._options, self._schema, self._clock)

    def initialOffset(self) -> dict[str, Any]:
        return starting_offset(self._scan, self._options.starting).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        most_rows, most_bytes = self._options.most_rows, self._options.most_bytes
        if most_rows is not None:
            return ReadMaxRows(most_rows)
        return ReadAllAvailable() if most_bytes is None else ReadMaxBytes(most_bytes)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = self._offset(start)
        if not self._checked:
            check_schema(self._scan.stage, self._schema)
            self._scan.check_standing(begin)
            self._join()
            self._checked = True
        if self._target is not None:
            return capped(self._end(begin, limit), self._target).to_json()
        standing = self._scan.latest(begin)
        if (end := self._end(begin, limit, standing)).rows < standing.rows:
            return end.to_json()
        wait = self._options.wait_seconds
        self._seen = watch(self._scan, standing, clock=self._clock, longest_seconds=wait)
        return self._end(begin, limit, self._seen).to_json()

    def _end(
        self, begin: StreamOffset, limit: ReadLimit, standing: StreamOffset | None = None
    ) -> StreamOffset:
        """Return the end offset of a batch that begins at `begin`.

        Args:
            standing: the stage's end, None if it must be looked up.
        """
        if isinstance(limit, ReadAllAvailable):
            return standing or self._scan.latest(begin)
        return advance(begin, self._scan.arrivals(begin), self._limits(limit))

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._scan.latest()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        self._seen = self._target or self._scan.latest(self._seen)
        return self._seen.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        pieces = self._scan.ranges(self._offset(start), self._offset(end))
        return tasks_of(self._scan.stage, pieces)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskPieces)
        return read_task(self._options, partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.consumer:
            self._join()
            assert self._consumer is not None
            self._consumer.acknowledge(self._offset(end))

    @cached_property
    def _scan(self) -> StageScan:
        return StageScan(stage_of(self._options))

    def _offset(self, offset: dict[str, Any]) -> StreamOffset:
        folder, widths = self._scan.stage.path.folder, self._scan.widths
        return offset_from_json(offset, stage=folder, widths=widths)

    def _limits(self, limit: ReadLimit) -> Limits:
        """Return Spark's limit; if it is in rows, with the options' limit in bytes as well."""
        if isinstance(limit, ReadMaxRows):
            return Limits(limit.max_rows, self._options.most_bytes)
        if isinstance(limit, ReadMaxBytes):
            return Limits(None, limit.max_bytes)
        raise InvalidInputError(f"a stage is not read by {type(limit).__name__}")

    def _join(self) -> None:
        """Become the consumer that the options name, if they name one."""
        options = self._options
        if options.consumer and self._consumer is None:
            name, declared = options.consumer, options.consumers
            self._consumer = StreamConsumer(
                self._scan.stage, name, declared=declared, ids=RandomIds()
            )


def starting_offset(scan: StageScan, text: str) -> StreamOffset:
    """Return the offset that option `startingOffsets` names, for a query without a checkpoint.

    Raises:
        InvalidInputError: not "earliest", "latest" or an offset, or an offset after the end.
        NotFoundError: rows at the offset were released; names the earliest offset.
        IncompatibleError: it is an offset of another stage.
    """
    word = text.strip().lower()
    if word == "earliest":
        return scan.earliest()
    if word == "latest":
        return scan.latest()
    try:
        stated = json.loads(text)
    except ValueError:
        raise InvalidInputError(
            f"option 'startingOffsets' must be earliest, latest or an offset as JSON, "
            f"found={text!r:.200}"
        ) from None
    offset = offset_from_json(stated, stage=scan.stage.path.folder, widths=scan.widths)
    latest = scan.latest()
    for mine, end in zip(offset.lanes, latest.lanes, strict=True):
        if any(at > last for at, last in zip(mine.next, end.next, strict=True)):
            raise InvalidInputError(
                f"option 'startingOffsets' lies behind the end: {list(mine.next)}, rows per "
                f"subpartition are {list(end.next)}"
            )
    scan.check_standing(offset)
    # a user's slots are not trusted, because wrong ones could skip rows
    return replace(offset, lanes=tuple(replace(lane, slot=0) for lane in offset.lanes))


_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.01, 0.1


def watch(
    scan: StageScan, standing: StreamOffset, *, clock: Clock, longest_seconds: float
) -> StreamOffset:
    """Wait until the stage's end is past `standing`, and return it; after the time, `standing`.

    Spark starts the triggers of all queries at multiples of their interval. A reader that does not
    wait looks just before a writer with the same interval commits, and lags a whole trigger.
    """
    deadline = clock.monotonic() + longest_seconds
    misses, end = 0, standing
    while end == standing and (left := deadline - clock.monotonic()) > 0:
        misses += 1
        pause = backoff_seconds(misses, _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        clock.sleep(min(pause, left))
        end = scan.latest(standing)
    return end
