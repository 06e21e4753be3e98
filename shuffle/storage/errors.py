"""What the errors of storage drivers mean, and which of our errors each becomes.

Strategy: `judge` walks the chain of causes from the outermost error inwards. The server's own code
and status decide first; a status that a client made up because it could not read the answer is
ignored. Then the exception's class decides, by name, so that no driver needs to be installed; then
errno. An error that no table knows counts as a lost reply, the only reading that is safe for
writes. `storage_errors` raises our error for that verdict; it depends on whether the request was a
write. Messages name the root and the object and hold no credentials.
"""

import errno
import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import Enum

from durable_shuffle.serialization.errors import (
    ConflictError,
    CorruptDataError,
    DurableShuffleError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.redact import redact
from durable_shuffle.shuffle.storage.contract import too_long


class Verdict(Enum):
    """What is known about the request that failed."""

    MISSING = "the object does not exist"
    EXISTS = "the object exists already"
    RACE = "the server met another write of the same object and did nothing"
    SHORT = "the range lies outside the object"
    INVALID = "the request is wrong or not allowed, trying again is useless"
    FULL = "no space left, nothing was written"
    REFUSED = "nothing was done, trying again can help"
    EXPIRED = "nothing was done, the credentials are no longer valid"
    STRAY = "nothing was done, and the answer says not why"
    UNREADABLE = "the disk or file system cannot give back what it holds"
    LOST = "nobody knows whether it was done"


_READ_ERRORS: Mapping[Verdict, type[DurableShuffleError]] = {
    Verdict.MISSING: NotFoundError,
    Verdict.EXISTS: ConflictError,
    Verdict.RACE: UnavailableError,
    Verdict.SHORT: CorruptDataError,
    Verdict.INVALID: InvalidInputError,
    Verdict.FULL: UnavailableError,
    Verdict.REFUSED: UnavailableError,
    Verdict.EXPIRED: UnavailableError,
    Verdict.STRAY: UnavailableError,
    Verdict.UNREADABLE: UnavailableError,
    Verdict.LOST: UnavailableError,
}
_WRITE_ERRORS: Mapping[Verdict, type[DurableShuffleError]] = {
    **_READ_ERRORS,
    Verdict.MISSING: InvalidInputError,  # the root itself is not there
    Verdict.UNREADABLE: OutcomeUnknownError,
    Verdict.LOST: OutcomeUnknownError,
}
_HINTS = {
    Verdict.FULL: "no space left, nothing was written: free space and run again",
    Verdict.UNREADABLE: "the disk or its file system reports an error",
    Verdict.LOST: "the reply was lost",
    Verdict.EXPIRED: "the credentials are no longer valid, renew them where the driver finds them",
}

_BY_CODE = {
    "NoSuchBucket": Verdict.INVALID,
    "NoSuchUpload": Verdict.LOST,  # the upload was completed or aborted before
    "RequestTimeout": Verdict.LOST,
    "RequestTimeTooSkewed": Verdict.INVALID,
    "ExpiredToken": Verdict.EXPIRED,
    "ExpiredTokenException": Verdict.EXPIRED,
    "TokenRefreshRequired": Verdict.EXPIRED,
    "RequestExpired": Verdict.EXPIRED,
    "SlowDown": Verdict.REFUSED,
    "Throttling": Verdict.REFUSED,
    "ThrottlingException": Verdict.REFUSED,
    "RequestLimitExceeded": Verdict.REFUSED,
    "BadDigest": Verdict.REFUSED,  # damaged in transit
    "IncompleteBody": Verdict.REFUSED,
    "XAmzContentSHA256Mismatch": Verdict.REFUSED,
    "XMinioStorageFull": Verdict.FULL,
    "QuotaExceeded": Verdict.FULL,
    "ContainerNotFound": Verdict.INVALID,
    "BlobAlreadyExists": Verdict.EXISTS,  # Azure says 409 where others say 412
}
"""Codes of S3-like servers and of Azure that say more than their HTTP status."""

_BY_STATUS = {
    304: Verdict.REFUSED,  # of a cache on the way: nobody asks whether an object has changed
    401: Verdict.EXPIRED,
    404: Verdict.MISSING,
    408: Verdict.LOST,
    409: Verdict.RACE,
    410: Verdict.MISSING,
    412: Verdict.EXISTS,
    416: Verdict.SHORT,
    425: Verdict.REFUSED,
    429: Verdict.REFUSED,
    501: Verdict.INVALID,
    507: Verdict.FULL,
}

_STRAY = (400, 403)
"""Statuses by which a service refuses a request, and a proxy on the way drops one. A service gives
a code, too."""

_BY_TYPE = {
    "builtins.FileNotFoundError": Verdict.MISSING,
    "builtins.IsADirectoryError": Verdict.MISSING,
    "builtins.NotADirectoryError": Verdict.MISSING,
    "builtins.FileExistsError": Verdict.EXISTS,
    "builtins.PermissionError": Verdict.INVALID,
    "builtins.ConnectionRefusedError": Verdict.REFUSED,
    "builtins.ConnectionError": Verdict.LOST,
    "builtins.TimeoutError": Verdict.LOST,
    "builtins.ImportError": Verdict.INVALID,
    "builtins.TypeError": Verdict.INVALID,
    "builtins.ValueError": Verdict.INVALID,
    "builtins.KeyError": Verdict.INVALID,
    "builtins.NotImplementedError": Verdict.INVALID,
    "socket.gaierror": Verdict.REFUSED,
    "ssl.SSLCertVerificationError": Verdict.INVALID,
    "http.client.HTTPException": Verdict.LOST,
    # botocore: first requests that were never sent, then missing replies, then wrong settings
    "botocore.exceptions.ConnectTimeoutError": Verdict.REFUSED,
    "botocore.exceptions.ProxyConnectionError": Verdict.REFUSED,
    "botocore.exceptions.SSLError": Verdict.REFUSED,
    "botocore.exceptions.CredentialRetrievalError": Verdict.REFUSED,
    "botocore.exceptions.MetadataRetrievalError": Verdict.REFUSED,
    "botocore.exceptions.CapacityNotAvailableError": Verdict.REFUSED,
    "botocore.exceptions.UnauthorizedSSOTokenError": Verdict.EXPIRED,
    "botocore.exceptions.TokenRetrievalError": Verdict.EXPIRED,
    "botocore.exceptions.ConnectionError": Verdict.LOST,
    "botocore.exceptions.HTTPClientError": Verdict.LOST,
    "botocore.exceptions.ReadTimeoutError": Verdict.LOST,
    "botocore.exceptions.IncompleteReadError": Verdict.LOST,
    "botocore.exceptions.ResponseStreamingError": Verdict.LOST,
    "botocore.exceptions.ChecksumError": Verdict.LOST,
    "botocore.exceptions.FlexibleChecksumError": Verdict.LOST,
    "botocore.exceptions.EventStreamError": Verdict.LOST,
    "botocore.exceptions.ClientError": Verdict.LOST,  # only without a status
    "botocore.exceptions.BotoCoreError": Verdict.INVALID,
    "botocore.parsers.ResponseParserError": Verdict.LOST,
    "aiohttp.client_exceptions.InvalidURL": Verdict.INVALID,
    "aiohttp.client_exceptions.ClientConnectorCertificateError": Verdict.INVALID,
    "aiohttp.client_exceptions.ClientConnectorError": Verdict.REFUSED,
    "aiohttp.client_exceptions.ClientError": Verdict.LOST,
    "requests.exceptions.ConnectTimeout": Verdict.REFUSED,
    "requests.exceptions.RequestException": Verdict.LOST,
    "google.auth.exceptions.TransportError": Verdict.REFUSED,
    "google.auth.exceptions.RefreshError": Verdict.EXPIRED,
    "google.auth.exceptions.GoogleAuthError": Verdict.INVALID,
    "gcsfs.retry.ChecksumError": Verdict.LOST,
    "azure.core.exceptions.ResourceExistsError": Verdict.EXISTS,
    "azure.core.exceptions.AzureError": Verdict.LOST,
}
"""The first class in the exception's method resolution order that stands here decides."""

_UNLESS_CAUSE_KNOWS = {
    "botocore.exceptions.EndpointConnectionError": Verdict.REFUSED,
    "azure.core.exceptions.ServiceRequestError": Verdict.REFUSED,
}
"""The drivers document these as "the request was never sent", but also raise them when aiohttp's
connection was reset during a request. Only the cause tells the two apart."""

_BY_ERRNO = {
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EISDIR), Verdict.MISSING),
    errno.EEXIST: Verdict.EXISTS,
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), Verdict.FULL),
    **dict.fromkeys(
        (
            *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL, errno.ENAMETOOLONG),
            *(errno.ELOOP, errno.EFBIG, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS),
            *(errno.EMLINK, errno.EXDEV, errno.EMSGSIZE, errno.ENOTEMPTY),
        ),
        Verdict.INVALID,
    ),
    **dict.fromkeys(
        (
            *(errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN),
            *(errno.ENETDOWN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS),
            *(errno.EBUSY, errno.EAGAIN),
        ),
        Verdict.REFUSED,
    ),
    **dict.fromkeys((errno.EIO, errno.EBADMSG, errno.EUCLEAN), Verdict.UNREADABLE),
}
"""Every other errno, such as ESTALE or ECONNRESET, is a lost reply."""


