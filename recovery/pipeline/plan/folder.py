"""A source of files that appear in a folder: local, or on any storage that fsspec knows.

What was read is a set of names, to which each file adds one (`positions.py`). One listing finds new
files. The file that ends the source counts only in a second listing, because a listing may show a
new name and miss an older one.
"""

import io
import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Literal

import fsspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from durable_shuffle.serialization.checksum import crc32
from durable_shuffle.serialization.errors import IncompatibleError, InvalidInputError, NotFoundError
from durable_shuffle.shuffle.base.redact import redact
from durable_shuffle.shuffle.storage.errors import Place, storage_errors
from durable_shuffle.shuffle.storage.open import check_path

_FORMATS = ("json", "csv", "parquet")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FolderSource:
    """Files that appear in a folder; each is read once, completely.

    A file must appear complete (moved in, not written in place) and must not change. Names that
    begin with "." or "_" are skipped, and so are folders inside. With several producers, the name
    of a file decides which producer reads it.

    Args:
        folder: a path, or a URL of any storage that fsspec knows, such as `s3://bucket/inbox`. It
            is listed again whenever all files are read, at most twice a second. A source goes on
            in the same folder only.
        format: "json" (one object per line), "csv" with a header line, or "parquet".
        schema: of the rows. Parquet and CSV files must have exactly these columns, in any order. In
            JSON, a field that is missing in an object is null; a strange one does not fit. A field
            with `nullable=False` must have a value in every row.
        until: name of a file that ends the source once it exists and all other files are read;
            None: the source never ends.
        storage_options: options of the fsspec driver.
        on_error: "skip" passes over a file that does not fit, with a warning in the log; it stays
            where it is.

    Raises:
        InvalidInputError: the format is unknown; or, as the task's error, a file does not fit.
    """

    folder: str
    format: str
    schema: pa.Schema
    until: str | None = None
    storage_options: Mapping[str, object] | None = field(default=None, repr=False)
    on_error: Literal["fail", "skip"] = "fail"

    collects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.format not in _FORMATS:
            raise InvalidInputError(
                f"a folder's format is one of {', '.join(_FORMATS)}, found={self.format!r}"
            )
        if self.on_error not in ("fail", "skip"):
            raise InvalidInputError(f"on_error is 'fail' or 'skip', found={self.on_error!r}")
        if "://" not in self.folder:
            check_path(self.folder)

    @property
    def bounded(self) -> bool:
        """Whether it ends by itself."""
        return self.until is not None

    def read(
        self, position: Collection[str] | None, producer: int, producers: int
    ) -> Iterator[tuple[pa.Table, str] | None]:
        """Yield each file that is not in `position`, with the folder's digest and its name.

        Raises:
            IncompatibleError: the position is of another folder.
        """
        folder = _Folder(self.folder, self.storage_options or {})
        place, over = f"{self._digest()}/", False
        if any(not name.startswith(place) for name in position or ()):
            raise IncompatibleError(
                f"what was read so far lies in another folder than {folder.place.root!r}, or had "
                "another format: put it back, or give the source another name"
            )
        done = {name.removeprefix(place) for name in position or ()}
        while True:
            there = folder.names()
            new = sorted(
                name
                for name in there
                if name not in done and self._is_ours(name, producer, producers)
            )
            new = [name for name in new if folder.is_file(name)]
            for name in new:
                table = self._read_file(folder, name)
                if table is not None:  # else it is new again in the next listing
                    done.add(name)
                    yield table, place + name
            if over and not new:
                return
            over = self.until in there
            if not new and not over:
                yield None

    def _digest(self) -> str:
        """Return what tells this folder and format from others, without showing a credential."""
        local = "://" not in self.folder
        where = str(Path(self.folder).absolute()) if local else self.folder.rstrip("/")
        return sha256(f"{self.format} {where}".encode()).hexdigest()[:16]

    def _is_ours(self, name: str, producer: int, producers: int) -> bool:
        hidden = name.startswith((".", "_")) or name == self.until
        return not hidden and crc32(name.encode()) % producers == producer

    def _read_file(self, folder: "_Folder", name: str) -> pa.Table | None:
        """Return the rows of a file, None if it was taken away since it was listed."""
        try:
            path = f"{folder.place.root}/{name}"
            return self._whole(self._table(folder.read(name), path), path)
        except NotFoundError:
            return None
        except InvalidInputError as error:
            if self.on_error == "fail":
                raise
            _log.warning("skipped: %s", error)
            return self.schema.empty_table()

    def _table(self, data: bytes, path: str) -> pa.Table:
        try:
            if self.format == "parquet":
                self._check_names(pq.read_schema(io.BytesIO(data)).names, path)
                return pq.read_table(io.BytesIO(data), schema=self.schema)
            if self.format == "csv":
                convert = pa.csv.ConvertOptions(column_types=self.schema)
                table = pa.csv.read_csv(io.BytesIO(data), convert_options=convert)
                self._check_names(table.column_names, path)
                return table.select(self.schema.names)
            if not data:
                return self.schema.empty_table()
            options = pa.json.ParseOptions(
                explicit_schema=self.schema, unexpected_field_behavior="error"
            )
            return pa.json.read_json(io.BytesIO(data), parse_options=options)
        except (pa.ArrowException, KeyError) as error:
            misfit = self._misfit(data) if self.format == "json" else ""
            raise InvalidInputError(
                f"cannot read {path} as {self.format}{misfit}: {error}"
            ) from error

    def _check_names(self, found: Sequence[str], path: str) -> None:
        """Refuse a file with other columns than the schema; their order does not matter."""
        missing = sorted(set(self.schema.names).difference(found))
        strange = sorted(set(found).difference(self.schema.names))
        if missing or strange:
            what = f"misses {', '.join(missing)}" if missing else f"also has {', '.join(strange)}"
            raise InvalidInputError(
                f"cannot read {path} as {self.format}: it {what}; the schema has "
                f"{', '.join(self.schema.names)}"
            )

    def _whole(self, table: pa.Table, path: str) -> pa.Table:
        """Return the table; refuse nulls where the schema says that there are none."""
        for wanted in self.schema:
            if not wanted.nullable and (nulls := table.column(wanted.name).null_count):
                raise InvalidInputError(
                    f"cannot read {path} as {self.format}: {wanted.name} has no value in {nulls} "
                    "rows, and the schema says that it is not nullable"
                )
        return table

    def _misfit(self, data: bytes) -> str:
        """Name the field of a JSON file that does not fit the schema; Arrow may not."""
        try:
            names = pa.json.read_json(io.BytesIO(data)).schema.names
        except pa.ArrowException:
            return ""  # not JSON, or a field changes its type, which Arrow's message names
        for name in names:
            if name not in self.schema.names:
                return f", field {name!r}, which the schema does not have"
        for wanted in self.schema:
            options = pa.json.ParseOptions(
                explicit_schema=pa.schema([wanted]), unexpected_field_behavior="ignore"
            )
            try:
                pa.json.read_json(io.BytesIO(data), parse_options=options)
            except pa.ArrowException:
                return f", field {wanted.name!r}"
        return ""


