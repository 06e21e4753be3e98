"""Storage on HDFS through hdfs-native, a client in Rust: no JVM, no libhdfs.

Strategy: write an object under a hidden name in its final folder, sync and close it, and rename it.
The namenode's rename without overwrite is one edit of its log: it fails if the name is taken, and
the name appears with the whole file. This is the exclusive create. The client itself repeats a
request whose connection broke, so a rename that won may be answered "no such file" or "exists";
both are settled by reading the object back, as everywhere.

Reads go to the active namenode. Observers are switched off for the nameservice in the URL, since
they may lag behind.

Not guaranteed: speed of small writes. hdfs-native waits 0.5 s if the namenode does not yet know the
last block when a file is closed, which happens nearly always. Writes of several tasks or threads
wait side by side. A namenode that was deposed without fencing may answer reads late, never let two
creates win.
"""

import errno
import hashlib
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, TypeVar
from urllib.parse import urlsplit

from durable_shuffle.serialization.errors import (
    DurableShuffleError,
    InvalidInputError,
)
from durable_shuffle.shuffle.base.clock import IdSource, RandomIds
from durable_shuffle.shuffle.base.redact import redact
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
    check_temporary,
    is_temporary,
    put_joined,
    temporary_name,
    too_long,
    too_short,
)
from durable_shuffle.shuffle.storage.errors import Place, storage_errors, translated
from durable_shuffle.shuffle.storage.exclusive_create import create_exclusively
from durable_shuffle.shuffle.storage.process_clients import process_clients

T = TypeVar("T")

PROTOCOLS = ("hdfs", "viewfs")
_LIBRARY = "hdfs_native"
_LISTINGS = 3
"""Tries of a listing during which a folder came or went."""
_AT_ONCE = 16
"""Most requests of one call in flight."""
_PLAIN_FAILOVER = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
_FEW_TRIES = {"dfs.client.failover.max.attempts": "2"}
"""By default the client tries 15 times, for minutes. Each namenode has to be asked once."""
_ANSWERS: tuple[tuple[tuple[str, ...], Callable[[str], Exception]], ...] = (
    (("QuotaExceeded", "could only be written to 0"), lambda t: OSError(errno.ENOSPC, t)),
    (("is not a directory", "InvalidPath", "NotDirectory", "NotEmptyDirectory"), ValueError),
    (("AccessControlException", "AuthorizationException"), PermissionError),
    (("SafeModeException", "StandbyException"), ConnectionRefusedError),
)
"""What stands in an error's text -> the exception that `judge` reads. Any other text is a lost
reply."""
_EXPIRED = ("InvalidToken", "token is expired", "SaslException", "GSSAPI")


class HdfsAnswerError(Exception):
    """The credentials are no longer valid. It has the form that `judge` reads."""

    status = 401