def judge(error: BaseException) -> Verdict:
    """Return what `error` and its causes say about the request."""
    if isinstance(error, FileExistsError):  # adlfs raises it from a 409, which elsewhere is a RACE
        return Verdict.EXISTS
    chain = list(error_chain(error))
    for link in chain:
        code, status = server_answer(link)
        if code in _BY_CODE:
            return _BY_CODE[code]
        if status is not None:
            unsaid = status in _STRAY and (code is None or code == str(status))
            return Verdict.STRAY if unsaid else _judge_status(status)
    fallback = Verdict.LOST
    for link in chain:
        names = [f"{family.__module__}.{family.__qualname__}" for family in type(link).__mro__]
        if names[0] in _UNLESS_CAUSE_KNOWS:
            fallback = _UNLESS_CAUSE_KNOWS[names[0]]
            continue
        for name in names:
            if name in _BY_TYPE:
                return _BY_TYPE[name]
        if isinstance(link, OSError) and link.errno in _BY_ERRNO:
            return _BY_ERRNO[link.errno]
    return fallback


def server_answer(error: BaseException) -> tuple[str | None, int | None]:
    """Return the server's code and HTTP status from this exception alone, without its causes.

    Each is None where the exception does not carry it.
    """
    if _is_broken_answer(error) or _is_broken_answer(error.__cause__):
        return None, None
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        code = response.get("Error", {}).get("Code")
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if status is None and str(code).isdigit():
            status = int(str(code))
        return code, status if isinstance(status, int) else None
    named = getattr(error, "error_code", None)  # azure, whose codes are string enums
    code = str(getattr(named, "value", named)) if named else None
    for name in ("status_code", "status", "code"):  # azure, aiohttp, gcsfs
        status = getattr(error, name, None)
        if isinstance(status, str) and status.isdigit():
            status = int(status)
        if isinstance(status, int) and 300 <= status < 600:
            return code, status
    return None, None


