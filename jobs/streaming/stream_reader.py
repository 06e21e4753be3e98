"""The stream reader: offsets, admission control, available-now; tasks read pieces.

The driver's calls run in one process that lives as long as the query. Tasks get a pickled copy of
the reader and use only its options. If the reader has a consumer name, it acknowledges an offset
with one record. What all consumers have acknowledged can be deleted (`shuffle/stream/consumer.py`).
"""

from collections.abc import Iterator, Sequence
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
from durable_shuffle.jobs.streaming.reading import Pieces, read_task, stage_of, tasks_of
from durable_shuffle.jobs.streaming.starting import starting_offset
from durable_shuffle.jobs.streaming.watching import watch
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import Clock, RandomIds
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
        self._scan_found: StageScan | None = None
        self._target: StreamOffset | None = None
        self._consumer: StreamConsumer | None = None
        self._checked = False
        self._seen: StreamOffset | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for tasks, which need only the options and the schema."""
        return {
            **self.__dict__,
            "_scan_found": None,
            "_target": None,
            "_consumer": None,
            "_seen": None,
        }

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
        begin = self._offset(start)
        pieces = self._scan.pieces(begin, self._offset(end))
        return tasks_of(self._scan.stage, pieces)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Pieces)
        return read_task(self._options, partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.consumer:
            self._join()
            assert self._consumer is not None
            self._consumer.acknowledge(self._offset(end))

    @property
    def _scan(self) -> StageScan:
        if self._scan_found is None:
            self._scan_found = StageScan(stage_of(self._options))
        return self._scan_found

    def _offset(self, found: dict[str, Any]) -> StreamOffset:
        folder, widths = self._scan.stage.path.folder, self._scan.widths
        return offset_from_json(found, stage=folder, widths=widths)

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
            self._consumer = StreamConsumer(
                self._scan.stage,
                options.consumer,
                declared=options.consumers,
                ids=RandomIds(),
            )
