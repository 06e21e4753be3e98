"""Where the rows of a consumer go: parked before the record that commits them, published after it.

`park` writes rows under a random name and returns a value that says what to publish. Then the
consumer wins its record. Any later attempt may call `publish` any number of times; it has one
effect. Rows that no record names stay parked until they are deleted as garbage.

A `FileSink` writes whole files, Parquet or JSON lines; equal rows give equal bytes. A
`CallbackSink` calls a function. A `StageSink` passes the rows to other consumers.

Parked rows name the place that they are for, so no sink publishes what belongs to another one.
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
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from durable_shuffle.recovery.pipeline.plan.rows import partition_ids
from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.errors import (
    ConflictError,
    CorruptDataError,
    DurableShuffleError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.serialization.markers import EndMode
from durable_shuffle.shuffle.base.redact import redact
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.base.user_code import user_code
from durable_shuffle.shuffle.consume.outputs import read_output, write_output
from durable_shuffle.shuffle.consume.task import ConsumerTask
from durable_shuffle.shuffle.log.appender_log import End
from durable_shuffle.shuffle.log.appender_reads import producer_status
from durable_shuffle.shuffle.log.consumer_records import OutputRef
from durable_shuffle.shuffle.log.layout import check_name
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.storage.contract import MAX_WHOLE_BYTES, Storage
from durable_shuffle.shuffle.storage.open import open_storage
from durable_shuffle.shuffle.write.log_producer import LogProducer

FORMATS = ("parquet", "json")


def encode_file(batches: Sequence[pa.RecordBatch], schema: pa.Schema, kind: str) -> bytes:
    """Return a file with the rows of `batches`, in order.

    In JSON, times are ISO 8601, decimals are strings, and bytes are base64.

    Raises:
        InvalidInputError: JSON cannot hold a value, or Parquet a type.
    """
    if kind == "parquet":
        sink = io.BytesIO()
        try:
            pq.write_table(pa.Table.from_batches(batches, schema=schema), sink)
        except pa.ArrowNotImplementedError as error:
            raise InvalidInputError(
                f"Parquet cannot hold the rows of this sink: {error}"
            ) from error
        return sink.getvalue()
    return "".join(f"{line}\n" for line in _lines(batches)).encode()


def _lines(batches: Sequence[pa.RecordBatch]) -> Iterator[str]:
    return (_line(row) for batch in batches for row in batch.to_pylist())


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
    """The task whose rows a sink receives."""

    task: str
    """Name of the consumer task, unique in the pipeline."""
    schema: pa.Schema
    generation: int


@dataclass(frozen=True, slots=True)
class Parked:
    """The data that a pending effect publishes. Stored as its payload."""

    KIND: ClassVar[str] = "PARKED"
    token: str
    """The same in every attempt: pipeline, consumer, task, commit."""
    output: OutputRef
    name: str
    """The published name; "" if the sink has no names."""
    place: str
    """The `place` of the sink that the rows are for."""


@dataclass(frozen=True, slots=True)
class ParkedLetters:
    """As `Parked`, of a commit that has passed over rows."""

    KIND: ClassVar[str] = "PARKED_LETTERS"
    token: str
    rows: Parked | None
    """Of the consumer's sink; None: there were none."""
    letters: Parked
    """Of its dead letters."""


PARKED: RecordCodec[Parked | ParkedLetters] = RecordCodec((Parked, ParkedLetters))


def parked_in(payload: bytes, name: str) -> tuple[Parked | None, Parked | None]:
    """Return what an effect publishes to the sink, and to the dead letters."""
    found = PARKED.decode(payload, name=name)
    return (found, None) if isinstance(found, Parked) else (found.rows, found.letters)


