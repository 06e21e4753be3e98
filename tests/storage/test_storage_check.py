"""The storage check passes honest storages and names the law that a dishonest one breaks."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from durable_shuffle.serialization.errors import (
    ConflictError,
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.storage.check import StorageReport, check_storage
from durable_shuffle.shuffle.storage.contract import (
    MOST_BYTES,
    Bytes,
    Created,
    Exists,
    ObjectInfo,
    Storage,
)
from durable_shuffle.shuffle.storage.fsspec_backend import FsspecStorage
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.testing.s3_server import S3Server


def check(storage: Storage, **more: int) -> StorageReport:
    """Run a short check."""
    return check_storage(storage, ids=RandomIds(), **{"processes": 3, "rounds": 5, **more})


def broken_laws(report: StorageReport) -> list[str]:
    """The names of the laws that do not hold."""
    return [law.law for law in report.laws if not law.passed]


def test_local_files_pass_and_are_left_clean(tmp_path: Path) -> None:
    """All laws hold, with real processes; no object stays and times are measured."""
    start = time.monotonic()
    report = check(LocalStorage(tmp_path))
    took = time.monotonic() - start
    assert broken_laws(report) == []
    assert report.passed
    assert "5 races of 3 processes" in report.laws[0].reason
    assert "any number of processes" in report.verdict
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    for milliseconds in (report.put_ms, report.create_ms, report.get_ms):
        assert milliseconds is not None
        assert 0 < milliseconds < 1000 * took


@pytest.mark.s3
def test_s3_passes_and_is_left_clean(s3_server: S3Server) -> None:
    """All laws hold on a real S3 server."""
    url = f"s3://{s3_server.bucket}/{RandomIds().new_id()}"
    storage = FsspecStorage(url, s3_server.options)
    report = check(storage, rounds=3)
    assert broken_laws(report) == []
    assert list(storage.list("")) == []


def test_memory_is_for_one_process() -> None:
    """Memory keeps every law but the one that needs a second process."""
    storage = MemoryStorage()
    report = check(storage)
    assert broken_laws(report) == ["other processes see the same objects"]
    assert "one process only" in report.verdict
    assert list(storage.list("")) == []


class _LooksFirst(MemoryStorage):
    """Creates as fsspec does on most backends: looks, then writes. In a race it writes once a rival
    has looked as well."""

    def __init__(self) -> None:
        super().__init__()
        self._looked_again: dict[str, threading.Event] = {}

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        with suppress(NotFoundError):
            return Exists(self.read(key))
        if "/race/" in key:
            mine = threading.Event()
            others = self._looked_again.setdefault(key, mine)
            if others is not mine:
                others.set()
            assert others.wait(60), "nobody else looked"
        self._objects[key], self._written[key] = data, 0.0
        return Created()


class _ShowsTornContent(MemoryStorage):
    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        result = super().put_if_absent(key, data)
        return Exists(result.existing[:10]) if isinstance(result, Exists) else result


class _Overwrites(MemoryStorage):
    def put(self, key: str, parts: Sequence[Bytes]) -> None:
        with suppress(ConflictError):
            self.delete([key])
        super().put(key, parts)


class _MissingIsEmpty(MemoryStorage):
    def read(self, key: str, most_bytes: int = MOST_BYTES) -> bytes:
        with suppress(NotFoundError):
            return super().read(key, most_bytes)
        return b""


class _ShortRanges(MemoryStorage):
    def read_range(self, key: str, start: int, length: int) -> memoryview:
        with suppress(CorruptDataError):
            return super().read_range(key, start, length)
        return memoryview(self.read(key))[start : start + length]


class _ListsNothing(MemoryStorage):
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(())


class _DeletesNothing(MemoryStorage):
    def delete(self, keys: Sequence[str]) -> None:
        pass


class _LosesTheEnd(MemoryStorage):
    def put(self, key: str, parts: Sequence[Bytes]) -> None:
        super().put(key, list(parts)[:1])


class _CannotDelete(MemoryStorage):
    def delete(self, keys: Sequence[str]) -> None:
        raise UnavailableError("not now")


@pytest.mark.parametrize(
    ("storage", "law"),
    [
        (_LooksFirst, "one create of a key wins"),
        (_ShowsTornContent, "one create of a key wins"),
        (_Overwrites, "put is exclusive"),
        (_MissingIsEmpty, "missing is an error, never empty"),
        (_ShortRanges, "ranges are exact or an error"),
        (_ListsNothing, "listing"),
        (_DeletesNothing, "deleting"),
        (_LosesTheEnd, "what was written can be read"),
    ],
)
def test_dishonest_storage_is_found_out(storage: Callable[[], Storage], law: str) -> None:
    """Each lie breaks the law that it is about, and the verdict forbids the storage."""
    report = check(storage())
    assert law in broken_laws(report)
    assert law in report.verdict
    assert "must not be used" in report.verdict


def test_scratch_that_cannot_be_deleted_is_reported() -> None:
    """Leftovers are said, with their place."""
    report = check(_CannotDelete())
    assert report.leftovers is not None
    assert "storage-check-" in report.leftovers
    assert "not now" in report.leftovers


def test_unreachable_storage_is_a_report_not_a_crash() -> None:
    """Every law fails with the storage's own error, and no time is measured."""
    storage = FsspecStorage("s3://b/x", {"endpoint_url": "http://127.0.0.1:1", "anon": True})
    report = check(storage, processes=2, rounds=1)
    assert all(not law.passed and "onnect" in law.reason for law in report.laws)
    assert (report.put_ms, report.create_ms, report.get_ms) == (None, None, None)


@pytest.mark.parametrize("sizes", [{"processes": 1}, {"rounds": 0}])
def test_race_without_rivals_is_refused(sizes: dict[str, int]) -> None:
    """A race of one proves nothing."""
    with pytest.raises(InvalidInputError, match="two processes"):
        check(MemoryStorage(), **sizes)
