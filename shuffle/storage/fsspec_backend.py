"""Storage on an object store that fsspec has a driver for.

Strategy: one filesystem per process, URL and options, made at first use. A driver made before a
fork would wait forever for the parent's event loop, so every call asks for this process's, and a
pickle carries the URL and the options only. The drivers' listing caches and retries are switched
off. Nothing is tried again here; `RetryingStorage` does that. If credentials expired, the next try
has a new filesystem, which asks for credentials as the first one did. `errors.py` turns the
drivers' errors into ours, and `exclusive_create.py` creates objects.

It must not use fsspec calls that expand patterns or look before they write.
"""

import asyncio
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from fsspec.asyn import sync

from durable_shuffle.serialization.errors import (
    InvalidInputError,
    UnavailableError,
)
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
    put_joined,
    too_short,
)
from durable_shuffle.shuffle.storage.errors import (
    Place,
    Verdict,
    error_chain,
    judge,
    read_at_most,
    server_answer,
    storage_errors,
    translated,
)
from durable_shuffle.shuffle.storage.exclusive_create import (
    check_driver,
    create_exclusively,
    find_driver,
    prepare_filesystem,
    without_retries,
)
from durable_shuffle.shuffle.storage.process_clients import ProcessClients, process_clients

_DELETE_BATCH = 1000
"""Most keys that S3 takes in one request."""

_DELETE_CONCURRENCY = 32
"""Requests in flight for a driver that deletes one object per request."""

_SERVICE = ("endpoint_url", "account_name", "account_host", "connection_string")
"""Options that decide which service a URL leads to."""

_NO_SUCH_REQUEST = (405, 411, 501)
_NOT_SO = ("MissingContentMD5", "InvalidDigest", "InvalidRequest", "MalformedXML")
"""Codes of services that want a bulk delete in another form: with a header `Content-MD5`."""

_UPLOAD_ID = "?uploadId="
"""Between the key and the id of an unfinished upload; no key holds a '?'."""