class _Folder:
    """One folder of one storage. Used by one thread."""

    def __init__(self, url: str, options: Mapping[str, object]) -> None:
        self.place = Place(redact(url.rstrip("/"), options), options)
        self._local = "://" not in url
        with self._errors("open"):
            if self._local:
                self._files, self._root = None, str(Path(url.removeprefix("file:")).absolute())
            else:
                # an instance of its own: another user of the driver may cache listings
                self._files, root = fsspec.url_to_fs(url, skip_instance_cache=True, **options)
                self._root = root.rstrip("/")
        self._kinds: dict[str, Any] = {}
        """What the last listing says of each name."""

    def names(self) -> Collection[str]:
        """List the folder; return all names in it."""
        if self._local:
            try:
                with os.scandir(self._root) as entries:
                    self._kinds = {entry.name: entry for entry in entries}
            except (FileNotFoundError, NotADirectoryError):
                raise InvalidInputError(
                    f"there is no folder {self.place.root!r} to read: make it first"
                ) from None
            return self._kinds.keys()
        assert self._files is not None
        with self._errors("list"):
            self._files.invalidate_cache(self._root)
            try:
                listed = self._files.ls(self._root, detail=True)
            except FileNotFoundError:
                listed = []  # of an object store, where a folder without objects does not exist
        self._kinds = {entry["name"].rstrip("/").rpartition("/")[2]: entry for entry in listed}
        return self._kinds.keys()

    def is_file(self, name: str) -> bool:
        """Return whether a listed name is a file."""
        entry = self._kinds[name]
        return bool(entry.is_file() if self._local else entry["type"] == "file")

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            NotFoundError: it is not there any more.
            UnavailableError: the storage does not answer.
        """
        with self._errors("read", name):
            if self._files is None:
                return Path(self._root, name).read_bytes()
            return bytes(self._files.cat_file(f"{self._root}/{name}"))

    def _errors(self, action: str, name: str = "") -> Any:
        return storage_errors(self.place, action, name, write=False)
