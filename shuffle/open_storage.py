"""From a URL to a storage: which class serves it, or why nothing does."""

from collections.abc import Mapping

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.exclusive_create import DRIVERS
from durable_shuffle.shuffle.fsspec_storage import FsspecStorage
from durable_shuffle.shuffle.local_storage import LocalStorage
from durable_shuffle.shuffle.redact import redact
from durable_shuffle.shuffle.retrying_storage import RetryingStorage, StorageRetries
from durable_shuffle.shuffle.settings import STORAGE_CALL_SECONDS
from durable_shuffle.shuffle.storage import Storage
from durable_shuffle.shuffle.storage_plugins import open_plugin


def open_storage(
    url: str,
    options: Mapping[str, object] | None = None,
    *,
    call_seconds: float = STORAGE_CALL_SECONDS,
) -> RetryingStorage:
    """Return the storage for a path, a `file:` URL, an object store's or a plug-in's URL, with
    retries.

    Sends no request.

    Args:
        url: for example `/data/shuffle`, `file:///data/shuffle`, `s3://bucket/folder`. A relative
            path is resolved in this process.
        options: for the fsspec driver (`key`, `secret`, `endpoint_url`, ...); none for folders.
        call_seconds: how long one call is tried again.

    Raises:
        InvalidInputError: no exclusive create over this protocol, a driver that is not installed
            (the message names what to install), or options for a folder.
    """
    retries = StorageRetries(call_seconds=call_seconds)
    return RetryingStorage(open_backend(url, options or {}), retries)


def open_backend(url: str, options: Mapping[str, object]) -> Storage:
    """Return the storage that `open_storage` wraps: each call is one request."""
    shown = redact(url, options)
    if not url or "\0" in url:
        raise InvalidInputError(f"a storage URL is a path or a URL, found={shown!r}")
    if "::" in url:
        raise InvalidInputError(f"{shown}: chained URLs have no exclusive create")
    protocol, separator, rest = url.partition("://")
    if not separator:
        protocol, rest = "file", url.removeprefix("file:")
    if protocol not in ("file", "local"):
        plugged = None if protocol in DRIVERS else open_plugin(protocol, url, options)
        return FsspecStorage(url, options) if plugged is None else plugged
    if options:
        raise InvalidInputError(f"{shown}: a folder takes no options, found={sorted(options)}")
    if separator:
        host, slash, path = rest.partition("/")
        if host not in ("", "localhost"):
            raise InvalidInputError(
                f"{shown}: names the host {host!r}; write file:///path for a folder of this one"
            )
        rest = slash + path
    if not rest:
        raise InvalidInputError(f"{shown}: the URL names no folder")
    return LocalStorage(rest)