def _is_broken_answer(error: BaseException | None) -> bool:
    """Return whether aiohttp reports an answer that was cut off or garbled.

    aiohttp gives such an error, and the error that it raises from it, the status 400, although no
    server sent that status.
    """
    families = type(error).__mro__
    return any(family.__module__ == "aiohttp.http_exceptions" for family in families)


def retry_after(error: BaseException) -> float | None:
    """Return the seconds to wait that the server's Retry-After header asks for, or None.

    A date in that header is compared with the answer's own Date, never with the local clock.
    """
    for link in error_chain(error):
        headers = {name.lower(): value for name, value in _headers(link).items()}
        asked = headers.get("retry-after", "").strip()
        if asked.isdecimal():
            return float(asked[:9])
        if asked:
            until, now = _date(asked), _date(headers.get("date", ""))
            return None if until is None or now is None else max(0.0, until - now)
    return None


def _headers(error: BaseException) -> dict[str, str]:
    """Return the headers of the server's answer from this exception alone, without its causes."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        headers = response.get("ResponseMetadata", {}).get("HTTPHeaders")
    else:  # azure, requests; aiohttp
        headers = getattr(response, "headers", None) or getattr(error, "headers", None)
    try:
        return {str(name): str(value) for name, value in dict(headers or {}).items()}
    except (TypeError, ValueError):
        return {}


def _date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return None


def error_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and its chain of causes, outermost first, each error once."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _judge_status(status: int) -> Verdict:
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return Verdict.LOST if status >= 500 else Verdict.INVALID


@dataclass(frozen=True, slots=True)
class Place:
    """The root that a storage is bound to, in the form that its errors show."""

    root: str
    """Without credentials."""
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    """The storage options; their secret values are masked in every message."""
    renew: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)
    """Called when credentials expired: the next try has a client that asks for new ones."""


def translated(
    error: BaseException, place: Place, action: str, key: str, *, write: bool
) -> DurableShuffleError:
    """Return our error for a driver's error, which becomes the cause if it holds no secret.

    Args:
        action: the verb of the request, for the message and to tell reads.
        key: the object; "" for the root.
        write: whether the request may have changed something: a lost reply is then
            OutcomeUnknownError, else UnavailableError.
    """
    verdict = judge(error)
    kind = (_WRITE_ERRORS if write else _READ_ERRORS)[verdict]
    hint = f"{_HINTS[verdict]}; " if verdict in _HINTS else ""
    text = redact(f"{type(error).__name__}: {error}", place.options)
    ours = kind(f"{place.root}: cannot {action} {key or 'the root'}: {hint}{text}")
    ours.__suppress_context__ = True
    if isinstance(ours, UnavailableError | OutcomeUnknownError):
        ours.retry_after_seconds = math.inf if verdict is Verdict.FULL else retry_after(error)
    if isinstance(ours, UnavailableError):
        ours.unreadable = verdict is Verdict.UNREADABLE and action == "read"
        ours.stray = verdict is Verdict.STRAY
    if verdict is Verdict.EXPIRED:
        place.renew()
    if not _holds_secret(error, place):
        ours.__cause__ = error
    return ours


@contextmanager
def storage_errors(place: Place, action: str, key: str, *, write: bool) -> Iterator[None]:
    """Run one request and raise any driver error as one of ours.

    Put only the driver's call into the body: a bug of our own there would look like an error of the
    storage. Our errors, MemoryError, and a BaseException that is no Exception (KeyboardInterrupt)
    pass unchanged.
    """
    try:
        yield
    except (DurableShuffleError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - the table knows them all
        ours = translated(error, place, action, key, write=write)
        raise ours from ours.__cause__


def read_at_most(
    place: Place, key: str, most_bytes: int, fetch: Callable[[int], bytes | memoryview]
) -> bytes:
    """Return an object of at most `most_bytes`, with one request, however long the object is.

    Args:
        fetch: returns as many bytes of the object from its start on, or all if it has fewer.

    Raises:
        TooLongError: the object is longer.
        DurableShuffleError: what the driver raised, as one of ours.
    """
    with storage_errors(place, "read", key, write=False):
        try:
            data = bytes(fetch(most_bytes + 1))
        except Exception as error:
            if judge(error) is not Verdict.SHORT:
                raise
            data = b""  # the object is empty, so that any range lies outside
    if len(data) > most_bytes:
        raise too_long(place.root, key, len(data), most_bytes)
    return data


def _holds_secret(error: BaseException, place: Place) -> bool:
    for link in error_chain(error):
        text = "".join(traceback.format_exception_only(link))
        if redact(text, place.options) != text:
            return True
    return False