class HdfsStorage:
    """Objects below an HDFS URL. See `contract.Storage` for the contract."""

    own_create = True

    def __init__(
        self, url: str, options: Mapping[str, object], ids: IdSource | None = None
    ) -> None:
        """Bind to `url` without sending a request.

        Args:
            url: `hdfs://namenode:port/folder`, `hdfs://nameservice/folder`, `viewfs://...`.
            options: Hadoop settings, which go before those of HADOOP_CONF_DIR.

        Raises:
            InvalidInputError: the URL names no server or no folder, or hdfs-native is missing.
        """
        parts = urlsplit(url)
        shown = redact(url, options)
        self._root = parts.path.rstrip("/")
        if not parts.netloc or not self._root:
            raise InvalidInputError(
                f"{shown}: expected {parts.scheme}://namenode:port/folder or "
                f"{parts.scheme}://nameservice/folder"
            )
        if find_spec(_LIBRARY) is None:
            raise InvalidInputError(
                f"{shown}: hdfs-native is not installed; pip install 'durable-shuffle[hdfs]'"
            )
        self._url, self._options = url.rstrip("/"), dict(options)
        self._server = f"{parts.scheme}://{parts.netloc}"
        host = parts.netloc.rpartition("@")[2]  # as it is written: names have a case
        nameservice = host.partition(":")[0]
        provider = f"dfs.client.failover.proxy.provider.{nameservice}"
        given = {name: str(value) for name, value in options.items()}
        self._settings = {**_FEW_TRIES, **given, provider: _PLAIN_FAILOVER}
        self._place = Place(redact(self._url), self._options, self._renew)
        self._ids = ids or RandomIds()

    @property
    def description(self) -> str:
        return self._place.root

    @property
    def identity(self) -> str:
        """See `contract.identity_of`."""
        settings = hashlib.sha256(repr(sorted(self._settings.items())).encode())
        return f"{self._url} {settings.hexdigest()}"

    def read(self, key: str, most_bytes: int = MOST_BYTES) -> bytes:
        check_key(key)
        with storage_errors(self._place, "read", key, write=False):
            file = self._opened(key)
            if len(file) <= most_bytes:
                return bytes(_tried(lambda: file.read_range(0, len(file)))) if len(file) else b""
        raise too_long(self.description, key, len(file), most_bytes)

    def read_range(self, key: str, start: int, length: int) -> memoryview:
        check_range(key, start, length)
        with storage_errors(self._place, "read", key, write=False):
            file = self._opened(key)
            content = b""
            if length and start + length <= len(file):
                content = bytes(_tried(lambda: file.read_range(start, length)))
        if start + length > len(file) or len(content) != length:
            raise too_short(self.description, key, len(file), start + length)
        return memoryview(content)

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        return _together(lambda r: self.read_range(r.key, r.start, r.length), ranges)

    def put(self, key: str, parts: Sequence[Bytes]) -> None:
        put_joined(self, key, parts)

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        check_key(key)
        path = self._path(key)
        hidden = posixpath.join(posixpath.dirname(path), temporary_name(self._ids.new_id()))
        try:
            with storage_errors(self._place, "create", key, write=False):
                self._write(hidden, data)
            return create_exclusively(
                lambda: self._rename(hidden, path),
                lambda: self.read(key, max(len(data), MOST_BYTES)),
                lambda error: translated(error, self._place, "create", key, write=True),
                data,
            )
        finally:  # after a lost reply, too: it was renamed, or it can no longer be
            with suppress(Exception):
                self._client().delete(hidden, recursive=False)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return (info for info in self._files(prefix) if not _is_hidden(info.key))

    def folders(self, prefix: str) -> tuple[str, ...]:
        """See `contract.folders_of`."""
        check_prefix(prefix)
        found = [status.path for status in self._listed(prefix, deep=False) if status.isdir]
        return tuple(sorted(posixpath.basename(path) for path in found if not _is_hidden(path)))

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        _together(self._delete, keys)

    def remove_empty_folders(self, prefix: str) -> None:
        """Like `LocalStorage.remove_empty_folders`: empty folders cost the namenode memory."""
        check_prefix(prefix)
        below = [status.path for status in self._listed(prefix, deep=True) if status.isdir]
        for path in (*sorted(below, key=len, reverse=True), self._path(prefix).rstrip("/")):
            with suppress(Exception):  # not empty
                self._client().delete(path, recursive=False)

    def temporary_files(self, prefix: str) -> Iterator[ObjectInfo]:
        """Like `LocalStorage.temporary_files`."""
        return (info for info in self._files(prefix) if _is_hidden(info.key))

    def delete_temporary(self, keys: Sequence[str]) -> None:
        """Like `LocalStorage.delete_temporary`."""
        check_temporary(keys)
        _together(self._delete, keys)

    def __reduce__(self) -> tuple[type["HdfsStorage"], tuple[str, dict[str, object]]]:
        return HdfsStorage, (self._url, self._options)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _opened(self, key: str) -> Any:
        try:
            return _tried(lambda: self._client().read(self._path(key)))
        except ValueError as error:  # a folder of the name is a file: there is no such object
            raise FileNotFoundError(str(error)) from None

    def _write(self, hidden: str, data: bytes) -> None:
        """Write, sync and close a file that nobody looks for."""
        from hdfs_native import WriteOptions

        try:
            file = _tried(lambda: self._client().create(hidden, WriteOptions(create_parent=True)))
            if data:
                _tried(lambda: file.write(data))
                self._sync(file)
            _tried(file.close)
        except (FileExistsError, FileNotFoundError) as error:  # the client repeated itself
            raise ConnectionError(str(error)) from None

    def _sync(self, file: Any) -> None:
        try:
            _tried(file.hsync)
        except Exception as error:
            if "rasure" not in str(error):  # erasure-coded files cannot be synced, only closed
                raise

    def _rename(self, hidden: str, path: str) -> None:
        try:
            _tried(lambda: self._client().rename(hidden, path, overwrite=False))
        except FileNotFoundError as error:
            # an earlier try of the client itself renamed it, or `gc` took it
            raise ConnectionError(str(error)) from None

    def _delete(self, key: str) -> None:
        with (
            storage_errors(self._place, "delete", key, write=True),
            suppress(FileNotFoundError),
        ):
            try:
                _tried(lambda: self._client().delete(self._path(key), recursive=False))
            except ValueError as error:
                if "is not a directory" not in str(error):
                    raise

    def _files(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        for status in self._listed(prefix, deep=True):
            key = status.path.removeprefix(f"{self._root}/")
            if not status.isdir and key.startswith(prefix):
                yield ObjectInfo(key, status.length, status.modification_time / 1000)

    def _listed(self, prefix: str, *, deep: bool) -> Sequence[Any]:
        """Return what stands below a folder, sorted by path; nothing if there is no such folder."""
        path = self._path(prefix).rstrip("/")
        with storage_errors(self._place, "list", prefix, write=False):
            missed = ""
            for _ in range(_LISTINGS):
                try:
                    found = _tried(lambda: list(self._client().list_status(path, deep)))
                except (FileNotFoundError, ValueError) as error:
                    missed = str(error)
                    try:
                        if not _tried(lambda: self._client().get_file_info(path)).isdir:
                            return ()
                    except FileNotFoundError:
                        return ()
                else:
                    return sorted(found, key=lambda status: str(status.path))
            raise ConnectionError(missed)  # folders come and go

    def _client(self) -> Any:
        what = (self._url, self._options)
        return process_clients().get(_LIBRARY, what, self._new_client)

    def _new_client(self) -> Any:
        from hdfs_native import Client

        try:
            return Client(self._server, self._settings)
        except RuntimeError as error:
            if "fallback" not in str(error):
                raise
            name = f"fs.viewfs.mounttable.{urlsplit(self._server).netloc}.linkFallback"
            raise InvalidInputError(
                f"{self.description}: hdfs-native opens no mount table without a fallback; set "
                f"{name} to a namenode's URL, in core-site.xml or in the storage options"
            ) from None

    def _renew(self) -> None:
        """Have the next call make a client anew, which reads tokens and tickets again."""
        process_clients().drop(_LIBRARY, (self._url, self._options), self._client())


def _is_hidden(key: str) -> bool:
    return is_temporary(posixpath.basename(key))


def _together(call: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
    """Return what a call gives for each item, several at a time."""
    if len(items) < 2:
        return [call(item) for item in items]
    pool = process_clients().get("threads", _LIBRARY, lambda: ThreadPoolExecutor(_AT_ONCE))
    return list(pool.map(call, items))


def _tried(request: Callable[[], T]) -> T:
    """Return what a request gives, or raise what `judge` can read."""
    try:
        return request()
    except (DurableShuffleError, FileExistsError, FileNotFoundError, IsADirectoryError):
        raise
    except Exception as error:  # noqa: BLE001 - raised in a form that `judge` knows
        raise _answer(error) from None


def _answer(error: Exception) -> Exception:
    text = f"{type(error).__name__}: {error}"
    if any(word in text for word in _EXPIRED):
        return HdfsAnswerError(text)
    for words, kind in _ANSWERS:
        if any(word in text for word in words):
            return kind(text)
    return ConnectionError(text)
