"""Every foreign error of the drivers in use becomes one of ours, and the right one."""

import errno
import http.client
import inspect
import socket
import traceback

import aiohttp
import botocore.exceptions
import botocore.parsers
import fsspec.exceptions
import pytest
import s3fs.errors
from botocore.exceptions import ClientError

from durable_shuffle.serialization.errors import (
    ConflictError,
    CorruptDataError,
    DurableShuffleError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.storage.errors import Place, storage_errors

PLACE = Place("s3://bucket/root", {"secret": "hunter2hunter2"})

Kind = type[DurableShuffleError]


def mapped(error: BaseException, *, write: bool) -> DurableShuffleError:
    """Return what a storage raises when its driver raises `error`."""
    with (
        pytest.raises(DurableShuffleError) as caught,
        storage_errors(PLACE, "touch", "job/key", write=write),
    ):
        raise error
    return caught.value


def s3_error(code: str, status: int | None) -> Exception:
    """Return what s3fs raises for an answer of the server: its own error from botocore's."""
    response: dict[str, object] = {"Error": {"Code": code, "Message": "server's words"}}
    if status is not None:
        response["ResponseMetadata"] = {"HTTPStatusCode": status}
    translated: Exception = s3fs.errors.translate_boto_error(ClientError(response, "PutObject"))
    return translated


@pytest.mark.parametrize(
    ("code", "status", "read", "write"),
    [
        ("NoSuchKey", 404, NotFoundError, InvalidInputError),
        ("NoSuchBucket", 404, InvalidInputError, InvalidInputError),
        ("404", 404, NotFoundError, InvalidInputError),
        ("404", None, NotFoundError, InvalidInputError),
        ("PreconditionFailed", 412, ConflictError, ConflictError),
        ("ConditionalRequestConflict", 409, UnavailableError, UnavailableError),
        ("OperationAborted", 409, UnavailableError, UnavailableError),
        ("InvalidRange", 416, CorruptDataError, CorruptDataError),
        ("AccessDenied", 403, InvalidInputError, InvalidInputError),
        ("SignatureDoesNotMatch", 403, InvalidInputError, InvalidInputError),
        ("ExpiredToken", 400, UnavailableError, UnavailableError),
        ("RequestExpired", 400, UnavailableError, UnavailableError),
        ("TokenRefreshRequired", 400, UnavailableError, UnavailableError),
        ("401", 401, UnavailableError, UnavailableError),
        ("400", 400, UnavailableError, UnavailableError),
        ("403", 403, UnavailableError, UnavailableError),
        ("PermanentRedirect", 301, InvalidInputError, InvalidInputError),
        ("NotImplemented", 501, InvalidInputError, InvalidInputError),
        ("EntityTooLarge", 400, InvalidInputError, InvalidInputError),
        ("SlowDown", 503, UnavailableError, UnavailableError),
        ("TooManyRequests", 429, UnavailableError, UnavailableError),
        ("InsufficientStorage", 507, UnavailableError, UnavailableError),
        ("BadDigest", 400, UnavailableError, UnavailableError),
        ("RequestTimeout", 400, UnavailableError, OutcomeUnknownError),
        ("InternalError", 500, UnavailableError, OutcomeUnknownError),
        ("BadGateway", 502, UnavailableError, OutcomeUnknownError),
        ("ServiceUnavailable", 503, UnavailableError, OutcomeUnknownError),
        ("GatewayTimeout", 504, UnavailableError, OutcomeUnknownError),
        ("NoSuchUpload", 404, UnavailableError, OutcomeUnknownError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value),
)
def test_answers_of_s3(code: str, status: int | None, read: Kind, write: Kind) -> None:
    """The server's code and status decide, whatever s3fs made of them."""
    assert type(mapped(s3_error(code, status), write=False)) is read
    assert type(mapped(s3_error(code, status), write=True)) is write


def test_every_code_that_s3fs_knows_is_mapped() -> None:
    """No code leaves as anything but one of ours, and a refusal is never "missing"."""
    for code in s3fs.errors.ERROR_CODE_TO_EXCEPTION:
        kind = type(mapped(s3_error(code, 403), write=False))
        if code in ("BucketAlreadyExists", "BucketAlreadyOwnedByYou"):
            assert kind is ConflictError
        else:
            assert kind in (InvalidInputError, UnavailableError), code


_NEVER_SENT = {
    *("EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError", "SSLError"),
    *("UnauthorizedSSOTokenError", "TokenRetrievalError"),
    *("CredentialRetrievalError", "MetadataRetrievalError", "CapacityNotAvailableError"),
}
_NO_REPLY = {
    *("ConnectionError", "ConnectionClosedError", "HTTPClientError", "ReadTimeoutError"),
    *("IncompleteReadError", "ResponseStreamingError", "ChecksumError", "FlexibleChecksumError"),
    *("ClientError", "EventStreamError"),
}


def test_every_class_of_botocore_is_mapped() -> None:
    """Never sent: try later. No reply: read back. All the rest is a wrong setting or argument."""
    classes = [
        one
        for _, one in inspect.getmembers(botocore.exceptions, inspect.isclass)
        if issubclass(one, Exception) and one.__module__ == "botocore.exceptions"
    ]
    assert len(classes) > 60
    for one in classes:
        error = one.__new__(one)
        near = [family.__name__ for family in one.__mro__]
        known = next((name for name in near if name in _NEVER_SENT | _NO_REPLY), None)
        expected: Kind = InvalidInputError
        if known in _NEVER_SENT:
            expected = UnavailableError
        elif known in _NO_REPLY or not issubclass(one, botocore.exceptions.BotoCoreError):
            expected = OutcomeUnknownError
        if issubclass(one, ValueError | TypeError):
            expected = InvalidInputError
        assert type(mapped(error, write=True)) is expected, one
    assert {one.__name__ for one in classes} >= _NEVER_SENT | _NO_REPLY


@pytest.mark.parametrize(
    ("error", "read", "write"),
    [
        (FileNotFoundError(2, "x"), NotFoundError, InvalidInputError),
        (FileNotFoundError("driver's words"), NotFoundError, InvalidInputError),
        (IsADirectoryError(21, "x"), NotFoundError, InvalidInputError),
        (NotADirectoryError(20, "x"), NotFoundError, InvalidInputError),
        (FileExistsError("x"), ConflictError, ConflictError),
        (PermissionError(13, "x"), InvalidInputError, InvalidInputError),
        (OSError(errno.ENOSPC, "x"), UnavailableError, UnavailableError),
        (OSError(errno.EDQUOT, "x"), UnavailableError, UnavailableError),
        (OSError(errno.EROFS, "x"), InvalidInputError, InvalidInputError),
        (OSError(errno.EIO, "x"), UnavailableError, OutcomeUnknownError),
        (OSError(errno.ESTALE, "x"), UnavailableError, OutcomeUnknownError),
        (OSError("no errno"), UnavailableError, OutcomeUnknownError),
        (OSError(errno.EMFILE, "x"), UnavailableError, UnavailableError),
        (ConnectionRefusedError(111, "x"), UnavailableError, UnavailableError),
        (ConnectionResetError(104, "x"), UnavailableError, OutcomeUnknownError),
        (BrokenPipeError(32, "x"), UnavailableError, OutcomeUnknownError),
        (TimeoutError(), UnavailableError, OutcomeUnknownError),
        (fsspec.exceptions.FSTimeoutError(), UnavailableError, OutcomeUnknownError),
        (socket.gaierror(-2, "x"), UnavailableError, UnavailableError),
        (http.client.IncompleteRead(b""), UnavailableError, OutcomeUnknownError),
        (botocore.parsers.ResponseParserError(), UnavailableError, OutcomeUnknownError),
        (aiohttp.ServerDisconnectedError(), UnavailableError, OutcomeUnknownError),
        (aiohttp.ClientPayloadError(), UnavailableError, OutcomeUnknownError),
        (aiohttp.InvalidURL("x"), InvalidInputError, InvalidInputError),
        (ImportError("x"), InvalidInputError, InvalidInputError),
        (TypeError("x"), InvalidInputError, InvalidInputError),
        (ValueError("x"), InvalidInputError, InvalidInputError),
        (RuntimeError("x"), UnavailableError, OutcomeUnknownError),
    ],
    ids=repr,
)
def test_errors_without_an_answer(error: Exception, read: Kind, write: Kind) -> None:
    """Without a server's answer the class decides, then errno; the unknown is a lost reply."""
    assert type(mapped(error, write=False)) is read
    assert type(mapped(error, write=True)) is write


def test_every_errno_is_mapped() -> None:
    """No errno is taken for a success of any kind, and none leaves as an OSError."""
    for number in errno.errorcode:
        for write in (False, True):
            kind = type(mapped(OSError(number, "x"), write=write))
            assert kind in (
                *(NotFoundError, ConflictError, InvalidInputError),
                *(UnavailableError, OutcomeUnknownError),
            )


class _AzureError(Exception):
    def __init__(self, status_code: int, error_code: str) -> None:
        super().__init__("azure's words")
        self.status_code, self.error_code = status_code, error_code


class _GoogleError(Exception):
    def __init__(self, code: object) -> None:
        super().__init__("google's words")
        self.code = code


@pytest.mark.parametrize(
    ("error", "write"),
    [
        (_AzureError(409, "BlobAlreadyExists"), ConflictError),
        (_AzureError(409, "LeaseAlreadyPresent"), UnavailableError),
        (_AzureError(404, "ContainerNotFound"), InvalidInputError),
        (_AzureError(500, "InternalError"), OutcomeUnknownError),
        (_AzureError(503, "ServerBusy"), OutcomeUnknownError),
        (_GoogleError(412), ConflictError),
        (_GoogleError("429"), UnavailableError),
        (_GoogleError(503), OutcomeUnknownError),
        (_GoogleError(None), OutcomeUnknownError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else repr(vars(value)),
)
def test_answers_of_azure_and_google(error: Exception, write: Kind) -> None:
    """Their exceptions carry the status in attributes, and Azure its code."""
    assert type(mapped(error, write=True)) is write


def test_driver_that_says_exists_over_a_409_means_it() -> None:
    """adlfs raises FileExistsError while it handles Azure's 409."""
    error = FileExistsError("path")
    error.__context__ = _AzureError(409, "")
    assert type(mapped(error, write=True)) is ConflictError


def test_message_names_root_key_and_cause() -> None:
    """A person finds the object, what was tried, and the driver's error."""
    error = mapped(PermissionError(13, "Permission denied"), write=True)
    assert str(error) == (
        "s3://bucket/root: cannot touch job/key: PermissionError: [Errno 13] Permission denied"
    )
    assert isinstance(error.__cause__, PermissionError)


def test_full_disk_says_what_to_do() -> None:
    """Only a person can free space."""
    text = str(mapped(OSError(errno.ENOSPC, "No space left on device"), write=True))
    assert "free space and run again" in text


@pytest.mark.parametrize("depth", [0, 1])
def test_secret_in_an_error_or_its_cause_is_in_no_traceback(depth: int) -> None:
    """A cause that holds a secret is cut off, or every log would print it."""
    error: Exception = OSError("bad key hunter2hunter2")
    if depth:
        outer = OSError("something else")
        outer.__cause__ = error
        error = outer
    ours = mapped(error, write=False)
    assert "hunter2" not in "".join(traceback.format_exception(ours))
    assert "OSError" in str(ours)


def test_our_own_errors_and_interrupts_pass() -> None:
    """What is ours already, or no Exception at all, is left alone."""
    ours = FencedError("epoch 3")
    for error in (ours, KeyboardInterrupt(), MemoryError()):
        with pytest.raises(type(error)) as caught, storage_errors(PLACE, "a", "b", write=True):
            raise error
        assert caught.value is error
