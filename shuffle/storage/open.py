"""Open the storage that a URL names, or say why nothing serves the URL."""

import re
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

from durable_shuffle.serialization.errors import DurableShuffleError, InvalidInputError
from durable_shuffle.shuffle.base.redact import MASK, redact
from durable_shuffle.shuffle.base.settings import STORAGE_CALL_SECONDS
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.exclusive_create import DRIVERS
from durable_shuffle.shuffle.storage.fsspec_backend import FsspecStorage
from durable_shuffle.shuffle.storage.hdfs import PROTOCOLS as HDFS
from durable_shuffle.shuffle.storage.hdfs import HdfsStorage
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.obstore_backend import open_s3
from durable_shuffle.shuffle.storage.retrying import RetryingStorage, StorageRetries

_WITH_CONTAINER = ("abfs", "abfss", "az")
"""Their URLs may be `abfs://container@account.host/path`."""

_ALMOST_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/?)")
"""A word of two characters or more (a single letter may be a Windows drive) and a colon."""


def open_storage(
    url: str,
    options: Mapping[str, object] | None = None,
    *,
    call_seconds: float = STORAGE_CALL_SECONDS,
) -> RetryingStorage:
    """Return the storage, with retries, for a path or a URL: `file:`, object store or plug-in.

    Sends no request.

    Args:
        url: for example `/data/shuffle`, `file:///data/shuffle`, `s3://bucket/folder`. A relative
            path is resolved in this process.
        options: for the fsspec driver (`key`, `secret`, `endpoint_url`, ...) or the plug-in. A
            folder takes none.
        call_seconds: how long a failing call is retried.

    Raises:
        InvalidInputError: the URL is malformed or holds a password; the protocol has no exclusive
            create; the driver is not installed (the message names what to install); or a folder was
            given options.
    """
    retries = StorageRetries(call_seconds=call_seconds)
    return RetryingStorage(open_backend(url, options or {}), retries)


def _check_authority(protocol: str, rest: str) -> None:
    """Refuse a user, a password or a query in a URL: messages, plans and commands show URLs.

    The message does not show the refused part: it may be a secret or part of one.
    """
    authority = rest.partition("/")[0]
    user, sign, _ = authority.rpartition("@")
    container = protocol in _WITH_CONTAINER and ":" not in user and "@" not in user
    served_here = protocol in DRIVERS or protocol in ("file", "local")
    if (sign and not container) or (served_here and ":" in authority):
        raise InvalidInputError(
            f"{protocol}://{MASK}: a storage URL holds no user and no password; give them as "
            f"storage options"
        )
    if protocol in (*DRIVERS, *HDFS) and ("?" in rest or "#" in rest):
        raise InvalidInputError(
            f"{protocol}://{redact(authority)}/{MASK}: a storage URL has no query; give what it "
            f"says as storage options"
        )


def check_path(url: str) -> None:
    """Refuse a mistyped URL, which would otherwise be opened as a local folder.

    Raises:
        InvalidInputError: for example for `s3:/bucket/folder`.
    """
    match = _ALMOST_URL.match(url)
    if match is None or match[1].lower() == "file":
        return
    if match[2] or match[1].lower() in (*DRIVERS, *HDFS):
        raise InvalidInputError(
            f"{redact(url)}: neither a path nor a URL; did you mean {match[1]}://... ?"
        )


def open_backend(url: str, options: Mapping[str, object]) -> Storage:
    """Return the storage that `open_storage` wraps. It sends each request once."""
    if not isinstance(url, str):
        raise InvalidInputError(f"a storage URL is a text, found={type(url).__name__}")
    shown = redact(url, options)
    if not url or "\0" in url:
        raise InvalidInputError(f"a storage URL is a path or a URL, found={shown!r}")
    if "::" in url:
        raise InvalidInputError(f"{shown}: chained URLs have no exclusive create")
    protocol, separator, rest = url.partition("://")
    if separator:
        _check_authority(protocol, rest)
    else:
        check_path(url)
        protocol, rest = "file", url.removeprefix("file:")
    if protocol in HDFS:
        return HdfsStorage(url, options)
    if protocol not in ("file", "local"):
        plugged = None if protocol in DRIVERS else open_plugin(protocol, url, options)
        if plugged is not None:
            return plugged
        return open_s3(url, options) if protocol in ("s3", "s3a") else FsspecStorage(url, options)
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


GROUP = "durable_shuffle.storage"
"""The group of the entry points. A factory takes (url, options) and returns a `Storage`."""

_NEEDED = ("read", "read_range", "read_ranges", "put", "put_if_absent", "list", "delete")


def open_plugin(protocol: str, url: str, options: Mapping[str, object]) -> Storage | None:
    """Return the storage that a plug-in makes for `url`, or None if no plug-in serves it.

    Raises:
        InvalidInputError: two plug-ins claim the protocol, the plug-in fails, or its factory
            returns no Storage. The message names the plug-in's distribution.
    """
    points = list(entry_points(group=GROUP, name=protocol))
    if not points:
        return None
    if len({point.value for point in points}) > 1:
        names = ", ".join(sorted(_name(point) for point in points))
        raise InvalidInputError(f"{protocol}: more than one plug-in serves it: {names}; keep one")
    who = f"{redact(url, options)}: the storage plug-in {_name(points[0])}"
    try:
        storage = points[0].load()(url, options)
    except DurableShuffleError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it raises, raised as ours
        text = redact(f"{type(error).__name__}: {error}", options)
        raise InvalidInputError(f"{who} does not open it: {text}") from None
    missing = [name for name in _NEEDED if not callable(getattr(storage, name, None))]
    if missing or not isinstance(getattr(storage, "description", None), str):
        raise InvalidInputError(f"{who} gives no Storage: missing={missing or ['description']}")
    return storage  # type: ignore[no-any-return]


def _name(point: EntryPoint) -> str:
    distribution = point.dist.name if point.dist is not None else "(unknown distribution)"
    return f"{distribution} ({point.value})"
