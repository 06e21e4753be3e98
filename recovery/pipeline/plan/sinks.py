"""Where the rows of a consumer go: parked before the record that commits them, published after.

`park` writes rows under a random name and returns what to publish. Then the consumer wins its
record. `publish` may be called any number of times, by any later attempt, and has one effect. Rows
that no record ever named stay parked and are garbage.

A `FileSink` writes whole files, Parquet or JSON lines; equal rows give equal bytes. A
`CallbackSink` calls a function; a `StageSink` has the rows read by other consumers.
"""

import base64
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, ClassVar, Literal, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from durable_shuffle.recovery.pipeline.plan.rows import partition_ids
from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    DurableShuffleError,
    InvalidInputError,
)
from durable_shuffle.serialization.markers import EndMode
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.outputs import read_output, write_output
from durable_shuffle.shuffle.consume.task import ConsumerTask
from durable_shuffle.shuffle.log.appender_log import End, producer_status
from durable_shuffle.shuffle.log.consumer_records import OutputRef
from durable_shuffle.shuffle.log.layout import check_name
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.storage.contract import MAX_WHOLE_BYTES, Storage
from durable_shuffle.shuffle.storage.open import open_storage
from durable_shuffle.shuffle.write.log_producer import LogProducer

FORMATS = ("parquet", "json")


def encode_file(batches: Sequence[pa.RecordBatch], schema: pa.Schema, kind: str) -> bytes:
    """Return a file with the rows of `batches`, in order.

    In JSON, times are ISO 8601, decimals strings, bytes base64.

    Raises:
        InvalidInputError: a value that JSON cannot hold.
    """
    if kind == "parquet":
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_batches(batches, schema=schema), sink)
        return sink.getvalue()
    lines = [_line(row) for batch in batches for row in batch.to_pylist()]
    return "".join(f"{line}\n" for line in lines).encode()


def _line(row: dict[str, Any]) -> str:
    try:
        return _json(row)
    except (ValueError, TypeError) as error:
        for name, value in row.items():
            try:
                _json(value)
            except (ValueError, TypeError) as cause:
                raise InvalidInputError(
                    f"column {name!r}: JSON cannot hold {value!r}: {cause}"
                ) from cause
        raise InvalidInputError(f"JSON cannot hold a row of this sink: {error}") from error


def _json(value: Any) -> str:
    return json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> str:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"there is no form for a {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """Whose rows a sink gets."""

    task: str
    """Name of the consumer task, unique in the pipeline."""
    schema: pa.Schema
    generation: int


@dataclass(frozen=True, slots=True)
class Parked:
    """What a pending effect has to publish. Stored as its payload."""

    KIND: ClassVar[str] = "PARKED"
    token: str
    """Stable: pipeline, consumer, task, commit."""
    output: OutputRef
    name: str
    """Under which it is published; "" if the sink has no names."""


PARKED: RecordCodec[Parked] = RecordCodec((Parked,))


class Sink(Protocol):
    """One per consumer task and attempt. `open` comes first, `close` once at the end."""

    def open(self, place: SinkPlace, task: ConsumerTask) -> None:
        """Get ready; the consumer's log is won."""

    def park(self, batches: Sequence[pa.RecordBatch], token: str, commit: int) -> Parked:
        """Write rows so that they can be published; nobody sees them yet."""

    def publish(self, parked: Parked) -> None:
        """Make them count; repeats change nothing."""

    def forget(self, parked: Parked) -> None:
        """Delete what was parked: it is published, and a record says so. May fail silently."""

    def ended(self, mode: EndMode) -> None:
        """No more rows come, in the sense of `mode`; everything is published. Repeatable."""

    def close(self) -> None:
        """Let go."""