class FsspecStorage:
    """Objects below an object store's URL. See `contract.Storage` for the contract."""

    deletes_per_second = 3000
    """The rate that S3 accepts per prefix, and others per bucket. `RetryingStorage` limits deletes
    to it."""

    def __init__(
        self,
        url: str,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """Bind to `url`, such as `s3://bucket/folder`, without sending a request.

        Args:
            options: passed to the driver.

        Raises:
            InvalidInputError: the protocol has no exclusive create, the URL names no bucket, or the
                driver is missing or too old.
        """
        protocol, _, path = url.partition("://")
        self._url, self._options = url, dict(options or {})
        self._place = Place(redact(url.rstrip("/")), self._options, self._renew)
        self._driver = find_driver(protocol)
        if not path.strip("/"):
            raise InvalidInputError(f"{self._place.root}: the URL names no bucket")
        try:
            filesystem_class = self._driver.load_class()
        except ImportError as error:
            raise InvalidInputError(
                f"{self._place.root}: needs {self._driver.name}; "
                f"pip install 'durable-shuffle[{self._driver.extra}]'"
            ) from error
        check_driver(self._driver, filesystem_class)
        self._current: tuple[ProcessClients, Any, str] | None = None

    @property
    def description(self) -> str:
        return self._place.root

    @property
    def identity(self) -> str:
        """See `contract.identity_of`."""
        return service_identity(self._url, self._options)

    def read(self, key: str, most_bytes: int = MOST_BYTES) -> bytes:
        check_key(key)
        arguments = self._driver.read_arguments

        def fetch(length: int) -> bytes:
            filesystem, root = self._connect()
            found: bytes = filesystem.cat_file(f"{root}/{key}", start=0, end=length, **arguments)
            return found

        return read_at_most(self._place, key, most_bytes, fetch)

    def read_range(self, key: str, start: int, length: int) -> memoryview:
        return self.read_ranges((ByteRange(key, start, length),))[0]

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        for wanted in ranges:
            check_range(wanted.key, wanted.start, wanted.length)
        filled = [wanted for wanted in ranges if wanted.length]
        contents: Iterator[bytes | Exception] = iter(())
        if filled:
            with storage_errors(self._place, "read", filled[0].key, write=False):
                filesystem, root = self._connect()
                contents = iter(
                    filesystem.cat_ranges(
                        [f"{root}/{r.key}" for r in filled],
                        [r.start for r in filled],
                        [r.start + r.length for r in filled],
                        on_error="return",
                    )
                )
        return [self._checked(r, next(contents) if r.length else None) for r in ranges]

    def put(self, key: str, parts: Sequence[Bytes]) -> None:
        put_joined(self, key, parts)

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        check_key(key)
        with storage_errors(self._place, "create", key, write=False):
            filesystem, root = self._connect()  # a failure here has sent nothing
        return create_exclusively(
            lambda: filesystem.pipe_file(f"{root}/{key}", data, **self._driver.create_arguments),
            lambda: self.read(key, max(len(data), MOST_BYTES)),
            lambda error: translated(error, self._place, "create", key, write=True),
            data,
        )

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        with storage_errors(self._place, "list", prefix, write=False):
            filesystem, root = self._connect()
            try:
                entries = filesystem.find(f"{root}/{prefix}".rstrip("/"), detail=True)
            except Exception as error:
                if judge(error) is not Verdict.MISSING:
                    raise
                entries = {}
        for path, info in sorted(entries.items()):
            key = path.removeprefix(f"{root}/")
            if info["type"] == "file" and key.startswith(prefix) and not key.endswith("/"):
                yield ObjectInfo(key, info["size"], _modified(info))

    def folders(self, prefix: str) -> tuple[str, ...]:
        """See `contract.folders_of`: one request for 1,000 folders, whatever they hold."""
        check_prefix(prefix)
        with storage_errors(self._place, "list", prefix, write=False):
            filesystem, root = self._connect()
            try:
                entries = filesystem.ls(f"{root}/{prefix}".rstrip("/"), detail=True)
            except Exception as error:
                if judge(error) is not Verdict.MISSING:
                    raise
                entries = []
        paths = (e["name"].rstrip("/") for e in entries if e["type"] == "directory")
        return tuple(sorted({path.rpartition("/")[2] for path in paths}))

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        for first in range(0, len(keys), _DELETE_BATCH):
            batch = keys[first : first + _DELETE_BATCH]
            with storage_errors(self._place, "delete", f"{len(batch)} objects", write=True):
                filesystem, root = self._connect()
                if self._driver.name == "s3fs":
                    self._delete_on_s3(filesystem, root, batch)
                else:
                    _delete_singly(filesystem, [f"{root}/{key}" for key in batch])

    def temporary_files(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the unfinished multipart uploads below `prefix`, as `<key>?uploadId=<id>`.

        The writer of such an upload is still at work or was killed. The storage keeps the parts and
        charges for them. Sizes are unknown and given as 0. Only S3 lists them; GCS and Azure drop
        theirs after a week, so other drivers yield nothing.

        Raises:
            InvalidInputError: no permission to list them (s3:ListBucketMultipartUploads).
        """
        check_prefix(prefix)
        if self._driver.name != "s3fs":
            return
        with storage_errors(self._place, "list unfinished uploads below", prefix, write=False):
            filesystem, root = self._connect()
            uploads = list(_unfinished_uploads(filesystem, root, prefix))
        yield from uploads

    def delete_temporary(self, keys: Sequence[str]) -> None:
        """Abort uploads that `temporary_files` listed; a missing upload is fine.

        If its writer is still at work, that write fails and leaves nothing behind.

        Raises:
            InvalidInputError: a key is not the name of an upload.
        """
        uploads = [_parse_upload(key) for key in keys]
        for key, upload in uploads:
            check_key(key)
            with storage_errors(self._place, "call off the upload of", key, write=True):
                filesystem, root = self._connect()
                _call_off(filesystem, root, key, upload)

    def __reduce__(self) -> tuple[type["FsspecStorage"], tuple[str, dict[str, object]]]:
        return FsspecStorage, (self._url, self._options)

    def _connect(self) -> tuple[Any, str]:
        """Return this process's filesystem and the root's path in it."""
        clients, current = process_clients(), self._current
        if current is None or current[0] is not clients:
            what = (self._url, self._options)
            current = (clients, *clients.get(self._driver.name, what, self._new_filesystem))
            self._current = current
        return current[1:]

    def _new_filesystem(self) -> tuple[Any, str]:
        options = without_retries(self._driver, self._options)
        options.update(skip_instance_cache=True, use_listings_cache=False)
        made = self._driver.load_class()
        said = made._get_kwargs_from_urls(self._url)  # noqa: SLF001 - as fsspec's `url_to_fs`
        filesystem = made(**{k: v for k, v in said.items() if options.get(k) != v}, **options)
        prepare_filesystem(self._driver, filesystem)
        path: str = made._strip_protocol(self._url)  # noqa: SLF001
        return filesystem, path.rstrip("/")

    def _renew(self) -> None:
        """Have the next call make a filesystem anew, because the credentials of this one expired.

        Other threads end their calls with the old one.
        """
        current, self._current = self._current, None
        if current is not None:
            clients, *mine = current
            clients.drop(self._driver.name, (self._url, self._options), tuple(mine))

    def _checked(self, wanted: ByteRange, content: bytes | Exception | None) -> memoryview:
        """Return the bytes of one range, or raise the error that it met.

        Args:
            content: the bytes or error of the request; None for a range of length 0, for which no
                request was sent.
        """
        if content is None:  # the object must exist and reach `start` all the same
            with storage_errors(self._place, "read", wanted.key, write=False):
                filesystem, root = self._connect()
                info = filesystem.info(f"{root}/{wanted.key}")
                if info["type"] != "file":
                    raise FileNotFoundError(wanted.key)
            size_bytes = int(info["size"])
            if wanted.start <= size_bytes:
                return memoryview(b"")
            found = size_bytes
        elif isinstance(content, Exception):
            raise translated(content, self._place, "read", wanted.key, write=False)
        elif len(content) == wanted.length:
            return memoryview(content)
        elif len(content) >= wanted.start + wanted.length:  # the whole: `Range` was ignored
            return memoryview(content)[wanted.start : wanted.start + wanted.length]
        elif len(content) > wanted.length:
            found = len(content)
        else:
            found = wanted.start + len(content)
        raise too_short(self.description, wanted.key, found, wanted.start + wanted.length)

    def _delete_on_s3(self, filesystem: Any, root: str, keys: Sequence[str]) -> None:
        """Delete a batch and check the reply, which s3fs's own `rm` ignores."""
        bucket, folder, _ = filesystem.split_path(root)
        names = [{"Key": f"{folder}/{key}" if folder else key} for key in keys]
        try:
            reply = filesystem.call_s3(
                "delete_objects", Bucket=bucket, Delete={"Objects": names, "Quiet": True}
            )
        except Exception as error:
            if not no_bulk_delete(error):
                raise
            _delete_singly(filesystem, [f"{root}/{key}" for key in keys])
            return
        for failure in reply.get("Errors", ()):
            denied = failure.get("Code") == "AccessDenied"
            raise (InvalidInputError if denied else UnavailableError)(
                f"{self.description}: cannot delete {failure.get('Key')}: {failure.get('Code')} "
                f"{redact(str(failure.get('Message')), self._options)}"
            )


def service_identity(url: str, options: Mapping[str, object]) -> str:
    """Return what tells this storage from others: the URL, and the options that name the service.

    It holds no credentials.
    """
    nested = options.get("client_kwargs")
    given = {**(nested if isinstance(nested, Mapping) else {}), **options}
    named = repr([(name, given[name]) for name in _SERVICE if given.get(name)])
    return f"{url.rstrip('/')} {hashlib.sha256(named.encode()).hexdigest()}"


def _delete_singly(filesystem: Any, paths: Sequence[str]) -> None:
    """Delete with one request per object, several in flight; a missing object is fine."""

    async def delete_all() -> list[BaseException | None]:
        limit = asyncio.Semaphore(_DELETE_CONCURRENCY)

        async def delete_one(path: str) -> None:
            async with limit:
                await filesystem._rm_file(path)  # noqa: SLF001 - the documented coroutine twin

        return await asyncio.gather(*map(delete_one, paths), return_exceptions=True)

    for outcome in sync(filesystem.loop, delete_all):
        if isinstance(outcome, Exception) and judge(outcome) is not Verdict.MISSING:
            raise outcome


def _modified(info: Mapping[str, Any]) -> float:
    """Return the time of the last write in seconds since 1970, or 0 if the driver lists none."""
    for name in ("LastModified", "last_modified", "mtime", "updated"):
        modified = info.get(name)
        if isinstance(modified, (int, float)):
            return float(modified)
        if isinstance(modified, datetime):
            return modified.timestamp()
    return 0.0


def _unfinished_uploads(filesystem: Any, root: str, prefix: str) -> Iterator[ObjectInfo]:
    """Yield the unfinished uploads below `prefix`; none if the server cannot list them."""
    bucket, folder, _ = filesystem.split_path(root)
    above = f"{folder}/" if folder else ""
    more: dict[str, str] = {}
    while True:  # ends: every page starts after the one before
        try:
            page = filesystem.call_s3(
                "list_multipart_uploads", Bucket=bucket, Prefix=above + prefix, **more
            )
        except Exception as error:
            if http_status(error) == 501:  # a server that has no such request
                return
            raise
        for upload in page.get("Uploads", ()):
            key = upload["Key"].removeprefix(above)
            name = f"{key}{_UPLOAD_ID}{upload['UploadId']}"
            yield ObjectInfo(name, 0, upload["Initiated"].timestamp())
        if not page.get("IsTruncated"):
            return
        more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}


def _parse_upload(name: str) -> tuple[str, str]:
    """Return (key, upload id) from a name that `temporary_files` yielded."""
    key, mark, upload = name.partition(_UPLOAD_ID)
    if not mark or not upload:
        raise InvalidInputError(f"not an unfinished upload: {name!r}")
    return key, upload


def _call_off(filesystem: Any, root: str, key: str, upload: str) -> None:
    """Abort an upload, which deletes its parts; a missing upload is fine."""
    bucket, folder, _ = filesystem.split_path(root)
    whole = f"{folder}/{key}" if folder else key
    try:
        filesystem.call_s3("abort_multipart_upload", Bucket=bucket, Key=whole, UploadId=upload)
    except Exception as error:
        if http_status(error) != 404:
            raise


def no_bulk_delete(error: Exception) -> bool:
    """Return whether a service refused a bulk delete that it does not know, or not in this form.

    The S3 interface of Google's storage lacks it; older services demand a digest that no driver of
    today sends.
    """
    answers = [server_answer(link) for link in error_chain(error)]
    return any(code in _NOT_SO or status in _NO_SUCH_REQUEST for code, status in answers)


def http_status(error: Exception) -> int | None:
    """Return the status of the server's answer, None if there was none."""
    answers = (server_answer(link)[1] for link in error_chain(error))
    return next((status for status in answers if status is not None), None)
