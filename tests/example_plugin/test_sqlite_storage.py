"""SqliteStorage keeps the storage contract."""

import sqlite3

import pytest
from sqlite_storage import SqliteStorage

from durable_shuffle.shuffle.testing.storage_conformance import StorageConformance


def ask(storage, statement, *values):
    """Run one statement without the storage under test."""
    storage.list("")  # makes the table
    connection = sqlite3.connect(storage.description.removeprefix("sqlite://"), timeout=60)
    with connection:
        found = connection.execute(statement, values).fetchone()
    connection.close()
    return found


class TestSqliteStorage(StorageConformance):
    @pytest.fixture
    def storage(self, tmp_path):
        return SqliteStorage(str(tmp_path / "objects.db"))

    def raw_write(self, storage, key, content):
        ask(storage, "REPLACE INTO objects VALUES (?, ?, 0)", key, content)

    def raw_read(self, storage, key):
        return (ask(storage, "SELECT content FROM objects WHERE key = ?", key) or (None,))[0]
