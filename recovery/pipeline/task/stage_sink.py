"""The rows of a consumer as a producer of the pipeline's next stage.

A commit is parked as an output and appended with its token as batch id, so that a repeat
appends nothing. The end is forwarded with its mode; a suspended consumer ends as a suspended
producer, whose successor goes on.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from durable_shuffle.recovery.pipeline.plan.sinks import Parked, SinkPlace
from durable_shuffle.recovery.pipeline.task.source import partition_ids
from durable_shuffle.serialization.errors import DurableShuffleError
from durable_shuffle.serialization.markers import EndMode
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.outputs import read_output, write_output
from durable_shuffle.shuffle.consume.task import ConsumerTask
from durable_shuffle.shuffle.log.log_producer_records import End
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.write.log_producer import LogProducer
from durable_shuffle.shuffle.write.log_producer_log import producer_status


@dataclass(slots=True)
class StageSink:
    """Implements `Sink`; made by the pipeline, not by users."""

    stage: StageHandle
    producer: int
    settings: Settings
    _log: LogProducer | None = field(default=None, init=False)
    _task: ConsumerTask | None = field(default=None, init=False)
    _schema: pa.Schema | None = field(default=None, init=False)
    _ended: EndMode | None = field(default=None, init=False)

    def open(self, place: SinkPlace, task: ConsumerTask) -> None:
        self._task, self._schema = task, place.schema
        last = producer_status(self.stage, self.producer)
        if isinstance(last, End) and last.mode != "SUSPEND":
            self._ended = last.mode  # in an earlier life, which crashed behind it
            return
        self._log = LogProducer.open(
            self.stage,
            self.producer,
            record_id=task.ids.new_id(),
            generation=place.generation,
            settings=self.settings,
        )

    def park(self, batches: Sequence[pa.RecordBatch], token: str, commit: int) -> Parked:
        assert self._task is not None
        assert self._schema is not None
        return Parked(token, write_output(self._task, self._schema, batches), "")

    def publish(self, parked: Parked) -> None:
        assert self._task is not None
        assert self._schema is not None
        if self._log is None:
            return  # END stands behind everything that was to be published
        if self._log.batch_id == parked.token:
            return
        batches = read_output(self._task.storage, parked.output, self._schema)
        rows, placed = self._log.rows, []
        for batch in batches:
            placed.append((batch, partition_ids(self.stage, batch, rows)))
            rows += batch.num_rows
        self._log.append(placed, parked.token.encode(), batch_id=parked.token)

    def forget(self, parked: Parked) -> None:
        assert self._task is not None
        with suppress(DurableShuffleError):  # gc finds it
            self._task.storage.delete([parked.output.key])

    def ended(self, mode: EndMode) -> None:
        if self._log is not None:
            self._log.end(mode)
            self._ended = mode

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
