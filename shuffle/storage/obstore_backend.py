"""Storage on S3 through obstore, a client in Rust: no import of botocore, 0.5 ms of CPU a request.

Strategy: one client per process, bucket and options, shared by all threads, stages and jobs. Its
retries are off. Its errors carry status and code in their text only; `_answer` reads them from
there, and what it cannot read counts as a lost reply, the reading that is safe for writes.

obstore's threads do not survive a fork. A process that was forked after its parent had used obstore
must not use it: there, s3fs serves the same storage. s3fs also lists unfinished uploads and writes
objects above S3's limit for one request.

It must not be used for options that `s3_options.translate` does not know.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from durable_shuffle.shuffle.base.redact import redact
from durable_shuffle.shuffle.storage.contract import (
    MOST_BYTES,
    ByteRange,
    Bytes,
    Created,
    Exists,
    ObjectInfo,
    Storage,
    check_key,
    check_prefix,
    check_range,
    listed_after,
    put_joined,
    too_short,
)
from durable_shuffle.shuffle.storage.errors import (
    Place,
    Verdict,
    judge,
    read_at_most,
    storage_errors,
    translated,
)
from durable_shuffle.shuffle.storage.exclusive_create import create_exclusively
from durable_shuffle.shuffle.storage.fsspec_backend import (
    FsspecStorage,
    no_bulk_delete,
    service_identity,
)
from durable_shuffle.shuffle.storage.process_clients import process_clients
from durable_shuffle.shuffle.storage.s3_options import S3Settings, translate

T = TypeVar("T")

_LIBRARY = "obstore"
_AT_ONCE = 64
"""Most requests of one call in flight."""
_MOST_IN_ONE_PUT = 5 << 30
_DELETE_BATCH = 1000
"""Most keys that S3 takes in one request."""
_STATUS = re.compile(r"Server returned non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_DETAILS = "\n\nDebug source"
_NOT_PARTIAL = "Received non-partial response when range requested"
_NEVER_SENT = "kind: Connect,"


class S3AnswerError(Exception):
    """An error of obstore, with what the server answered in the form that `judge` reads."""

    def __init__(self, text: str, code: str | None, status: int) -> None:
        super().__init__(text)
        self.response = {
            "Error": {"Code": code},
            "ResponseMetadata": {"HTTPStatusCode": status},
        }


class ObstoreStorage:
    """Objects below an S3 URL. See `contract.Storage` for the contract."""

    deletes_per_second = FsspecStorage.deletes_per_second

    def __init__(self, url: str, options: Mapping[str, object], settings: S3Settings) -> None:
        """Bind to `url` without sending a request."""
        self._url, self._options, self._settings = url, dict(options), settings
        self._place = Place(redact(url.rstrip("/")), self._options, self._renew)

    @property
    def description(self) -> str:
        return self._place.root

    @property
    def identity(self) -> str:
        """See `contract.identity_of`."""
        return service_identity(self._url, self._options)

    def read(self, key: str, most_bytes: int = MOST_BYTES) -> bytes:
        check_key(key)
        if (other := self._instead()) is not None:
            return other.read(key, most_bytes)
        return read_at_most(
            self._place, key, most_bytes, lambda length: self._fetched(key, 0, length)
        )

    def read_range(self, key: str, start: int, length: int) -> memoryview:
        return self.read_ranges((ByteRange(key, start, length),))[0]

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        for wanted in ranges:
            check_range(wanted.key, wanted.start, wanted.length)
        if (other := self._instead()) is not None:
            return other.read_ranges(ranges)
        if len(ranges) == 1:
            return [self._range(ranges[0])]
        pool = process_clients().get("threads", _LIBRARY, lambda: ThreadPoolExecutor(_AT_ONCE))
        return list(pool.map(self._range, ranges))

    def put(self, key: str, parts: Sequence[Bytes]) -> None:
        put_joined(self, key, parts)

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        check_key(key)
        other = self._fsspec() if len(data) > _MOST_IN_ONE_PUT else self._instead()
        if other is not None:
            return other.put_if_absent(key, data)
        with storage_errors(self._place, "create", key, write=False):
            store = self._store()  # a failure here has sent nothing
        return create_exclusively(
            lambda: _tried(lambda o: o.put(store, key, data, mode="create", use_multipart=False)),
            lambda: self.read(key, max(len(data), MOST_BYTES)),
            lambda error: translated(error, self._place, "create", key, write=True),
            data,
        )

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self.listed_after(prefix, "")

    def listed_after(self, prefix: str, key: str) -> Iterator[ObjectInfo]:
        """See `contract.listed_after`: the service begins behind `key`."""
        check_prefix(prefix)
        if (other := self._instead()) is not None:
            yield from listed_after(other, prefix, key)
            return
        below = prefix.rstrip("/") or None
        with storage_errors(self._place, "list", prefix, write=False):
            store = self._store()
            pages = _tried(lambda o: list(o.list(store, prefix=below, offset=key or None)))
        found = [info for page in pages for info in page]
        for info in sorted(found, key=lambda info: str(info["path"])):
            path = str(info["path"])
            if path.startswith(prefix) and path > key and not path.endswith("/"):
                yield ObjectInfo(path, info["size"], info["last_modified"].timestamp())

    def folders(self, prefix: str) -> tuple[str, ...]:
        """See `contract.folders_of`."""
        check_prefix(prefix)
        if (other := self._instead()) is not None:
            return other.folders(prefix)
        below = prefix.rstrip("/") or None
        with storage_errors(self._place, "list", prefix, write=False):
            store = self._store()
            found = _tried(lambda o: o.list_with_delimiter(store, prefix=below))
        paths = (str(path).rstrip("/") for path in found["common_prefixes"])
        return tuple(sorted(path.rpartition("/")[2] for path in paths))

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        if (other := self._instead()) is not None:
            other.delete(keys)
            return
        for first in range(0, len(keys), _DELETE_BATCH):
            batch = keys[first : first + _DELETE_BATCH]
            with storage_errors(self._place, "delete", f"{len(batch)} objects", write=True):
                self._delete(batch)

    def temporary_files(self, prefix: str) -> Iterator[ObjectInfo]:
        """Like `FsspecStorage.temporary_files`: obstore lists no unfinished uploads."""
        return self._fsspec().temporary_files(prefix)

    def delete_temporary(self, keys: Sequence[str]) -> None:
        """Like `FsspecStorage.delete_temporary`."""
        self._fsspec().delete_temporary(keys)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, dict[str, object]]]:
        return open_s3, (self._url, self._options)

    def _range(self, wanted: ByteRange) -> memoryview:
        key, start, length = wanted.key, wanted.start, wanted.length
        with storage_errors(self._place, "read", key, write=False):
            if not length:  # the object must exist and reach `start` all the same
                store = self._store()
                size_bytes = int(_tried(lambda o: o.head(store, key))["size"])
                if start <= size_bytes:
                    return memoryview(b"")
                raise too_short(self.description, key, size_bytes, start)
            try:
                content = self._fetched(key, start, length)
            except Exception as error:
                if judge(error) is not Verdict.SHORT:
                    raise
                content = memoryview(b"")
        if len(content) != length:
            raise too_short(self.description, key, start + len(content), start + length)
        return content

    def _fetched(self, key: str, start: int, length: int) -> memoryview:
        """Return the bytes of a range, fewer if the object ends before."""
        store = self._store()
        try:
            (content,) = _tried(
                lambda o: o.get_ranges(store, key, starts=[start], lengths=[length], coalesce=0)
            )
        except _WholeObjectError:  # the service ignores `Range`
            whole = _tried(lambda o: o.get(store, key).bytes())
            return memoryview(whole)[start : start + length]
        return memoryview(content)

    def _delete(self, keys: Sequence[str]) -> None:
        store = self._store()
        try:
            _tried(lambda o: o.delete(store, list(keys)))
        except Exception as error:
            if not no_bulk_delete(error):
                raise
            self._fsspec().delete(keys)  # obstore knows no other request

    def _store(self) -> Any:
        what = (self._url, self._options)
        return process_clients().get(_LIBRARY, what, lambda: _new_store(self._settings))

    def _renew(self) -> None:
        """Have the next call make a client anew, because the credentials of this one expired."""
        what = (self._url, self._options)
        process_clients().drop(_LIBRARY, what, self._store())

    def _instead(self) -> FsspecStorage | None:
        """Return s3fs's storage if this process must not use obstore."""
        return self._fsspec() if process_clients().forked_after_use_of(_LIBRARY) else None

    def _fsspec(self) -> FsspecStorage:
        return FsspecStorage(self._url, self._options)