class Sink(Protocol):
    """One per consumer task and attempt. `open` comes first; `close` comes once, at the end."""

    @property
    def place(self) -> str:
        """What tells the sink's receiver from others, in words. Stored; shows no credential."""

    def open(self, place: SinkPlace, task: ConsumerTask) -> None:
        """Get ready. At this point the attempt has opened the consumer's log."""

    def check(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Raise InvalidInputError if the sink cannot hold these rows."""

    def park(self, batches: Sequence[pa.RecordBatch], token: str, commit: int) -> Parked:
        """Write rows so that they can be published later; nobody sees them yet."""

    def publish(self, parked: Parked) -> None:
        """Make them visible; repeats change nothing."""

    def forget(self, parked: Parked) -> None:
        """Delete parked rows that are published, as a record says. May fail silently."""

    def ended(self, mode: EndMode) -> None:
        """Take in that no more rows come, with this end mode; all is published. Repeatable."""

    def close(self) -> None:
        """Release all resources."""


@dataclass(slots=True)
class FileSink:
    """Part files in a folder that any tool can read: each row is in exactly one file.

    A commit becomes `part-<task>-<commit>.<format>`. Until the commit counts, its file is in
    `_parked`. An object in `_owners` says whose files a task writes; no other pipeline's task of
    that name may open the folder. Readers that skip names with a leading underscore see only
    published files.

    Args:
        url: of the folder; the folder must hold nothing else.
        format: "parquet", or "json" for one JSON object per line.
        storage_options: options of the fsspec driver.

    Not guaranteed: that a published file stays away if somebody deletes it. Until the next commit
    stands, a restart publishes it again.

    Raises:
        InvalidInputError: the format is unknown.
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

    @property
    def place(self) -> str:
        local = "://" not in self.url
        url = str(Path(self.url).absolute()) if local else self.url.rstrip("/")
        return f"FileSink({redact(url, self.storage_options or {})!r})"

    def open(self, place: SinkPlace, task: ConsumerTask) -> None:
        check_name("task", place.task)
        encode_file([], place.schema, self.format)
        storage = self._storage = open_storage(self.url, self.storage_options)
        self._place, self._task = place, task
        self._claim(storage, task)
        # the attempt that parked these is fenced: no record names them or ever will
        pending = (parked_in(e.payload, e.token) for e in task.held.state.pending)
        named = {parked.output.key for both in pending for parked in both if parked is not None}
        left = [info.key for info in storage.list(self._folder) if info.key not in named]
        with suppress(DurableShuffleError):
            storage.delete(left)

    def _claim(self, storage: Storage, task: ConsumerTask) -> None:
        """Refuse the folder if a task of this name, but with another log, writes there."""
        assert self._place is not None
        first = task.held.log.read(0)  # it holds a random id
        if first is None:
            raise CorruptDataError(f"the first slot of a log is missing: {task.path.log_prefix!r}")
        owner = f"{task.path.prefix} {hashlib.sha256(first).hexdigest()}\n"
        try:
            storage.put(f"_owners/{self._place.task}", [owner.encode()])
        except ConflictError as error:
            raise IncompatibleError(
                f"the files of task {self._place.task!r} in {self.place} are of another pipeline, "
                "or of an earlier one of this name whose data was deleted: give this consumer a "
                "folder of its own, or empty that one"
            ) from error

    def check(self, batches: Sequence[pa.RecordBatch]) -> None:
        if self.format == "json":  # Parquet holds all values of the schema's types
            for _ in _lines(batches):
                pass

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
        name = f"part-{self._place.task}-{commit:010d}.{self.format}"
        return Parked(token, ref, name, self.place)

    def publish(self, parked: Parked) -> None:
        assert self._storage is not None
        data = self._storage.read(parked.output.key, min(parked.output.length, MAX_WHOLE_BYTES))
        if hashlib.sha256(data).digest() != parked.output.sha256:
            raise CorruptDataError(f"a parked file is not what was parked: {parked.output.key!r}")
        self._storage.put(parked.name, [data])

    def ended(self, mode: EndMode) -> None:
        """Do nothing: published files stay."""

    def close(self) -> None:
        """Do nothing: the sink has no connection of its own."""

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

    @property
    def place(self) -> str:
        return type(self).__name__

    def open(self, place: SinkPlace, task: ConsumerTask) -> None:
        self._place, self._task = place, task

    def check(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Do nothing: an output holds all rows of its schema."""

    def park(self, batches: Sequence[pa.RecordBatch], token: str, commit: int) -> Parked:
        assert self._place is not None
        assert self._task is not None
        output = write_output(self._task, self._place.schema, batches)
        return Parked(token, output, "", self.place)

    def rows(self, parked: Parked) -> Iterator[pa.RecordBatch]:
        """Return the parked rows."""
        assert self._place is not None
        assert self._task is not None
        return read_output(self._task.storage, parked.output, self._place.schema)

    def forget(self, parked: Parked) -> None:
        """Delete rows that no record names any more."""
        assert self._task is not None
        with suppress(DurableShuffleError):  # gc finds it
            self._task.storage.delete([parked.output.key])

    def ended(self, mode: EndMode) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


@dataclass(slots=True)
class CallbackSink(_OutputSink):
    """Passes the rows of each commit to a function, with a token that identifies repeats.

    Args:
        call: called as `call(token, table)` after the commit is durable. Called again with the
            same token and rows if it is unknown whether the first call happened. The tokens of a
            task come in order.
    """

    call: Callable[[str, pa.Table], Any]

    def publish(self, parked: Parked) -> None:
        assert self._place is not None
        table = pa.Table.from_batches(self.rows(parked), self._place.schema)
        with user_code():
            self.call(parked.token, table)


@dataclass(slots=True)
class StageSink(_OutputSink):
    """Passes rows to other consumers: it is a producer of the pipeline's next stage. Internal.

    A commit is appended with its token as batch id, so a repeat appends nothing. The end is
    forwarded with its mode. A suspended consumer ends as a suspended producer, whose successor
    continues.
    """

    stage: StageHandle
    producer: int
    settings: Settings
    _log: LogProducer | None = field(default=None, init=False)

    @property
    def place(self) -> str:
        return f"producer {self.producer} of {self.stage.path.prefix!r}"

    def open(self, place: SinkPlace, task: ConsumerTask) -> None:
        self._place, self._task = place, task
        last = producer_status(self.stage, self.producer)
        if isinstance(last, End) and last.mode != "SUSPEND":
            return  # it ended in an earlier run, which crashed afterwards
        self._log = LogProducer.open(
            self.stage,
            self.producer,
            record_id=task.ids.new_id(),
            generation=place.generation,
            settings=self.settings,
        )

    def publish(self, parked: Parked) -> None:
        if self._log is None or self._log.batch_id == parked.token:
            return  # END, or the record, is already there
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
