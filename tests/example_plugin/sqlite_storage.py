"""durable-shuffle on one SQLite file: `sqlite:///path/to/file.db`, for processes of one host.

The exclusive create is SQLite's primary key: `INSERT ... ON CONFLICT DO NOTHING` adds the row or
leaves the one that is there, for any number of processes. A connection belongs to the process and
the thread that opened it, so each has its own, and pickles carry the path alone.
"""

import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from time import time

from durable_shuffle.serialization.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
)
from durable_shuffle.shuffle.storage.contract import (
    MOST_BYTES,
    ByteRange,
    Bytes,
    Created,
    Exists,
    ObjectInfo,
    check_key,
    check_prefix,
    check_range,
    too_long,
    too_short,
)
from durable_shuffle.shuffle.storage.errors import Place, storage_errors

TABLE = """CREATE TABLE IF NOT EXISTS objects
(key TEXT PRIMARY KEY, content BLOB NOT NULL, written REAL NOT NULL)"""


def open_sqlite(url: str, options: Mapping[str, object]) -> "SqliteStorage":
    """Be the entry point: called with the user's URL and storage options."""
    path = url.removeprefix("sqlite://")
    if options or not path.startswith("/"):
        raise InvalidInputError(f"expected sqlite:///absolute/path without options, found {url}")
    return SqliteStorage(path)


class SqliteStorage:
    """See `durable_shuffle.shuffle.storage.contract` for the contract."""

    def __init__(self, path: str) -> None:
        self._path, self._place = path, Place(f"sqlite://{path}")
        self._local, self._owner = threading.local(), os.getpid()

    @property
    def description(self) -> str:
        return self._place.root

    def __reduce__(self) -> tuple[type["SqliteStorage"], tuple[str]]:
        return SqliteStorage, (self._path,)

    def read(self, key: str, most_bytes: int = MOST_BYTES) -> bytes:
        check_key(key)
        part = "SELECT length(content), substr(content, 1, ?) FROM objects WHERE key = ?"
        found = self._ask("read", key, part, most_bytes, key)
        if not found:
            raise NotFoundError(f"{self.description}: object {key} does not exist")
        if found[0][0] > most_bytes:
            raise too_long(self.description, key, found[0][0], most_bytes)
        return bytes(found[0][1] or b"")

    def read_range(self, key: str, start: int, length: int) -> memoryview:
        check_range(key, start, length)
        part = "SELECT length(content), substr(content, ?, ?) FROM objects WHERE key = ?"
        found = self._ask("read", key, part, start + 1, length, key)
        if not found:
            raise NotFoundError(f"{self.description}: object {key} does not exist")
        if start + length > found[0][0]:
            raise too_short(self.description, key, found[0][0], start + length)
        return memoryview(bytes(found[0][1] or b""))  # SQLite has no empty part of nothing

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        return [self.read_range(r.key, r.start, r.length) for r in ranges]

    def put(self, key: str, parts: Sequence[Bytes]) -> None:
        data = b"".join(parts)
        if self.put_if_absent(key, data) not in (Created(), Exists(data)):
            raise ConflictError(f"{self.description}: object {key} exists already")

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        check_key(key)
        insert = "INSERT INTO objects VALUES (?, ?, ?) ON CONFLICT DO NOTHING RETURNING key"
        made = self._ask("create", key, insert, key, data, time())
        return Created() if made else Exists(self.read(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        begin = "SELECT key, length(content), written FROM objects WHERE substr(key, 1, ?) = ?"
        return (ObjectInfo(*row) for row in self._ask("list", prefix, begin, len(prefix), prefix))

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        for key in keys:
            self._ask("delete", key, "DELETE FROM objects WHERE key = ?", key)

    def _ask(self, action: str, key: str, statement: str, *values: object) -> Sequence[tuple]:
        """Run one statement as a transaction of its own."""
        # an error that the table of storage_errors does not know counts as a lost reply
        with storage_errors(self._place, action, key, write=action in ("create", "delete")):
            if os.getpid() != self._owner:  # forked: the parent's connections stay the parent's
                self._inherited = self._local  # closing them here would drop the parent's locks
                self._local, self._owner = threading.local(), os.getpid()
            if not hasattr(self._local, "connection"):
                self._local.connection = sqlite3.connect(
                    self._path, timeout=60, isolation_level=None
                )
                self._local.connection.execute("PRAGMA synchronous = FULL")
                self._local.connection.execute(TABLE)
            with closing(self._local.connection.execute(statement, values)) as cursor:
                return cursor.fetchall()