def open_s3(url: str, options: Mapping[str, object]) -> Storage:
    """Return the storage for an S3 URL: through obstore, or through s3fs if only that will do.

    Raises:
        InvalidInputError: as `FsspecStorage`.
    """
    bucket, _, prefix = url.partition("://")[2].strip("/").partition("/")
    settings = None
    if bucket and find_spec(_LIBRARY) is not None:
        settings = translate(bucket, prefix, options, os.environ)
    if settings is None:
        return FsspecStorage(url, options)
    return ObstoreStorage(url, options, settings)


def _new_store(settings: S3Settings) -> Any:
    from obstore.store import S3Store  # an optional dependency

    given = settings.credentials
    provider = None
    if given is not None:  # a provider, since obstore would join it with a token of the environment
        found = {
            "access_key_id": given["key"],
            "secret_access_key": given["secret"],
            "token": given.get("token"),
            "expires_at": None,
        }
        provider = lambda: found  # noqa: E731
    client = dict(settings.client)
    if settings.ca_bundle:
        client["root_certificate"] = Path(settings.ca_bundle).read_bytes()
    return S3Store(
        settings.bucket,
        prefix=settings.prefix or None,
        config=settings.config,  # type: ignore[arg-type]
        client_options=client,  # type: ignore[arg-type]
        retry_config={"max_retries": 0},
        credential_provider=provider,  # type: ignore[arg-type]
    )


class _WholeObjectError(Exception):
    """The answer to a request for a range held the whole object."""


def _tried(request: Callable[[Any], T]) -> T:
    """Return what a request gives, or raise what the server answered.

    Args:
        request: takes the module obstore.
    """
    import obstore  # an optional dependency

    try:
        return request(obstore)
    except Exception as error:  # noqa: BLE001 - raised in a form that `judge` knows
        raise _answer(error) from None


def _answer(error: Exception) -> Exception:
    """Return what `judge` can read for an error of obstore.

    The text holds status and code of the server's answer. An error without them says whether the
    request was sent; if it does not, the reply counts as lost.
    """
    text = str(error)
    said, _, details = text.partition(_DETAILS)
    status = _STATUS.search(said)
    if status is not None:
        code = _CODE.search(said, status.end())
        return S3AnswerError(said, code[1] if code else None, int(status[1]))
    if _NOT_PARTIAL in said:
        return _WholeObjectError(said)
    if _NEVER_SENT in details:
        return ConnectionRefusedError(said)
    if isinstance(error, TypeError | ValueError):
        return error
    return ConnectionError(f"{type(error).__name__}: {said}")