@dataclass(slots=True)
class FileSink:
    """Part files in a folder that any tool can read: each row in exactly one of them.

    A commit becomes `part-<task>-<commit>.<format>`; until it counts its file lies below `_parked`.
    Readers that skip names with a leading underscore see published files only.

    Args:
        url: of the folder; it holds nothing else.
        format: "parquet", or "json" for one JSON object per line.
        storage_options: of the fsspec driver.

    Not guaranteed: that a published file stays away once somebody deletes it. Until the next commit
    stands, a restart publishes it again.

    Raises:
        InvalidInputError: an unknown format.
    """

    url: str
    format: Literal["parquet", "json"] = "parquet"
    storage_options: Mapping[str, object] | None = None
    _storage: Storage | None = field(default=None, init=False)
    _place: SinkPlace | None = field(default=None, init=False)
    _task: ConsumerTask | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise InvalidInputError(
                f"a file format is one of {', '.join(FORMATS)}, found={self.format!r}"
            )

    def open(self, place: SinkPlace, task: ConsumerTask) -> None:
        check_name("task", place.task)
        storage = self._storage = open_storage(self.url, self.storage_options)
        self._place, self._task = place, task
        # the attempt that parked these is fenced: no record names them, and none will
        named = {PARKED.decode(e.payload, name=e.token).output.key for e in task.held.state.pending}
        left = [info.key for info in storage.list(self._folder) if info.key not in named]
        with suppress(DurableShuffleError):
            storage.delete(left)

    @property
    def _folder(self) -> str:
        assert self._place is not None
        return f"_parked/{self._place.task}/"

    def park(self, batches: Sequence[pa.RecordBatch], token: str, commit: int) -> Parked:
        assert self._storage is not None
        assert self._place is not None
        assert self._task is not None
        data = encode_file(batches, self._place.schema, self.format)
        key = f"{self._folder}{self._task.ids.new_id()}"
        if len(data) > MAX_WHOLE_BYTES:
            raise InvalidInputError(
                f"the file of one commit has at most {MAX_WHOLE_BYTES} bytes, found {len(data)}"
            )
        self._storage.put(key, [data])
        rows = sum(batch.num_rows for batch in batches)
        ref = OutputRef(key, len(data), rows, hashlib.sha256(data).digest())
        return Parked(token, ref, f"part-{self._place.task}-{commit:010d}.{self.format}")

    def publish(self, parked: Parked) -> None:
        assert self._storage is not None
        data = self._storage.read(parked.output.key, min(parked.output.length, MAX_WHOLE_BYTES))
        if hashlib.sha256(data).digest() != parked.output.sha256:
            raise CorruptDataError(f"a parked file is not what was parked: {parked.output.key!r}")
        self._storage.put(parked.name, [data])

    def ended(self, mode: EndMode) -> None:
        """Nothing to do: files that are published stay."""

    def close(self) -> None:
        """Nothing to do: no connection of its own."""

    def forget(self, parked: Parked) -> None:
        """Delete a parked file that no record names any more."""
        assert self._storage is not None
        with suppress(DurableShuffleError):  # the next attempt finds it
            self._storage.delete([parked.output.key])


@dataclass(slots=True)
class _OutputSink:
    """Parks the rows of a commit as an output of the consumer task."""

    _place: SinkPlace | None = field(default=None, init=False)
    _task: ConsumerTask | None = field(default=None, init=False)

    def open(self, place: SinkPlace, task: ConsumerTask) -> None:
        self._place, self._task = place, task

    def park(self, batches: Sequence[pa.RecordBatch], token: str, commit: int) -> Parked:
        assert self._place is not None
        assert self._task is not None
        return Parked(token, write_output(self._task, self._place.schema, batches), "")

    def rows(self, parked: Parked) -> Iterator[pa.RecordBatch]:
        """Return what was parked."""
        assert self._place is not None
        assert self._task is not None
        return read_output(self._task.storage, parked.output, self._place.schema)

    def forget(self, parked: Parked) -> None:
        """Delete rows that no record names any more."""
        assert self._task is not None
        with suppress(DurableShuffleError):  # gc finds it
            self._task.storage.delete([parked.output.key])

    def ended(self, mode: EndMode) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


@dataclass(slots=True)
class CallbackSink(_OutputSink):
    """Hands the rows of each commit to a function, with a token that tells repeats.

    Args:
        call: called as `call(token, table)`, after the commit is durable, again with the same token
            and rows if nobody knows whether it happened. Tokens of a task come in order.
    """

    call: Callable[[str, pa.Table], Any]

    def publish(self, parked: Parked) -> None:
        assert self._place is not None
        self.call(parked.token, pa.Table.from_batches(self.rows(parked), self._place.schema))


@dataclass(slots=True)
class StageSink(_OutputSink):
    """Rows for other consumers: a producer of the pipeline's next stage. Not made by users.

    A commit is appended with its token as batch id, so that a repeat appends nothing. The end is
    forwarded with its mode; a suspended consumer ends as a suspended producer, whose successor
    goes on.
    """

    stage: StageHandle
    producer: int
    settings: Settings
    _log: LogProducer | None = field(default=None, init=False)

    def open(self, place: SinkPlace, task: ConsumerTask) -> None:
        self._place, self._task = place, task
        last = producer_status(self.stage, self.producer)
        if isinstance(last, End) and last.mode != "SUSPEND":
            return  # it ended in an earlier life, which crashed behind that
        self._log = LogProducer.open(
            self.stage,
            self.producer,
            record_id=task.ids.new_id(),
            generation=place.generation,
            settings=self.settings,
        )

    def publish(self, parked: Parked) -> None:
        if self._log is None or self._log.batch_id == parked.token:
            return  # END, or the record, stands already
        rows, placed = self._log.rows, []
        for batch in self.rows(parked):
            placed.append((batch, partition_ids(self.stage, batch, rows)))
            rows += batch.num_rows
        self._log.append(placed, parked.token.encode(), batch_id=parked.token)

    def ended(self, mode: EndMode) -> None:
        if self._log is not None:
            self._log.end(mode)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
