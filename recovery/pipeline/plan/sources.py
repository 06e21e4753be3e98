"""Where rows come from: sources that can continue after a position.

A position is a number, text or bytes; the source chooses it. One record holds the position and the
rows that it covers. If a source is asked again with a position, it returns the rows after it, each
row once, in any order that it chooses.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from durable_shuffle.serialization.checksum import crc32
from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.errors import IncompatibleError, InvalidInputError

_FORMATS = ("json", "csv", "parquet")
Position: TypeAlias = int | str | bytes
Pulled: TypeAlias = tuple[Any, Position] | None
"""Rows (see `rows.batches_of`) and the position after them; None: nothing new at the moment."""


class Source(Protocol):
    """One per source task and attempt. Optional: `open()` and `close()`, each called at most once,
    and an attribute `bounded`: whether the source ends by itself (None or missing: unknown)."""

    def read(self, position: Position | None, producer: int, producers: int) -> Iterator[Pulled]:
        """Yield what comes after `position`, or from the start if None, until there is no more.

        Args:
            producer: the number of the asking task, from 0 to `producers` exclusive.
        """

    def advances(self, before: Position, after: Position) -> bool:
        """Return whether rows with position `after` may follow those with `before`."""


@dataclass(frozen=True, slots=True)
class IteratorSource:
    """A source that calls a function, which returns an iterator.

    Args:
        make: called as `make(position, producer)`, with position None at the very start. It
            returns an iterator of (rows, position after them), or of None if nothing is new.
            Positions are all numbers, all texts or all bytes, and each is greater than the one
            before. Its attribute `bounded` says whether it ends by itself.
    """

    make: Callable[[Any, int], Iterable[Pulled]]

    @property
    def bounded(self) -> bool | None:
        """Whether it ends by itself, None if unknown."""
        return getattr(self.make, "bounded", None)

    def read(self, position: Position | None, producer: int, producers: int) -> Iterator[Pulled]:
        return iter(self.make(position, producer))

    def advances(self, before: Position, after: Position) -> bool:
        return type(before) is type(after) and after > before  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class FolderSource:
    """Files that appear in a local folder; each is read once, completely.

    A file must appear complete (moved in, not written in place) and must not change. Names that
    begin with "." or "_" are skipped. With several producers, the name of a file decides which
    producer reads it.

    Args:
        folder: searched again whenever all files are read.
        format: "json" (one object per line), "csv" with a header line, or "parquet".
        schema: of the rows.
        until: name of a file that ends the source once it exists and all other files are read;
            None: the source never ends.

    Raises:
        InvalidInputError: the format is unknown; or, as the task's error, a file does not fit.
    """

    folder: str
    format: str
    schema: pa.Schema
    until: str | None = None

    def __post_init__(self) -> None:
        if self.format not in _FORMATS:
            raise InvalidInputError(
                f"a folder's format is one of {', '.join(_FORMATS)}, found={self.format!r}"
            )

    @property
    def bounded(self) -> bool:
        """Whether it ends by itself."""
        return self.until is not None

    def read(self, position: Position | None, producer: int, producers: int) -> Iterator[Pulled]:
        if not Path(self.folder).is_dir():
            raise InvalidInputError(f"there is no folder {self.folder!r} to read: make it first")
        done = set(_names(position))
        while True:
            over = self.until is not None and (Path(self.folder) / self.until).exists()
            new = [
                path
                for path in sorted(Path(self.folder).iterdir())
                if path.name not in done and self._is_ours(path, producer, producers)
            ]
            for path in new:
                table = self._table(path)
                done.add(path.name)
                yield table, json.dumps(sorted(done))
            if over and not new:
                return
            if not new:
                yield None

    def advances(self, before: Position, after: Position) -> bool:
        return set(_names(before)) < set(_names(after))

    def _is_ours(self, path: Path, producer: int, producers: int) -> bool:
        hidden = path.name.startswith((".", "_")) or path.name == self.until
        return not hidden and path.is_file() and crc32(path.name.encode()) % producers == producer

    def _table(self, path: Path) -> pa.Table:
        try:
            if self.format == "parquet":
                return pq.read_table(path, schema=self.schema)
            if self.format == "csv":
                convert = pa.csv.ConvertOptions(
                    column_types=self.schema, include_columns=self.schema.names
                )
                return pa.csv.read_csv(path, convert_options=convert)
            if not path.stat().st_size:
                return self.schema.empty_table()
            options = pa.json.ParseOptions(
                explicit_schema=self.schema, unexpected_field_behavior="error"
            )
            return pa.json.read_json(path, parse_options=options)
        except (pa.ArrowException, KeyError) as error:
            field = self._misfit(path) if self.format == "json" else ""
            raise InvalidInputError(
                f"cannot read {path} as {self.format}{field}: {error}"
            ) from error

    def _misfit(self, path: Path) -> str:
        """Name the field of a JSON file that does not fit the schema; Arrow may not."""
        try:
            names = pa.json.read_json(path).schema.names
        except pa.ArrowException:
            return ""  # not JSON, or a field changes its type, which Arrow's message names
        for name in names:
            if name not in self.schema.names:
                return f", field {name!r}, which the schema does not have"
        for field in self.schema:
            options = pa.json.ParseOptions(
                explicit_schema=pa.schema([field]), unexpected_field_behavior="ignore"
            )
            try:
                pa.json.read_json(path, parse_options=options)
            except pa.ArrowException:
                return f", field {field.name!r}"
        return ""


@dataclass(frozen=True, slots=True)
class StageSource:
    """A stage that another job has stored or still writes. Its consumers read it in place.

    Args:
        job: name of the other job, or of the other pipeline.
        stage: the `name=` that the job stored it under.
        url: where that job stores its data; None: where this pipeline does.
    """

    job: str
    stage: str
    url: str | None = None


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """A position as a producer's log holds it."""

    KIND: ClassVar[str] = "SOURCE_POSITION"
    value: int | str | bytes
    checkpoint: int
    """The last checkpoint marker that was sent; 0: none."""


_POSITIONS: RecordCodec[SourcePosition] = RecordCodec((SourcePosition,))


def encode_position(value: Position, checkpoint: int) -> bytes:
    """Return the bytes to store with rows."""
    return _POSITIONS.encode(SourcePosition(value, checkpoint))


def decode_position(data: bytes, *, name: str) -> SourcePosition | None:
    """Return the stored position, None if nothing was stored yet."""
    return _POSITIONS.decode(data, name=name) if data else None


def _names(position: Position | None) -> list[str]:
    if position is None:
        return []
    try:
        names = json.loads(position) if isinstance(position, str) else None
    except ValueError:
        names = None
    if not isinstance(names, list):
        raise IncompatibleError(f"not a position of a folder source: {position!r:.80}")
    return names
